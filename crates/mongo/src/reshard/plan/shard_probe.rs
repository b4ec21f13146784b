//! Facts that each shard reports past the router: its latency, the window of its oplog, its free disk space, its
//! present work on the collection.
//!
//! Not every network lets Imago reach the shards, and not every user exists there. A fact that cannot be read is left
//! unknown, and the plan reports that.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::Client;
use mongodb::options::ServerAddress;

use crate::error::redacted_message;
use crate::namespace::Namespace;
use crate::server::collection::number;
use crate::server::endpoint::Endpoint;

use crate::reshard::plan::members::{Member, members};
use crate::reshard::plan::survey::Shard;

/// Longest time for all requests to one shard.
const REACH_MAX: Duration = Duration::from_secs(10);
const PINGS: usize = 7;

/// Facts about one shard, read past the router.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::reshard) struct ShardReport {
    /// Median round trip from this process to the shard's primary, in µs.
    pub(in crate::reshard) latency_us: u32,
    /// Time that the shard's oplog spans once it is full, in seconds; `None` if unknown.
    pub(in crate::reshard) oplog_s: Option<u64>,
    /// Free space on the shard's disk, in bytes; `None` if unknown.
    pub(in crate::reshard) free_bytes: Option<u64>,
    /// Names of the collection's indexes that the shard is building.
    pub(in crate::reshard) building: Vec<String>,
    /// Names of the shards to which the shard is migrating a chunk of the collection.
    pub(in crate::reshard) migration_recipients: Vec<String>,
    /// Members of the shard's replica set; empty if the user lacks the privilege to query them.
    pub(in crate::reshard) members: Vec<Member>,
}

/// Queries each shard about itself and the collection `ns`. Returns the shard's report, or in words the reason why it
/// could not be queried.
pub(in crate::reshard) async fn reach(
    router: &Endpoint,
    shards: &[Shard],
    ns: &Namespace,
) -> Vec<Result<ShardReport, String>> {
    let asked = shards.iter().map(|shard| Box::pin(ask(router, shard, ns)));
    futures_util::future::join_all(asked).await
}

async fn ask(router: &Endpoint, shard: &Shard, ns: &Namespace) -> Result<ShardReport, String> {
    let work = async {
        let client = connect(router, shard)?;
        let failed = |error: mongodb::error::Error| redacted_message(&error);
        let mut times = Vec::with_capacity(PINGS);
        // The first ping includes the time to connect.
        run(&client, "admin", doc! {"ping": 1}).await.map_err(failed)?;
        for _ in 0..PINGS {
            let began = Instant::now();
            run(&client, "admin", doc! {"ping": 1}).await.map_err(failed)?;
            times.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
        }
        times.sort_unstable();
        Ok(ShardReport {
            latency_us: times[PINGS / 2],
            oplog_s: oplog_s(&client).await.ok().flatten(),
            free_bytes: free_bytes(&client, ns).await,
            building: building(&client, ns).await,
            migration_recipients: migration_recipients(&client, ns).await,
            members: members_of(&client).await.unwrap_or_default(),
        })
    };
    let late = || format!("no answer within {} s", REACH_MAX.as_secs());
    tokio::time::timeout(REACH_MAX, work).await.unwrap_or_else(|_| Err(late()))
}

/// Returns a client of the shard's replica set with the credentials of `router`.
fn connect(router: &Endpoint, shard: &Shard) -> Result<Client, String> {
    let (set, members) = shard.host.split_once('/').unwrap_or(("", &shard.host));
    let hosts = members.split(',').map(ServerAddress::parse);
    let hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(|error| redacted_message(&error))?;
    router.sibling(hosts, set, REACH_MAX).map_err(|error| redacted_message(&error))
}

async fn run(client: &Client, db: &str, command: Document) -> mongodb::error::Result<Document> {
    client.database(db).run_command(command).await
}

