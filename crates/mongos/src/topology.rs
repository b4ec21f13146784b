//! The replica sets of the cluster, and the primary of each.
//!
//! A primary is found by sending `hello` to every member, and cached until a command finds it gone. The wait for an
//! election is bounded; the limit is roughly the longest wait of a client of a `mongos`, and drivers retry once
//! more by themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::{Document, doc};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::answer::{Failure, code};
use super::backend::Pool;

const ELECTION_BOUND: Duration = Duration::from_secs(15);
const HELLO_BOUND: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);

/// A replica set as the router knows it: its members, and the address of its primary once that is found.
#[derive(Debug)]
pub(super) struct ReplicaSet {
    /// Id of the shard, or `config`.
    pub(super) id: String,
    /// Name and members of the replica set, as `SET/HOST:PORT,…`.
    pub(super) seed: String,
    members: Vec<String>,
    primary: Mutex<Option<String>>,
}

impl ReplicaSet {
    /// Creates the replica set with the id `id` from its seed (`SET/HOST:PORT,…`).
    pub(super) fn new(id: &str, seed: &str) -> Self {
        let hosts = seed.split_once('/').map_or(seed, |(_, hosts)| hosts);
        Self {
            id: id.to_owned(),
            seed: seed.to_owned(),
            members: hosts.split(',').map(str::to_owned).collect(),
            primary: Mutex::new(None),
        }
    }

    /// Returns the address of the primary, cached or asked of the members; waits for an election, at most
    /// [`ELECTION_BOUND`].
    pub(super) async fn primary(&self, pool: &Pool) -> Result<String, Failure> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let start = Instant::now();
        loop {
            if let Some(found) = self.ask(pool).await {
                self.remember(Some(found.clone()));
                return Ok(found);
            }
            if start.elapsed() > ELECTION_BOUND {
                let message = format!(
                    "Could not find host matching read preference {{ mode: \"primary\" }} for set {} \
                     within {} s",
                    self.seed,
                    ELECTION_BOUND.as_secs()
                );
                return Err(Failure::new(code::NO_PRIMARY, message));
            }
            sleep(POLL).await;
        }
    }

    /// Discards the cached primary if it still is the node at `address`.
    pub(super) fn forget(&self, address: &str) {
        let mut primary = self.primary.lock().unwrap_or_else(PoisonError::into_inner);
        if primary.as_deref() == Some(address) {
            *primary = None;
        }
    }

    fn known(&self) -> Option<String> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn remember(&self, address: Option<String>) {
        *self.primary.lock().unwrap_or_else(PoisonError::into_inner) = address;
    }

    /// Asks all members for the primary and returns its address. If two claim to be primary, the one that was elected
    /// later is returned; `None` if none does.
    async fn ask(&self, pool: &Pool) -> Option<String> {
        let asked = self.members.iter().map(|member| ask_member(pool, member));
        let primaries = join_all(asked).await.into_iter().flatten();
        primaries.max().map(|(_, member)| member)
    }
}

/// Returns the election id and the address of `member` if it claims to be primary, else `None`.
async fn ask_member(pool: &Pool, member: &str) -> Option<([u8; 12], String)> {
    let hello = doc! { "hello": 1, "$db": "admin" };
    let answer = timeout(HELLO_BOUND, pool.call(member, None, &hello, None)).await.ok()?;
    let hello = answer.ok()?.document().ok()?;
    Some((election(&hello)?, member.to_owned()))
}

/// Returns the id of the election that made the sender of the reply `hello` primary; `None` if it is not primary.
fn election(hello: &Document) -> Option<[u8; 12]> {
    let primary = hello.get_bool("isWritablePrimary").unwrap_or(false);
    let id = hello.get_object_id("electionId").map(|id| id.bytes());
    primary.then(|| id.unwrap_or_default())
}

/// The shards of the cluster by id, as listed by the config server.
#[derive(Debug, Default)]
pub(super) struct Shards(Mutex<HashMap<String, Arc<ReplicaSet>>>);

impl Shards {
    /// Returns the shard with the id `id`; `None` if it is not known.
    pub(super) fn get(&self, id: &str) -> Option<Arc<ReplicaSet>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Returns all shards, ordered by id.
    pub(super) fn all(&self) -> Vec<Arc<ReplicaSet>> {
        let shards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = shards.values().cloned().collect();
        all.sort_by(|left, right| left.id.cmp(&right.id));
        all
    }

    /// Replaces the shards by `listed`, the documents of `config.shards`; a shard with an unchanged seed keeps its
    /// state.
    pub(super) fn replace(&self, listed: &[Document]) {
        let mut shards = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = HashMap::new();
        for shard in listed {
            let (Ok(id), Ok(seed)) = (shard.get_str("_id"), shard.get_str("host")) else {
                continue;
            };
            let known = shards.remove(id).filter(|known| known.seed == seed);
            let set = known.unwrap_or_else(|| Arc::new(ReplicaSet::new(id, seed)));
            fresh.insert(id.to_owned(), set);
        }
        *shards = fresh;
    }
}
