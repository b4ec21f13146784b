//! Fills a Redis server or cluster before a load: the keys `0..records`, with concurrent writes.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use imago_tune::cluster::{Error, Result};
use imago_tune::redis::topology::slot;

use super::RedisTarget;
use super::content::{each_name, failed};

/// Number of records that are written concurrently while a server is filled.
const WRITERS: usize = 128;
/// Number of written records between two reports of progress.
const PROGRESS_RECORDS: u64 = 500;

/// Writes the records of the keys `0..records`, each with `seq` equal to its key, and waits until the replicas have
/// them. Calls `progress` with the number of records written so far.
///
/// # Errors
/// Fails if there are records, or with the error of the server. After an error of the server, a part of the records
/// may be there.
pub async fn preload(
    target: &RedisTarget,
    records: u64,
    progress: impl Fn(u64) + Sync,
) -> Result<()> {
    require_records(target, 0).await?;
    let written = AtomicU64::new(0);
    iter(0..records)
        .map(|key| {
            let (written, progress) = (&written, &progress);
            async move {
                let name = target.name(key);
                let mut commands = redis::pipe();
                commands.cmd("HSET").arg(&name).arg(target.schema.fields(key, key));
                let done = target.nodes.run(slot(name.as_bytes()), &commands).await;
                done.map_err(|why| failed(target, why))?;
                let so_far = written.fetch_add(1, Ordering::Relaxed) + 1;
                if so_far.is_multiple_of(PROGRESS_RECORDS) {
                    progress(so_far);
                }
                Ok::<_, Error>(())
            }
        })
        .buffer_unordered(WRITERS)
        .try_collect::<()>()
        .await?;
    target.nodes.settle().await
}

/// Checks that the target has exactly `records` records: keys with its prefix.
///
/// # Errors
/// Fails if the number differs, or with the error of the server.
#[crate::boxed]
pub async fn require_records(target: &RedisTarget, records: u64) -> Result<()> {
    let label = &target.label;
    // One record more is enough to show that there are too many.
    let (what, help) = match count_records(target, records.saturating_add(1)).await? {
        found if found == records => return Ok(()),
        _ if records == 0 => {
            (format!("{label}: there are records"), "use another --ns, or delete these")
        }
        found => (
            format!("{label}: there are {found} records or more, not {records}"),
            "say how many there were filled in",
        ),
    };
    Err(Error::Precondition { what, help: help.into() })
}

/// Checks that all Redis keys with the prefix of the target are keys of records that a load writes.
///
/// # Errors
/// Fails if a key is not, and names the key in the message. Fails with the error of the server otherwise.
pub async fn require_own_records(target: &RedisTarget) -> Result<()> {
    each_name(target, u64::MAX, async |_, names| check_own_records(target, names)).await.map(drop)
}

/// Checks that the Redis keys `names`, which have the prefix of the target, are keys of records that a load writes.
fn check_own_records(target: &RedisTarget, names: &[String]) -> Result<()> {
    let is_own = |name: &&String| target.schema.id_form.key(&name[target.prefix.len()..]).is_some();
    match names.iter().find(|name| !is_own(name)) {
        None => Ok(()),
        Some(other) => Err(Error::Precondition {
            what: format!("{}: the key {other} is no record of a load", target.label),
            help: "use another --ns: records are deleted and written anew".into(),
        }),
    }
}

/// Deletes all records of the target, and waits until the replicas have done so. If there is a key with the target's
/// prefix that no load writes, the function fails, and deletes nothing unless that key appeared meanwhile.
///
/// # Errors
/// Fails in the same cases as [`require_own_records`].
pub async fn delete_records(target: &RedisTarget) -> Result<()> {
    require_own_records(target).await?;
    each_name(target, u64::MAX, async |node, names| {
        // Another client may have written a key since the first check.
        check_own_records(target, names)?;
        let mut commands = redis::pipe();
        for name in names {
            commands.cmd("DEL").arg(name);
        }
        if names.is_empty() {
            return Ok(());
        }
        target.nodes.run_at(node, &commands).await.map(drop).map_err(|why| failed(target, why))
    })
    .await?;
    target.nodes.settle().await
}

/// Returns the number of records of the target. Counting may end early, with a lower number than there are, once the
/// number reaches `limit`.
///
/// # Errors
/// Fails with the error of the server.
pub async fn count_records(target: &RedisTarget, limit: u64) -> Result<u64> {
    each_name(target, limit, async |_, _| Ok(())).await
}
