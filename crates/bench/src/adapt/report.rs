//! The figures of adaptation, each beside the same load without it.

use std::time::Duration;

use imago_workload::timeline::Latency;
use serde::Serialize;

use super::designs::{balanced, random};
use super::larger::{self, Larger};
use super::periods::{self, Period};
use super::quality::Quality;
use super::scene::{self, LoadSpec, Outcome};
use super::workload::{Popularity, Workload};
use crate::Header;
use crate::error::Result;
use crate::statistics::Figure;

/// The size of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Users, with three rows of 100 bytes each.
    pub users: u64,
    /// Sites of the store.
    pub sites: u16,
    /// The share of a core that each site has.
    pub site_cpu: f64,
    /// Clients, each with one transaction under way.
    pub clients: u64,
    /// Partitions of the random start.
    pub partitions: u64,
    /// Seconds of a load that is compared.
    pub compared_s: u64,
    /// Seconds of a load that is run with and without adaptation.
    pub beside_s: u64,
    /// Mixes of transactions from a random start: half scans, and with 2 one scan in ten.
    pub mixes: u8,
    /// Simulated sites; a quarter of so many are compared with the real engine.
    pub sites_max: u16,
    /// Runs of each load with and without adaptation.
    pub rounds: u64,
    /// Seconds of a load under which a store learns.
    pub learns_s: u64,
    /// Seconds after which latencies of a store that adapts count.
    pub learned_s: u64,
    /// Seconds between two moves of the most popular users, and how often they move.
    pub shift_s: u64,
    /// Moves of the most popular users.
    pub shifts: u64,
    /// Periods of two places in turn, in seconds.
    pub periods_s: Vec<u64>,
    /// The parts that are measured.
    pub parts: Parts,
}

/// Parts of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// From a random start, beside static designs.
    pub starts: bool,
    /// The popular users move.
    pub shifts: bool,
    /// Loads at which nothing is to be gained.
    pub beside: bool,
    /// More sites, in simulation.
    pub sites: bool,
    /// The popular users are in two places in turn.
    pub periods: bool,
}

impl Size {
    /// Without and with adaptation, in an order that is fair to both.
    fn in_turn(&self) -> impl Iterator<Item = bool> + use<> {
        (0..self.rounds)
            .flat_map(|round| if round % 2 == 0 { [false, true] } else { [true, false] })
    }
}

/// The exponent of Zipf's law, as in YCSB.
pub(super) const EXPONENT: f64 = 0.99;
/// Seconds between moves of the most popular users that are too fast for adaptation to follow.
const TOO_FAST_S: f64 = 2.0;
/// Seconds at the beginning of a load that do not count.
pub(super) const WARM_S: usize = 2;
/// The share of a random start's throughput at which latencies are measured.
const OPEN_RATE: f64 = 0.8;
/// The share of the best throughput that counts as back.
const BACK: f64 = 0.9;
/// The seed of the random start.
pub(super) const SEED: u64 = 11;

/// Results of adaptation from a random start, under one mix of transactions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Learned {
    /// The share of scans.
    pub scans: f64,
    /// Latencies at a rate that each design can serve; none where they were not measured.
    pub open: Option<OpenLoop>,
    /// Transactions a second of the random start that is left alone.
    pub random_s: f64,
    /// Of the best static design that is made by hand.
    pub ideal_s: f64,
    /// Of the store that adapts, after 30 s.
    pub adapted_s: f64,
    /// The store that adapts after 15 s, of the ideal.
    pub at_15_s_of_ideal: f64,
    /// After 30 s.
    pub at_30_s_of_ideal: f64,
    /// After 30 s, of the random start.
    pub of_random: f64,
    /// Seconds until it is at 90 % of the ideal; none if it never is.
    pub reaches_90_percent_s: Option<usize>,
    /// Changes for 1,000 transactions after the first 30 s.
    pub changes_per_1000: f64,
    /// The share of the process's processor time that the planner used.
    pub planner_share: f64,
    /// The share of changes of the design at the sites.
    pub operators_share: f64,
    /// The share of finding the sites of transactions: the time for one, times their number.
    pub router_share: f64,
    /// What came of its decisions, and how good its predictions were.
    #[serde(flatten)]
    pub quality: Quality,
}

