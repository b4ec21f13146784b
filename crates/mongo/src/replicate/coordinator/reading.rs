//! Reads the stream ahead of the pending changes. While clients are spared, it is read at their pace.

use std::time::Duration;

use imago_job::control::{Control, Stop};
use imago_plan::pacing::rounds::{Sizes, batch_limit, pause_before_reading};
use tokio::sync::{mpsc, watch};

use super::progress;
use crate::error::{Error, Result};
use crate::replicate::changes::{Batch, ChangeReader, EVENTS_MAX};

/// Most changes in a reply of the change stream while clients are spared, as long as that keeps up with them:
/// collecting more occupies a processor of each shard for a while.
const PACED_EVENTS_MAX: usize = 128;

/// Reads batches of the stream and sends them to the coordinator, until it ends or the reader fails. While clients
/// are spared and no caller waits (`is_awaited`), batches are small, and a pause follows each. This machine's clock
/// is ahead of the source's by `clock_ahead_ms`.
pub(super) async fn read_ahead(
    mut reader: ChangeReader,
    send: mpsc::Sender<Result<Batch>>,
    control: Control,
    mut is_awaited: watch::Receiver<bool>,
    clock_ahead_ms: i64,
) {
    let sizes = Sizes { least: PACED_EVENTS_MAX, most: EVENTS_MAX };
    let (mut pause, mut paced_max) = (Duration::ZERO, sizes.least);
    loop {
        let spares = control.throttle().is_paced() && !*is_awaited.borrow();
        reader.limit(if spares { paced_max } else { sizes.most });
        let batch = reader.next().await;
        let events = batch.as_ref().map_or(0, |batch| batch.events.len());
        let age = batch.as_ref().map_or(Duration::ZERO, |batch| age_of(batch, clock_ahead_ms));
        let ends = batch.is_err();
        if send.send(batch).await.is_err() || ends {
            return;
        }
        if spares {
            paced_max = batch_limit(paced_max, events, age, sizes);
            pause = pause_before_reading(pause, events, sizes.least);
            let awaited = is_awaited.wait_for(|is_awaited| *is_awaited);
            // The sender is dropped only together with the receiver, which the next send detects.
            let _ = tokio::time::timeout(pause, awaited).await;
        }
    }
}

/// Returns the age of the first change of a batch, by the source's clock; this machine's clock is ahead of that by
/// `clock_ahead_ms`.
fn age_of(batch: &Batch, clock_ahead_ms: i64) -> Duration {
    let first_ms = batch.first_wall_ms.unwrap_or(i64::from(batch.time.time) * 1_000);
    Duration::from_millis(progress::age_ms(first_ms, clock_ahead_ms))
}

pub(super) fn received(batch: Option<Result<Batch>>) -> Result<Batch> {
    batch.unwrap_or_else(|| {
        Err(Error::Stopped(Stop::JournalLost(
            "the change reader ended before its coordinator".into(),
        )))
    })
}
