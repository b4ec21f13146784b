//! The figures of the adaptation benchmark: loads on a store that adapts, each compared with the same load without
//! adaptation.

use std::time::Duration;

use imago_workload::timeline::Latency;
use serde::Serialize;

use super::designs::balanced;
use super::larger::{self, Larger};
use super::loads::{Bench, Checks, EXPONENT, Parts, Size, WARM_S};
use super::periods::{self, Period};
use super::quality::Quality;
use super::scene::{LoadSpec, Outcome};
use super::workload::{Popularity, Workload};
use crate::Header;
use crate::error::Result;
use crate::statistics::Figure;

/// Interval between moves of the most popular users that is too short for adaptation, in seconds.
const TOO_FAST_S: f64 = 2.0;
/// Rate at which latencies are measured, as a fraction of the throughput of the random start.
const OPEN_RATE: f64 = 0.8;
/// Fraction of the best throughput that counts as recovered.
const BACK: f64 = 0.9;
/// Results of adaptation from a random start, under one mix of transactions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Learned {
    /// Fraction of the transactions that are scans.
    pub scans: f64,
    /// Latencies at a rate that each design can serve; `None` if they were not measured.
    pub open: Option<OpenLoop>,
    /// Throughput of the random start without adaptation, in transactions per second.
    pub random_s: f64,
    /// Throughput of the better hand-made static design, in transactions per second.
    pub ideal_s: f64,
    /// Throughput of the adapting store from second 27 on, in transactions per second.
    pub adapted_s: f64,
    /// Ratio to `ideal_s` of the adapting store's throughput after 15 s: the mean from second 12 to second 17.
    pub at_15_s_of_ideal: f64,
    /// Ratio to `ideal_s` of the adapting store's throughput after 30 s: the mean from second 27 to second 32.
    pub at_30_s_of_ideal: f64,
    /// Ratio of `adapted_s` to `random_s`.
    pub of_random: f64,
    /// Time until the adapting store reaches 90 % of `ideal_s`, in seconds; `None` if it never does.
    pub reaches_90_percent_s: Option<usize>,
    /// Number of changes of the design for each 1,000 transactions, after the first 30 s.
    pub changes_per_1000: f64,
    /// Fraction of the process's CPU time that the planner used.
    pub planner_share: f64,
    /// Fraction of the process's CPU time that the sites used for changes of the design.
    pub operators_share: f64,
    /// Fraction of the process's CPU time that routing used: the time of routing one transaction, times the number of
    /// transactions.
    pub router_share: f64,
    /// Outcomes of the decisions, and accuracy of the predictions.
    #[serde(flatten)]
    pub quality: Quality,
}

/// Latencies of transactions that are due at a rate, measured from the times at which they were due.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpenLoop {
    /// Rate in transactions per second: 80 % of the throughput of the random start in a closed loop.
    pub rate_s: f64,
    /// Latencies of the random start without adaptation.
    pub random: Latency,
    /// Latencies of the better hand-made static design.
    pub ideal: Latency,
    /// Latencies of the adapting store, after [`Size::learned_s`].
    pub adapted: Latency,
}

/// Adaptation under a load whose most popular users move.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shifted {
    /// Time after each move until the throughput is back at 90 % of that before the move, in seconds; `None` if it is
    /// not back before the next move.
    pub recover_s: Vec<Option<usize>>,
    /// Outcomes of the decisions, and accuracy of the predictions.
    #[serde(flatten)]
    pub quality: Quality,
}

/// A load without and with adaptation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// Throughput without adaptation, in transactions per second. For [`Report::rmw3_txn_per_core_s`], per second of
    /// CPU time.
    pub off_s: f64,
    /// Throughput with adaptation, in the same unit.
    pub on_s: f64,
    /// Ratio of the throughput with adaptation to that without: the median over pairs of consecutive runs.
    pub ratio: f64,
}

/// Results of the benchmark. Parts that were not measured are `None` or empty.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// A random start under a skewed load, for each mix.
    pub learned: Vec<Learned>,
    /// Popular users that move at intervals of [`Size::shift_s`].
    pub shifted: Option<Shifted>,
    /// Popular users that alternate between two places, for each period. The store starts from one partition.
    pub periods: Vec<Period>,
    /// A load in which all users are equally popular.
    pub uniform: Option<Beside>,
    /// A load in which the most popular users move every two seconds.
    pub too_fast: Option<Beside>,
    /// Read-modify-writes of three rows of users drawn uniformly, per second of CPU time. The sites have no CPU
    /// limit.
    pub rmw3_txn_per_core_s: Option<Beside>,
    /// More sites than this machine can run, in simulation.
    #[serde(flatten)]
    pub larger: Option<Larger>,
    /// Number of acknowledged transactions in all loads.
    pub acknowledged: u64,
    /// Number of acknowledged increments that are missing from the rows.
    pub lost: u64,
    /// Number of anomalies, which no snapshot could contain.
    pub anomalies: u64,
}

