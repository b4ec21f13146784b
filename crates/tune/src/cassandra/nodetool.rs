//! Cassandra's administration tool `nodetool`, executed on a node's machine.

use std::time::Duration;

use super::error::{Error, Result};
use crate::cluster::NodeAccess;

/// Runs a command of `nodetool` on the node's machine and returns its output; `bound` is its timeout.
pub(super) async fn nodetool(node: &NodeAccess, command: &str, bound: Duration) -> Result<String> {
    let doing = format!("nodetool {command}");
    let Some(tool) = &node.nodetool else {
        let (node, said) = (node.name.clone(), "the cluster file names no nodetool".to_owned());
        return Err(Error::Command { node, doing, said });
    };
    node.run(&doing, &format!("{tool} {command}\n"), bound).await
}
