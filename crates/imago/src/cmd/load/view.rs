//! The display of a running load, on stderr: one line rewritten in place on a terminal, lines of JSON if requested,
//! nothing otherwise.

use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use imago_workload::driver::Snapshot;
use imago_workload::timeline::{Part, Slot};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::context::Context;
use crate::options::ProgressMode;

/// Interval between two updates of the display of a load.
pub(super) const PERIOD: Duration = Duration::from_millis(500);

/// The display of a running load, by its form.
pub(super) enum View {
    Line(ProgressBar),
    Json,
    Nothing,
}

/// Returns true if a line is drawn in place: stderr is a terminal, and no other display of progress was requested.
fn drawn(context: &Context) -> bool {
    let wanted = matches!(context.progress, ProgressMode::Auto | ProgressMode::Bar);
    wanted && std::io::stderr().is_terminal()
}

/// Makes a progress line of this template on the terminal, or a hidden one if nothing is drawn; `len` is its end.
fn drawn_line(context: &Context, len: Option<u64>, template: &str) -> ProgressBar {
    let bar = if drawn(context) {
        context.bars.add(ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr()))
    } else {
        ProgressBar::with_draw_target(len, ProgressDrawTarget::hidden())
    };
    let style = ProgressStyle::with_template(template).expect("the templates here are valid");
    bar.with_style(style)
}

/// Returns a progress bar for filling the collection with this number of documents.
pub(super) fn filling(context: &Context, documents: u64) -> ProgressBar {
    let template = "filling {bar:30} {human_pos} of {human_len} documents, {eta} left";
    drawn_line(context, Some(documents), template)
}

/// Returns a progress line for filling a store, the number of whose rows is not known in advance.
pub(super) fn filling_rows(context: &Context) -> ProgressBar {
    drawn_line(context, None, "filling: {human_pos} rows")
}

/// Returns a progress line for a load, whose message is set each second.
pub(super) fn counting(context: &Context) -> ProgressBar {
    drawn_line(context, None, "{msg}")
}

impl View {
    pub(super) fn new(context: &Context) -> Self {
        if matches!(context.progress, ProgressMode::Json) {
            Self::Json
        } else if drawn(context) {
            Self::Line(drawn_line(context, None, "{msg}"))
        } else {
            Self::Nothing
        }
    }

    pub(super) fn show(&self, snapshot: &Snapshot) {
        match self {
            Self::Line(bar) => {
                bar.set_message(line(snapshot));
                bar.tick();
            }
            Self::Json => {
                // A stderr that is gone must not end the load.
                if let Ok(json) = serde_json::to_string(snapshot) {
                    drop(writeln!(std::io::stderr().lock(), "{json}"));
                }
            }
            Self::Nothing => {}
        }
    }

    pub(super) fn clear(&self) {
        if let Self::Line(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Formats the measurements of the last second, and the totals so far, as one line.
fn line(snapshot: &Snapshot) -> String {
    let side = |name: &str, pick: fn(&Slot) -> &Part| {
        let parts = || snapshot.recent.iter().map(pick);
        let ended: u64 = parts().map(|part| part.tally.ok + part.tally.not_found).sum();
        let failed: u64 = parts().map(|part| part.tally.failed).sum();
        let p99_us = parts().map(|part| part.p99_us).max().unwrap_or(0);
        let ms = p99_us as f64 / 1000.0;
        format!("{name} {ended}/s p99 {ms:.1} ms failed {failed}")
    };
    format!(
        "{:>5.0} s  {}  {}  in flight {}  dropped {}  failed so far {}  → {}",
        snapshot.elapsed_ms as f64 / 1000.0,
        side("reads", |slot| &slot.reads),
        side("writes", |slot| &slot.writes),
        snapshot.in_flight,
        snapshot.dropped,
        snapshot.reads.failed + snapshot.writes.failed,
        snapshot.target,
    )
}
