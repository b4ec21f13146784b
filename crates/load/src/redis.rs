//! A Redis server or cluster as the target of a load and as the subject of a check, and how it is filled.
//!
//! Reviews are hashes under keys `DB:COLL:ID`. Every write carries its number (`seq`, which also identifies the load)
//! and writes all fields by one HSET. So each record is a pure function of its key and `seq`, and a read shows which
//! write it saw. All requests go to masters.
//!
//! Redis acknowledges a write before any replica has it: if a master is killed and replaced, acknowledged writes are
//! lost. With [`Durability`] each write also waits until replicas have acknowledged it (WAIT).

mod content;
mod lanes;
mod nodes;
mod outcome;
mod preload;
mod record;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use imago_tune::cluster::{Error, Result};
use imago_tune::redis::Uri;
use imago_tune::redis::topology::slot;
use imago_workload::target::{Insert, Outcome, Target, Update};
use redis::{FromRedisValue as _, Pipeline, Value};

use crate::Schema;

pub use content::show_content;
pub use preload::{count_records, delete_records, preload, require_own_records, require_records};

use nodes::Nodes;
use outcome::Failure;

/// Timeout of a request to a node, unless the load abandons the operation earlier.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Number of connections to each node if writes do not wait for replicas.
const LANES: usize = 4;
/// Number of connections to each node if writes wait for replicas. A write that waits delays the requests that follow
/// it on its connection.
const LANES_THAT_WAIT: usize = 32;

/// Maximum number of attempts of one scan at a node that no longer has the slot (it replies MOVED).
const SCAN_TRIES: u32 = 5;
/// Delay between two attempts of the same scan.
const SCAN_PAUSE: Duration = Duration::from_millis(50);

/// The condition under which a write counts as acknowledged: a number of replicas that have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durability {
    /// Number of replicas that must have acknowledged the write, in addition to its master; 0: the master's reply is
    /// enough.
    pub replicas: u32,
    /// Maximum time for which a write waits for these replicas (WAIT).
    pub wait: Duration,
}

/// The records of one collection on a Redis server or cluster, to which a load is sent.
#[derive(Debug)]
pub struct RedisTarget {
    nodes: Nodes,
    schema: Schema,
    /// The text with which the Redis key of each record begins: `DB:COLL:`.
    prefix: String,
    durability: Durability,
    /// Cursor at which the next SCAN of each master begins, by the address of the node.
    cursors: Mutex<HashMap<String, u64>>,
    label: String,
}

impl RedisTarget {
    /// Connects to a server, or to all nodes of a cluster. The records are those under the keys `DB:COLL:…` of the
    /// given database and collection names. A write counts as acknowledged as `durability` says.
    ///
    /// # Errors
    /// Fails if no node answers or accepts the user, if the node is not a Redis server, or if a master has fewer
    /// replicas than `durability` requires. Fails if writes are to wait for replicas, but for less than 1 ms.
    #[crate::boxed]
    pub async fn connect(
        uri: &Uri,
        (database, collection): (&str, &str),
        durability: Durability,
        schema: Schema,
    ) -> Result<Self> {
        let Durability { replicas, wait } = durability;
        if replicas > 0 && wait < Duration::from_millis(1) {
            let why = "replicas can be waited for one millisecond at least";
            return Err(Error::Usage(why.into()));
        }
        let (answer_wait, lanes) = match replicas {
            0 => (ANSWER_WAIT, LANES),
            _ => (ANSWER_WAIT + wait, LANES_THAT_WAIT),
        };
        let nodes = Nodes::connect(uri, answer_wait, lanes).await?;
        nodes.require_replicas(replicas).await?;
        let acknowledged = match replicas {
            0 => "acknowledged by masters".to_owned(),
            1 => "acknowledged by 1 replica".to_owned(),
            more => format!("acknowledged by {more} replicas"),
        };
        let label = format!("{uri} {database}.{collection}, {acknowledged}");
        let prefix = format!("{database}:{collection}:");
        Ok(Self { nodes, schema, prefix, durability, cursors: Mutex::default(), label })
    }

    fn name(&self, key: u64) -> String {
        format!("{}{}", self.prefix, self.schema.id_form.name(key))
    }

    /// Runs the commands of a write to the key `name`, and waits for the replicas that [`Durability`] requires.
    async fn change(&self, name: &str, mut commands: Pipeline) -> std::result::Result<(), Failure> {
        let Durability { replicas, wait } = self.durability;
        if replicas > 0 {
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            commands.cmd("WAIT").arg(replicas).arg(wait_ms);
        }
        let answers = self.nodes.run(slot(name.as_bytes()), &commands).await?;
        match (replicas, answers.last()) {
            (0, _) => Ok(()),
            (wanted, Some(Value::Int(told))) if *told >= i64::from(wanted) => Ok(()),
            (wanted, Some(Value::Int(told))) => Err(Failure::few_replicas(*told, wanted)),
            (wanted, _) => Err(Failure::few_replicas(0, wanted)),
        }
    }

