//! The cluster as its nodes describe it: its nodes, the placement of data, and each node's view of the others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{StreamExt as _, iter};
use imago_job::clock;
use imago_plan::tune::adaptive_timeout::AdaptiveTimeout;
use imago_plan::tune::availability::{Demand, Ring};
use scylla::client::session::Session;
use scylla::cluster::metadata::Strategy;
use scylla::frame::response::result::TableSpec;
use scylla::statement::Consistency;
use scylla::value::CqlTimestamp;
use tokio::time::timeout;
use uuid::Uuid;

use super::ClusterFile;
use super::Uri;
use super::connection::{connect_to, connect_within, rows};
use super::error::{Error, Result};
use super::journal;
use super::nodetool::nodetool;
use super::obstacles::{Obstacles, clock_skew, disagreement, unknown_version};
use crate::cluster::NodeAccess;
pub(super) use crate::cluster::error::chain;

/// Minimum time allowed for reading one node's view, unless the cluster file sets it; longer for nodes that answer
/// slowly.
const VIEW_BOUND: Duration = Duration::from_secs(20);
/// Share of the time limit of a reading after which its failure counts as a late answer.
const LATE: f64 = 0.9;
/// Maximum number of nodes that are inspected concurrently.
pub(super) const INSPECTIONS_AT_ONCE: usize = 16;
/// Keyspaces of Cassandra itself, without data of clients.
pub(super) const SYSTEM_KEYSPACES: [&str; 7] = [
    "system",
    "system_auth",
    "system_distributed",
    "system_schema",
    "system_traces",
    "system_views",
    "system_virtual_schema",
];

/// A node of a Cassandra cluster: its access, identity and location.
#[derive(Clone, Debug)]
pub struct Member {
    /// How the node and its machine are reached.
    pub access: NodeAccess,
    /// Host ID of the node, which is stable across restarts.
    pub id: Uuid,
    /// Data center and rack of the node.
    pub rack: (String, String),
}

/// Adaptive time limits for the answers of each node, shared by all tasks.
#[derive(Clone, Debug, Default)]
pub(super) struct Waits(Arc<Mutex<BTreeMap<Uuid, AdaptiveTimeout>>>);

impl Waits {
    fn of<T>(&self, member: &Member, with: impl FnOnce(&mut AdaptiveTimeout) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let least = member.access.look_max.unwrap_or(VIEW_BOUND);
        with(all.entry(member.id).or_insert_with(|| AdaptiveTimeout::new(least)))
    }

    /// Returns the time limit for the next answer of this node.
    pub(super) fn limit(&self, member: &Member) -> Duration {
        self.of(member, |patience| patience.limit())
    }
}

/// A Cassandra cluster: its nodes, and the placement of its data.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The nodes, in the order of the cluster file.
    pub members: Vec<Member>,
    /// Adaptive time limits for the answers of each node.
    pub(super) waits: Waits,
    /// Token ranges of all keyspaces of clients, with the replicas that each needs; nodes are indices of
    /// [`Self::members`].
    pub ring: Ring,
}

/// One node's view of itself and of the other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// For each node that this one knows, by host ID: whether it is up, and whether it is in the state normal (it
    /// does not join, leave or move). None if the node was not asked.
    pub sees: Option<BTreeMap<Uuid, (bool, bool)>>,
    /// Schema version that this node has.
    pub schema: Uuid,
    /// Host IDs of the nodes for which this one stores hints (writes that they missed because they were down).
    pub hints: BTreeSet<Uuid>,
    /// Version of Cassandra that this node runs.
    pub version: String,
    /// Offset of the node's clock from this machine's, in ms (positive: ahead), uncertain by half the round trip.
    pub ahead_ms: i64,
}