/// Runs the benchmark and blocks until it ends. Calls `say` with a description of each load.
///
/// # Errors
/// Fails if a load cannot be run.
pub fn run(size: Size, say: &dyn Fn(&str)) -> Result<Report> {
    let mut bench = Bench { size: size.clone(), checks: Checks::default(), say };
    let Parts { starts, shifts, beside, sites, periods } = size.parts;
    let mut learned = Vec::new();
    if starts {
        learned.push(bench.learned(0.5, true)?);
    }
    if starts && size.mixes > 1 {
        learned.push(bench.learned(0.1, false)?);
    }
    let shifted = if shifts { Some(bench.shifted()?) } else { None };
    let periods = if periods { periods::run(&mut bench)? } else { Vec::new() };
    let [mut uniform, mut too_fast, mut rmw3_txn_per_core_s] = [None, None, None];
    if beside {
        uniform = Some(bench.compare_adaptation(Popularity::Uniform, None)?);
        too_fast = Some(bench.compare_adaptation(Popularity::Zipf(EXPONENT), Some(TOO_FAST_S))?);
        rmw3_txn_per_core_s = Some(bench.per_core()?);
    }
    let workload = bench.workload(0.5, Popularity::Zipf(EXPONENT));
    let larger = if sites { Some(larger::run(&mut bench, workload)?) } else { None };
    let Checks { acknowledged, lost, anomalies } = bench.checks;
    Ok(Report {
        header: Header::of("adapt", size),
        learned,
        shifted,
        periods,
        uniform,
        too_fast,
        rmw3_txn_per_core_s,
        larger,
        acknowledged,
        lost,
        anomalies,
    })
}

impl Bench<'_> {
    fn learned(&mut self, scans: f64, with_latencies: bool) -> Result<Learned> {
        let Size { sites, compared_s, learns_s, .. } = self.size;
        let workload = self.workload(scans, Popularity::Zipf(EXPONENT));
        let steady = |outcome: &Outcome| outcome.mean_s(WARM_S, usize::MAX);
        let alone = self.setting(workload, compared_s, false);
        let (mut randoms_s, mut best) = (Vec::new(), (0.0, None));
        randoms_s.push(steady(&self.load("a random start, left alone", &alone)?));
        for is_replicated in [false, true] {
            let design = balanced(&workload, sites, is_replicated);
            let by_hand = LoadSpec { design, ..alone.clone() };
            let rate_s = steady(&self.load("a static design, made by hand", &by_hand)?);
            if rate_s > best.0 {
                best = (rate_s, Some(by_hand));
            }
        }
        let outcome =
            self.load("a random start that adapts", &self.setting(workload, learns_s, true))?;
        // The random start and the better static design are measured before and after the adapting store, because the
        // speed of the machine may change.
        let (before_s, by_hand) = (best.0, best.1.unwrap_or_else(|| alone.clone()));
        let after_s = steady(&self.load("the better static design again", &by_hand)?);
        randoms_s.push(steady(&self.load("a random start, left alone", &alone)?));
        let ideal_s = f64::midpoint(before_s, after_s);
        let random_s = Figure::of(randoms_s).median;
        let open = match with_latencies {
            true => Some(self.open_loop(&alone, &by_hand, OPEN_RATE * random_s)?),
            false => None,
        };
        let report = outcome.report.clone().unwrap_or_default();
        let adapted_s = outcome.mean_s(27, usize::MAX);
        let late: u64 = outcome.changes_s.iter().skip(30).sum();
        let late_s = outcome.throughput_s.iter().skip(30).sum::<f64>();
        Ok(Learned {
            scans,
            open,
            random_s,
            ideal_s,
            adapted_s,
            at_15_s_of_ideal: outcome.mean_s(12, 18) / ideal_s,
            at_30_s_of_ideal: outcome.mean_s(27, 33) / ideal_s,
            of_random: adapted_s / random_s,
            reaches_90_percent_s: outcome.reaches_s(0, BACK * ideal_s),
            changes_per_1000: late as f64 * 1_000.0 / late_s.max(1.0),
            planner_share: report.planner_cpu * outcome.throughput_s.len() as f64 / outcome.cpu_s,
            operators_share: report.changing_cpu_s / outcome.cpu_s,
            router_share: outcome.route_us * outcome.checked.acknowledged as f64
                / (outcome.cpu_s * 1e6),
            quality: Quality::of(&report),
        })
    }

    /// Measures the latencies of each design at the same rate.
    fn open_loop(&mut self, alone: &LoadSpec, by_hand: &LoadSpec, rate_s: f64) -> Result<OpenLoop> {
        let at_rate = |of: &LoadSpec, warm: Duration| LoadSpec {
            open_rate_s: Some(rate_s),
            warm,
            lasts: warm + of.lasts,
            ..of.clone()
        };
        let (short, long) =
            (Duration::from_secs(WARM_S as u64), Duration::from_secs(self.size.learned_s));
        let adapting = LoadSpec { adapts: true, ..alone.clone() };
        let mut latency =
            |what: &str, of: &LoadSpec| Ok::<_, crate::error::Error>(self.load(what, of)?.latency);
        Ok(OpenLoop {
            rate_s,
            random: latency("a random start at a rate", &at_rate(alone, short))?,
            ideal: latency("the static design at a rate", &at_rate(by_hand, short))?,
            adapted: latency("a store that adapts at a rate", &at_rate(&adapting, long))?,
        })
    }

    /// Measures a store that adapts while the most popular users move.
    fn shifted(&mut self) -> Result<Shifted> {
        let Size { shift_s, shifts, .. } = self.size;
        let workload = Workload {
            shift_every_s: Some(shift_s as f64),
            ..self.workload(0.5, Popularity::Zipf(EXPONENT))
        };
        let setting = self.setting(workload, shift_s * (shifts + 1), true);
        let outcome = self.load("the most popular users move", &setting)?;
        let recovered = |shift: u64| {
            let at = (shift * shift_s) as usize;
            // The reference is the throughput before the move: the mean of the last quarter of the interval that
            // precedes it.
            let best_s = outcome.mean_s(at - at.min(shift_s as usize / 4), at);
            let seconds = outcome.reaches_s(at, BACK * best_s)?;
            (seconds < shift_s as usize).then_some(seconds)
        };
        let recover_s = (1..=shifts).map(recovered).collect();
        Ok(Shifted { recover_s, quality: Quality::of(&outcome.report.clone().unwrap_or_default()) })
    }

    /// Runs the same load without and with adaptation.
    fn compare_adaptation(
        &mut self,
        popularity: Popularity,
        shift_every_s: Option<f64>,
    ) -> Result<Beside> {
        let workload = Workload { shift_every_s, ..self.workload(0.5, popularity) };
        let (mut off, mut on) = (Vec::new(), Vec::new());
        for adapts in self.size.in_turn() {
            let setting = self.setting(workload, self.size.beside_s, adapts);
            let what = if adapts { "the load, adapting" } else { "the load, left alone" };
            let rate_s = self.load(what, &setting)?.mean_s(WARM_S, usize::MAX);
            if adapts { on.push(rate_s) } else { off.push(rate_s) }
        }
        Ok(Beside::of(off, on))
    }

    /// Measures the throughput per second of CPU time in many short runs, because the speed of a machine changes
    /// within a minute by more than adaptation costs.
    fn per_core(&mut self) -> Result<Beside> {
        let workload = self.workload(0.0, Popularity::Uniform);
        let (mut off, mut on) = (Vec::new(), Vec::new());
        let size = Size { rounds: self.size.rounds * 2, ..self.size.clone() };
        for adapts in size.in_turn() {
            let setting = self.setting(workload, self.size.compared_s.div_ceil(2), adapts);
            let outcome =
                self.load("read-modify-writes", &LoadSpec { site_cpu: None, ..setting })?;
            let per_core_s = outcome.throughput_s.iter().sum::<f64>() / outcome.cpu_s;
            if adapts { on.push(per_core_s) } else { off.push(per_core_s) }
        }
        Ok(Beside::of(off, on))
    }
}

