//! Traces, drawn at random from the statistics that the paper prints (§5); the request rates of one of them are real.

use imago_plan::tune::workload::{Interval, Mix};
use imago_tune::trace::Trace;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::Size;

/// Start of the paper's first trace, in seconds since 1970: 19 April 2017, midnight UTC.
pub(super) const START_S: u64 = 1_492_560_000;
pub(super) const DAY_S: u64 = 86_400;

/// A trace.
pub(super) struct Drawn {
    pub(super) name: String,
    pub(super) interval_s: u64,
    pub(super) intervals: Vec<Interval>,
}

/// Draws the workload of a metagenomics portal. The share of reads shifts about 443 times a day, four of five times
/// between none and all, with no daily pattern. The more reads, the fewer operations: their correlation is −0.72, as
/// published.
pub(super) fn metagenomics(size: Size) -> Drawn {
    const SHIFTS_A_DAY: f64 = 443.0;
    const INTERVAL_S: u64 = 300;
    let mut dice = StdRng::seed_from_u64(size.seed);
    let (mut reads, mut level): (f64, f64) = (0.0, 1.0);
    let minutes = u64::from(size.days) * 1_440;
    let mut intervals = Vec::new();
    let (mut counts, mut operations) = ([0.0; 4], 0.0);
    for minute in 0..minutes {
        if minute * 60 % INTERVAL_S == 0 {
            level = dice.random_range(0.62..1.38);
        }
        if dice.random_bool(SHIFTS_A_DAY / 1_440.0) {
            let jumps = dice.random_bool(0.8);
            reads = if jumps { 1.0 - reads.round() } else { dice.random_range(0.0..1.0) };
        }
        // Writes arrive in batches, so the rate varies and is higher with fewer reads.
        let rate = (2.0 - 1.4 * reads) * dice.random_range(500.0..1_500.0) * level;
        counts[0] += rate * reads;
        counts[1] += rate * (1.0 - reads);
        operations += rate * 60.0;
        if (minute + 1) * 60 % INTERVAL_S == 0 {
            let start_s = START_S + (minute + 1) * 60 - INTERVAL_S;
            let rate_s = operations / INTERVAL_S as f64;
            intervals.push(Interval { start_s, mix: Mix::of(counts), rate_s: Some(rate_s) });
            (counts, operations) = ([0.0; 4], 0.0);
        }
    }
    Drawn { name: "metagenomics (MG-RAST-like)".into(), interval_s: INTERVAL_S, intervals }
}

/// Draws the workload of bus tracking: buses move by day, and passengers search for them at night. There are about 63
/// shifts a day, most of them at the same time each day. Updates, scans, inserts and reads are 42.2, 54.8, 2.82 and
/// 0.18 % of the operations.
pub(super) fn buses(size: Size) -> Drawn {
    const INTERVAL_S: u64 = 900;
    const A_DAY: usize = (DAY_S / INTERVAL_S) as usize;
    // Number of intervals in a day in which buses move, and number of runs of such intervals, with two shifts for
    // each run.
    const MOVING: usize = 40;
    const RUNS: usize = 32;
    let mut dice = StdRng::seed_from_u64(size.seed ^ 0xb05);
    let (mut moving, mut searching) = ([1; RUNS], [1; RUNS]);
    for _ in RUNS..MOVING {
        // Buses set out in the early morning: these runs are longer.
        moving[dice.random_range(4..10)] += 1;
    }
    for _ in RUNS..A_DAY - MOVING {
        // Passengers search for the last buses at night: these runs are longer.
        searching[(RUNS - 6 + dice.random_range(0..10)) % RUNS] += 1;
    }
    let runs = searching.iter().zip(moving);
    let template: Vec<bool> = runs
        .flat_map(|(searching, moving)| {
            std::iter::repeat_n(false, *searching).chain(std::iter::repeat_n(true, moving))
        })
        .collect();
    let mut intervals = Vec::new();
    for number in 0..size.days as usize * A_DAY {
        let moving = template[number % A_DAY] != dice.random_bool(0.02);
        let mut part = |most: f64| dice.random_range(0.85..1.0) * most;
        let counts = if moving {
            [0.2, part(90.0), part(6.0), part(4.0)]
        } else {
            [0.2, part(5.0), 0.2, part(94.0)]
        };
        let start_s = START_S + number as u64 * INTERVAL_S;
        intervals.push(Interval { start_s, mix: Mix::of(counts), rate_s: Some(900.0) });
    }
    Drawn { name: "bus tracking (Tiramisu-like)".into(), interval_s: INTERVAL_S, intervals }
}