/// Returns the cluster as the driver's metadata describes it, nodes that are down included. `consistency` is the
/// level that clients need, and `tolerate` the number of additional node failures that must be survived during a
/// roll.
///
/// # Errors
/// Fails if the cluster file and the cluster differ, or if a keyspace has an unknown replication strategy.
pub fn cluster(
    session: &Session,
    file: &ClusterFile,
    consistency: Consistency,
    tolerate: usize,
) -> Result<Cluster> {
    let state = session.get_cluster_state();
    let nodes = state.get_nodes_info();
    let mut members = Vec::new();
    for access in &file.nodes {
        let known = nodes.iter().find(|node| socket(node) == access.address);
        let Some(node) = known else {
            let there: Vec<String> = nodes.iter().map(|node| socket(node).to_string()).collect();
            return Err(Error::precondition(
                format!("the cluster has no node at {} ({})", access.address, access.name),
                format!("correct the cluster file: it has {}", there.join(", ")),
            ));
        };
        let rack = node.rack.clone().unwrap_or_default();
        let datacenter = node.datacenter.clone().unwrap_or_default();
        members.push(Member { access: access.clone(), id: node.host_id, rack: (datacenter, rack) });
    }
    if let Some(left_out) =
        nodes.iter().find(|node| members.iter().all(|one| one.id != node.host_id))
    {
        return Err(Error::precondition(
            format!("the cluster file leaves out the node at {}", socket(left_out)),
            "add it: all nodes must be checked before one is stopped",
        ));
    }
    let number: HashMap<Uuid, usize> =
        members.iter().enumerate().map(|(number, one)| (one.id, number)).collect();
    let mut demands = Demands::default();
    for (name, keyspace) in state.keyspaces_iter() {
        if SYSTEM_KEYSPACES.contains(&name) || name == journal::KEYSPACE {
            continue;
        }
        let by_datacenter: Vec<(Option<&str>, usize)> = match &keyspace.strategy {
            Strategy::SimpleStrategy { replication_factor } => vec![(None, *replication_factor)],
            Strategy::NetworkTopologyStrategy { datacenter_repfactors } => {
                let each = datacenter_repfactors.iter();
                each.map(|(datacenter, replicas)| (Some(&**datacenter), *replicas)).collect()
            }
            Strategy::LocalStrategy => continue,
            other => {
                let what = format!("keyspace {name} has the replication strategy {other:?}");
                return Err(Error::precondition(
                    what,
                    "Imago cannot roll a cluster with this strategy",
                ));
            }
        };
        let table = TableSpec::borrowed(name, "");
        let locator = state.replica_locator();
        for (token, _) in locator.ring().iter() {
            let replicas = |datacenter: Option<&str>| -> Vec<usize> {
                let found =
                    locator.replicas_for_token(*token, &keyspace.strategy, datacenter, &table);
                found
                    .into_iter()
                    .filter_map(|(node, _)| number.get(&node.host_id).copied())
                    .collect()
            };
            let range = format!("keyspace {name}, the range that ends at token {}", token.value());
            match consistency {
                Consistency::LocalQuorum | Consistency::EachQuorum | Consistency::LocalOne => {
                    for (datacenter, factor) in &by_datacenter {
                        let needed = needed(consistency, *factor);
                        let within =
                            datacenter.map_or_else(String::new, |name| format!(" in {name}"));
                        demands.add(format!("{range}{within}"), replicas(*datacenter), needed);
                    }
                }
                _ => {
                    let factor = by_datacenter.iter().map(|(_, factor)| factor).sum();
                    demands.add(range, replicas(None), needed(consistency, factor));
                }
            }
        }
    }
    let racks = members.iter().map(|one| format!("{} {}", one.rack.0, one.rack.1)).collect();
    let ring = Ring { racks, away: BTreeSet::new(), demands: demands.list, tolerate };
    Ok(Cluster { members, waits: Waits::default(), ring })
}

fn socket(node: &scylla::cluster::Node) -> SocketAddr {
    SocketAddr::new(node.address.ip(), node.address.port())
}

