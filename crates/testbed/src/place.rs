//! The port and the files of a server.

use std::path::PathBuf;
use std::process::Stdio;

use crate::error::{Error, Result};

/// The port and the files of a server.
#[derive(Debug)]
pub(crate) struct Place {
    /// Port of the server on 127.0.0.1.
    pub(crate) port: u16,
    /// Folder of its cluster, which is its working directory.
    pub(crate) folder: PathBuf,
    /// Folder of its data.
    pub(crate) data: PathBuf,
    /// Path of its log file.
    pub(crate) log: PathBuf,
}

impl Place {
    /// Returns the folder with the server's configuration, which is next to its data folder.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.data.with_extension("conf")
    }

    /// Returns standard output and error for a program that does not write its log file itself; both append to the
    /// log.
    pub(crate) fn log_output(&self) -> Result<(Stdio, Stdio)> {
        let open = || {
            let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
            Ok((log.try_clone()?.into(), log.into()))
        };
        open().map_err(Error::io(format!("open the log {}", self.log.display())))
    }
}
