//! Operations that a load has served: in total, in each tenth of a second, and by the kind of its phases.

use std::time::Duration;

use imago_workload::driver::Report as LoadReport;
use imago_workload::mix::Mix;

use super::Way;
use crate::statistics::Figure;

/// Length of the start of a phase that is not counted, as a share of the phase: a configuration may still have work
/// of the previous phase.
const SETTLES: f64 = 0.25;

/// Returns the name of the best fixed configuration, and the operations of the tuner divided by those of the first
/// and of the best configuration, over the rounds. The tuner is the last of `all`.
pub(super) fn compared(
    all: &[Way],
    served: impl Fn(&Way) -> Vec<f64>,
) -> (String, (Figure, Figure)) {
    let (tuned, fixed) = all.split_last().expect("there is the tuner");
    let median = |way: &Way| Figure::of(served(way)).median;
    let best = fixed.iter().max_by(|one, two| median(one).total_cmp(&median(two)));
    let best = best.expect("there is a configuration");
    let ratio = |other: &Way| {
        let pairs = served(tuned).into_iter().zip(served(other));
        Figure::of(pairs.map(|(tuned, other)| tuned / other.max(1e-9)))
    };
    (best.name.clone(), (ratio(&fixed[0]), ratio(best)))
}

/// Returns the number of operations that were answered.
pub(super) fn served(report: &LoadReport) -> u64 {
    let (reads, writes) = (report.reads.tally, report.writes.tally);
    reads.ok + reads.not_found + writes.ok + writes.not_found
}

/// Returns the number of operations answered in each tenth of a second, with the start of the latter in seconds.
pub(super) fn slots(report: &LoadReport) -> impl Iterator<Item = (f64, u64)> {
    report.timeline.iter().map(|slot| {
        let answered = slot.reads.tally.ok + slot.reads.tally.not_found + slot.writes.tally.ok;
        (slot.at_ms as f64 / 1_000.0, answered)
    })
}

/// Returns the operations per second in all phases of one kind, without the start of each phase.
pub(super) fn rate(report: &LoadReport, phases: &[(Duration, Mix)], parity: usize) -> f64 {
    let (mut begins, mut counted, mut seconds) = (0.0, 0, 0.0);
    for (number, (length, _)) in phases.iter().enumerate() {
        let (from, ends) = (begins + SETTLES * length.as_secs_f64(), begins + length.as_secs_f64());
        begins = ends;
        if number % 2 == parity {
            let within = slots(report).filter(|(at_s, _)| (from..ends).contains(at_s));
            counted += within.map(|(_, answered)| answered).sum::<u64>();
            seconds += ends - from;
        }
    }
    counted as f64 / seconds.max(1e-9)
}

/// Returns the time that the default configuration would need for the served operations, in seconds. `default_rates`
/// has its operations per second for both kinds of phases.
pub(super) fn default_seconds(
    report: &LoadReport,
    phases: &[(Duration, Mix)],
    default_rates: [f64; 2],
) -> f64 {
    let ends: Vec<f64> = phases
        .iter()
        .scan(0.0, |sum, (length, _)| {
            *sum += length.as_secs_f64();
            Some(*sum)
        })
        .collect();
    let of = |(at_s, answered): (f64, u64)| {
        let phase = ends.partition_point(|end| *end <= at_s).min(phases.len() - 1);
        answered as f64 / default_rates[phase % 2].max(1e-9)
    };
    slots(report).map(of).sum()
}
