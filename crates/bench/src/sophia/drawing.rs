//! Pictures of SOPHIA's evaluation, in the form of the paper.

use std::path::{Path, PathBuf};

use crate::error::Result;
use imago_chart::{Axis, Chart, Form, Picture, Point, Series, save};

/// Throughput of a method over time.
pub(super) struct OverTime {
    /// Name of the method.
    pub(super) name: String,
    /// Pairs of the time since the start, in seconds, and operations per second.
    pub(super) points: Vec<(f64, f64)>,
}

/// Draws a picture in the form of Fig. 4: operations per second of each method, over phases with these lengths.
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
    Ok(save(&[Picture { name: "sophia-buses", columns: 1, charts: vec![chart] }], folder)?)
}

/// Measurements of clients during a change, second by second.
pub(super) struct Rolled {
    /// Name of the variant of the change.
    pub(super) name: &'static str,
    /// Number of operations answered in each second.
    pub(super) answered: Vec<f64>,
    /// 99th percentile of the latency in each second, in milliseconds.
    pub(super) p99_ms: Vec<f64>,
    /// Start and end of the change, in seconds since the start of the load.
    pub(super) from_to_s: (f64, f64),
}

/// Draws a picture in the form of Fig. 2: operations per second, and the 99th percentile of the latency, over each
/// variant of a change.
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
    Ok(save(&[Picture { name: "sophia-roll", columns: 2, charts: charts.collect() }], folder)?)
}
