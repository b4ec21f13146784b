//! The picture of a migration as its clients see it: the number of acknowledged operations in each second, and their
//! latencies.

use std::path::{Path, PathBuf};

use crate::error::Result;
use imago_chart::{Axis, Chart, Form, Picture, Point, Series, save};
use imago_plan::statistics::percentile;

/// One operation of a client.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// Time at which the operation was due, in s since the start of the load.
    pub due_s: f64,
    /// Time of the reply, in s since the start of the load.
    pub ended_s: f64,
    /// True if the operation is a read.
    pub is_read: bool,
    /// True if the operation was acknowledged.
    pub is_acknowledged: bool,
}

/// Draws operations into a file whose name ends in `.svg`, and marks moments (in s) with words.
///
/// # Errors
/// Returns an error if the file cannot be written.
pub fn draw(
    file: &Path,
    operations: &[Operation],
    moments: &[(f64, &'static str)],
) -> Result<PathBuf> {
    let sides = [("reads", true), ("writes", false)];
    let series = |of: fn(&[Operation], bool) -> Vec<Point>| {
        let one = |(name, is_read): (&str, bool)| Series {
            name: name.to_owned(),
            form: Form::Line,
            points: of(operations, is_read),
        };
        sides.map(one).into()
    };
    let chart = |title: &str, y, series| Chart {
        title: title.to_owned(),
        x: Axis::Linear("time (s)"),
        y,
        series,
        marks: moments.to_vec(),
    };
    let picture = Picture {
        name: "migration",
        columns: 1,
        charts: vec![
            chart("Throughput", "acknowledged per s", series(throughput)),
            chart("99th percentile of latency", "ms", series(p99)),
        ],
    };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let made = save(&[picture], Some(folder.unwrap_or_else(|| Path::new("."))))?.remove(0);
    std::fs::rename(&made, file)
        .map_err(crate::error::process(format!("write {}", file.display())))?;
    Ok(file.to_owned())
}

/// Returns the number of operations that were acknowledged in each whole second.
fn throughput(operations: &[Operation], is_read: bool) -> Vec<Point> {
    let of = |one: &&Operation| one.is_read == is_read && one.is_acknowledged;
    let ended = operations.iter().filter(of).map(|one| one.ended_s);
    by_second(ended.map(|at| (at, at)), |all| all.len() as f64)
}

/// Returns the 99th percentile of the latencies of the operations that were due in each whole second, in ms. Refused
/// operations count, because a client that is refused waits as well.
fn p99(operations: &[Operation], is_read: bool) -> Vec<Point> {
    let of = operations.iter().filter(|one| one.is_read == is_read);
    let waits = of.map(|one| (one.due_s, one.ended_s - one.due_s));
    by_second(waits, |all| percentile(all, 99).map_or(0.0, |s| s * 1_000.0))
}

/// Returns one point for each whole second except the last one, which is incomplete.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds since the start"
)]
fn by_second(all: impl Iterator<Item = (f64, f64)>, value: impl Fn(Vec<f64>) -> f64) -> Vec<Point> {
    let mut seconds: Vec<Vec<f64>> = Vec::new();
    for (at, what) in all {
        let second = at.max(0.0) as usize;
        if seconds.len() <= second {
            seconds.resize_with(second + 1, Vec::new);
        }
        seconds[second].push(what);
    }
    seconds.pop();
    let point = |(second, all): (usize, Vec<f64>)| Point::new(second as f64, value(all));
    seconds.into_iter().enumerate().map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(due_s: f64, latency_s: f64, is_read: bool, is_acknowledged: bool) -> Operation {
        Operation { due_s, ended_s: due_s + latency_s, is_read, is_acknowledged }
    }

    #[test]
    fn seconds_have_what_was_acknowledged_in_them_and_what_was_due_in_them() {
        let all = [
            operation(0.1, 0.002, true, true),
            operation(0.2, 0.004, true, false),
            operation(0.9, 1.2, true, true),
            operation(2.5, 0.001, true, true),
            operation(3.5, 0.001, true, true),
            operation(0.5, 0.1, false, true),
        ];
        let of =
            |points: Vec<Point>| points.iter().map(|point| point.y.round()).collect::<Vec<_>>();
        assert_eq!(of(throughput(&all, true)), [1.0, 0.0, 2.0]);
        assert_eq!(of(p99(&all, true)), [1_200.0, 0.0, 1.0]);
        assert!(throughput(&all, false).is_empty(), "the first second is not over");
    }

    #[test]
    fn the_file_has_both_charts_and_the_moments() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cut-over.svg");
        let all: Vec<Operation> =
            (0..40).map(|n| operation(f64::from(n) / 10.0, 0.003, n % 2 == 0, true)).collect();
        assert_eq!(draw(&file, &all, &[(1.0, "copy"), (2.0, "cut-over")]).unwrap(), file);
        let svg = std::fs::read_to_string(&file).unwrap();
        for word in ["Throughput", "99th percentile", "reads", "writes", "copy", "cut-over"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
