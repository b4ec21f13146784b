//! Fig. 8: the volume of data on each node (SOPHIA, §6.5). Throughputs and restart times were measured on three real
//! nodes for each volume.
//!
//! The workload is bus tracking, which has the largest gain of the paper's workloads with these measurements. Both
//! configurations were measured with each volume, one after the other and by the same commands (`data/README.md`). No
//! measurement is used for another volume.

use imago_plan::tune::replay::{real, replay};
use imago_plan::tune::roll::Costs;
use imago_plan::tune::workload::Mix;
use imago_tune::decision_inputs::Planning;
use imago_tune::measurements::Measurements;
use serde::Serialize;

use super::super::{COSTS, traces};
use super::methods::{PerMethod, replay_methods};
use super::{Basis, Size};
use crate::sophia;

/// For each volume: number of rows of 1,000 bytes on each node; measured throughputs; and the median times of a
/// node's restart under load, in seconds: from its stop until it had the writes that it missed, and until it served
/// again.
const VOLUMES: [(u32, &str, f64, f64); 3] = [
    (10_000, include_str!("../../../data/cassandra-10000-rows.csv"), 46.9, 25.3),
    (40_000, include_str!("../../../data/cassandra-40000-rows.csv"), 36.1, 24.4),
    (160_000, include_str!("../../../data/cassandra-160000-rows.csv"), 34.0, 25.0),
];
/// Maximum number of days in the trace; the first half is training data.
const DAYS_MAX: u32 = 20;

/// Results for a volume of data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Number of rows of 1,000 bytes on each node.
    pub rows: u32,
    /// Throughput of writes with the default configuration, divided by that with the other one.
    pub writes: f64,
    /// Throughput of reads with the default configuration, divided by that with the other one.
    pub reads: f64,
    /// Throughput of scans with the default configuration, divided by that with the other one.
    pub scans: f64,
    /// T_r: time of a node's restart until it has the writes that it missed, in seconds.
    pub restart_s: f64,
    /// Operations that each method serves, divided by those of the best fixed configuration.
    pub ratios: PerMethod<f64>,
    /// Number of changes that each method makes.
    pub changes: PerMethod<usize>,
}

/// Returns one row for each volume.
pub(super) fn rows(size: Size) -> Vec<Row> {
    VOLUMES
        .map(|(rows, measured, restart_s, away_s)| row(size, rows, measured, (restart_s, away_s)))
        .into()
}

fn row(size: Size, rows: u32, measured: &str, (restart_s, away_s): (f64, f64)) -> Row {
    let measurements = Measurements::read("", measured.as_bytes()).expect("shipped measurements");
    let costs = Costs { restart_s, catch_up: 1.0 - away_s / restart_s, ..COSTS };
    let basis = Basis { name: "", measurements, costs };
    let Size { jobs, seed, .. } = size;
    let drawn = traces::buses(sophia::Size { days: size.days.min(DAYS_MAX), jobs, seed });
    // Bus tracking repeats every day.
    let planning =
        Planning { forecast: Some("time-of-day".into()), ..basis.planning(drawn.interval_s) };
    let planner_inputs = basis.planner_inputs(&planning);
    let learned = drawn.intervals.len() / 2;
    let chosen = planner_inputs.choose(&drawn.intervals[..learned]);
    let rates = |mix: Mix| basis.measurements.throughputs.of(mix);
    let [setting, at_once] =
        [false, true].map(|is_at_once| planner_inputs.setting(chosen.look_ahead, is_at_once));
    let planned = |setting: &_| {
        let mut forecast = planner_inputs.forecast(&chosen);
        replay(&drawn.intervals, learned, &mut *forecast, &rates, setting).schedule.changes
    };
    let really = real(&drawn.intervals[learned..], &rates, &setting);
    let lived = replay_methods(&really, &at_once.rolls, &planned(&setting), &planned(&at_once));
    let ratio = |counts: [f64; 4]| {
        let served = rates(Mix::of(counts).expect("operations"));
        served[0] / served[1..].iter().copied().fold(0.0, f64::max)
    };
    Row {
        rows,
        writes: ratio([0.0, 1.0, 0.0, 0.0]),
        reads: ratio([1.0, 0.0, 0.0, 0.0]),
        scans: ratio([0.1, 0.0, 0.0, 0.9]),
        restart_s,
        ratios: lived.ratios(|_| 1.0),
        changes: lived.changes(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::tests::SIZE;
    use super::*;

    const TWO: &str = "configuration,operations_s,reads,updates,scans
late,2000,0,100,0
late,400,10,0,90
late,2000,100,0,0
early,1500,0,100,0
early,700,10,0,90
early,2000,100,0,0
";

    #[test]
    fn the_longer_a_restart_takes_the_less_is_gained() {
        let of = |restart_s| row(SIZE, 40_000, TWO, (restart_s, restart_s * 0.6));
        let (short, long) = (of(5.0), of(200.0));
        assert!(short.ratios.tuned > long.ratios.tuned, "{short:?} {long:?}");
        assert!(short.ratios.tuned > 1.05 && short.changes.tuned > 100, "{short:?}");
        assert!((short.writes - 4.0 / 3.0).abs() < 1e-9 && short.scans < 0.6, "{short:?}");
    }

    #[test]
    fn every_volume_has_its_own_measurements() {
        let rows = rows(SIZE);
        assert_eq!(rows.iter().map(|row| row.rows).collect::<Vec<_>>(), [10_000, 40_000, 160_000]);
        for row in &rows {
            assert!(row.ratios.tuned <= row.ratios.oracle * (1.0 + 1e-9), "{row:?}");
            assert!(row.ratios.tuned > 0.97, "{row:?}");
        }
    }
}
