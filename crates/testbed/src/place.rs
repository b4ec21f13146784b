//! The port and the files of a server.

use std::path::PathBuf;
use std::process::Stdio;

use crate::error::{Error, Result};

/// The port and the files of a server.
#[derive(Debug)]
pub(crate) struct Place {
    /// Its port on 127.0.0.1.
    pub(crate) port: u16,
    /// Its cluster's folder, in which it runs.
    pub(crate) folder: PathBuf,
    /// The folder of its data.
    pub(crate) data: PathBuf,
    /// Its log file.
    pub(crate) log: PathBuf,
}

impl Place {
    /// The folder with the configuration of a server whose data lies there.
    pub(crate) fn configuration(&self) -> PathBuf {
        self.data.with_extension("conf")
    }

    /// The standard output and error of a program that does not write its log file itself.
    pub(crate) fn log_output(&self) -> Result<(Stdio, Stdio)> {
        let open = || {
            let log = std::fs::OpenOptions::new().create(true).append(true).open(&self.log)?;
            Ok((log.try_clone()?.into(), log.into()))
        };
        open().map_err(Error::io(format!("open the log {}", self.log.display())))
    }
}
