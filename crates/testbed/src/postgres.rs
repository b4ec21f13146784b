//! A PostgreSQL server: its data folder, its command line, and its readiness probe.
//!
//! PostgreSQL refuses to run as root. Where the testbed runs as root, the server runs as the user `postgres`, which
//! owns the data folder and may pass through the folders above it. A change of the user clears the parent-death signal,
//! so `setpriv` sets it again: the server ends with the testbed's process.
//!
//! Every local user of the machine may connect without a password, as the superuser `postgres`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::error::{Error, Result};
use crate::place::Place;
use crate::wire;

/// Name of the user as which the server runs if the testbed runs as root, and of its superuser.
pub(crate) const USER: &str = "postgres";
/// Maximum number of connections of a server.
const CONNECTIONS_MAX: u32 = 200;
/// File whose presence shows that the data folder is initialized.
const INITIALIZED: &str = "PG_VERSION";

/// Settings of one PostgreSQL server.
#[derive(Debug)]
pub(crate) struct Postgres {
    /// Path of the program `postgres`; `initdb` is in the same folder.
    pub(crate) program: PathBuf,
    /// Size of the server's shared buffers, in MiB.
    pub(crate) memory_mb: u32,
}

impl Postgres {
    /// Initializes the server's data folder, at its first start.
    pub(crate) fn prepare(&self, place: &Place) -> Result<()> {
        if place.data.join(INITIALIZED).exists() {
            return Ok(());
        }
        let doing = || format!("initialize {}", place.data.display());
        if rustix::process::geteuid().is_root() {
            // The folders above the data are the testbed's own.
            let passable = Permissions::from_mode(0o711);
            std::fs::set_permissions(&place.folder, passable).map_err(Error::io(doing()))?;
            let status = Command::new("chown").arg(USER).arg(&place.data).status();
            let status = status.map_err(Error::io(doing()))?;
            if !status.success() {
                return Err(Error::Spec(format!(
                    "there is no user {USER}, as which PostgreSQL runs if the testbed runs as root"
                )));
            }
        }
        let (output, errors) = place.log_output()?;
        let mut command = self.unprivileged(&self.program.with_file_name("initdb"));
        command.arg("-D").arg(&place.data).args(["-U", USER, "-A", "trust", "-E", "UTF8"]);
        command.args(["--no-sync", "--locale=C"]).stdout(output).stderr(errors);
        let status = command.current_dir(&place.folder).status().map_err(Error::io(doing()))?;
        if !status.success() {
            return Err(Error::server_ended("PostgreSQL's initdb", status, &place.log));
        }
        Ok(())
    }

    /// Returns a command that runs a program of PostgreSQL as a user that is not root.
    fn unprivileged(&self, program: &Path) -> Command {
        if !rustix::process::geteuid().is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--reuid", USER, "--regid", USER, "--clear-groups"]);
        command.arg(program);
        command
    }

    pub(crate) fn command(&self, place: &Place) -> Result<Command> {
        let (output, errors) = place.log_output()?;
        let mut command = self.unprivileged(&self.program);
        let settings = [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={}", place.port),
            "unix_socket_directories=".to_owned(),
            format!("shared_buffers={}MB", self.memory_mb),
            format!("max_connections={CONNECTIONS_MAX}"),
        ];
        command.arg("-D").arg(&place.data);
        settings.iter().for_each(|setting| _ = command.args(["-c", setting]));
        command.stdout(output).stderr(errors);
        Ok(command)
    }
}

/// Begins a session with the server at `port` of 127.0.0.1, and succeeds if the server admits it within `bound`. A
/// server that recovers replies with an error.
pub(crate) async fn begin_session(port: u16, bound: Duration) -> Result<()> {
    const PROTOCOL_3: u32 = 3 << 16;
    let parameters = format!("user\0{USER}\0database\0{USER}\0\0");
    let mut message = (8 + parameters.len() as u32).to_be_bytes().to_vec();
    message.extend(PROTOCOL_3.to_be_bytes());
    message.extend(parameters.as_bytes());
    let exchange = async {
        let mut stream = wire::connect(wire::local(port)).await?;
        stream.write_all(&message).await?;
        match stream.read_u8().await? {
            b'R' => Ok(()),
            other => Err(wire::invalid(format!("a reply of the type {}", char::from(other)))),
        }
    };
    wire::within(wire::local(port), "StartupMessage", bound, exchange).await
}
