//! The nodes of a Redis server or cluster: the map from slots to masters, and requests that follow a slot to its
//! master.
//!
//! A request is repeated in two cases only. Either a node replied that it did not run the request and named another
//! node (MOVED, ASK); or the request was not sent, and the slot has another master by then. A request that was sent
//! and not answered is never sent again: a driver that does so may apply a write long after the write was
//! acknowledged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use imago_tune::cluster::{Error, Result};
use imago_tune::redis::Uri;
use imago_tune::redis::connection::{Node, line};
use imago_tune::redis::replication::Replication;
use imago_tune::redis::topology::{Part, SLOTS, Topology};
use redis::{Pipeline, Value};

use super::lanes::Lanes;
use super::outcome::Failure;

/// Maximum number of times that one request is sent on to another node.
const REDIRECTIONS_MAX: u32 = 5;
/// Minimum interval between two requests for the slot map, over all tasks of a load.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Timeout of a request for the slot map, or for the replication state of a node.
const LOOK_WAIT: Duration = Duration::from_secs(1);
/// Maximum time to wait until the replicas of all masters have the data of their masters.
const SETTLE_WAIT: Duration = Duration::from_secs(60);
/// Interval between two checks whether a master's replicas have its data.
const SETTLE_POLL: Duration = Duration::from_millis(100);

/// The nodes of a Redis server or cluster, the slot map, and the connections to the nodes.
#[derive(Debug)]
pub(super) struct Nodes {
    uri: Uri,
    answer_wait: Duration,
    lanes: usize,
    is_cluster: bool,
    view: RwLock<View>,
    connected: Mutex<HashMap<String, Arc<Lanes>>>,
    /// Time at which the slot map was last requested; `None` before the first request. It is locked during the
    /// request.
    last_refresh: tokio::sync::Mutex<Option<Instant>>,
}

/// The slot map of a cluster: the master of each slot, as last reported.
#[derive(Debug, Default)]
struct View {
    /// Addresses of all known nodes, as `host:port`.
    addresses: Vec<Arc<str>>,
    /// Index of each slot's master in `addresses`; `None` if the slot has no master.
    masters: Vec<Option<u16>>,
}

impl View {
    fn of_one(address: &str) -> Self {
        Self { addresses: vec![address.into()], masters: vec![Some(0); SLOTS] }
    }

    fn of(topology: &Topology) -> Self {
        let known = topology.members.iter().filter(|one| !one.address.is_empty());
        let mut view = Self { addresses: Vec::new(), masters: vec![None; SLOTS] };
        for (place, member) in known.enumerate() {
            view.addresses.push(member.address.as_str().into());
            let Part::Master(slots) = &member.part else { continue };
            for slot in slots.iter().cloned().flatten() {
                view.masters[usize::from(slot)] = u16::try_from(place).ok();
            }
        }
        view
    }

    fn master(&self, slot: u16) -> Option<Arc<str>> {
        let place = (*self.masters.get(usize::from(slot))?)?;
        self.addresses.get(usize::from(place)).cloned()
    }

    fn set_master(&mut self, slot: u16, address: &str) {
        let found = self.addresses.iter().position(|known| **known == *address);
        let place = found.unwrap_or_else(|| {
            self.addresses.push(address.into());
            self.addresses.len() - 1
        });
        if let (Some(master), Ok(place)) =
            (self.masters.get_mut(usize::from(slot)), u16::try_from(place))
        {
            *master = Some(place);
        }
    }

    /// Returns the addresses of the masters that have at least one slot, each once.
    fn all_masters(&self) -> Vec<Arc<str>> {
        let mut places: Vec<u16> = self.masters.iter().copied().flatten().collect();
        places.sort_unstable();
        places.dedup();
        places.iter().filter_map(|place| self.addresses.get(usize::from(*place)).cloned()).collect()
    }
}

impl Nodes {
    /// Connects to the first node of `uri` that accepts the connection, and reads the slot map from it. `answer_wait`
    /// is the timeout of a request, and `lanes` the number of connections to each node.
    pub(super) async fn connect(uri: &Uri, answer_wait: Duration, lanes: usize) -> Result<Self> {
        let node = Node::connect_to_any(uri, LOOK_WAIT).await?;
        let info: String = node.ask(&["INFO"]).await?;
        if line(&info, "imago_version").is_some() {
            return Err(Error::Precondition {
                what: format!("at {} is a store of Imago's, which keeps no hashes", node.address),
                help: "use a Redis server; `imago bench run` measures a store by loads of its own"
                    .into(),
            });
        }
        let is_cluster = line(&info, "cluster_enabled") == Some("1");
        let view = if is_cluster {
            View::of(&topology(&node).await?)
        } else {
            View::of_one(&node.address)
        };
        Ok(Self {
            uri: uri.clone(),
            answer_wait,
            lanes,
            is_cluster,
            view: RwLock::new(view),
            connected: Mutex::default(),
            last_refresh: tokio::sync::Mutex::default(),
        })
    }

