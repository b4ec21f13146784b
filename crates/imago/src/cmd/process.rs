//! The name of this process in the record of a job.

/// Returns the name of this process as it is recorded in jobs: `host name/process id`.
pub fn process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!("{}/{}", if host.is_empty() { "unnamed" } else { host }, std::process::id())
}
