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
