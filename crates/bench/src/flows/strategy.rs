//! Fig. 9's bars: five assignments of sockets to flows, and their outcomes in a network.
//!
//! Invariant: the n-th run of each bar is the same exchange, so that ratios are ratios of pairs.

use serde::Serialize;

use crate::statistics::Figure;

use super::outcome::Outcome;

/// Assignment of sockets to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// One socket for each flow.
    Fixed,
    /// One socket for each new chunk and source.
    ChunkBased,
    /// K sockets, in proportion to the amount of each flow.
    Orchestra,
    /// Weighted fair sharing: K sockets, in proportion to amount × latency of each flow.
    Wfs,
}

/// The bars of Fig. 9a: a strategy, and K for the six flows between three servers. K grows in proportion to the
/// number of flows.
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

/// Returns K of each bar for this number of flows.
pub(super) fn ks(flows: usize) -> [Option<usize>; BARS.len()] {
    BARS.map(|(_, k)| k.map(|k| k * flows / PAPERS_FLOWS))
}

/// Times of a strategy, in seconds and as ratios; medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// Time until all data has arrived, in seconds.
    pub makespan_s: f64,
    /// Ratio of the makespan to that of one socket for each flow.
    pub ratio_to_fixed: f64,
    /// Ratio of the makespan to the time that the busiest link needs for its data.
    pub ratio_to_floor: f64,
    /// Time until half of the new chunks are complete, in seconds.
    pub chunk_median_s: f64,
    /// Ratio of the makespan to `chunk_median_s`: 1 if all chunks end together, and larger with a longer tail.
    pub last_to_median: f64,
    /// Times at which the first chunk, one tenth of the chunks, two tenths, and so on up to all chunks are complete,
    /// in seconds: Fig. 3 and Fig. 9b.
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

/// The three comparisons of the paper as ratios of makespans, medians of the runs; less is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Weighted fair sharing with K = 28, relative to one socket for each flow.
    pub ratio_to_fixed: f64,
    /// Weighted fair sharing with K = 28, relative to the chunk-based strategy.
    pub ratio_to_chunk_based: f64,
    /// Weighted fair sharing with K = 21, relative to Orchestra with the same number of sockets.
    pub ratio_to_orchestra: f64,
}

/// Outcomes in a network, by bar and run.
#[derive(Default)]
pub(super) struct Outcomes {
    of_bar: [Vec<Outcome>; BARS.len()],
}

impl Outcomes {
    /// Adds the next run of a bar.
    pub(super) fn push(&mut self, bar: usize, outcome: Outcome) {
        self.of_bar[bar].push(outcome);
    }

    /// Returns the runs of a bar.
    pub(super) fn of_bar(&self, bar: usize) -> &[Outcome] {
        &self.of_bar[bar]
    }

    /// Returns the ratio of the makespan of bar `bar` to that of bar `of`, over the runs.
    fn ratios(&self, bar: usize, of: usize) -> Figure {
        let pairs = self.of_bar[bar].iter().zip(&self.of_bar[of]);
        Figure::of(pairs.map(|(bar, of)| bar.makespan_s / of.makespan_s))
    }

    /// Returns the comparisons of the paper.
    pub(super) fn papers_ratios(&self) -> Ratios {
        Ratios {
            ratio_to_fixed: self.ratios(WFS_28, FIXED).median,
            ratio_to_chunk_based: self.ratios(WFS_28, CHUNK_BASED).median,
            ratio_to_orchestra: self.ratios(WFS_21, ORCHESTRA_21).median,
        }
    }

    /// Returns the times of a bar.
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
