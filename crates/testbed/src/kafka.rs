//! A Kafka server, broker and controller in one process (KRaft): its properties, its storage, and its readiness
//! probe.
//!
//! The server is one node with one copy of everything. Its second port, the controller's, is used by the server
//! itself only, but has to stay the same over restarts like the first: it is stored in the quorum.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::binary::KafkaFiles;
use crate::certificates::Certificates;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::port::Port;
use crate::process;
use crate::wire;

/// Cluster id that is written to the server's storage. It is constant, because a testbed's storage is never joined
/// with another cluster's.
const CLUSTER_ID: &str = "aW1hZ28tdGVzdGJlZC0tMQ";
/// Time allowed to format the server's storage, which starts one Java program.
const FORMAT_BOUND: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// SASL mechanisms for which Kafka stores a key derived from the user's password instead of the password.
const SCRAM: [&str; 2] = ["SCRAM-SHA-256", "SCRAM-SHA-512"];

/// Content of the log4j2 configuration of a Kafka server: INFO and above to standard output.
const LOGGING: &str = "\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c{1})%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
";

/// Requirements of the secured second listener: clients connect over TLS with a certificate of the authority, and log
/// in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KafkaSecurity {
    /// Certificate of the broker, and the authority that signed it and the clients' certificates.
    pub certificates: Certificates,
    /// Name of the only user, who can log in by PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.
    pub user: String,
    /// Password of this user.
    pub password: String,
}

/// Settings of one Kafka server: its files, its memory limit, and the ports other than the one in its [`Place`].
#[derive(Debug)]
pub(crate) struct Kafka {
    pub(crate) installed: KafkaFiles,
    heap_mb: u32,
    controller: Port,
    /// Requirements of the secured second listener, and its port; `None` if there is no such listener.
    secured: Option<(KafkaSecurity, Port)>,
}

impl Kafka {
    pub(crate) fn new(
        installed: KafkaFiles,
        heap_mb: u32,
        secured: Option<KafkaSecurity>,
    ) -> Result<Self> {
        let controller = Port::reserve()?;
        let secured = secured.map(|security| Ok::<_, Error>((security, Port::reserve()?)));
        Ok(Self { installed, heap_mb, controller, secured: secured.transpose()? })
    }

    /// Returns the port of the second listener, which demands TLS and authentication; `None` if there is no such
    /// listener.
    pub(crate) fn secured_port(&self) -> Option<u16> {
        self.secured.as_ref().map(|(_, port)| port.number())
    }

