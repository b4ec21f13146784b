//! Checks, before the first node of a roll is changed, that every Cassandra node could start again.
//!
//! A node is stopped to be started with a new file. Obstacles to a start, such as a line of its settings that cannot be
//! parsed or a rack that is not its own, would otherwise appear when the node is down: so the files of all nodes are
//! read before.

use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};

use super::super::error::{Error, Result};
use super::super::knobs::Class;
use super::super::ring::{self, Cluster, Member};
use super::super::yaml::Document;
use super::Change;
use super::files::Files;
use crate::cluster::node::{LOOK_BOUND, quoted};

/// The snitch that reads a node's data center and rack from a file, and the name of that file.
const SNITCH: &str = "GossipingPropertyFileSnitch";
const PROPERTIES: &str = "cassandra-rackdc.properties";

/// Checks that the files of all nodes can be changed as the roll requests, and that the nodes would start with them.
///
/// # Errors
/// Fails for the first node that would not start; the message has file, line, and remedy.
pub(super) async fn check_startable(cluster: &Cluster, changes: &[Change]) -> Result<()> {
    let restarts = changes.iter().any(|change| change.knob.class == Class::Restart);
    let checks = cluster.members.iter().map(|member| async move {
        Files { node: &member.access, changes }.contents().await?;
        if restarts { check_location(member).await } else { Ok(()) }
    });
    iter(checks).buffered(ring::INSPECTIONS_AT_ONCE).try_collect::<Vec<()>>().await.map(drop)
}

/// Checks that the node's start and stop commands parse as shell scripts, and that its files still name the data
/// center and rack for which it has data.
async fn check_location(member: &Member) -> Result<()> {
    let node = &member.access;
    for (name, command) in [("start", &node.start), ("stop", &node.stop)] {
        let script = format!("sh -n -c {}\n", quoted(command));
        node.run(&format!("reading its `{name}` of the cluster file"), &script, LOOK_BOUND).await?;
    }
    let text = node.read_file(&node.configuration).await?;
    let uses_file = Document::parse(&text).is_ok_and(|file| {
        file.scalar("endpoint_snitch").is_some_and(|name| name.ends_with(SNITCH))
    });
    let Some((folder, _)) = node.configuration.rsplit_once('/').filter(|_| uses_file) else {
        return Ok(());
    };
    let path = format!("{folder}/{PROPERTIES}");
    // A node may find the file elsewhere on its class path.
    let script = format!("[ -e {0} ] && cat -- {0} || true\n", quoted(&path));
    let text = node.run("reading its place", &script, LOOK_BOUND).await?;
    match place(&text) {
        Some(place) if place != member.rack => Err(Error::precondition(
            format!(
                "{path} of {} says data center {} and rack {}, and the node is in {} {}",
                node.name, place.0, place.1, member.rack.0, member.rack.1
            ),
            "correct it: a node does not start in another place than the one it has data for",
        )),
        _ => Ok(()),
    }
}

/// Parses data center and rack from the text of a file of properties; returns None unless both are present.
fn place(text: &str) -> Option<(String, String)> {
    let value = |key: &str| {
        let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', '!']));
        let value = |line: &str| {
            let (name, value) = line.split_once(['=', ':'])?;
            (name.trim() == key).then(|| value.trim().to_owned())
        };
        lines.filter_map(value).next_back()
    };
    value("dc").zip(value("rack"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_properties() {
        let text = "# dc=dc9\ndc=dc1\nrack = rack2\n# dc_suffix=1\nprefer_local=true\n";
        assert_eq!(place(text), Some(("dc1".into(), "rack2".into())));
        assert_eq!(place("dc: eu-1\nrack: a\nrack: b\n"), Some(("eu-1".into(), "b".into())));
        assert_eq!(place("dc=dc1\n"), None);
        assert_eq!(place(""), None);
    }
}
