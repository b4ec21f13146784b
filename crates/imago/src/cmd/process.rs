//! This process: its name in the record of a job, and its executable, which starts others.

use std::path::PathBuf;

use crate::exit::{Exit, Failure};

/// Returns the name of this process as it is recorded in jobs: `host name/process id`.
pub fn process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!("{}/{}", if host.is_empty() { "unnamed" } else { host }, std::process::id())
}

/// Returns the path of the executable of this process.
pub fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|cause| {
        Failure::new(Exit::Failed, "program", "cannot determine the path of this program")
            .because(&cause)
    })
}
