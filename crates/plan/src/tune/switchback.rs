//! A switchback experiment: two configurations take turns on one cluster, under one load.
//!
//! Throughput of a cluster drifts by more than most settings change it: data grow, a JVM compiles, a neighbour of the
//! machine wakes up. So the configurations take turns in blocks of four, `A B B A` or `B A A B`, drawn at random. The
//! contrast of a block (the mean of both turns of B, less that of A, of the logarithm of throughput) is free of what
//! drifts evenly, and the contrasts of several blocks show how far it can be trusted.
//!
//! **The noise floor.** Both middle turns of a block have the same configuration, and follow each other: their difference is a
//! placebo, one in each block. The variance of a contrast is told from the contrasts and the placebos together, or from the
//! contrasts alone where these vary more: a change of the configuration is noise of its own.
//!
//! **Latency** is compared in the same way. It also depends on how much the clients ask for. If throughput does not tell the
//! configurations apart, differences of the rate between turns are the clients' own, and what the latency owes to them is
//! removed: by the slope of latency over rate between the windows of one turn, where the configuration is the same (a
//! control variate). If throughput does tell them apart, the rate is a result, and nothing is removed.
//!
//! **When to end.** The result is looked at after each block from the third on. Who looks often, sees chance: the
//! probability of being wrong about two configurations that are alike ([`WRONG`]) is divided among the looks that there
//! may be.

use rand::{Rng, RngExt as _};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::judge::{self, Bounds, Estimate, Judgement, Window};
use super::planner::Rates;
use super::workload::{KINDS, Mix};

/// Minimum number of blocks for a verdict.
pub const BLOCKS_MIN: usize = 3;
/// Probability with which two configurations that serve the same are told apart, over all looks.
pub const WRONG: f64 = 0.02;
/// Probability with which an interval that is reported contains the true value.
const COVERAGE: f64 = 0.9;
/// Quantile of the standard normal distribution for a 90 % interval.
const NORMAL_90: f64 = 1.645;
/// Smallest rate that is compared, in operations per second: a turn that served nothing counts as this.
const RATE_MIN: f64 = 1e-3;
/// Bounds of the slope of the logarithm of latency over that of the rate: a queue makes clients wait longer the more
/// they ask for.
const SLOPES: (f64, f64) = (0.0, 5.0);

/// One of the two configurations that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The configuration that is compared with.
    Old,
    /// The configuration whose gain is asked for.
    New,
}

impl Side {
    /// Returns the other configuration.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Old => Self::New,
            Self::New => Self::Old,
        }
    }

    /// Returns the four turns of a block that begins with this configuration.
    #[must_use]
    pub fn block(self) -> [Self; 4] {
        [self, self.other(), self.other(), self]
    }

    /// Draws one of both.
    pub fn drawn(rng: &mut impl Rng) -> Self {
        if rng.random() { Self::Old } else { Self::New }
    }
}

/// A complete block: the windows of its four turns, in their order, each turn with one window at least.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The configuration of the first and of the last turn.
    pub first: Side,
    /// Windows of each turn, without those in which throughput had not settled yet.
    pub turns: [Vec<Window>; 4],
}

/// What the new configuration changes of one quantity, as a share of the old one's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effect {
    /// The change: 0.15 is 15 % more.
    pub change: f64,
    /// 90 % interval of the change: lower and upper end.
    pub interval: [f64; 2],
    /// Standard error of the logarithm of the ratio.
    error: f64,
    /// Degrees of freedom of the standard error.
    freedom: f64,
}

impl Effect {
    /// Returns the interval that contains the true change with the probability `1 - wrong`.
    fn at(&self, wrong: f64) -> [f64; 2] {
        let half = quantile(self.freedom, 1.0 - wrong / 2.0) * self.error;
        let mean = self.change.ln_1p();
        [mean - half, mean + half].map(f64::exp_m1)
    }
}

/// The comparison of two configurations by complete blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Number of blocks.
    pub blocks: usize,
    /// Operations served per second.
    pub throughput: Effect,
    /// Median of the time to a reply; null if it is not known.
    pub median: Option<Effect>,
    /// 99th percentile of the time to a reply; null if it is not known.
    pub slowest: Option<Effect>,
    /// By how much throughput differs between two turns of the same configuration, in nine of ten cases, as a share.
    pub placebo: f64,
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The new configuration serves more.
    More,
    /// The new configuration serves less.
    Less,
    /// The configurations differ by less than what counts.
    Alike,
    /// They cannot be told apart by these blocks.
    Undecided,
}

