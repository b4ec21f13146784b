//! Progress of the server's own resharding.
//!
//! The phase is the coordinator's state in `config.reshardingOperations`. Each receiving shard reports the copied
//! bytes and its estimate in `$currentOp`. A shard that does not reply to this user is left out of the progress, and
//! nothing waits for it.

use std::time::Duration;

use bson::{Bson, Document, doc};
use imago_job::event::Progress;
use imago_job::run::Run;

use crate::error::{Error, Result};
use crate::reshard::plan::Plan;
use crate::server::collection::number;
use crate::server::endpoint::Endpoint;

/// Longest wait for the connection to a shard.
const REACH_MAX: Duration = Duration::from_secs(5);

/// The shards that a process watches during the server's resharding, and the last reported phase.
pub(in crate::reshard) struct Watch {
    ns: String,
    shards: Vec<Endpoint>,
    phase: &'static str,
    is_pause_reported: bool,
}

impl Watch {
    /// Connects to the shards of the cluster; a shard that cannot be reached is left out.
    pub(in crate::reshard) async fn new(cluster: &Endpoint, plan: &Plan) -> Self {
        let listed = cluster.run("admin", doc! {"listShards": 1}).await.unwrap_or_default();
        let mut shards = Vec::new();
        for entry in listed.get_array("shards").into_iter().flatten() {
            let Some(host) = entry.as_document().and_then(|entry| entry.get_str("host").ok())
            else {
                continue;
            };
            match cluster.shard(host, REACH_MAX).await {
                Ok(shard) => shards.push(shard),
                Err(error) => tracing::info!(%error, "its part of the progress is not known"),
            }
        }
        Self { ns: plan.ns.to_string(), shards, phase: "", is_pause_reported: false }
    }

    /// Reports the progress of the resharding: the state in `entry`, its document in `config.reshardingOperations`,
    /// and the counts of the shards.
    ///
    /// # Errors
    /// Fails if another process took over the job, or if the job is to stop.
    pub(in crate::reshard) async fn report_progress(
        &mut self,
        run: &Run,
        entry: &Document,
    ) -> Result<()> {
        let state = entry.get_str("state").unwrap_or_default();
        if run.control().is_paused() {
            if !self.is_pause_reported {
                self.is_pause_reported = true;
                run.reporter().warning(
                    "not_paused",
                    "the server's own resharding cannot be paused, and goes on",
                    "`imago job resume` ends the job once it is done; `imago job cancel` aborts it",
                );
            }
        } else if phase(state) != self.phase {
            run.enter(phase(state)).await?;
            self.phase = phase(state);
        }
        let mut progress = Progress {
            doing: format!("the server reshards: {state}"),
            next: "wait; `imago job cancel` aborts it until the server commits".into(),
            ..Progress::default()
        };
        for shard in &self.shards {
            for told in self.ask(shard).await {
                add(&mut progress, &told);
            }
        }
        run.reporter().progress(progress);
        Ok(())
    }

    /// Returns the reports of the shard about its part of the resharding as a recipient; empty if the shard does not
    /// reply.
    async fn ask(&self, shard: &Endpoint) -> Vec<Document> {
        let mine = doc! {"ns": &self.ns, "desc": {"$regex": "^ReshardingRecipientService"}};
        let pipeline =
            vec![doc! {"$currentOp": {"allUsers": true, "localOps": true}}, doc! {"$match": mine}];
        let command = doc! {"aggregate": 1, "pipeline": pipeline, "cursor": {}};
        let told = shard.run("admin", command).await.and_then(|reply| {
            let cursor = reply.get_document("cursor");
            let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch")).cloned();
            batch.map_err(|error| Error::malformed("$currentOp", error))
        });
        told.unwrap_or_default().iter().filter_map(Bson::as_document).cloned().collect()
    }
}

fn phase(state: &str) -> &'static str {
    match state {
        "cloning" => "execute",
        "applying" => "recover",
        "blocking-writes" | "committing" | "aborting" | "quiesced" | "done" => "commit",
        _ => "prepare",
    }
}

fn add(progress: &mut Progress, told: &Document) {
    progress.documents_done += number(told, "documentsCopied");
    progress.bytes_done += number(told, "bytesCopied");
    progress.changes_applied += number(told, "oplogEntriesApplied");
    let documents = number(told, "approxDocumentsToCopy");
    progress.documents_total = Some(progress.documents_total.unwrap_or(0) + documents);
    let bytes = number(told, "approxBytesToCopy");
    progress.bytes_total = Some(progress.bytes_total.unwrap_or(0) + bytes);
    // Negative while a shard does not know; zero while it waits for the others or for the server's minimum
    // duration, which says nothing about the end.
    let s = number(told, "remainingOperationTimeEstimatedSecs");
    if s > 0 {
        progress.eta_ms = progress.eta_ms.max(Some(s.saturating_mul(1_000)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_added_up_and_the_slowest_tells_the_end() {
        let mut progress = Progress::default();
        for (copied, left) in [(10_i64, 7_i64), (20, 3)] {
            let told = doc! {
                "documentsCopied": copied, "approxDocumentsToCopy": 50_i64,
                "bytesCopied": copied * 100, "approxBytesToCopy": 5_000_i64,
                "remainingOperationTimeEstimatedSecs": left,
            };
            add(&mut progress, &told);
        }
        assert_eq!((progress.documents_done, progress.documents_total), (30, Some(100)));
        assert_eq!((progress.bytes_done, progress.bytes_total), (3_000, Some(10_000)));
        assert_eq!(progress.eta_ms, Some(7_000));
    }
}
