//! Durations for which tests wait for servers. If `IMAGO_TESTBED_TIMES` names a file, each start, restart,
//! restoration and wait for a lease adds a line of JSON to it.

use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use crate::spec::ClusterSpec;

/// Name of the environment variable with the path of the file to which durations are appended.
const VARIABLE: &str = "IMAGO_TESTBED_TIMES";

/// Records the time from `began` until now as the duration of the activity `what`; `of` names its object. Without
/// [`VARIABLE`] this does nothing.
pub(crate) fn note(what: &str, of: &str, began: Instant) {
    let Some(file) = std::env::var_os(VARIABLE) else { return };
    let line = serde_json::json!({
        "what": what, "of": of, "s": began.elapsed().as_secs_f64(), "process": std::process::id(),
        "test": std::thread::current().name(),
    });
    if let Err(error) = append(Path::new(&file), &format!("{line}\n")) {
        tracing::warn!(%error, "a time could not be noted in {VARIABLE}");
    }
}

// The line is written by one short write, so that lines of concurrent processes are not mixed.
fn append(file: &Path, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(line.as_bytes())
}

/// Returns a short description of a cluster: its shards, members, and whether it has users.
pub(crate) fn kind(spec: &ClusterSpec) -> String {
    let shards = spec.shards.map_or(String::new(), |shards| format!("{shards} shards × "));
    let auth = if spec.auth { ", users" } else { "" };
    format!("{shards}{} members{auth}", spec.members)
}