/// Returns the number of replicas that have to answer at this consistency level, of `replicas` ones.
fn needed(consistency: Consistency, replicas: usize) -> usize {
    match consistency {
        Consistency::Any | Consistency::One | Consistency::LocalOne => 1,
        Consistency::Two => 2,
        Consistency::Three => 3,
        Consistency::All => replicas,
        _ => replicas / 2 + 1,
    }
}

/// Demands on token ranges, without duplicates: most ranges of a cluster have the same replicas as others.
#[derive(Default)]
struct Demands {
    known: BTreeSet<(Vec<usize>, usize)>,
    list: Vec<Demand>,
}

impl Demands {
    fn add(&mut self, name: String, mut replicas: Vec<usize>, needed: usize) {
        replicas.sort_unstable();
        if self.known.insert((replicas.clone(), needed)) {
            self.list.push(Demand { name, replicas, needed });
        }
    }
}

impl Cluster {
    /// Reads the views of the nodes with the indices `of`, concurrently; a node that does not answer has an error.
    /// `stops` includes each node's view of the others.
    pub(super) async fn views(
        &self,
        uri: &Uri,
        of: &BTreeSet<usize>,
        stops: bool,
    ) -> Vec<(usize, Result<View>)> {
        let looks = of.iter().map(|number| async {
            let member = &self.members[*number];
            (*number, self.inspect(member, uri, stops).await)
        });
        iter(looks).buffered(INSPECTIONS_AT_ONCE).collect().await
    }

    /// Reads the view of a node. A late answer is retried once with a longer limit: a busy machine is no reason against
    /// a roll.
    async fn inspect(&self, member: &Member, uri: &Uri, stops: bool) -> Result<View> {
        let mut is_again = false;
        loop {
            let (began, limit) = (Instant::now(), self.waits.limit(member));
            let looked = timeout(limit, view(&member.access, uri, stops, limit)).await;
            let looked = looked.unwrap_or_else(|_| Err(late(member, limit)));
            let took = began.elapsed();
            // A part of the answer may time out before the whole does.
            let is_late = looked.is_err() && took >= limit.mul_f64(LATE);
            if !is_late {
                self.waits.of(member, |patience| patience.record_reply(took));
                return looked;
            }
            let waits_longer = self.waits.of(member, AdaptiveTimeout::record_timeout);
            if is_again || !waits_longer {
                return looked;
            }
            is_again = true;
        }
    }

    /// Returns the reasons why no node may be changed now; `away` has the indices of the nodes that this roll has
    /// stopped.
    ///
    /// Nodes are asked for their view of the others only if nodes are stopped (`stops`): that runs `nodetool` on each,
    /// which costs a small machine more than an `ALTER TABLE` does.
    pub(super) async fn obstacles(
        &self,
        uri: &Uri,
        away: &BTreeSet<usize>,
        stops: bool,
    ) -> Obstacles {
        let there: BTreeSet<usize> =
            (0..self.members.len()).filter(|number| !away.contains(number)).collect();
        let mut obstacles = Obstacles::default();
        let lasting = &mut obstacles.lasting;
        let mut schemas = BTreeMap::<Uuid, Vec<&str>>::new();
        let mut clocks = Vec::new();
        for (number, looked) in self.views(uri, &there, stops).await {
            let name = &*self.members[number].access.name;
            match looked {
                Err(error) => lasting.push(format!("{name} does not answer: {}", chain(&error))),
                Ok(view) => {
                    schemas.entry(view.schema).or_default().push(name);
                    clocks.push((view.ahead_ms, name));
                    lasting.extend(unknown_version(name, &view.version));
                    lasting.extend(self.objections(name, &view, away));
                    obstacles.passing.extend(self.missed_writes(name, &view, away));
                }
            }
        }
        lasting.extend(disagreement(schemas));
        lasting.extend(clock_skew(&clocks));
        obstacles
    }