/// Latencies of transactions that are due at a rate, from when they were due.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpenLoop {
    /// Transactions a second: 80 % of what the random start serves in a closed loop.
    pub rate_s: f64,
    /// Of the random start that is left alone.
    pub random: Latency,
    /// Of the better static design that is made by hand.
    pub ideal: Latency,
    /// Of the store that adapts, after 30 s.
    pub adapted: Latency,
}

/// Adaptation under a load whose most popular users move.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Shifted {
    /// Seconds until the throughput is back at 90 % of the best, after each move; none if it was not until the next
    /// one.
    pub recover_s: Vec<Option<usize>>,
    /// What came of its decisions, and how good its predictions were.
    #[serde(flatten)]
    pub quality: Quality,
}

/// A load with and without adaptation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// Transactions a second without.
    pub off_s: f64,
    /// And with it.
    pub on_s: f64,
    /// The second of the first: the median of pairs of runs one after the other.
    pub ratio: f64,
}

/// The measurements; those of a part that was not measured are none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Random start, skewed load.
    pub learned: Vec<Learned>,
    /// The most popular users move once a minute.
    pub shifted: Option<Shifted>,
    /// The most popular users are in two places in turn, from one partition, by period.
    pub periods: Vec<Period>,
    /// All users alike.
    pub uniform: Option<Beside>,
    /// The most popular users move every two seconds.
    pub too_fast: Option<Beside>,
    /// Read-modify-writes of three rows, uniform, for each second of processor time; sites use what they want.
    pub rmw3_txn_per_core_s: Option<Beside>,
    /// More sites than this machine can run, in simulation.
    #[serde(flatten)]
    pub larger: Option<Larger>,
    /// Acknowledged transactions of all loads.
    pub acknowledged: u64,
    /// Acknowledged increments that are not there.
    pub lost: u64,
    /// Answers that no snapshot could give.
    pub anomalies: u64,
}

/// Results of the checks, summed over all loads.
#[derive(Default)]
struct Checks {
    acknowledged: u64,
    lost: u64,
    anomalies: u64,
}

/// The benchmark under way.
pub(super) struct Bench<'s> {
    pub(super) size: Size,
    checks: Checks,
    pub(super) say: &'s dyn Fn(&str),
}

/// Measures. `say` is told what is done. Blocks.
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
        uniform = Some(bench.beside(Popularity::Uniform, None)?);
        too_fast = Some(bench.beside(Popularity::Zipf(EXPONENT), Some(TOO_FAST_S))?);
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
    pub(super) fn workload(&self, scans: f64, popularity: Popularity) -> Workload {
        Workload { users: self.size.users, scans, popularity, shift_every_s: None, places: None }
    }

    /// A load from the random start.
    pub(super) fn setting(&self, workload: Workload, lasts_s: u64, adapts: bool) -> LoadSpec {
        let Size { users, sites, site_cpu, clients, partitions, .. } = self.size;
        LoadSpec {
            sites,
            site_cpu: Some(site_cpu),
            clients,
            open_rate_s: None,
            warm: Duration::ZERO,
            lasts: Duration::from_secs(lasts_s),
            workload,
            design: random(users, partitions, sites, SEED),
            adapts,
            seed: SEED,
        }
    }

    pub(super) fn load(&mut self, what: &str, setting: &LoadSpec) -> Result<Outcome> {
        (self.say)(&format!("{what}, {} s", setting.lasts.as_secs()));
        let outcome = scene::run(setting, |_, _, _| {})?;
        self.checks.acknowledged += outcome.checked.acknowledged;
        self.checks.lost += outcome.checked.lost;
        self.checks.anomalies += outcome.checked.anomalies;
        Ok(outcome)
    }

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
        // Around it once more: a machine may be slower than a minute ago.
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

    /// The same load at a rate, by each design.
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

    /// The most popular users move, while the store adapts.
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
            // The best that was reached before: the last quarter in front of the move.
            let best_s = outcome.mean_s(at - at.min(shift_s as usize / 4), at);
            let seconds = outcome.reaches_s(at, BACK * best_s)?;
            (seconds < shift_s as usize).then_some(seconds)
        };
        let recover_s = (1..=shifts).map(recovered).collect();
        Ok(Shifted { recover_s, quality: Quality::of(&outcome.report.clone().unwrap_or_default()) })
    }

    /// The same load without adaptation and with it.
    fn beside(&mut self, popularity: Popularity, shift_every_s: Option<f64>) -> Result<Beside> {
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

    /// Many short runs: a machine's speed drifts by more within a minute than adaptation takes.
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
        // A machine that became slower.
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