impl Beside {
    fn of(off: Vec<f64>, on: Vec<f64>) -> Self {
        let ratios = off.iter().zip(&on).map(|(off, on)| on / off).collect();
        let [off_s, on_s, ratio] = [off, on, ratios].map(|all| Figure::of(all).median);
        Self { off_s, on_s, ratio }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_told_by_their_medians() {
        // The machine became slower during the runs.
        let beside = Beside::of(vec![9_000.0, 8_000.0, 5_000.0], vec![9_900.0, 5_000.0, 5_500.0]);
        assert_eq!((beside.off_s, beside.on_s, beside.ratio), (8_000.0, 5_500.0, 1.1));
    }

    #[test]
    fn every_answer_of_a_load_is_checked() {
        let size = Size {
            users: 1_000,
            sites: 2,
            site_cpu: 0.5,
            clients: 4,
            partitions: 8,
            compared_s: 1,
            beside_s: 1,
            mixes: 1,
            sites_max: 8,
            rounds: 1,
            learns_s: 1,
            learned_s: 1,
            shift_s: 1,
            shifts: 1,
            periods_s: vec![2],
            parts: Parts { starts: true, shifts: true, beside: true, sites: true, periods: true },
        };
        let mut bench = Bench { size: size.clone(), checks: Checks::default(), say: &|_| {} };
        let workload = bench.workload(0.5, Popularity::Zipf(EXPONENT));
        let setting = bench.setting(workload, 1, true);
        let outcome = bench.load("a load", &setting).unwrap();
        assert_eq!(outcome.checked.acknowledged, bench.checks.acknowledged);
        assert!(bench.checks.acknowledged > 0);
        assert_eq!((bench.checks.lost, bench.checks.anomalies), (0, 0));
    }
}
