//! One node of a Cassandra cluster: its configuration, its command line, and its readiness probe.
//!
//! All nodes of a cluster use the same ports, each on its own loopback address, as nodes on separate machines do:
//! drivers assume that all nodes use the port of the node that they know.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::binary::CassandraFiles;
use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::place::Place;
use crate::port::{Port, SharedPorts};
use crate::wire;

/// Number of tokens (`num_tokens`) of a node: few, so that ranges are calculated quickly, and more than one, as in
/// real clusters.
const TOKENS: u32 = 8;

/// Java packages, as `module/package`, that Cassandra uses although their modules do not export them
/// (`--add-exports`).
const EXPORTS: [&str; 11] = [
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.unsupported/sun.misc",
    "jdk.compiler/com.sun.tools.javac.file",
];

/// Java packages, as `module/package`, that Cassandra accesses by reflection (`--add-opens`).
const OPENS: [&str; 14] = [
    "java.base/java.io",
    "java.base/java.lang",
    "java.base/java.lang.module",
    "java.base/java.lang.reflect",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/java.nio",
    "java.base/jdk.internal.loader",
    "java.base/jdk.internal.ref",
    "java.base/jdk.internal.reflect",
    "java.base/jdk.internal.math",
    "java.base/jdk.internal.module",
    "java.base/sun.nio.ch",
];

/// Content of a node's `logback.xml`: INFO and above to standard output.
const LOGGING: &str = r#"<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%date{ISO8601} %-5level %logger{0} %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="out"/></root>
</configuration>
"#;

/// Settings of one node of a Cassandra cluster, from which its files and command line are made.
#[derive(Debug)]
pub(crate) struct Cassandra {
    pub(crate) installed: CassandraFiles,
    pub(crate) cluster: String,
    pub(crate) ports: Arc<SharedPorts>,
    /// Loopback address on which the node listens.
    pub(crate) host: Ipv4Addr,
    /// Address of the seed node, from which other nodes learn of the cluster.
    pub(crate) seed: Ipv4Addr,
    pub(crate) rack: String,
    pub(crate) heap_mb: u32,
    /// CPU limit of the node; `None` if the node is unlimited.
    pub(crate) share: Option<CpuShare>,
    /// JMX port on 127.0.0.1 to which `nodetool` connects; each node has its own.
    pub(crate) management: Port,
}