    /// Returns the reasons against stopping any node that the view of the node `name` contains.
    fn objections(&self, name: &str, view: &View, away: &BTreeSet<usize>) -> Vec<String> {
        let mut found = Vec::new();
        for (number, other) in self.members.iter().enumerate() {
            if away.contains(&number) {
                continue;
            }
            let other_name = &other.access.name;
            match view.sees.as_ref().map(|sees| sees.get(&other.id)) {
                None | Some(Some((true, true))) => {}
                Some(None) => found.push(format!("{name} does not know {other_name}")),
                Some(Some((false, _))) => found.push(format!("{name} sees {other_name} down")),
                Some(Some((true, false))) => {
                    found.push(format!("{name} sees {other_name} join, leave or move"));
                }
            }
        }
        found
    }

    /// Describes for which nodes the node `name` keeps writes that they have missed.
    fn missed_writes(&self, name: &str, view: &View, away: &BTreeSet<usize>) -> Vec<String> {
        let members = self.members.iter().enumerate();
        let missed = members
            .filter(|(number, other)| !away.contains(number) && view.hints.contains(&other.id));
        let text =
            |other: &Member| format!("{name} has hints (missed writes) for {}", other.access.name);
        missed.map(|(_, other)| text(other)).collect()
    }
}

fn late(member: &Member, limit: Duration) -> Error {
    let said = format!(
        "no answer within {} s; if it is well and its machine is busy, raise look_max_s in the cluster file",
        limit.as_secs()
    );
    Error::Command {
        node: member.access.name.clone(),
        doing: "looking at the cluster".into(),
        said,
    }
}

/// Reads a node's view of itself and of the others.
async fn view(node: &NodeAccess, uri: &Uri, stops: bool, limit: Duration) -> Result<View> {
    let session = connect_within(node.address, uri, limit).await?;
    let asked = clock::now_ms();
    let local = rows::<(Uuid, CqlTimestamp, String)>(
        &session,
        "reading its versions and the clock",
        "SELECT schema_version, toTimestamp(now()), release_version FROM system.local",
        (),
    )
    .await?;
    let between_ms = i64::try_from(u64::midpoint(asked, clock::now_ms())).unwrap_or(i64::MAX);
    let hints = rows::<(Uuid,)>(
        &session,
        "reading pending hints",
        "SELECT host_id FROM system_views.pending_hints",
        (),
    );
    let status =
        async { if stops { nodetool(node, "status", limit).await.map(Some) } else { Ok(None) } };
    let (hints, status) = tokio::try_join!(hints, status)?;
    let nothing = || (Uuid::nil(), CqlTimestamp(between_ms), String::new());
    let (schema, CqlTimestamp(at_ms), version) = local.into_iter().next().unwrap_or_else(nothing);
    let hints = hints.into_iter().map(|(id,)| id).collect();
    let (sees, ahead_ms) = (status.as_deref().map(node_states), at_ms - between_ms);
    Ok(View { sees, schema, hints, version, ahead_ms })
}

