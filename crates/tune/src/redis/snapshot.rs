//! Snapshots of all nodes of Redis: each node's state, its view of the others, and its replication progress.
//!
//! A replica is *in step* if it has all data that its master had at the start of the snapshot: replicas are read after
//! masters.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use imago_plan::tune::succession;

use super::Uri;
use super::connection::{Node, line};
use super::replication::Replication;
use super::topology::{Part, Topology};
use crate::cluster::error::chain;
use crate::cluster::{NodeAccess, Result};

/// Timeout of a node's reply while it is inspected, unless the cluster file sets it.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// Minimum major version of Redis that can be rolled.
const OLDEST: u32 = 7;

/// State of one node at the time of a snapshot.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// True if the node is part of a Redis Cluster.
    pub(super) is_cluster: bool,
    /// True if the node reports that the cluster serves all slots; always true for a single server.
    pub(super) is_well: bool,
    /// True if the node still loads its data after its start.
    pub(super) is_loading: bool,
    /// Memory in use on the node, in bytes.
    pub(super) used_memory: u64,
    /// Path of the configuration file that the node was started with; empty if there is none.
    pub(super) configuration: String,
    /// The node's role in replication, and its progress.
    pub(super) replication: Replication,
    /// The nodes of the cluster as this one sees them; empty for a single server.
    pub(super) topology: Topology,
    /// Running values of the settings that the snapshot was requested for, by the setting's name.
    pub(super) running: BTreeMap<String, String>,
}

/// Snapshot of all nodes, in the order of the cluster file.
pub(super) struct Snapshot<'a> {
    nodes: &'a [NodeAccess],
    /// For each node its state, or the reason why the state is unknown.
    pub(super) facts: Vec<std::result::Result<Facts, String>>,
}

impl<'a> Snapshot<'a> {
    /// Reads the states of these nodes, including the running values of these settings.
    pub(super) async fn at(nodes: &'a [NodeAccess], uri: &Uri, settings: &[&str]) -> Self {
        let asked = nodes.iter().map(|node| facts(node, uri, settings));
        let seen = join_all(asked).await;
        let mut seen: Vec<_> =
            seen.into_iter().map(|facts| facts.map_err(|error| chain(&error))).collect();
        let again = nodes.iter().zip(&seen).map(async |(node, facts)| match facts {
            Ok(Facts { replication: Replication::Replica { .. }, .. }) => {
                Some(replication(node, uri).await)
            }
            _ => None,
        });
        let again = join_all(again).await;
        for (facts, again) in seen.iter_mut().zip(again) {
            match (facts.as_mut(), again) {
                (Ok(facts), Some(Ok(now))) => facts.replication = now,
                (_, Some(Err(error))) => *facts = Err(chain(&error)),
                _ => {}
            }
        }
        Self { nodes, facts: seen }
    }

    /// Returns the index of the node with this ID in the Redis Cluster; None if no inspected node has it.
    fn number(&self, id: &str) -> Option<usize> {
        self.facts.iter().position(|facts| {
            let mut members = facts.iter().flat_map(|facts| &facts.topology.members);
            members.any(|member| member.is_self && member.id == id)
        })
    }

    /// Returns the role of the node with the index `number`; None if the node does not answer, or follows a node that
    /// does not.
    pub(super) fn part(&self, number: usize) -> Option<succession::Part> {
        let facts = self.facts[number].as_ref().ok()?;
        if !facts.is_cluster {
            return Some(succession::Part::Master);
        }
        let own = facts.topology.members.iter().find(|member| member.is_self)?;
        Some(match &own.part {
            Part::Master(slots) if slots.is_empty() => succession::Part::Idle,
            Part::Master(_) => succession::Part::Master,
            Part::Replica(of) => succession::Part::Replica(self.number(of)?),
        })
    }

    /// Returns the reasons against a step of a roll now; each may be temporary.
    pub(super) fn obstacles(&self) -> Vec<String> {
        let mut obstacles = Vec::new();
        for (number, (node, facts)) in self.nodes.iter().zip(&self.facts).enumerate() {
            let name = &node.name;
            match facts {
                Err(why) => obstacles.push(format!("{name} does not answer: {why}")),
                Ok(facts) if facts.is_loading => {
                    obstacles.push(format!("{name} still loads its data"));
                }
                Ok(facts) if !facts.is_well => {
                    obstacles.push(format!("{name} says that the cluster is down"));
                }
                Ok(facts) => {
                    for other in &facts.topology.members {
                        if other.has_failed || !(other.is_connected || other.is_self) {
                            let of = self.name_of(&other.address);
                            obstacles.push(format!("{name} does not reach {of}"));
                        }
                    }
                    obstacles.extend(self.lag(number));
                    obstacles.extend(self.disagreement(number));
                }
            }
        }
        obstacles
    }