    async fn write(
        &self,
        key: u64,
        fields: Vec<(String, String)>,
    ) -> std::result::Result<(), Failure> {
        let name = self.name(key);
        let mut commands = redis::pipe();
        commands.cmd("HSET").arg(&name).arg(fields);
        self.change(&name, commands).await
    }

    /// Returns about `count` keys of this target's records on a node, by one SCAN from `cursor`, and the cursor that
    /// follows.
    async fn names(
        &self,
        node: &str,
        cursor: u64,
        count: u32,
    ) -> std::result::Result<(u64, Vec<String>), Failure> {
        let mut commands = redis::pipe();
        let pattern = format!("{}*", escaped(&self.prefix));
        commands.cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(count);
        let answer = self.nodes.run_at(node, &commands).await?.into_iter().next();
        let told = answer.map(<(u64, Vec<String>)>::from_redis_value);
        told.and_then(std::result::Result::ok).ok_or_else(|| not_understood("SCAN"))
    }

    /// Returns the hashes under the keys `names` on a node that has them; an empty hash for a key that does not
    /// exist.
    async fn records(
        &self,
        node: &str,
        names: &[String],
    ) -> std::result::Result<Vec<HashMap<String, String>>, Failure> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut commands = redis::pipe();
        for name in names {
            commands.cmd("HGETALL").arg(name);
        }
        let answers = self.nodes.run_at(node, &commands).await?;
        let records = answers.into_iter().map(HashMap::from_redis_value);
        records.collect::<std::result::Result<_, _>>().map_err(|_| not_understood("HGETALL"))
    }

    async fn scan(&self, key: u64, documents_max: u32) -> std::result::Result<(), Failure> {
        let slot = slot(self.name(key).as_bytes());
        let node = self.nodes.master(slot).ok_or_else(|| Failure::not_sent("no master"))?;
        let cursor = {
            let cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
            cursors.get(&*node).copied().unwrap_or(0)
        };
        let (next, mut names) = self.names(&node, cursor, documents_max.max(1)).await?;
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner).insert(node.to_string(), next);
        names.truncate(usize::try_from(documents_max).unwrap_or(usize::MAX));
        self.records(&node, &names).await.map(drop)
    }
}

/// Returns the failure of a request whose reply does not fit `command`.
fn not_understood(command: &str) -> Failure {
    let message = format!("an answer that is none to {command}");
    Failure { message, is_unavailable: false, perhaps_applied: true }
}

/// Escapes the special characters of a glob pattern of Redis in a text.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for c in text.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

fn of_write(done: std::result::Result<(), Failure>) -> Outcome {
    match done {
        Ok(()) => Outcome::Acked,
        Err(failure) => failure.of_write(),
    }
}

impl Target for RedisTarget {
    async fn read(&self, key: u64) -> Outcome {
        let name = self.name(key);
        let mut commands = redis::pipe();
        commands.cmd("HGETALL").arg(&name);
        let answers = match self.nodes.run(slot(name.as_bytes()), &commands).await {
            Ok(answers) => answers,
            Err(failure) => return failure.of_read(),
        };
        let read = answers.into_iter().next().map(HashMap::<String, String>::from_redis_value);
        let Some(Ok(read)) = read else { return not_understood("HGETALL").of_read() };
        if read.is_empty() {
            return Outcome::NotFound;
        }
        match self.schema.write_of(key, &read) {
            Some((seq, true)) => Outcome::Found(seq),
            _ => Outcome::Refused("the record that was read is not as any write left it".into()),
        }
    }

    async fn insert(&self, insert: Insert) -> Outcome {
        let Insert { key, seq, review } = insert;
        of_write(self.write(key, record::fields(review, seq)).await)
    }

    async fn update(&self, update: Update) -> Outcome {
        of_write(self.write(update.key, self.schema.fields(update.key, update.seq)).await)
    }

    async fn delete(&self, key: u64) -> Outcome {
        let name = self.name(key);
        let mut commands = redis::pipe();
        commands.cmd("DEL").arg(&name);
        of_write(self.change(&name, commands).await)
    }

    async fn scan(&self, key: u64, documents_max: u32) -> Outcome {
        let mut tries = 1;
        let scanned = loop {
            match self.scan(key, documents_max).await {
                // The node has handed its slots over, and the new master becomes known after a moment.
                Err(failure) if failure.has_moved() && tries < SCAN_TRIES => tries += 1,
                scanned => break scanned,
            }
            tokio::time::sleep(SCAN_PAUSE).await;
        };
        match scanned {
            Ok(()) => Outcome::Acked,
            Err(failure) => failure.of_read(),
        }
    }

    fn label(&self) -> String {
        self.label.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_takes_names_as_they_are() {
        assert_eq!(escaped("shop:reviews:"), "shop:reviews:");
        assert_eq!(escaped("shop:[a]*?"), "shop:\\[a\\]\\*\\?");
    }
}
