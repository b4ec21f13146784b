//! The display of events for a person: one line per job, updated in place on a terminal, plain
//! lines elsewhere.
//!
//! Bytes and durations are formatted here: `indicatif` writes two decimals, and "3 minutes" for an
//! ETA of three and a half.

use std::collections::HashMap;
use std::io::{self, Write};

use imago_job::event::{Body, Event, Progress};
use imago_job::id::JobId;
use imago_job::render::Render;
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressStyle};

/// Minimum interval between two plain lines of one job's progress, in milliseconds.
const PLAIN_EVERY_MS: u64 = 5_000;

/// A renderer of job events as plain lines: every event as it arrives, but progress at most every few seconds.
pub struct Plain<W> {
    to: W,
    shown_at_ms: HashMap<JobId, u64>,
}

impl<W: Write> Plain<W> {
    /// Creates a renderer that writes plain lines to `to`.
    pub fn new(to: W) -> Self {
        Self { to, shown_at_ms: HashMap::new() }
    }
}

impl<W: Write + Send + 'static> Render for Plain<W> {
    fn show(&mut self, event: &Event) -> io::Result<()> {
        let text = match &event.body {
            Body::Progress(progress) => {
                let due_ms = self.shown_at_ms.get(&event.job).map_or(0, |at| at + PLAIN_EVERY_MS);
                if event.at_ms < due_ms {
                    return Ok(());
                }
                self.shown_at_ms.insert(event.job.clone(), event.at_ms);
                line(progress)
            }
            other => event_text(other),
        };
        writeln!(self.to, "{} {}: {text}", event.kind, event.job)?;
        self.to.flush()
    }
}

/// A renderer of job events on a terminal: one line per job at the bottom; other messages scroll above these lines.
pub struct Bars {
    all: MultiProgress,
    by_job: HashMap<JobId, ProgressBar>,
}

impl Bars {
    /// Creates a renderer whose lines are part of `all`, which a log on the same terminal suspends.
    pub fn new(all: MultiProgress) -> Self {
        Self { all, by_job: HashMap::new() }
    }

    fn bar(&mut self, job: &JobId) -> &ProgressBar {
        self.by_job.entry(job.clone()).or_insert_with(|| {
            let bar = self.all.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {wide_msg}") {
                bar.set_style(style);
            }
            bar
        })
    }
}

impl Render for Bars {
    fn show(&mut self, event: &Event) -> io::Result<()> {
        if let Body::Progress(progress) = &event.body {
            let bar = self.bar(&event.job);
            bar.set_message(format!("{} {}", event.kind, line(progress)));
            bar.tick();
            return Ok(());
        }
        if event.body.is_terminal()
            && let Some(bar) = self.by_job.remove(&event.job)
        {
            // The last figures stay on the screen.
            bar.abandon();
        }
        let text = format!("{} {}: {}\n", event.kind, event.job, event_text(&event.body));
        self.all.suspend(|| io::stderr().write_all(text.as_bytes()))
    }

    fn end(&mut self) {
        self.by_job.drain().for_each(|(_, bar)| bar.abandon());
    }
}

/// Formats an event for a person, without its job.
fn event_text(body: &Body) -> String {
    match body {
        Body::Phase { from: None, to } => format!("begins with {to}"),
        Body::Phase { from: Some(from), to } => format!("{from} is over, now {to}"),
        Body::Progress(progress) => line(progress),
        Body::Warning { code, message, help } => format!("warning ({code}): {message}; {help}"),
        Body::Decision { what, why } => format!("{what}, because {why}"),
        Body::Measurement { name, value, unit } => format!("{name} = {value} {unit}"),
        Body::Paused { cause } => format!("waits: {cause}"),
        Body::Resumed => "goes on".to_owned(),
        Body::Done => "done".to_owned(),
        Body::Failed { error } => format!("failed: {error}"),
        Body::Cancelled => "cancelled".to_owned(),
        Body::Interrupted => "interrupted, can be resumed".to_owned(),
        Body::HandedOver => "handed over to another process".to_owned(),
    }
}

