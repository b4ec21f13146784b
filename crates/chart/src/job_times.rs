//! The chart of a provisioning plan: the predicted time of the job over the size of its cache, with one curve for
//! each number of shards, and the deadline.

use std::path::Path;

use crate::{Axis, Chart, Form, Picture, Point, Result, Series};

/// One curve of the chart: the predicted times of the job for one number of shards.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Name of the curve in the legend.
    pub name: String,
    /// Size of the cache in MiB, and the job's predicted time in seconds, of each point; in any order.
    pub points: Vec<(f64, f64)>,
}

/// Writes the chart of `curves`, with a horizontal line at the deadline, as the SVG file `file`.
///
/// # Errors
/// Returns an error if the chart cannot be drawn, or the file cannot be written.
pub fn draw(file: &Path, curves: &[Curve], deadline_s: f64) -> Result<()> {
    let series = |curve: &Curve| {
        let mut points: Vec<Point> = curve.points.iter().map(|(x, y)| Point::new(*x, *y)).collect();
        points.sort_by(|one, other| one.x.total_cmp(&other.x));
        Series { name: curve.name.clone(), form: Form::Line, points }
    };
    let mut all: Vec<Series> = curves.iter().map(series).collect();
    let sizes = curves.iter().flat_map(|curve| &curve.points).map(|(x, _)| *x);
    let (low, high) =
        sizes.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    if low <= high {
        let points = vec![Point::new(low, deadline_s), Point::new(high, deadline_s)];
        all.push(Series { name: "deadline".into(), form: Form::Line, points });
    }
    let chart = Chart {
        title: "Predicted time of the job".into(),
        x: Axis::Linear("cache in MiB"),
        y: "s",
        series: all,
        marks: Vec::new(),
    };
    crate::write(&Picture { name: "plan", columns: 1, charts: vec![chart] }, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_names_its_curves_and_the_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan.svg");
        let curve =
            |name: &str| Curve { name: name.into(), points: vec![(128.0, 40.0), (0.0, 71.0)] };
        draw(&file, &[curve("2 shards"), curve("4 shards")], 60.0).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        for word in ["2 shards", "4 shards", "deadline", "cache in MiB"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
    }
}
