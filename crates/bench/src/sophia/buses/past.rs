//! The trace of earlier days that the tuner gets: each is like the coming day. As in the paper's sample, one interval
//! in fifty differs from those at the same time of other days (SOPHIA, §5).

use std::path::Path;
use std::time::Duration;

use imago_tune::trace;
use imago_workload::mix::Mix;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Number of days in the trace.
const DAYS: u64 = 10;
/// Share of the intervals that have the mix of the other kind of phase.
const OTHERWISE: f64 = 0.02;

/// Writes the trace of the days before `begins_s`, at which a day starts. Times are in seconds.
pub(super) fn write(
    path: &Path,
    begins_s: u64,
    phases: &[(Duration, Mix)],
    interval_s: u64,
    seed: u64,
) -> std::io::Result<()> {
    let mut dice = StdRng::seed_from_u64(seed);
    let day_s: u64 = phases.iter().map(|(length, _)| length.as_secs()).sum();
    let intervals = DAYS * day_s / interval_s;
    let mut lines = Vec::new();
    for number in 0..intervals {
        let mut phase = phase_at(phases, number * interval_s % day_s);
        if dice.random_bool(OTHERWISE) {
            phase = (phase + 1) % phases.len();
        }
        let Mix { read, update, insert, scan, .. } = phases[phase].1;
        let sum = read + update + insert + scan;
        let counts = [read, update, insert, scan].map(|of| (of / sum * 10_000.0).round() as u64);
        lines.push((begins_s - (intervals - number) * interval_s, counts));
    }
    trace::write(path, lines.into_iter())
}

/// Returns the index of the phase at `at_s` seconds after the start of a day.
fn phase_at(phases: &[(Duration, Mix)], at_s: u64) -> usize {
    let mut ends_s = 0;
    let is_it = |(length, _): &(Duration, Mix)| {
        ends_s += length.as_secs();
        at_s < ends_s
    };
    phases.iter().position(is_it).expect("a day has no more than its phases")
}

#[cfg(test)]
mod tests {
    use imago_tune::trace::Trace;

    use super::*;

    #[test]
    fn days_are_alike_but_for_an_interval_of_fifty_and_end_where_the_next_one_begins() {
        let mix = |text: &str| text.parse::<Mix>().unwrap();
        let (moving, searching) =
            (mix("read=1,update=93,insert=6"), mix("read=1,update=5,scan=94"));
        let phases = [(Duration::from_secs(140), moving), (Duration::from_secs(115), searching)];
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seen.csv");
        let begins_s = 1_795_737_600;
        write(&path, begins_s, &phases, 5, 7).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let trace = Trace::read("seen.csv", file).unwrap();
        assert_eq!((trace.interval_s, trace.intervals.len()), (5, 510));
        assert_eq!(trace.intervals[509].start_s + 5, begins_s);
        let is_searching = |n: usize| trace.intervals[n].mix.unwrap().shares()[3] > 0.5;
        let otherwise = (0..510).filter(|n| is_searching(*n) != (n % 51 >= 28)).count();
        assert!((2..=25).contains(&otherwise), "{otherwise}");
    }
}
