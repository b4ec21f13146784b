//! Pictures of the figures that compare designs, in the form of the paper.

use std::path::{Path, PathBuf};

use imago_chart::{Axis, Chart, Form, Picture, Point, Series, save};
use imago_workload::procedures::Kind;

use super::designs::Design;
use super::report::{OfDesign, OpenLoop, Part};
use crate::error::Result;

/// Width of a bar, in units of the horizontal axis.
const BAR: f64 = 0.7;

/// Draws a figure: the throughput of each design in each part, and the 99th percentile of each part's slowest type of
/// transaction where latencies were measured.
pub(super) fn draw(
    name: &'static str,
    parts: &[Part],
    open: &[OpenLoop],
    folder: Option<&Path>,
) -> Result<Vec<PathBuf>> {
    let mut charts: Vec<Chart> = parts.iter().map(throughput).collect();
    for part in parts {
        let of_part: Vec<&OpenLoop> = open.iter().filter(|one| one.part == part.part).collect();
        let slowest = of_part.iter().max_by(|one, other| one.p99_us.total_cmp(&other.p99_us));
        if let Some(kind) = slowest.map(|one| one.kind) {
            charts.push(latency(part, kind, &of_part));
        }
    }
    Ok(save(&[Picture { name, columns: 2, charts }], folder)?)
}

/// Returns the designs' places on the horizontal axis.
fn axis() -> Axis {
    Axis::Words(Design::ALL.map(Design::name).into())
}

fn place(design: Design) -> f64 {
    Design::ALL.iter().position(|one| *one == design).unwrap_or(0) as f64
}

fn bars(points: Vec<Point>) -> Vec<Series> {
    vec![Series { name: String::new(), form: Form::Bars(BAR), points }]
}

fn throughput(part: &Part) -> Chart {
    let point = |of: &OfDesign| Point {
        x: place(of.design),
        y: of.throughput_s.median,
        y_min: of.throughput_s.min,
        y_max: of.throughput_s.max,
    };
    Chart {
        title: format!("{}: {}", part.part, part.workload),
        x: axis(),
        y: "transactions a second",
        series: bars(part.compared.designs.iter().map(point).collect()),
        marks: Vec::new(),
    }
}

fn latency(part: &Part, kind: Kind, open: &[&OpenLoop]) -> Chart {
    let of_kind = open.iter().filter(|one| one.kind == kind);
    let points = of_kind.map(|one| Point::new(place(one.design), one.p99_us / 1e3));
    Chart {
        title: format!(
            "{}: {kind:?}, 99th percentile at half the slowest design's rate",
            part.part
        ),
        x: axis(),
        y: "ms",
        series: bars(points.collect()),
        marks: Vec::new(),
    }
}
