//! Measurement of the lag of a job under a steady load: as the job reports it, and by markers.
//!
//! Two writers send their commands at fixed times, every 20 ms. A slow reply does not shift the later times. At most
//! twice a second a marker is inserted at the source, and the destination is polled until it has the marker. The
//! reported lag could be wrong; the delay of a marker cannot.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::cluster_pair::{COLL, ClusterPair, DB};
use crate::error::{Error, Result};
use crate::fill::{Command, send_one};
use crate::operations::Operations;
use crate::process::Measured;
use crate::subject::{Commands, Subject};

/// The load under which the lag is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steady {
    /// Writes per second, half of them updates.
    pub rate_per_s: u64,
    /// Duration of the writes.
    pub duration: Duration,
}

const WRITE_EVERY: Duration = Duration::from_millis(20);
const MARK_EVERY: Duration = Duration::from_millis(500);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time from the insertion of a marker until the destination has it. For the first marker, this includes the
/// start of the job.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Exit code of a process that was interrupted and can be resumed.
const INTERRUPTED: i32 = 5;

/// The measured lag, and the load under which it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lag {
    /// Acknowledged writes per second.
    pub writes_per_s: f64,
    /// Duration of the load, in seconds.
    pub seconds: f64,
    /// Largest lag that the job reported, in ms.
    pub told_ms_max: f64,
    /// Number of progress reports of the job during the load.
    pub told: usize,
    /// Longest time from the acknowledgement of a marker at the source to its appearance at the destination, in ms.
    pub marker_ms_max: f64,
    /// Number of markers that were written during the load.
    pub markers: usize,
}

/// Measures the lag of `job`, which no process runs yet.
pub(crate) async fn measure(
    clusters: &ClusterPair,
    operations: &mut Operations,
    job: &str,
    steady: Steady,
    commands: &Commands,
) -> Result<Lag> {
    let subject = Subject::Follow { job: job.to_owned() };
    let follower = Measured::start("following", commands(&subject, &clusters.ends()))?;
    // When this marker arrives, the job runs and has caught up.
    mark(clusters, 0).await?;
    let told_before = follower.progress().len();

    let ticks = steady.duration.as_millis() / WRITE_EVERY.as_millis();
    let per_tick = steady.rate_per_s * WRITE_EVERY.as_millis() as u64 / 1_000;
    let mut shares: [Vec<Vec<Command>>; 2] = Default::default();
    for _ in 0..ticks {
        for (share, group) in shares.iter_mut().zip(operations.group(per_tick)) {
            share.push(group);
        }
    }
    let began = Instant::now();
    let mut writers = JoinSet::new();
    for share in shares {
        let source = clusters.source.clone();
        writers.spawn(async move {
            let mut written = 0;
            for (tick, commands) in (0_u32..).zip(&share) {
                tokio::time::sleep_until((began + WRITE_EVERY * tick).into()).await;
                for command in commands {
                    send_one(&source, DB, command).await?;
                    written += command.len;
                }
            }
            Ok::<u64, Error>(written)
        });
    }
    let (mut marker_ms_max, mut markers) = (0.0_f64, 0);
    while began.elapsed() < steady.duration {
        markers += 1;
        marker_ms_max = marker_ms_max.max(mark(clusters, markers).await?);
        tokio::time::sleep_until((began + MARK_EVERY * markers).into()).await;
    }
    let mut written = 0;
    while let Some(done) = writers.join_next().await {
        written += done.expect("a writer neither panics nor is aborted")?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let told = follower.progress().split_off(told_before);
    follower.interrupt()?;
    follower.end(INTERRUPTED).await?;
    let lags = told.iter().filter_map(|progress| progress.lag_ms);
    let Some(told_ms_max) = lags.max() else {
        return Err(Error::Wrong("the job told no lag while it followed".into()));
    };
    Ok(Lag {
        writes_per_s: written as f64 / seconds,
        seconds,
        told_ms_max: told_ms_max as f64,
        told: told.len(),
        marker_ms_max,
        markers: markers as usize,
    })
}

/// Inserts a marker at the source and waits until the destination has it. Returns the time from its acknowledgement
/// until then, in ms.
async fn mark(clusters: &ClusterPair, number: u32) -> Result<f64> {
    let id = format!("marker-{number}");
    let insert = doc! {
        "insert": COLL, "documents": [{"_id": &id}], "writeConcern": {"w": "majority"},
    };
    clusters.source.run(DB, insert).await?;
    let began = Instant::now();
    let find = doc! {
        "find": COLL, "filter": {"_id": &id}, "limit": 1, "singleBatch": true,
        "readConcern": {"level": "majority"},
    };
    loop {
        let reply = clusters.destination.run(DB, find.clone()).await?;
        if has_document(&reply) {
            return Ok(began.elapsed().as_secs_f64() * 1e3);
        }
        if began.elapsed() > WAIT_MAX {
            return Err(Error::TimedOut {
                what: format!("{id}'s arrival at the destination"),
                bound_s: WAIT_MAX.as_secs(),
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn has_document(reply: &Document) -> bool {
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    batch.is_ok_and(|batch| !batch.is_empty())
}