/// Reads the values of all settings that a node runs with, by name.
pub(super) async fn settings(node: &NodeAccess, uri: &Uri) -> Result<BTreeMap<String, String>> {
    let session = connect_to(node.address, uri).await?;
    let all = rows::<(String, Option<String>)>(
        &session,
        "reading the settings",
        "SELECT name, value FROM system_views.settings",
        (),
    );
    let all = all.await?;
    Ok(all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// Parses the output of `nodetool status`: each node's line has two letters for its state, and its host ID. Returns
/// by host ID whether the node is up, and whether it is in the state normal.
fn node_states(status: &str) -> BTreeMap<Uuid, (bool, bool)> {
    let mut seen = BTreeMap::new();
    for line in status.lines() {
        let mut letters = line.chars();
        let (up, state) = (letters.next(), letters.next());
        let is_node = matches!(up, Some('U' | 'D'))
            && matches!(state, Some('N' | 'L' | 'J' | 'M'))
            && letters.next().is_some_and(char::is_whitespace);
        let id = line.split_whitespace().find_map(|word| word.parse::<Uuid>().ok());
        if let (true, Some(id)) = (is_node, id) {
            seen.insert(id, (up == Some('U'), state == Some('N')));
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "\
Datacenter: dc1
===============
Status=Up/Down
|/ State=Normal/Leaving/Joining/Moving
--  Address       Load        Tokens  Owns (effective)  Host ID                               Rack \n\
UN  127.121.15.3  112.98 KiB  8       100.0%            1d38a840-df45-4890-abcf-faeebfd93f72  rack3
DN  127.121.15.1  ?           8       100.0%            deb23d02-6790-4acd-931e-5caa8126474e  rack1
UJ  127.121.15.2  118.34 KiB  8       ?                 8ebce959-b920-4072-abe3-89102b95009a  rack2

Note: Non-system keyspaces don't have the same replication settings
";

    fn id(text: &str) -> Uuid {
        text.parse().unwrap()
    }

    #[test]
    fn settings_are_known_of_one_version() {
        assert_eq!(unknown_version("cas-1", "5.0.2"), None);
        assert_eq!(unknown_version("cas-1", "5.0-rc1"), None);
        for other in ["4.1.3", "5.1.0", "5.01", ""] {
            let said = unknown_version("cas-1", other).unwrap();
            assert!(said.contains("cas-1 runs Cassandra") && said.contains("5.0"), "{said}");
        }
    }

    #[test]
    fn each_nodes_letters_are_read() {
        let expected = BTreeMap::from([
            (id("1d38a840-df45-4890-abcf-faeebfd93f72"), (true, true)),
            (id("deb23d02-6790-4acd-931e-5caa8126474e"), (false, true)),
            (id("8ebce959-b920-4072-abe3-89102b95009a"), (true, false)),
        ]);
        assert_eq!(node_states(STATUS), expected);
        assert!(node_states("nodetool: Failed to connect to '127.0.0.1:7199'").is_empty());
    }

    #[test]
    fn schemas_that_differ_are_an_obstacle_that_says_who_has_which() {
        let (old, new) = (
            id("54e17321-3f2e-37ca-9b08-d91ba7bdd369"),
            id("9d8a5fd6-7f2a-3f0f-a0a5-5e2ab8ec5cd1"),
        );
        assert_eq!(disagreement(BTreeMap::from([(old, vec!["cas-1", "cas-2"])])), None);
        let said =
            disagreement(BTreeMap::from([(old, vec!["cas-1", "cas-3"]), (new, vec!["cas-2"])]));
        assert_eq!(
            said.as_deref(),
            Some("the nodes have different schemas: cas-1 and cas-3; cas-2")
        );
    }

    #[test]
    fn clocks_that_are_far_apart_are_an_obstacle() {
        assert_eq!(clock_skew(&[]), None);
        // All of them may differ from this machine's.
        assert_eq!(clock_skew(&[(86_400_120, "cas-1"), (86_399_900, "cas-2")]), None);
        let said = clock_skew(&[(-40, "cas-1"), (61_500, "cas-2"), (15, "cas-3")]);
        assert_eq!(said.as_deref(), Some("the clock of cas-2 is 61.5 s ahead of that of cas-1"));
    }

    #[test]
    fn a_level_needs_its_share_of_the_replicas() {
        for (level, replicas, expected) in [
            (Consistency::One, 3, 1),
            (Consistency::Two, 3, 2),
            (Consistency::Quorum, 3, 2),
            (Consistency::Quorum, 4, 3),
            (Consistency::LocalQuorum, 5, 3),
            (Consistency::All, 3, 3),
            (Consistency::Quorum, 1, 1),
        ] {
            assert_eq!(needed(level, replicas), expected, "{level} of {replicas}");
        }
    }
}