impl Cassandra {
    /// Writes the node's configuration files, and a script `nodetool`, to the configuration folder of `place`.
    pub(crate) fn prepare(&self, place: &Place) -> Result<()> {
        let folder = place.configuration();
        let doing = || format!("write the configuration {}", folder.display());
        std::fs::create_dir_all(&folder).map_err(Error::io(doing()))?;
        for (file, content) in [
            ("cassandra.yaml", self.settings(place)),
            ("cassandra-rackdc.properties", format!("dc=dc1\nrack={}\n", self.rack)),
            ("logback.xml", LOGGING.into()),
            ("jvm-server.options", format!("-Xms{0}m\n-Xmx{0}m\n", self.heap_mb)),
        ] {
            std::fs::write(folder.join(file), content).map_err(Error::io(doing()))?;
        }
        let tool = folder.join("nodetool");
        std::fs::write(&tool, self.nodetool(place)).map_err(Error::io(doing()))?;
        std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o700))
            .map_err(Error::io(doing()))
    }

    /// Returns a shell script that runs Cassandra's `nodetool` against this node.
    fn nodetool(&self, place: &Place) -> String {
        let mut words = vec![self.installed.java.display().to_string()];
        words.extend(["-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"].map(str::to_owned));
        words.extend(module_options());
        let configuration = place.configuration();
        words.push(format!("-Dcassandra.config=file://{}/cassandra.yaml", configuration.display()));
        words.push(format!("-Dcassandra.storagedir={}", place.data.display()));
        words.push("-cp".into());
        let jars = self.installed.jars.join("*");
        words.push(format!("{}:{}", configuration.display(), jars.display()));
        words.push("org.apache.cassandra.tools.NodeTool".into());
        words.extend(["-h".into(), "127.0.0.1".into(), "-p".into()]);
        words.push(self.management.number().to_string());
        let quoted: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        format!("#!/bin/sh\nexec {} \"$@\"\n", quoted.join(" "))
    }

    pub(crate) fn command(&self, place: &Place) -> Result<Command> {
        let (output, errors) = place.log_output()?;
        let mut classes = place.configuration().into_os_string();
        classes.push(":");
        classes.push(self.installed.jars.join("*"));
        let heap_mb = self.heap_mb;
        let java = &self.installed.java;
        let mut command =
            self.share.as_ref().map_or_else(|| Command::new(java), |share| share.command(java));
        command
            .arg(format!("@{}", place.configuration().join("jvm-server.options").display()))
            .arg(format!("-XX:MaxDirectMemorySize={}m", heap_mb / 2))
            .args(["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Djdk.attach.allowAttachSelf=true"]);
        command.args(module_options());
        let file = place.configuration().join("cassandra.yaml");
        command
            .arg(format!("-Djava.io.tmpdir={}", place.folder.display()))
            .arg(format!("-Dcassandra.config=file://{}", file.display()))
            .arg(format!("-Dcassandra.storagedir={}", place.data.display()))
            // The wait times below are designed for clusters whose nodes are far apart. A node that joins soon
            // after another one may still see that one joining, and would refuse to join; there is no data yet that
            // could be moved wrongly.
            .args([
                "-Dcassandra.consistent.rangemovement=false",
                "-Dcassandra-foreground=yes",
                "-Dcassandra.skip_wait_for_gossip_to_settle=0",
                "-Dcassandra.ring_delay_ms=2000",
                "-Dcassandra.superuser_setup_delay_ms=0",
            ])
            .arg(format!("-Dcassandra.jmx.local.port={}", self.management.number()))
            .arg("-cp")
            .arg(classes)
            .arg("org.apache.cassandra.service.CassandraDaemon")
            .stdout(output)
            .stderr(errors);
        Ok(command)
    }

    fn settings(&self, place: &Place) -> String {
        let (host, seed, cluster) = (self.host, self.seed, &self.cluster);
        let (native, storage) = (self.ports.clients.number(), self.ports.peers.number());
        let mut settings = format!(
            "cluster_name: '{cluster}'\n\
             num_tokens: {TOKENS}\n\
             partitioner: org.apache.cassandra.dht.Murmur3Partitioner\n\
             endpoint_snitch: GossipingPropertyFileSnitch\n\
             listen_address: {host}\n\
             rpc_address: {host}\n\
             storage_port: {storage}\n\
             native_transport_port: {native}\n\
             commitlog_sync: periodic\n\
             commitlog_sync_period: 1000ms\n\
             seed_provider:\n\
             - class_name: org.apache.cassandra.locator.SimpleSeedProvider\n\
             \u{20}\u{20}parameters:\n\
             \u{20}\u{20}- seeds: \"{seed}:{storage}\"\n"
        );
        let data = place.data.display();
        writeln!(settings, "data_file_directories:\n- {data}/data").expect("into a string");
        for name in ["commitlog", "saved_caches", "hints", "cdc_raw"] {
            writeln!(settings, "{name}_directory: {data}/{name}").expect("into a string");
        }
        settings
    }

    /// Returns the socket address on which the node accepts clients (native protocol).
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from((self.host, self.ports.clients.number()))
    }

    pub(crate) async fn probe(&self, bound: Duration) -> Result<()> {
        ask_options(self.address(), bound).await
    }
}

/// Returns the Java options that give Cassandra access to the packages in [`EXPORTS`] and [`OPENS`].
fn module_options() -> Vec<String> {
    let exports = EXPORTS.into_iter().chain(["jdk.compiler/com.sun.tools.javac.util"]);
    let opens = OPENS
        .into_iter()
        .chain(["jdk.management/com.sun.management.internal", "java.rmi/sun.rmi.transport.tcp"]);
    let option = |of: &str, name: &str| [of.to_owned(), format!("{name}=ALL-UNNAMED")];
    let exports = exports.flat_map(|name| option("--add-exports", name));
    exports.chain(opens.flat_map(|name| option("--add-opens", name))).collect()
}

/// Returns `word` in single quotes, as a shell reads it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Sends OPTIONS of Cassandra's native protocol to `node`, and succeeds if SUPPORTED is returned within `bound`. A
/// node replies only once it has joined the cluster and accepts clients.
pub(crate) async fn ask_options(node: SocketAddr, bound: Duration) -> Result<()> {
    // Version 4, no flags, stream 0, OPTIONS (5), no body.
    const REQUEST: [u8; 9] = [4, 0, 0, 0, 5, 0, 0, 0, 0];
    const SUPPORTED: u8 = 6;
    let exchange = async {
        let mut stream = wire::connect(node).await?;
        stream.write_all(&REQUEST).await?;
        let mut header = [0; 9];
        stream.read_exact(&mut header).await?;
        match header[4] {
            SUPPORTED => Ok(()),
            other => Err(wire::invalid(format!("an answer of the kind {other}"))),
        }
    };
    wire::within(node, "OPTIONS", bound, exchange).await
}