/// Returns the time that the oplog of the client's server spans once it is full, in seconds; `None` if it is empty.
async fn oplog_s(client: &Client) -> mongodb::error::Result<Option<u64>> {
    let stats = run(client, "local", doc! {"collStats": "oplog.rs"}).await?;
    let (oldest, newest) = (end_s(client, 1).await?, end_s(client, -1).await?);
    let Some((oldest, newest)) = oldest.zip(newest) else { return Ok(None) };
    Ok(Some(window_s(newest.saturating_sub(oldest), &stats)))
}

fn window_s(held_s: u32, stats: &Document) -> u64 {
    let (size, size_max) = (number(stats, "size").max(1), number(stats, "maxSize"));
    let full = u128::from(held_s.max(1)) * u128::from(size_max.max(size)) / u128::from(size);
    u64::try_from(full).unwrap_or(u64::MAX)
}

async fn end_s(client: &Client, order: i32) -> mongodb::error::Result<Option<u32>> {
    let command = doc! {
        "find": "oplog.rs", "sort": {"$natural": order}, "limit": 1, "projection": {"ts": 1},
        "singleBatch": true,
    };
    let reply = run(client, "local", command).await?;
    let first = first_batch(&reply).into_iter().next();
    Ok(first.and_then(|entry| entry.get_timestamp("ts").ok()).map(|ts| ts.time))
}

fn first_batch(reply: &Document) -> Vec<Document> {
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.into_iter().flatten();
    batch.filter_map(Bson::as_document).cloned().collect()
}

/// Returns the free space on the shard's disk, in bytes; `None` if unknown. A database that is not on the shard yet
/// reports no disk, so several are tried: one of them exists, and one the user may query.
async fn free_bytes(client: &Client, ns: &Namespace) -> Option<u64> {
    for db in [ns.db.as_str(), "local", "admin"] {
        let stats = run(client, db, doc! {"dbStats": 1}).await.unwrap_or_default();
        let total = number(&stats, "fsTotalSize");
        if total > 0 {
            return Some(total.saturating_sub(number(&stats, "fsUsedSize")));
        }
    }
    None
}

/// Returns the names of the collection's indexes that the shard is building: servers list those with the id of their
/// build.
async fn building(client: &Client, ns: &Namespace) -> Vec<String> {
    let command = doc! {
        "listIndexes": &ns.coll, "includeBuildUUIDs": true, "cursor": {"batchSize": 1000},
    };
    // A shard without chunks of the collection has no such collection.
    let listed = run(client, &ns.db, command).await.unwrap_or_default();
    let listed = first_batch(&listed).into_iter().filter(|index| index.contains_key("buildUUID"));
    let name = |index: Document| {
        let name = index.get_document("spec").and_then(|spec| spec.get_str("name"));
        name.unwrap_or("an index").to_owned()
    };
    listed.map(name).collect()
}

async fn members_of(client: &Client) -> mongodb::error::Result<Vec<Member>> {
    let config = run(client, "admin", doc! {"replSetGetConfig": 1}).await?;
    let status = run(client, "admin", doc! {"replSetGetStatus": 1}).await?;
    let config = config.get_document("config").cloned().unwrap_or_default();
    Ok(members(&config, &status))
}

/// Returns the names of the shards to which the client's shard is migrating chunks of the collection `ns`. A shard
/// keeps a document for each migration until the recipient has the chunk.
async fn migration_recipients(client: &Client, ns: &Namespace) -> Vec<String> {
    let command = doc! {"find": "migrationCoordinators", "filter": {"nss": ns.to_string()}};
    let noted = run(client, "config", command).await.unwrap_or_default();
    let to = |note: &Document| note.get_str("recipientShardId").unwrap_or("a shard").to_owned();
    first_batch(&noted).iter().map(to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oplog_that_is_not_full_yet_will_reach_further_back() {
        assert_eq!(window_s(60, &doc! {"size": 10, "maxSize": 1_000}), 6_000);
        assert_eq!(window_s(60, &doc! {"size": 1_010, "maxSize": 1_000}), 60);
    }
}
