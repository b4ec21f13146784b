//! Renders events as log lines: warnings at `warn`, failures at `error`, other rare events at `info`,
//! progress at `debug`.

use std::io;

use super::Render;
use crate::event::{Body, Event};

/// The target of all log lines of this renderer, for filters of the log.
pub const TARGET: &str = "imago::job";

/// A renderer that writes each event to the log of the process.
pub struct Log;

impl Render for Log {
    fn show(&mut self, event: &Event) -> io::Result<()> {
        let (job, kind) = (event.job.as_str(), event.kind.as_str());
        match &event.body {
            Body::Phase { from, to } => {
                let from = from.as_deref().unwrap_or("-");
                tracing::info!(target: TARGET, job, kind, from, to, "phase");
            }
            Body::Progress(progress) => tracing::debug!(
                target: TARGET, job, kind,
                phase = progress.phase,
                documents_done = progress.documents_done,
                bytes_done = progress.bytes_done,
                changes_applied = progress.changes_applied,
                lag_ms = progress.lag_ms,
                eta_ms = progress.eta_ms,
                blocked_by = progress.blocked_by,
                "progress"
            ),
            Body::Warning { code, message, help } => {
                tracing::warn!(target: TARGET, job, kind, code, help, "{message}");
            }
            Body::Decision { what, why } => {
                tracing::info!(target: TARGET, job, kind, what, why, "decision");
            }
            Body::Measurement { name, value, unit } => {
                tracing::info!(target: TARGET, job, kind, name, value, unit, "measurement");
            }
            Body::Paused { cause } => tracing::info!(target: TARGET, job, kind, cause, "paused"),
            Body::Resumed => tracing::info!(target: TARGET, job, kind, "resumed"),
            Body::Done => tracing::info!(target: TARGET, job, kind, "done"),
            Body::Failed { error } => tracing::error!(target: TARGET, job, kind, error, "failed"),
            Body::Cancelled => tracing::info!(target: TARGET, job, kind, "cancelled"),
            Body::Interrupted => tracing::info!(target: TARGET, job, kind, "interrupted"),
            Body::HandedOver => tracing::info!(target: TARGET, job, kind, "handed over"),
        }
        Ok(())
    }
}
