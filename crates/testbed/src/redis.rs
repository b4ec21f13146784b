//! A Redis server: its command line, and the probe of its readiness.
//!
//! It keeps an append-only file, to which it writes before it answers, so that a killed server
//! comes back with everything that it had acknowledged.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::error::Result;
use crate::place::Place;
use crate::wire;

/// `redis-server`, and how much it may hold.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) path: PathBuf,
    /// Limit of its data, in MiB; writes are refused beyond.
    pub(crate) memory_mb: u32,
}

impl Redis {
    pub(crate) fn command(&self, place: &Place) -> Result<Command> {
        let (output, errors) = place.log_output()?;
        let mut command = Command::new(&self.path);
        command
            .args(["--bind", "127.0.0.1", "--daemonize", "no", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            .args(["--maxmemory-policy", "noeviction", "--maxmemory"])
            .arg(format!("{}mb", self.memory_mb))
            .arg("--port")
            .arg(place.port.to_string())
            .arg("--dir")
            .arg(&place.data)
            .stdout(output)
            .stderr(errors);
        Ok(command)
    }
}

/// Asks the server at `port` for its PONG; it is not given while data is loaded.
pub(crate) async fn ping(port: u16, bound: Duration) -> Result<()> {
    const EXPECTED: &[u8] = b"+PONG\r\n";
    let exchange = async {
        let mut stream = wire::connect(wire::local(port)).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 256];
        let mut length = 0;
        while length < answer.len() && !answer[..length].ends_with(b"\r\n") {
            match stream.read(&mut answer[length..]).await? {
                0 => break,
                more => length += more,
            }
        }
        match &answer[..length] {
            EXPECTED => Ok(()),
            other => Err(wire::invalid(String::from_utf8_lossy(other).trim_end().to_owned())),
        }
    };
    wire::within(wire::local(port), "PING", bound, exchange).await
}