/// Formats the progress of a job in one line: phase, documents, bytes, rate, lag, ETA, and the reason for waiting.
pub fn line(progress: &Progress) -> String {
    let Progress { documents_done, documents_total, bytes_done, .. } = progress;
    let mut parts = vec![progress.phase.clone()];
    let percent = documents_total.filter(|total| *total > 0 && documents_done <= total);
    parts.push(match percent {
        Some(total) => format!(
            "{}/{} documents ({} %)",
            grouped(*documents_done),
            grouped(total),
            u128::from(*documents_done) * 100 / u128::from(total)
        ),
        None => format!("{} documents", grouped(*documents_done)),
    });
    parts.push(bytes(*bytes_done as f64));
    parts.extend(progress.rate_bytes_s.map(|rate| format!("{}/s", bytes(rate))));
    parts.extend(progress.rate_documents_s.map(|rate| format!("{rate:.0} documents/s")));
    parts.extend(progress.lag_ms.map(|lag_ms| format!("lag {}", duration(lag_ms))));
    parts.extend(eta(progress).map(|eta| format!("ETA {eta}")));
    parts.extend(progress.blocked_by.as_ref().map(|cause| format!("blocked: {cause}")));
    parts.retain(|part| !part.is_empty());
    parts.join("  ")
}

/// Formats the expected time until the end and its 90 % interval, `42 s (35 s to 1 min 02 s)`; `None` if it is unknown.
pub fn eta(progress: &Progress) -> Option<String> {
    let expected = duration(progress.eta_ms?);
    Some(match progress.eta_interval_ms {
        Some((low, high)) => format!("{expected} ({} to {})", duration(low), duration(high)),
        None => expected,
    })
}

/// Formats a number with commas between groups of three digits: `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Formats a number of bytes in the largest decimal unit that gives a value of at least one.
pub fn bytes(number: f64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(size, _)| number >= *size) {
        Some((size, unit)) => format!("{:.1} {unit}", number / size),
        None => format!("{number:.0} B"),
    }
}

/// Formats milliseconds for a person: `0.2 s`, `42 s`, `3 min 20 s`, `2 h 05 min`.
pub fn duration(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0..10 => format!("{:.1} s", ms as f64 / 1_000.0),
        10..60 => format!("{s} s"),
        60..3_600 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3_600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn plain(events: impl IntoIterator<Item = (u64, Body)>) -> Vec<String> {
        let shown = Shared::default();
        let mut plain = Plain::new(shown.clone());
        for (at_ms, body) in events {
            let job = JobId::from_parts(0, 0);
            plain.show(&Event { at_ms, job, kind: "copy".to_owned(), body }).unwrap();
        }
        let text = String::from_utf8(shown.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_line_says_everything_that_is_known() {
        let progress = Progress {
            phase: "copy".to_owned(),
            documents_done: 50_000,
            documents_total: Some(200_000),
            bytes_done: 51_200_000,
            rate_documents_s: Some(9_800.4),
            rate_bytes_s: Some(10_000_000.0),
            lag_ms: Some(230),
            eta_ms: Some(125_000),
            eta_interval_ms: Some((101_000, 162_000)),
            blocked_by: Some("secondary lag 12 s over the limit 10 s".to_owned()),
            ..Progress::default()
        };
        let expected = "copy  50,000/200,000 documents (25 %)  51.2 MB  10.0 MB/s  \
                        9800 documents/s  lag 0.2 s  ETA 2 min 05 s (1 min 41 s to 2 min 42 s)  \
                        blocked: secondary lag 12 s over the limit 10 s";
        assert_eq!(line(&progress), expected);
    }

    #[test]
    fn the_line_invents_nothing() {
        let progress = Progress { phase: "copy".to_owned(), ..Progress::default() };
        assert_eq!(line(&progress), "copy  0 documents  0 B");
        let wrong = Progress { documents_done: 3, documents_total: Some(2), ..progress };
        assert_eq!(line(&wrong), "copy  3 documents  0 B");
    }

    #[test]
    fn plain_progress_comes_every_few_seconds_and_all_else_at_once() {
        let progress = || Body::Progress(Box::default());
        let lines = plain([
            (0, progress()),
            (4_999, progress()),
            (4_999, Body::Resumed),
            (5_000, progress()),
            (5_001, Body::Done),
        ]);
        let texts: Vec<&str> = lines.iter().filter_map(|line| line.split(": ").nth(1)).collect();
        assert_eq!(texts, ["0 documents  0 B", "goes on", "0 documents  0 B", "done"]);
    }

    #[test]
    fn numbers_are_grouped() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn durations_have_the_unit_that_suits_them() {
        let cases =
            [(230, "0.2 s"), (42_000, "42 s"), (200_000, "3 min 20 s"), (7_500_000, "2 h 05 min")];
        for (ms, text) in cases {
            assert_eq!(duration(ms), text);
        }
    }
}