/// Requests to a load balancer in two weeks, in intervals of five minutes; see `data/README.md`.
const LOAD_BALANCER: &str = include_str!("../../data/load-balancer.csv");

/// Draws the workload of bus tracking with the request rates of a real load balancer. Three intervals of the latter
/// make one.
pub(super) fn buses_at_real_rates(size: Size) -> Drawn {
    const TOGETHER: usize = 3;
    let real =
        Trace::read("load-balancer.csv", LOAD_BALANCER.as_bytes()).expect("the shipped trace");
    let interval_s = real.interval_s * TOGETHER as u64;
    let days = (real.intervals.len() as u64 * real.interval_s).div_ceil(DAY_S) as u32;
    let mixes = buses(Size { days, ..size }).intervals;
    let of = |(real, drawn): (&[Interval], Interval)| {
        let seen: Vec<f64> = real.iter().filter_map(|one| one.rate_s).collect();
        let rate_s = (!seen.is_empty()).then(|| seen.iter().sum::<f64>() / seen.len() as f64);
        // The first interval starts at 00:04, like the real trace.
        let start_s = real[0].start_s;
        Interval { start_s, mix: rate_s.and(drawn.mix), rate_s }
    };
    let intervals = real.intervals.chunks(TOGETHER).zip(mixes).map(of).collect();
    Drawn { name: "bus tracking at a load balancer's rates".into(), interval_s, intervals }
}

/// Returns a workload that changes from all writes to all reads and back every two minutes, faster than a roll pays.
pub(super) fn flip_flop(size: Size) -> Drawn {
    const INTERVAL_S: u64 = 60;
    let of = |number: u64| {
        let mix = Some(Mix::of_reads(if (number / 2).is_multiple_of(2) { 0.0 } else { 1.0 }));
        Interval { start_s: START_S + number * INTERVAL_S, mix, rate_s: Some(3_000.0) }
    };
    let intervals = (0..u64::from(size.days.min(3)) * 1_440).map(of).collect();
    Drawn { name: "flip-flop".into(), interval_s: INTERVAL_S, intervals }
}

/// Draws a queue of batch jobs, of which `at_once` run concurrently. A job uploads, analyses and commits; half of the
/// jobs recur, and upload nothing. Each phase has 200 to 100,000 operations.
pub(super) fn jobs(size: Size, at_once: usize) -> Drawn {
    const INTERVAL_S: u64 = 20;
    const RATE_S: f64 = 3_000.0;
    let mut dice = StdRng::seed_from_u64(size.seed ^ 0x4a0b);
    let mut phases = |_| {
        let recurs = dice.random_bool(0.5);
        let mut phase = |reads: f64| (reads, dice.random_range(200.0..100_000.0));
        let (upload, analyse, commit) = (phase(0.05), phase(0.95), phase(0.05));
        let all = if recurs { vec![analyse, commit] } else { vec![upload, analyse, commit] };
        all.into_iter().rev().collect::<Vec<(f64, f64)>>()
    };
    let mut queue: Vec<Vec<(f64, f64)>> = (0..size.jobs).map(&mut phases).collect();
    let mut running: Vec<Vec<(f64, f64)>> = Vec::new();
    let mut intervals = Vec::new();
    loop {
        while running.len() < at_once
            && let Some(job) = queue.pop()
        {
            running.push(job);
        }
        if running.is_empty() {
            break;
        }
        let share = RATE_S * INTERVAL_S as f64 / running.len() as f64;
        let mut counts = [0.0; 4];
        for job in &mut running {
            let mut left = share;
            while left > 0.0
                && let Some((reads, operations)) = job.last_mut()
            {
                let done = left.min(*operations);
                counts[0] += done * *reads;
                counts[1] += done * (1.0 - *reads);
                (left, *operations) = (left - done, *operations - done);
                if *operations <= 0.0 {
                    job.pop();
                }
            }
        }
        running.retain(|job| !job.is_empty());
        let start_s = START_S + intervals.len() as u64 * INTERVAL_S;
        let rate_s = counts.iter().sum::<f64>() / INTERVAL_S as f64;
        intervals.push(Interval { start_s, mix: Mix::of(counts), rate_s: Some(rate_s) });
    }
    Drawn { name: format!("batch queue, {at_once} at once"), interval_s: INTERVAL_S, intervals }
}