/// Returns the quantile of Student's t distribution.
fn quantile(freedom: f64, probability: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom.max(1.0)).map_or(f64::INFINITY, |t| t.inverse_cdf(probability))
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// Returns the effect that these blocks show, each by the logarithm of its four turns' values; `None` for fewer than
/// two blocks. With it comes the variance of one turn.
fn effect(blocks: &[(Side, [f64; 4])]) -> Option<(Effect, f64)> {
    let count = blocks.len() as f64;
    if blocks.len() < 2 {
        return None;
    }
    let contrasts: Vec<f64> = blocks
        .iter()
        .map(|(first, [begin, one, other, end])| {
            let inner = f64::midpoint(*one, *other) - f64::midpoint(*begin, *end);
            if *first == Side::Old { inner } else { -inner }
        })
        .collect();
    let middle = mean(contrasts.iter().copied());
    let contrasts_sum = contrasts.iter().map(|one| (one - middle).powi(2)).sum::<f64>();
    // A contrast has the variance of one turn, and the difference of two turns has twice that.
    let placebos_sum =
        blocks.iter().map(|(_, turns)| (turns[1] - turns[2]).powi(2) / 2.0).sum::<f64>();
    let both = (2.0 * count - 1.0, (contrasts_sum + placebos_sum) / (2.0 * count - 1.0));
    let alone = (count - 1.0, contrasts_sum / (count - 1.0));
    // A change of the configuration may add noise of its own, which no placebo has.
    let (freedom, variance) = if alone.1 > both.1 { alone } else { both };
    let error = (variance / count).sqrt();
    let change = middle.exp_m1();
    let unknown = Effect { change, interval: [change; 2], error, freedom };
    let interval = unknown.at(1.0 - COVERAGE);
    Some((Effect { interval, ..unknown }, variance))
}

/// Compares both configurations by complete blocks. `expected` is what the old one is known to serve of a mix, in
/// operations per second: clients may ask for another mix in each turn. Returns `None` for fewer than two blocks.
pub fn compare(blocks: &[Block], expected: &dyn Fn(Mix) -> f64) -> Option<Comparison> {
    let rate = |windows: &Vec<Window>| {
        let served = windows.iter().map(|window| window.rate_s).sum::<f64>();
        let known = windows.iter().map(|window| expected(window.mix).max(RATE_MIN)).sum::<f64>();
        (served.max(RATE_MIN) / known).ln()
    };
    let rates: Vec<(Side, [f64; 4])> =
        blocks.iter().map(|block| (block.first, block.turns.each_ref().map(rate))).collect();
    let (throughput, variance) = effect(&rates)?;
    let is_result = !contains(throughput.interval, 0.0);
    let times = |of: fn(&Window) -> &[Option<f64>; KINDS]| {
        let turns: Vec<(Side, [f64; 4])> = blocks
            .iter()
            .filter_map(|block| Some((block.first, latencies(&block.turns, of)?)))
            .collect();
        if turns.len() < blocks.len() {
            return None;
        }
        let slope = if is_result { 0.0 } else { slope(blocks, of) };
        let adjusted: Vec<(Side, [f64; 4])> = turns
            .iter()
            .zip(&rates)
            .map(|((first, times), (_, rates))| {
                (*first, std::array::from_fn(|turn| times[turn] - slope * rates[turn]))
            })
            .collect();
        effect(&adjusted).map(|(effect, _)| effect)
    };
    Some(Comparison {
        blocks: blocks.len(),
        throughput,
        median: times(|window| &window.median),
        slowest: times(|window| &window.slowest),
        placebo: (NORMAL_90 * (2.0 * variance).sqrt()).exp_m1(),
    })
}

/// Returns true if the interval contains the value.
fn contains([low, high]: [f64; 2], value: f64) -> bool {
    low <= value && value <= high
}

