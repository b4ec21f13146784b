//! Rehearsal: a rename and a few writes before the comparison and the write block, to predict the duration of the
//! write block.
//!
//! Both use collections of this job in the database of Imago's own state; no user data is touched. A rehearsal that
//! fails stops nothing: the commit continues without a prediction.

use std::time::{Duration, Instant};

use bson::doc;
use imago_job::id::JobId;
use imago_job::run::Run;
use imago_plan::reshard::write_block::{PROMISED_MS, RehearsalTimes};

use super::ms;
use crate::STATE_DB;
use crate::error::Result;
use crate::server::endpoint::Endpoint;

/// Longest duration of the rehearsal. A server performs one change of definitions after the other, and may be busy
/// with one.
const WITHIN: Duration = Duration::from_secs(5);
/// Number of measured majority writes, of which the median counts.
const WRITES: usize = 3;

/// Runs the rehearsal and returns the measured times; warns if the write block will take longer than promised.
/// Returns `None` if the rehearsal failed or took too long.
pub(in crate::reshard) async fn rehearse(run: &Run, cluster: &Endpoint) -> Option<RehearsalTimes> {
    let trying = Box::pin(run_rehearsal(cluster, &run.record().id));
    let tried = match tokio::time::timeout(WITHIN, trying).await {
        Ok(Ok(tried)) => tried,
        Err(_) => {
            clear(cluster, &run.record().id).await;
            run.reporter().warning(
                "write_block_long",
                format!(
                    "a bare rename did not finish within {} s: writes may be refused for longer",
                    WITHIN.as_secs()
                ),
                "another change of a collection's definition may be under way: let it end first",
            );
            return None;
        }
        Ok(Err(error)) => {
            tracing::info!(%error, "the block's duration is not predicted");
            return None;
        }
    };
    if tried.exceeds_promise() {
        run.reporter().warning(
            "write_block_long",
            format!(
                "writes will be refused for about {} ms, where {PROMISED_MS} are promised: a bare \
                 rename takes {} ms here, and a write that waits for a majority {} ms",
                tried.block_ms(),
                tried.rename_ms,
                tried.write_ms
            ),
            "the servers' disks or processors are busy: a quieter time makes it shorter (`imago job \
             pause` now, `imago job resume` then)",
        );
    }
    Some(tried)
}

async fn run_rehearsal(cluster: &Endpoint, job: &JobId) -> Result<RehearsalTimes> {
    let [from, to] = ["from", "to"].map(|end| format!("rehearsal.{job}.{end}"));
    // A process that died during a rehearsal may have left its collections.
    drop_both(cluster, [&from, &to]).await?;
    let outcome = measure(cluster, &from, &to).await;
    drop_both(cluster, [&from, &to]).await?;
    outcome
}

/// Drops the collections that a rehearsal of the job may have left when it took too long, as far as the server
/// replies.
async fn clear(cluster: &Endpoint, job: &JobId) {
    let [from, to] = ["from", "to"].map(|end| format!("rehearsal.{job}.{end}"));
    if tokio::time::timeout(WITHIN, drop_both(cluster, [&from, &to])).await.is_err() {
        tracing::debug!("the rehearsal's collections are left behind");
    }
}

async fn measure(cluster: &Endpoint, from: &str, to: &str) -> Result<RehearsalTimes> {
    let majority = doc! {"w": "majority"};
    let insert = |coll: &str, id: i32| doc! {"insert": coll, "documents": [{"_id": id}], "writeConcern": &majority};
    cluster.run(STATE_DB, insert(to, 0)).await?;
    cluster.run(STATE_DB, insert(from, 0)).await?;
    let mut writes_ms = Vec::new();
    for id in 1..=i32::try_from(WRITES).unwrap_or(3) {
        let began = Instant::now();
        cluster.run(STATE_DB, insert(from, id)).await?;
        writes_ms.push(ms(began));
    }
    writes_ms.sort_unstable();
    let rename = doc! {
        "renameCollection": format!("{STATE_DB}.{from}"), "to": format!("{STATE_DB}.{to}"),
        "dropTarget": true, "writeConcern": &majority,
    };
    let began = Instant::now();
    cluster.run("admin", rename).await?;
    Ok(RehearsalTimes { rename_ms: ms(began), write_ms: writes_ms[WRITES / 2] })
}

async fn drop_both(cluster: &Endpoint, colls: [&String; 2]) -> Result<()> {
    for coll in colls {
        cluster
            .client()
            .database(STATE_DB)
            .collection::<bson::Document>(coll)
            .drop()
            .await
            .map_err(|error| {
                crate::error::Error::server(format!("dropping {STATE_DB}.{coll}"), error)
            })?;
    }
    Ok(())
}
