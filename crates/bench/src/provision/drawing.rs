//! Charts in the form of Figs. 3 and 4: measured points with their confidence intervals, and predicted values as
//! lines.

use std::path::{Path, PathBuf};

use super::cell::{CacheAt, Reads};
use super::compare::Compared;
use super::summary::Mean;
use crate::error::Result;
use imago_chart::{Axis, Chart, Form, Picture, Point, Series, save};

/// Draws both figures into `folder`, and returns the files.
pub(crate) fn draw(cells: &[Compared], folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let plain: Vec<&Compared> = cells
        .iter()
        .filter(|cell| {
            let cell = &cell.measured.cell;
            cell.is_even() && cell.cache_at == CacheAt::Worker && cell.reads == Reads::Primary
        })
        .collect();
    Ok(save(&[baseline(&plain), shards(&plain)], folder)?)
}

fn point(x: f64, of: Mean) -> Point {
    let half = of.interval.unwrap_or(0.0);
    Point { x, y: of.mean, y_min: of.mean - half, y_max: of.mean + half }
}

/// Returns the distinct cache sizes of the cells, in bytes and in ascending order.
fn caches(cells: &[&Compared]) -> Vec<u64> {
    let mut all: Vec<u64> = cells.iter().map(|cell| cell.measured.cell.cache_bytes).collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn cache_name(bytes: u64) -> String {
    if bytes == 0 { "no cache".into() } else { format!("{:.0} MB", bytes as f64 / 1e6) }
}

fn megabytes(bytes: Mean) -> Mean {
    Mean { mean: bytes.mean / 1e6, interval: bytes.interval.map(|half| half / 1e6) }
}

/// Builds a picture in the form of Fig. 3: one shard with one member, by the length of the chain, with one line for
/// each cache size.
fn baseline(cells: &[&Compared]) -> Picture {
    let one: Vec<&Compared> = cells
        .iter()
        .copied()
        .filter(|cell| cell.measured.cell.shards() == 1 && cell.measured.cell.members == 1)
        .collect();
    let by_length = |y: &'static str,
                     title: &str,
                     value: &dyn Fn(&Compared) -> Option<Mean>,
                     predicted: &dyn Fn(&Compared) -> Option<f64>| {
        let mut series = Vec::new();
        for bytes in caches(&one) {
            let of: Vec<&&Compared> =
                one.iter().filter(|cell| cell.measured.cell.cache_bytes == bytes).collect();
            let points =
                of.iter().filter_map(|cell| Some(point(cell.measured.length as f64, value(cell)?)));
            series.push(Series {
                name: cache_name(bytes),
                form: Form::LineWithExtremes,
                points: points.collect(),
            });
            let lines = of
                .iter()
                .filter_map(|cell| Some(Point::new(cell.measured.length as f64, predicted(cell)?)));
            let points: Vec<Point> = lines.collect();
            if !points.is_empty() {
                let name = format!("{}, predicted", cache_name(bytes));
                series.push(Series { name, form: Form::Line, points });
            }
        }
        Chart {
            title: title.to_owned(),
            x: Axis::Linear("phases of the chain"),
            y,
            series,
            marks: Vec::new(),
        }
    };
    let none = |_: &Compared| None;
    Picture {
        name: "chained-mr-fig3",
        columns: 2,
        charts: vec![
            by_length("s", "(a) Job time, one shard", &|cell| Some(cell.measured.job_s), &|cell| {
                Some(cell.predicted_s)
            }),
            by_length(
                "% of the keys",
                "(b) Hits",
                &|cell| Some(Mean { mean: 100.0 * cell.measured.hit_ratio, interval: None }),
                &|cell| Some(100.0 * cell.predicted_hit_ratio),
            ),
            by_length(
                "processors",
                "(c) Processor time, average",
                &|cell| cell.measured.cpu_mean,
                &none,
            ),
            by_length(
                "MB",
                "(d) Memory, most",
                &|cell| cell.measured.memory_max.map(megabytes),
                &none,
            ),
        ],
    }
}

/// Builds a picture in the form of Fig. 4: the longest chain, by the number of shards, with one line for each cache
/// size and number of members.
fn shards(cells: &[&Compared]) -> Picture {
    let longest = cells.iter().map(|cell| cell.measured.length).max().unwrap_or(0);
    let whole: Vec<&Compared> =
        cells.iter().copied().filter(|cell| cell.measured.length == longest).collect();
    let mut members: Vec<u32> = whole.iter().map(|cell| cell.measured.cell.members).collect();
    members.sort_unstable();
    members.dedup();
    let chart = |y: &'static str,
                 title: &str,
                 value: &dyn Fn(&Compared) -> Option<Mean>,
                 predicted: Option<&dyn Fn(&Compared) -> f64>| {
        let mut series = Vec::new();
        for members in &members {
            for bytes in caches(&whole) {
                let of: Vec<&&Compared> = whole
                    .iter()
                    .filter(|cell| {
                        cell.measured.cell.members == *members
                            && cell.measured.cell.cache_bytes == bytes
                    })
                    .collect();
                let name = format!(
                    "{members} member{}, {}",
                    if *members == 1 { "" } else { "s" },
                    cache_name(bytes)
                );
                let x = |cell: &Compared| cell.measured.cell.shards() as f64;
                let points =
                    of.iter().filter_map(|cell| Some(point(x(cell), value(cell)?))).collect();
                series.push(Series { name: name.clone(), form: Form::LineWithExtremes, points });
                if let Some(predicted) = predicted {
                    let points =
                        of.iter().map(|cell| Point::new(x(cell), predicted(cell))).collect();
                    series.push(Series {
                        name: format!("{name}, predicted"),
                        form: Form::Line,
                        points,
                    });
                }
            }
        }
        Chart { title: title.to_owned(), x: Axis::Linear("shards"), y, series, marks: Vec::new() }
    };
    Picture {
        name: "chained-mr-fig4",
        columns: 2,
        charts: vec![
            chart(
                "s",
                "(a) Job time",
                &|cell| Some(cell.measured.job_s),
                Some(&|cell| cell.predicted_s),
            ),
            chart(
                "processors",
                "(b) Processor time of a member, average",
                &|cell| cell.measured.cpu_mean,
                None,
            ),
            chart(
                "processors",
                "(c) The same, in its busiest half second",
                &|cell| cell.measured.cpu_max,
                None,
            ),
            chart(
                "MB",
                "(d) Memory of a member, average",
                &|cell| cell.measured.memory_mean.map(megabytes),
                None,
            ),
            chart(
                "MB",
                "(e) Memory of a member, most",
                &|cell| cell.measured.memory_max.map(megabytes),
                None,
            ),
        ],
    }
}