/// Returns the logarithm of the latency of each turn: the mean over its windows and over the kinds of operations that
/// all four turns have, weighted by their shares. `None` if there is no such kind.
fn latencies(
    turns: &[Vec<Window>; 4],
    of: fn(&Window) -> &[Option<f64>; KINDS],
) -> Option<[f64; 4]> {
    let log = |windows: &[Window], kind: usize| {
        let known: Vec<f64> =
            windows.iter().filter_map(|one| of(one)[kind]).filter(|time| *time > 0.0).collect();
        (!known.is_empty()).then(|| mean(known.iter().map(|time| time.ln())))
    };
    let (mut sums, mut weights) = ([0.0; 4], 0.0);
    for kind in 0..KINDS {
        let all: Option<Vec<f64>> = turns.iter().map(|windows| log(windows, kind)).collect();
        let Some(all) = all else { continue };
        let windows = turns.iter().flatten();
        let weight = windows.map(|window| window.mix.shares()[kind]).sum::<f64>();
        sums.iter_mut().zip(&all).for_each(|(sum, log)| *sum += weight * log);
        weights += weight;
    }
    (weights > 0.0).then(|| sums.map(|sum| sum / weights))
}

/// Returns the slope of the logarithm of the latency over that of the rate, between the windows of single turns.
fn slope(blocks: &[Block], of: fn(&Window) -> &[Option<f64>; KINDS]) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    for windows in blocks.iter().flat_map(|block| &block.turns) {
        for kind in 0..KINDS {
            let points: Vec<(f64, f64)> = windows
                .iter()
                .filter_map(|one| Some((one.rate_s.max(RATE_MIN).ln(), of(one)[kind]?.ln())))
                .filter(|(_, time)| time.is_finite())
                .collect();
            if points.len() < 2 {
                continue;
            }
            let rate = mean(points.iter().map(|point| point.0));
            let time = mean(points.iter().map(|point| point.1));
            let weight = windows.iter().map(|window| window.mix.shares()[kind]).sum::<f64>();
            products += weight * points.iter().map(|at| (at.0 - rate) * (at.1 - time)).sum::<f64>();
            squares += weight * points.iter().map(|at| (at.0 - rate).powi(2)).sum::<f64>();
        }
    }
    if squares > 0.0 { (products / squares).clamp(SLOPES.0, SLOPES.1) } else { 0.0 }
}

/// Judges a change from one configuration to another, given by their indexes in the result of `rates`, by complete blocks. The times to
/// a reply count only if `tells_times`: if those of a turn are not also those of turns before it. Returns `None` for fewer than two
/// blocks.
pub fn judged(
    blocks: &[Block],
    rates: &Rates<'_>,
    (from, to): (usize, usize),
    bounds: &Bounds,
    tells_times: bool,
) -> Option<Judgement> {
    let found = compare(blocks, &|mix| rates(mix)[from])?;
    let of = |side: Side| -> Vec<Window> {
        let turns =
            blocks.iter().flat_map(|block| block.first.block().into_iter().zip(&block.turns));
        turns.filter(|(own, _)| *own == side).flat_map(|(_, windows)| windows).copied().collect()
    };
    let (before, after) = (of(Side::Old), of(Side::New));
    let predicted = mean(after.iter().map(|window| {
        let rates = rates(window.mix);
        rates[to] / rates[from].max(f64::MIN_POSITIVE) - 1.0
    }));
    let Effect { change, error, .. } = found.throughput;
    let realised = Estimate { mean: change, noise: 2.0 * error * (1.0 + change) };
    let multiple =
        |effect: Option<Effect>| effect.filter(|_| tells_times).map(|effect| 1.0 + effect.change);
    let times = (multiple(found.median), multiple(found.slowest));
    Some(Judgement::new((predicted, realised), times, judge::memory(&before, &after), bounds))
}

impl Comparison {
    /// Returns the verdict on throughput, if at most `blocks_max` blocks are run and a difference below `alike`, as a
    /// share, does not count.
    #[must_use]
    pub fn verdict(&self, blocks_max: usize, alike: f64) -> Verdict {
        if self.blocks < BLOCKS_MIN {
            return Verdict::Undecided;
        }
        let looks = blocks_max.max(self.blocks) - BLOCKS_MIN + 1;
        let [low, high] = self.throughput.at(WRONG / looks as f64);
        match () {
            () if low > -alike && high < alike => Verdict::Alike,
            () if low > 0.0 => Verdict::More,
            () if high < 0.0 => Verdict::Less,
            () => Verdict::Undecided,
        }
    }
}

#[cfg(test)]
mod tests;
