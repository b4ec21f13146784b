//! The display of a demo's running load, on stderr: on a terminal the throughput of each second and a map of reads by
//! key and time, redrawn in place; otherwise a line every few seconds.

use std::io::{IsTerminal as _, Write as _};

use imago_bench::adapt::Second;
use imago_store::adapt::AdaptReport;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::super::load::Clock;
use crate::cmd::store::reads_as_text;
use crate::context::Context;
use crate::options::ProgressMode;

/// Number of seconds between two lines of output without a terminal.
const LINE_EVERY: usize = 5;
/// Maximum number of rows of the map of reads: with the lines around it, it fits a small terminal.
const ROWS_MAX: usize = 12;
/// Maximum number of bars for the throughput of a load.
const COLUMNS_MAX: usize = 40;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The demo's output on stderr. If the demo ends early, the drawing is removed from the terminal.
pub(super) struct Screen {
    bars: MultiProgress,
    mode: ProgressMode,
    is_drawn: bool,
    is_kept: bool,
}

impl Screen {
    pub(super) fn new(context: &Context) -> Self {
        let is_wanted = match context.progress {
            ProgressMode::Bar => true,
            ProgressMode::Auto => std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
            ProgressMode::Json | ProgressMode::None => false,
        };
        Self {
            bars: context.bars.clone(),
            mode: context.progress,
            is_drawn: is_wanted && std::io::stderr().is_terminal(),
            is_kept: false,
        }
    }

    /// Prints a line, with the time since the start of the demo, above the drawing.
    pub(super) fn say(&self, clock: &Clock, line: &str) {
        self.bars.suspend(|| clock.say(line));
    }

    /// Leaves the drawing on the terminal after the end of the demo.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_drawn && !self.is_kept {
            _ = self.bars.clear();
            // A load that still runs draws no more.
            self.bars.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

/// The display of the demo's two loads, which run one after the other.
pub(super) struct View {
    /// The drawing on the terminal; `None` if lines are printed instead.
    bar: Option<ProgressBar>,
    mode: ProgressMode,
    off: Run,
    on: Run,
}

/// The throughput of one load in each of its seconds so far.
struct Run {
    name: &'static str,
    seconds: usize,
    throughput_s: Vec<f64>,
}

impl Run {
    fn new(name: &'static str, seconds: u32) -> Self {
        Self { name, seconds: seconds as usize, throughput_s: Vec::new() }
    }

    /// Returns a line with the load's throughput as bars, the highest of which stands for `most` transactions/s, and
    /// its last throughput as a number.
    fn line(&self, most: f64) -> String {
        let each = self.seconds.div_ceil(COLUMNS_MAX).max(1);
        let bar = |some: &[f64]| {
            let mean = some.iter().sum::<f64>() / some.len() as f64;
            BARS[((mean / most * 8.0) as usize).min(BARS.len() - 1)]
        };
        let bars: String = self.throughput_s.chunks(each).map(bar).collect();
        let Self { name, throughput_s, .. } = self;
        let last = throughput_s.last().copied().unwrap_or(0.0);
        format!("{name} {bars} {last:.0}/s, second {}", throughput_s.len())
    }
}

impl View {
    pub(super) fn new(screen: &Screen, off_seconds: u32, seconds: u32) -> Self {
        let bar = screen.is_drawn.then(|| {
            let style = ProgressStyle::with_template("{msg}").expect("a valid template");
            screen.bars.add(ProgressBar::new_spinner().with_style(style))
        });
        let (off, on) =
            (Run::new("adaptation off", off_seconds), Run::new("adaptation on ", seconds));
        Self { bar, mode: screen.mode, off, on }
    }

    pub(super) fn show(&mut self, second: &Second<'_>) {
        let run = if second.report.is_some() { &mut self.on } else { &mut self.off };
        run.throughput_s.push(second.rate_s);
        let has_moved = second.number == run.seconds / 2;
        match &self.bar {
            Some(bar) => {
                let heat = second.heat();
                let map = heat.map_or_else(String::new, |heat| reads_as_text(&heat, ROWS_MAX));
                bar.set_message(drawn(&self.off, &self.on, second.report, map.trim_end()));
                bar.tick();
            }
            None if self.mode == ProgressMode::None => {}
            None if has_moved || (second.number + 1).is_multiple_of(LINE_EVERY) => {
                // A stderr that is gone must not end the load.
                let line = line(second.number, second.rate_s, has_moved, second.report);
                _ = writeln!(std::io::stderr().lock(), "{line}");
            }
            None => {}
        }
    }

    /// Ends the display, and leaves the last drawing on the terminal.
    pub(super) fn end(self) {
        if let Some(bar) = self.bar {
            bar.abandon();
        }
    }
}

fn changes(report: &AdaptReport) -> String {
    format!("{} changes, {} undone", report.changes, report.undone)
}

/// Returns the drawing as text: the throughput of both loads, the report of adaptation, and the map of reads.
fn drawn(off: &Run, on: &Run, report: Option<&AdaptReport>, map: &str) -> String {
    let all = off.throughput_s.iter().chain(&on.throughput_s);
    let most = all.copied().fold(1.0, f64::max);
    let mut text = off.line(most);
    if let Some(report) = report {
        let moved = match on.throughput_s.len().checked_sub(on.seconds / 2 + 1) {
            Some(ago) => format!(", the hotspot moved {} s ago", ago + 1),
            None => String::new(),
        };
        text += &format!("\n{}\n{}{moved}\n{map}", on.line(most), changes(report));
    }
    text
}

/// Returns the line for one second of a load; `number` counts seconds from 0, `has_moved`: the hotspot moves in it.
fn line(number: usize, rate_s: f64, has_moved: bool, report: Option<&AdaptReport>) -> String {
    let moved = if has_moved { ", the hotspot moves" } else { "" };
    let adapted = report.map(|report| format!(", {}", changes(report))).unwrap_or_default();
    format!("          second {:>3}: {rate_s:.0} transactions/s{adapted}{moved}", number + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &'static str, seconds: u32, throughput_s: &[f64]) -> Run {
        Run { throughput_s: throughput_s.to_vec(), ..Run::new(name, seconds) }
    }

    #[test]
    fn both_loads_are_drawn_by_one_scale_and_the_move_is_told() {
        let (off, on) = (run("off", 4, &[100.0; 4]), run("on ", 80, &[100.0, 100.0, 800.0]));
        let report = AdaptReport { changes: 7, undone: 2, ..AdaptReport::default() };
        let text = drawn(&off, &on, Some(&report), "the map");
        assert_eq!(
            text,
            "off ▂▂▂▂ 100/s, second 4\non  ▂█ 800/s, second 3\n7 changes, 2 undone\nthe map"
        );
        let on = run("on ", 4, &[100.0, 100.0, 800.0]);
        let text = drawn(&off, &on, Some(&report), "the map");
        assert!(text.contains("2 undone, the hotspot moved 1 s ago\n"), "{text}");
        assert_eq!(drawn(&off, &on, None, ""), "off ▂▂▂▂ 100/s, second 4");
    }

    #[test]
    fn a_line_has_the_throughput_and_the_changes_of_a_second() {
        let report = AdaptReport { changes: 7, undone: 2, ..AdaptReport::default() };
        let text = line(4, 812.4, true, Some(&report));
        let told = "second   5: 812 transactions/s, 7 changes, 2 undone, the hotspot moves";
        assert_eq!(text.trim_start(), told);
        assert_eq!(line(4, 812.4, false, None).trim_start(), "second   5: 812 transactions/s");
    }
}