    /// Returns the addresses of the masters that have at least one slot, by the present slot map.
    pub(super) fn masters(&self) -> Vec<Arc<str>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).all_masters()
    }

    /// Returns the address of a slot's master; `None` if the slot has no master in the present slot map.
    pub(super) fn master(&self, slot: u16) -> Option<Arc<str>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).master(slot)
    }

    /// Checks that each master has at least `wanted` replicas that are online.
    pub(super) async fn require_replicas(&self, wanted: u32) -> Result<()> {
        for address in self.masters() {
            let found = self.replication(&address).await?.online();
            if found < usize::try_from(wanted).unwrap_or(usize::MAX) {
                return Err(Error::Precondition {
                    what: format!(
                        "{address} has {found} replicas in step, and writes are to wait for {wanted}"
                    ),
                    help: "add replicas, or wait for fewer (--wait-replicas)".into(),
                });
            }
        }
        Ok(())
    }

    /// Waits until the online replicas of each master have the data that their master has now.
    pub(super) async fn settle(&self) -> Result<()> {
        let began = Instant::now();
        for address in self.masters() {
            loop {
                let Replication::Master { offset, replicas } = self.replication(&address).await?
                else {
                    break;
                };
                // Both offsets are from one reply: writes that arrive later need not be replicated.
                if replicas.iter().all(|one| !one.is_online || one.offset >= offset) {
                    break;
                }
                if began.elapsed() > SETTLE_WAIT {
                    let what = format!("the replicas of {address} do not get what it has");
                    let help = "is a replica too slow, or cut off?".into();
                    return Err(Error::Failed { what, help });
                }
                tokio::time::sleep(SETTLE_POLL).await;
            }
        }
        Ok(())
    }

    async fn replication(&self, address: &str) -> Result<Replication> {
        let node = Node::connect(address, &self.uri, LOOK_WAIT).await?;
        let told: String = node.ask(&["INFO", "replication"]).await?;
        Replication::parse(&told).ok_or_else(|| Error::Failed {
            what: format!("{address} does not say whether it is a master"),
            help: "is it a Redis server?".into(),
        })
    }

    /// Runs commands on keys of one slot at the slot's master, and follows redirections. Returns the replies if none
    /// of them is an error.
    pub(super) async fn run(
        &self,
        slot: u16,
        commands: &Pipeline,
    ) -> std::result::Result<Vec<Value>, Failure> {
        // The node to which the slot is moving. It accepts a request only after ASKING.
        let mut asked: Option<String> = None;
        for _ in 0..=REDIRECTIONS_MAX {
            let is_asked = asked.is_some();
            let to = match asked.take() {
                Some(address) => address.into(),
                None => self.master(slot).ok_or_else(|| Failure::not_sent("no master"))?,
            };
            let lanes = self.lanes(&to);
            let open = match lanes.open().await {
                Ok(open) => open,
                Err(why) => {
                    self.refresh_view(None, &to).await;
                    if self.master(slot).is_none_or(|master| master == to) {
                        return Err(Failure::not_sent(why));
                    }
                    continue;
                }
            };
            let sent = if is_asked { &asking(commands) } else { commands };
            let count = sent.len();
            let answered = open.connection.clone().send_packed_commands(sent, 0, count).await;
            let answers = match answered {
                Ok(answers) => answers,
                Err(error) if error.code().is_none() => {
                    lanes.close(&open).await;
                    self.refresh_view(None, &to).await;
                    return Err(Failure::unanswered(&error));
                }
                Err(error) => return Err(Failure::refused(&error)),
            };
            let answers = answers.into_iter().skip(usize::from(is_asked));
            let answers: redis::RedisResult<Vec<Value>> =
                answers.map(Value::extract_error).collect();
            let error = match answers {
                Ok(answers) => return Ok(answers),
                Err(error) => error,
            };
            match (error.code(), error.redirect_node()) {
                (Some("MOVED"), Some((address, slot))) => {
                    let address = address.to_owned();
                    self.view
                        .write()
                        .unwrap_or_else(PoisonError::into_inner)
                        .set_master(slot, &address);
                    self.refresh_view(Some(&address), &to).await;
                }
                (Some("ASK"), Some((address, _))) => asked = Some(address.to_owned()),
                (Some("CLUSTERDOWN" | "MASTERDOWN" | "READONLY"), _) => {
                    self.refresh_view(None, &to).await;
                    return Err(Failure::refused(&error));
                }
                _ => return Err(Failure::refused(&error)),
            }
        }
        Err(Failure::not_sent("sent from node to node"))
    }

    /// Runs commands at the node with this address, even if that node does not have the slots of their keys.
    pub(super) async fn run_at(
        &self,
        address: &str,
        commands: &Pipeline,
    ) -> std::result::Result<Vec<Value>, Failure> {
        let lanes = self.lanes(address);
        let open = lanes.open().await.map_err(Failure::not_sent)?;
        let count = commands.len();
        match open.connection.clone().send_packed_commands(commands, 0, count).await {
            Ok(answers) => {
                let answers = answers.into_iter().map(Value::extract_error);
                let answers: redis::RedisResult<Vec<Value>> = answers.collect();
                if let Err(error) = &answers
                    && let Some((new, _)) = error.redirect_node()
                {
                    self.refresh_view(Some(new), address).await;
                }
                answers.map_err(|error| Failure::refused(&error))
            }
            Err(error) if error.code().is_none() => {
                lanes.close(&open).await;
                self.refresh_view(None, address).await;
                Err(Failure::unanswered(&error))
            }
            Err(error) => Err(Failure::refused(&error)),
        }
    }

    fn lanes(&self, address: &str) -> Arc<Lanes> {
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lanes) = connected.get(address) {
            return Arc::clone(lanes);
        }
        let user = self.uri.user.as_ref();
        let lanes = Arc::new(Lanes::new(address, user, self.answer_wait, self.lanes));
        connected.insert(address.to_owned(), Arc::clone(&lanes));
        lanes
    }

    /// Requests the slot map: from node `first` if there is one, then from the known nodes until one answers, but not
    /// from node `failed`. One task at a time does so, and at most once in [`REFRESH_INTERVAL_MIN`]. The others
    /// continue with the present map.
    async fn refresh_view(&self, first: Option<&str>, failed: &str) {
        if !self.is_cluster {
            return;
        }
        let Ok(mut last_refresh) = self.last_refresh.try_lock() else { return };
        if last_refresh.is_some_and(|at| at.elapsed() < REFRESH_INTERVAL_MIN) {
            return;
        }
        let known: Vec<Arc<str>> =
            self.view.read().unwrap_or_else(PoisonError::into_inner).addresses.clone();
        let others = known.iter().map(|address| &**address);
        for address in first.into_iter().chain(others).filter(|address| *address != failed) {
            let Ok(node) = Node::connect(address, &self.uri, LOOK_WAIT).await else { continue };
            let Ok(topology) = topology(&node).await else { continue };
            *self.view.write().unwrap_or_else(PoisonError::into_inner) = View::of(&topology);
            break;
        }
        *last_refresh = Some(Instant::now());
    }
}

