//! The work that servers of Redis do in the background, by their own counters: what a measurement waits for.

use std::time::Duration;

use super::ClusterFile;
use super::connection::{Node, line};
use crate::cluster::Result;

/// Timeout of a server's reply.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Fields of INFO that are above zero while the server works in the background, each with what it does then.
const WORK: [(&str, &str); 7] = [
    ("loading", "loads its data"),
    ("async_loading", "loads its data"),
    ("rdb_bgsave_in_progress", "saves its data"),
    ("aof_rewrite_in_progress", "rewrites its log"),
    ("lazyfree_pending_objects", "frees memory"),
    ("active_defrag_running", "defragments memory"),
    ("master_sync_in_progress", "copies its master's data"),
];

/// Describes the background work of some server; `None` if there is none.
///
/// # Errors
/// Fails if a server does not answer.
#[crate::boxed]
pub async fn work(file: &ClusterFile) -> Result<Option<String>> {
    for node in &file.nodes {
        let at = Node::connect(&node.address.to_string(), &file.uri, ANSWER_WAIT).await?;
        let info: String = at.ask(&["INFO"]).await?;
        if let Some(what) = in_progress(&info) {
            return Ok(Some(format!("{} {what}", node.name)));
        }
    }
    Ok(None)
}

/// Returns what the server does in the background, from its reply to INFO.
fn in_progress(info: &str) -> Option<&'static str> {
    let is_busy = |name: &str| line(info, name).is_some_and(|value| value.parse() != Ok(0_u64));
    WORK.iter().find(|(name, _)| is_busy(name)).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_what_it_does() {
        let idle = "# Persistence\r\nloading:0\r\nasync_loading:0\r\nrdb_bgsave_in_progress:0\r\n\
                    aof_rewrite_in_progress:0\r\nlazyfree_pending_objects:0\r\nactive_defrag_running:0\r\n";
        assert_eq!(in_progress(idle), None);
        let saves = idle.replace("bgsave_in_progress:0", "bgsave_in_progress:1");
        assert_eq!(in_progress(&saves), Some("saves its data"));
        let frees = idle.replace("pending_objects:0", "pending_objects:81920");
        assert_eq!(in_progress(&frees), Some("frees memory"));
    }
}
