//! A Kafka server, broker and controller in one process (KRaft): its properties, its storage, and its readiness
//! probe.
//!
//! It is one node with one copy of everything. Its second port, the controller's, is used by itself only, but has
//! to stay the same over restarts like the first: it is stored in the quorum.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::binary::KafkaFiles;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::port::Port;
use crate::process;
use crate::wire;

/// Id of the cluster in its storage. It is constant, because a testbed's storage is never joined with another
/// cluster's.
const CLUSTER_ID: &str = "aW1hZ28tdGVzdGJlZC0tMQ";
/// Time allowed to format the storage, which starts one Java program.
const FORMAT_BOUND: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// Logging configuration of Kafka.
const LOGGING: &str = "\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c{1})%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
";

/// Kafka's files, and its memory limit.
#[derive(Debug)]
pub(crate) struct Kafka {
    pub(crate) installed: KafkaFiles,
    heap_mb: u32,
    controller: Port,
}

impl Kafka {
    pub(crate) fn new(installed: KafkaFiles, heap_mb: u32) -> Result<Self> {
        Ok(Self { installed, heap_mb, controller: Port::reserve()? })
    }

    /// Writes the properties and formats the storage.
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

    /// Returns a command that runs Java with Kafka's classes and bounded memory; its output goes to the log.
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
        // After the ports: a broker that was killed may come back after two seconds instead of nine, the time for
        // which its controller assumes that the old one is alive; one copy of Kafka's internal topics; no wait for
        // a second consumer; and buffers that fit in a small heap.
        format!(
            "process.roles=broker,controller\n\
             node.id=1\n\
             controller.quorum.voters=1@127.0.0.1:{controller}\n\
             controller.listener.names=CONTROLLER\n\
             listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=PLAINTEXT://127.0.0.1:{port}\n\
             listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n\
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
             num.io.threads=2\n"
        )
    }

    pub(crate) fn change_ports(&mut self) -> Result<()> {
        self.controller = Port::reserve()?;
        Ok(())
    }
}

/// The process that formats the storage. It is killed when this value is dropped before its end.
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

/// Asks the server at `port` for its protocol versions. Kafka answers this only once its broker has joined its
/// controller and accepts requests.
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
