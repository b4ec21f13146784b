//! The port and the files that a testbed assigns to one server.

use std::path::PathBuf;
use std::process::Stdio;

use crate::error::{Error, Result};

/// The port, the folders and the log file that a testbed assigns to one server.
#[derive(Debug)]
pub(crate) struct Place {
    /// Port on which the server accepts clients, on 127.0.0.1 or, for a node with its own address, on that address.
    pub(crate) port: u16,
    /// Folder of the cluster that the server belongs to; the working directory of the server.
    pub(crate) folder: PathBuf,
    /// Path of the folder in which the server stores its data.
    pub(crate) data: PathBuf,
    /// Path of the server's log file.
    pub(crate) log: PathBuf,
}

impl Place {
    /// Returns the path of the folder with the server's configuration, which is next to its data folder.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.data.with_extension("conf")
    }

    /// Returns standard output and standard error for a server program that does not write its log file itself; both
    /// append to the file [`Self::log`].
    pub(crate) fn log_output(&self) -> Result<(Stdio, Stdio)> {
        let open = || {
            let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
            Ok((log.try_clone()?.into(), log.into()))
        };
        open().map_err(Error::io(format!("open the log {}", self.log.display())))
    }
}
