//! The pictures of SOPHIA's evaluation, in the paper's form.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::picture::{Axis, Chart, Form, Picture, Point, Series, save};

/// What a way served over the time.
pub(super) struct OverTime {
    /// The way.
    pub(super) name: String,
    /// Seconds since the beginning, and operations a second.
    pub(super) points: Vec<(f64, f64)>,
}

/// Fig. 4 in form: operations a second over phases of these lengths, of each way.
pub(super) fn buses(
    ways: &[OverTime],
    phases_s: &[f64],
    folder: Option<&Path>,
) -> Result<Vec<PathBuf>> {
    let mut begins = 0.0;
    let mut marks = Vec::new();
    for (number, length) in phases_s.iter().enumerate() {
        marks.push((begins, if number % 2 == 0 { "moving" } else { "searching" }));
        begins += length;
    }
    let series = ways.iter().map(|way| Series {
        name: way.name.clone(),
        form: Form::Line,
        points: way.points.iter().map(|(x, y)| Point::new(*x, *y)).collect(),
    });
    let chart = Chart {
        title: "buses that move, and are searched for".into(),
        x: Axis::Linear("seconds"),
        y: "operations a second",
        series: series.collect(),
        marks,
    };
    save(&[Picture { name: "sophia-buses", columns: 1, charts: vec![chart] }], folder)
}

/// What clients saw of a change, second by second.
pub(super) struct Rolled {
    /// The way.
    pub(super) name: &'static str,
    /// Operations that were answered.
    pub(super) answered: Vec<f64>,
    /// The time that one answer of a hundred exceeds, in milliseconds.
    pub(super) p99_ms: Vec<f64>,
    /// When the change began and ended, in seconds.
    pub(super) from_to_s: (f64, f64),
}

/// Fig. 2 in form: operations a second, and the slowest percent, over a change of each way.
pub(super) fn rolls(ways: &[Rolled], folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let line = |values: &[f64]| {
        let points = (0_u32..).zip(values).map(|(at, value)| Point::new(f64::from(at), *value));
        vec![Series { name: String::new(), form: Form::Line, points: points.collect() }]
    };
    let chart = |way: &Rolled, values: &[f64], y: &'static str| Chart {
        title: way.name.into(),
        x: Axis::Linear("seconds"),
        y,
        series: line(values),
        marks: vec![(way.from_to_s.0, "begins"), (way.from_to_s.1, "ends")],
    };
    let charts = ways.iter().flat_map(|way| {
        [
            chart(way, &way.answered, "operations a second"),
            chart(way, &way.p99_ms, "slowest percent, ms"),
        ]
    });
    save(&[Picture { name: "sophia-roll", columns: 2, charts: charts.collect() }], folder)
}
