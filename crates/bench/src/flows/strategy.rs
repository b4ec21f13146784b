//! Fig. 9's bars: five strategies of sockets, and what became of each in a network.
//!
//! Invariant: the n-th run of each bar is the same exchange, so that ratios are those of pairs.

use serde::Serialize;

use crate::statistics::Figure;

use super::outcome::Outcome;

/// Assignment of sockets to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// One for each flow.
    Fixed,
    /// One for each new chunk and source.
    ChunkBased,
    /// By amount.
    Orchestra,
    /// By amount × latency.
    Wfs,
}

/// The bars of Fig. 9a: a strategy, and K for the six flows between three servers. With more flows,
/// K grows as they do.
pub(super) const BARS: [(Strategy, Option<usize>); 5] = [
    (Strategy::Fixed, None),
    (Strategy::ChunkBased, None),
    (Strategy::Orchestra, Some(21)),
    (Strategy::Wfs, Some(21)),
    (Strategy::Wfs, Some(28)),
];
const FIXED: usize = 0;
const CHUNK_BASED: usize = 1;
const ORCHESTRA_21: usize = 2;
const WFS_21: usize = 3;
const WFS_28: usize = 4;
const PAPERS_FLOWS: usize = 6;

/// K of each bar where there are so many flows.
pub(super) fn ks(flows: usize) -> [Option<usize>; BARS.len()] {
    BARS.map(|(_, k)| k.map(|k| k * flows / PAPERS_FLOWS))
}

/// Times of a strategy, in seconds and as ratios; medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Until everything has arrived.
    pub makespan_s: f64,
    /// The makespan, as a ratio to that of one socket for each flow.
    pub ratio_to_fixed: f64,
    /// The makespan, as a ratio to the time that the busiest link needs for its data.
    pub ratio_to_floor: f64,
    /// Until half of the new chunks are complete.
    pub chunk_median_s: f64,
    /// The makespan, of that: 1 if all chunks end together, more the longer the tail is.
    pub last_to_median: f64,
    /// Until the first chunk is complete, then a tenth of them, two tenths, until all: Fig. 3 and
    /// Fig. 9b.
    pub chunk_tenths_s: Vec<f64>,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Times::makespan_s`].
    pub makespan_s: Figure,
    /// See [`Times::ratio_to_fixed`].
    pub ratio_to_fixed: Figure,
    /// See [`Times::ratio_to_floor`].
    pub ratio_to_floor: Figure,
    /// See [`Times::chunk_median_s`].
    pub chunk_median_s: Figure,
    /// See [`Times::last_to_median`].
    pub last_to_median: Figure,
}

/// The three comparisons of the paper, medians of the runs; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Weighted fair sharing with K = 28, of one socket for each flow.
    pub ratio_to_fixed: f64,
    /// Weighted fair sharing with K = 28, of the chunk-based strategy.
    pub ratio_to_chunk_based: f64,
    /// Weighted fair sharing with K = 21, of Orchestra with as many sockets.
    pub ratio_to_orchestra: f64,
}

/// The outcome of a network, by bar and run.
#[derive(Default)]
pub(super) struct Outcomes {
    of_bar: [Vec<Outcome>; BARS.len()],
}

impl Outcomes {
    /// Adds the next run of a bar.
    pub(super) fn push(&mut self, bar: usize, outcome: Outcome) {
        self.of_bar[bar].push(outcome);
    }

    /// The runs of a bar.
    pub(super) fn of_bar(&self, bar: usize) -> &[Outcome] {
        &self.of_bar[bar]
    }

    /// The makespans of one bar, of those of another, by run.
    fn ratios(&self, bar: usize, of: usize) -> Figure {
        let pairs = self.of_bar[bar].iter().zip(&self.of_bar[of]);
        Figure::of(pairs.map(|(bar, of)| bar.makespan_s / of.makespan_s))
    }

    /// The comparisons of the paper.
    pub(super) fn papers_ratios(&self) -> Ratios {
        Ratios {
            ratio_to_fixed: self.ratios(WFS_28, FIXED).median,
            ratio_to_chunk_based: self.ratios(WFS_28, CHUNK_BASED).median,
            ratio_to_orchestra: self.ratios(WFS_21, ORCHESTRA_21).median,
        }
    }

    /// The times of a bar.
    pub(super) fn times(&self, bar: usize) -> Times {
        let runs = self.of_bar(bar);
        let of = |part: fn(&Outcome) -> f64| Figure::of(runs.iter().map(part));
        let spread = Spread {
            makespan_s: of(|run| run.makespan_s),
            ratio_to_fixed: self.ratios(bar, FIXED),
            ratio_to_floor: of(|run| run.makespan_s / run.floor_s),
            chunk_median_s: of(|run| run.complete_s(5)),
            last_to_median: of(|run| run.makespan_s / run.complete_s(5)),
        };
        let tenth = |tenth| Figure::of(runs.iter().map(|run| run.complete_s(tenth))).median;
        Times {
            makespan_s: spread.makespan_s.median,
            ratio_to_fixed: spread.ratio_to_fixed.median,
            ratio_to_floor: spread.ratio_to_floor.median,
            chunk_median_s: spread.chunk_median_s.median,
            last_to_median: spread.last_to_median.median,
            chunk_tenths_s: (0..=10).map(tenth).collect(),
            spread,
        }
    }
}