async fn topology(node: &Node) -> Result<Topology> {
    let told: String = node.ask(&["CLUSTER", "NODES"]).await?;
    Topology::parse(&told).map_err(|error| Error::Failed {
        what: format!("{} cannot be understood: {error}", node.address),
        help: "is it a node of a Redis Cluster of version 7?".into(),
    })
}

/// Returns the commands preceded by ASKING, for a node to which a slot is moving.
fn asking(commands: &Pipeline) -> Pipeline {
    let mut all = redis::pipe();
    all.cmd("ASKING");
    for command in commands.cmd_iter() {
        all.add_command(command.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_moved_has_its_new_master_until_the_next_look() {
        let mut view = View::of_one("10.0.0.1:6379");
        view.set_master(15_495, "10.0.0.4:6379");
        assert_eq!(view.master(15_495).as_deref(), Some("10.0.0.4:6379"));
        assert_eq!(view.master(15_496).as_deref(), Some("10.0.0.1:6379"));
        let masters = view.all_masters();
        assert_eq!(
            masters.iter().map(|one| &**one).collect::<Vec<_>>(),
            ["10.0.0.1:6379", "10.0.0.4:6379"]
        );
    }

    #[test]
    fn a_slot_that_no_node_has_has_no_master() {
        let text = "07c37dfeb235213a872192d90877d0cd55635b91 10.0.0.1:6379@16379 myself,master - 0 0 1 connected 0-5459";
        let view = View::of(&Topology::parse(text).unwrap());
        assert_eq!(view.master(5_459).as_deref(), Some("10.0.0.1:6379"));
        assert_eq!(view.master(5_460), None);
    }
}