    /// Returns a difference between the view that the node of index `number` has of another node and that one's own
    /// view of itself: news of a failover spreads with a delay. None if there is no difference.
    fn disagreement(&self, number: usize) -> Option<String> {
        let facts = self.facts[number].as_ref().ok()?;
        facts.topology.members.iter().find_map(|member| {
            let other = self.number(&member.id)?;
            let own = self.facts[other].as_ref().ok()?;
            let own = own.topology.members.iter().find(|member| member.is_self)?;
            let (name, of) = (&self.nodes[number].name, &self.nodes[other].name);
            (own.part != member.part)
                .then(|| format!("{name} does not know yet the part of {of}, a {}", own.part))
        })
    }

    /// Returns the reason why the node of index `number` has not all data of its master; None if it has, or if it is
    /// not a replica.
    fn lag(&self, number: usize) -> Option<String> {
        let name = &self.nodes[number].name;
        let Ok(Facts { replication: Replication::Replica { is_linked, offset }, .. }) =
            &self.facts[number]
        else {
            return None;
        };
        if !is_linked {
            return Some(format!("{name} has no link to its master"));
        }
        let Some(succession::Part::Replica(master)) = self.part(number) else {
            return Some(format!("{name} follows a node that does not answer"));
        };
        let of = &self.nodes[master].name;
        match &self.facts[master] {
            Ok(Facts { replication: Replication::Master { offset: whole, .. }, .. }) => {
                let behind = whole.saturating_sub(*offset);
                (behind > 0).then(|| format!("{name} is {behind} bytes behind {of}"))
            }
            Ok(_) => Some(format!("{name} follows {of}, which is a replica, too")),
            Err(_) => Some(format!("{name} follows {of}, which does not answer")),
        }
    }

    /// Returns the addresses (`host:port`) of members of the Redis Cluster that the cluster file does not name.
    pub(super) fn strangers(&self) -> Vec<String> {
        let mut strangers = Vec::new();
        for member in self.facts.iter().flatten().flat_map(|facts| &facts.topology.members) {
            let is_known = self.nodes.iter().any(|node| node.address.to_string() == member.address);
            if !is_known && !member.address.is_empty() && !strangers.contains(&member.address) {
                strangers.push(member.address.clone());
            }
        }
        strangers
    }

    /// Returns the name of the node with this address; the address itself if the cluster file does not name it.
    fn name_of<'b>(&'b self, address: &'b str) -> &'b str {
        let known = self.nodes.iter().find(|node| node.address.to_string() == address);
        known.map_or(address, |node| &node.name)
    }
}

/// Reads the state of one node, including the running values of these settings.
async fn facts(node: &NodeAccess, uri: &Uri, settings: &[&str]) -> Result<Facts> {
    let wait = node.look_max.unwrap_or(ANSWER_WAIT);
    let at = Node::connect(&node.address.to_string(), uri, wait).await?;
    let info: String = at.ask(&["INFO"]).await?;
    let version = line(&info, "redis_version").unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < OLDEST) {
        return Err(not_understood(node, &format!("it runs version \"{version}\"")));
    }
    let is_cluster = line(&info, "cluster_enabled") == Some("1");
    let (mut is_well, mut topology) = (true, Topology::default());
    if is_cluster {
        let cluster: String = at.ask(&["CLUSTER", "INFO"]).await?;
        is_well = line(&cluster, "cluster_state") == Some("ok");
        let nodes: String = at.ask(&["CLUSTER", "NODES"]).await?;
        topology =
            Topology::parse(&nodes).map_err(|error| not_understood(node, &error.to_string()))?;
    }
    let mut running = BTreeMap::new();
    for name in settings {
        running.extend(at.ask::<BTreeMap<String, String>>(&["CONFIG", "GET", name]).await?);
    }
    Ok(Facts {
        is_cluster,
        is_well,
        is_loading: line(&info, "loading") == Some("1"),
        used_memory: line(&info, "used_memory").and_then(|text| text.parse().ok()).unwrap_or(0),
        configuration: line(&info, "config_file").unwrap_or_default().to_owned(),
        replication: Replication::parse(&info)
            .ok_or_else(|| not_understood(node, "INFO names no role"))?,
        topology,
        running,
    })
}

/// Reads the replication progress of one node.
async fn replication(node: &NodeAccess, uri: &Uri) -> Result<Replication> {
    let wait = node.look_max.unwrap_or(ANSWER_WAIT);
    let at = Node::connect(&node.address.to_string(), uri, wait).await?;
    let told: String = at.ask(&["INFO", "replication"]).await?;
    Replication::parse(&told).ok_or_else(|| not_understood(node, "INFO names no role"))
}

fn not_understood(node: &NodeAccess, why: &str) -> crate::cluster::Error {
    crate::cluster::Error::failed(
        format!("{} cannot be understood: {why}", node.name),
        "settings are known of Redis 7 and later",
    )
}