/// Returns the number of shifts in a day: intervals whose mix differs from the previous one by more than 80 % of the
/// maximum distance.
pub(super) fn shifts_per_day(intervals: &[Interval], interval_s: u64) -> f64 {
    let is_shift = |pair: &&[Interval]| {
        let [one, two] = pair else { return false };
        // The distance between all operations of one kind and all of another is the square root of one half.
        let most = 0.5_f64.sqrt();
        one.mix.zip(two.mix).is_some_and(|(one, two)| one.distance(two) > 0.8 * most)
    };
    let shifts = intervals.windows(2).filter(is_shift).count() as f64;
    shifts * DAY_S as f64 / (intervals.len().max(1) as f64 * interval_s as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { days: 20, jobs: 60, seed: 1 };

    #[test]
    fn buses_ask_for_what_the_paper_tells() {
        let drawn = buses(SIZE);
        let mixes = drawn.intervals.iter().filter_map(|one| one.mix).map(|mix| (1.0, mix));
        let [reads, updates, inserts, scans] = Mix::mean(mixes).unwrap().shares();
        assert!(reads < 0.01 && (updates - 0.422).abs() < 0.1, "{reads} {updates}");
        assert!((inserts - 0.028).abs() < 0.03 && (scans - 0.548).abs() < 0.1, "{inserts} {scans}");
        let shifts = shifts_per_day(&drawn.intervals, drawn.interval_s);
        assert!((45.0..75.0).contains(&shifts), "{shifts}");
    }

    #[test]
    fn real_rates_are_those_of_the_file() {
        let drawn = buses_at_real_rates(SIZE);
        assert_eq!((drawn.interval_s, drawn.intervals.len()), (900, 1_347));
        let rates: Vec<f64> = drawn.intervals.iter().filter_map(|one| one.rate_s).collect();
        let mean_s = rates.iter().sum::<f64>() / rates.len() as f64;
        // The mean is 61.8 requests in five minutes.
        assert!((mean_s - 61.84 / 300.0).abs() < 0.002, "{mean_s}");
        // Rates are higher in the evening than in the morning.
        let of_hours = |from: u64| {
            let is_then =
                |one: &&Interval| (from..from + 4).contains(&(one.start_s % DAY_S / 3_600));
            let of = drawn.intervals.iter().filter(is_then).filter_map(|one| one.rate_s);
            of.clone().sum::<f64>() / of.count() as f64
        };
        assert!(of_hours(17) > 1.5 * of_hours(6));
    }

    #[test]
    fn the_more_is_read_the_fewer_operations_there_are() {
        let drawn = metagenomics(SIZE);
        let pairs: Vec<(f64, f64)> = drawn
            .intervals
            .iter()
            .filter_map(|one| Some((one.mix?.shares()[0], one.rate_s?)))
            .collect();
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| {
            pairs.iter().map(of).sum::<f64>() / pairs.len() as f64
        };
        let (reads, rate) = (mean(&|pair| pair.0), mean(&|pair| pair.1));
        let together = mean(&|pair| (pair.0 - reads) * (pair.1 - rate));
        let spread = mean(&|pair| (pair.0 - reads).powi(2)) * mean(&|pair| (pair.1 - rate).powi(2));
        let correlation = together / spread.sqrt();
        assert!((correlation + 0.72).abs() < 0.03, "{correlation}");
    }

    #[test]
    fn a_queue_does_all_its_jobs() {
        let (one, ten) = (jobs(SIZE, 1), jobs(SIZE, 10));
        let all = |drawn: &Drawn| -> f64 {
            drawn.intervals.iter().map(|one| one.rate_s.unwrap() * drawn.interval_s as f64).sum()
        };
        // Both queues have the same jobs; only the last, partly used interval differs.
        assert!((all(&one) / all(&ten) - 1.0).abs() < 1e-9, "{} {}", all(&one), all(&ten));
        assert!(all(&one) > 60.0 * 2.0 * 40_000.0);
    }
}