    /// Writes the server's properties files and formats its storage, with the user of the second listener if there is
    /// one.
    pub(crate) async fn prepare(&self, place: &Place) -> Result<()> {
        for (file, content) in [
            (properties_file(place), self.properties(place)),
            (logging_file(place), LOGGING.into()),
        ] {
            let doing = format!("write {}", file.display());
            std::fs::write(&file, content).map_err(Error::io(doing))?;
        }
        let mut format = self.java(place)?;
        format
            .args(["kafka.tools.StorageTool", "format", "--ignore-formatted"])
            .args(["--cluster-id", CLUSTER_ID, "--config"])
            .arg(properties_file(place))
            .current_dir(&place.folder);
        if let Some((KafkaSecurity { user, password, .. }, _)) = &self.secured {
            for mechanism in SCRAM {
                format.args([
                    "--add-scram",
                    &format!("{mechanism}=[name={user},password={password}]"),
                ]);
            }
        }
        let doing = || format!("format Kafka's storage {}", place.data.display());
        let mut formatting = Formatting(process::spawn(format).map_err(Error::io(doing()))?);
        let started = Instant::now();
        loop {
            if let Some(status) = formatting.0.try_wait().map_err(Error::io(doing()))? {
                let ended = || Error::server_ended("Kafka's StorageTool", status, &place.log);
                return if status.success() { Ok(()) } else { Err(ended()) };
            }
            if started.elapsed() > FORMAT_BOUND {
                return Err(Error::TimedOut {
                    what: "Kafka's StorageTool to format its storage".into(),
                    bound_s: FORMAT_BOUND.as_secs(),
                    last: format!("it still ran; its output is in {}", place.log.display()),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    pub(crate) fn command(&self, place: &Place) -> Result<Command> {
        let mut command = self.java(place)?;
        command.arg("kafka.Kafka").arg(properties_file(place));
        Ok(command)
    }

    /// Returns a command that runs Java with Kafka's classes and bounded memory; its output is appended to the
    /// server's log.
    fn java(&self, place: &Place) -> Result<Command> {
        let (output, errors) = place.log_output()?;
        let mut command = Command::new(&self.installed.java);
        command
            .arg(format!("-Xmx{}m", self.heap_mb))
            .args(["-XX:MaxDirectMemorySize=64m", "-XX:+UseSerialGC"])
            // Without this option Java's own trace files would stay in the system's temporary folder.
            .arg("-XX:-UsePerfData")
            .arg(format!("-Djava.io.tmpdir={}", place.folder.display()))
            .arg(format!("-Dlog4j2.configurationFile={}", logging_file(place).display()))
            .arg("-cp")
            .arg(self.installed.jars.join("*"))
            .stdout(output)
            .stderr(errors);
        Ok(command)
    }

    fn properties(&self, place: &Place) -> String {
        let (port, controller) = (place.port, self.controller.number());
        let data = place.data.display();
        let (listener, demands) = self.second_listener();
        // After the ports: a broker that was killed may come back after two seconds instead of nine, the time for
        // which its controller assumes that the old one is alive; one copy of Kafka's internal topics; no wait for
        // a second consumer; and buffers that fit in a small heap.
        format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listener}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}{listener}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL\n\
             inter.broker.listener.name=PLAINTEXT\n\
             log.dirs={data}\n\
             broker.session.timeout.ms=2000\n\
             broker.heartbeat.interval.ms=500\n\
             offsets.topic.num.partitions=1\n\
             offsets.topic.replication.factor=1\n\
             transaction.state.log.num.partitions=1\n\
             transaction.state.log.replication.factor=1\n\
             transaction.state.log.min.isr=1\n\
             share.coordinator.state.topic.num.partitions=1\n\
             share.coordinator.state.topic.replication.factor=1\n\
             share.coordinator.state.topic.min.isr=1\n\
             group.initial.rebalance.delay.ms=0\n\
             log.cleaner.dedupe.buffer.size=4194304\n\
             num.network.threads=2\n\
             num.io.threads=2\n\
             {demands}"
        )
    }

    /// Returns the second listener as text to append to the list of listeners, and its properties; both are empty if
    /// there is no second listener.
    fn second_listener(&self) -> (String, String) {
        let Some((security, port)) = &self.secured else { return Default::default() };
        let KafkaSecurity { certificates, user, password } = security;
        let (server, authority) = (certificates.server.display(), certificates.authority.display());
        let module = "org.apache.kafka.common.security";
        let mut demands = format!(
            "sasl.enabled.mechanisms=PLAIN,{}\n\
             listener.name.sasl_ssl.plain.sasl.jaas.config={module}.plain.PlainLoginModule required \
             user_{user}=\"{password}\";\n\
             ssl.keystore.type=PEM\n\
             ssl.keystore.location={server}\n\
             ssl.truststore.type=PEM\n\
             ssl.truststore.location={authority}\n\
             listener.name.sasl_ssl.ssl.client.auth=required\n",
            SCRAM.join(",")
        );
        for mechanism in SCRAM {
            demands += &format!(
                "listener.name.sasl_ssl.{}.sasl.jaas.config={module}.scram.ScramLoginModule required;\n",
                mechanism.to_lowercase()
            );
        }
        (format!(",SASL_SSL://127.0.0.1:{}", port.number()), demands)
    }

    pub(crate) fn change_ports(&mut self) -> Result<()> {
        self.controller = Port::reserve()?;
        if let Some((_, port)) = &mut self.secured {
            *port = Port::reserve()?;
        }
        Ok(())
    }
}

/// Process that formats the storage of a Kafka server. The process is killed if this value is dropped before its end.
struct Formatting(Child);

impl Drop for Formatting {
    fn drop(&mut self) {
        // Killing fails only if the process has ended, which is the aim.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn properties_file(place: &Place) -> PathBuf {
    place.folder.join("server.properties")
}

fn logging_file(place: &Place) -> PathBuf {
    place.folder.join("log4j2.properties")
}

/// Asks the Kafka server at `port` for its protocol versions, and succeeds if it replies without an error within
/// `bound`. Kafka replies only once its broker has joined its controller and accepts requests.
pub(crate) async fn ask_versions(port: u16, bound: Duration) -> Result<()> {
    // Length of the rest; the request ApiVersions (18) in its version 0; a correlation id, which the reply repeats;
    // no client name.
    const REQUEST: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    const ID: i32 = 7;
    let exchange = async {
        let mut stream = wire::connect(wire::local(port)).await?;
        stream.write_all(&REQUEST).await?;
        let _length = stream.read_i32().await?;
        let id = stream.read_i32().await?;
        let code = stream.read_i16().await?;
        match (id, code) {
            (ID, 0) => Ok(()),
            _ => Err(wire::invalid(format!("an answer to {id} with the error code {code}"))),
        }
    };
    wire::within(wire::local(port), "ApiVersions", bound, exchange).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clusters_id_is_one_of_kafkas() {
        use base64::Engine as _;
        let id = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(CLUSTER_ID).unwrap();
        assert_eq!(id.len(), 16);
    }
}
