//! The figures in the form of the paper: bars in groups.

use std::path::{Path, PathBuf};

use super::Report;
use super::methods::PerMethod;
use super::queue::Rolled;
use crate::error::Result;
use imago_chart::{Axis, Chart, Form, Picture, Point, Series, save};

const MORE: &str = "% more than static optimal";

/// A group of bars: its label, and each bar with its extremes.
type Group = (&'static str, Vec<Point>);

/// Draws one file for each figure, with one chart for each basis, into `folder`.
pub(super) fn draw(report: &Report, folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let bases: Vec<&str> = report.bases.iter().map(|row| row.basis).collect();
    let picture = |name, chart: &dyn Fn(&str) -> Chart| {
        let charts: Vec<Chart> = bases.iter().map(|basis| chart(basis)).collect();
        Picture { name, columns: charts.len(), charts }
    };
    let pictures = [
        picture("sophia-fig3", &|basis| scenarios(report, basis)),
        picture("sophia-fig5", &|basis| concurrent(report, basis)),
        picture("sophia-fig6", &|basis| scale(report, basis)),
        picture("sophia-fig7", &|basis| replicas(report, basis)),
        Picture { name: "sophia-fig8", columns: 1, charts: vec![volumes(report)] },
        picture("sophia-restarts", &|basis| restarts(report, basis)),
        picture("sophia-fig9", &|basis| noise(report, basis)),
    ];
    Ok(save(&pictures, folder)?)
}

fn scenarios(report: &Report, basis: &str) -> Chart {
    let rows = report.scenarios.iter().filter(|row| row.basis == basis);
    let groups = rows.map(|row| (row.scenario, all(&row.ratios))).collect();
    chart(format!("Days of the portal: {basis}"), MORE, &ALL, groups)
}

fn concurrent(report: &Report, basis: &str) -> Chart {
    let words = ["1 job at a time", "5 jobs", "10 jobs"];
    let rows = report.concurrent.iter().filter(|row| row.basis == basis);
    let group =
        |(word, row): (&'static str, &super::queue::JobsRow)| (word, all(&row.rolled.ratios));
    let groups = words.into_iter().zip(rows).map(group).collect();
    chart(format!("Batch jobs: {basis}"), MORE, &ALL, groups)
}

fn scale(report: &Report, basis: &str) -> Chart {
    let of = |racks: usize| {
        report.scale.iter().filter(move |row| row.basis == basis && row.layout.racks == racks)
    };
    let group = |(paper, racks): (&super::queue::ScaleRow, &super::queue::ScaleRow)| {
        let word = match paper.layout.nodes {
            4 => "4 nodes",
            8 => "8 nodes",
            16 => "16 nodes",
            _ => "32 nodes",
        };
        let bars = [&paper.rolled, &racks.rolled].into_iter().flat_map(rolled);
        (word, bars.collect())
    };
    let names = ["tuned, CL 1", "oracle, CL 1", "tuned, QUORUM", "oracle, QUORUM"];
    chart(format!("More nodes: {basis}"), MORE, &names, of(1).zip(of(3)).map(group).collect())
}

fn replicas(report: &Report, basis: &str) -> Chart {
    let group = |row: &super::queue::ReplicasRow| {
        let word = match (row.ranges.layout.replicas, row.ranges.layout.needed) {
            (1, _) => "RF 1, CL 1",
            (3, 1) => "RF 3, CL 1",
            (3, _) => "RF 3, CL 2",
            (_, 1) => "RF 5, CL 1",
            _ => "RF 5, CL 3",
        };
        let PerMethod { default, static_optimal, naive, reactive, tuned, theoretical_best, .. } =
            row.rolled.ratios;
        let share = |ratio: f64| Point::new(0.0, 100.0 * ratio / theoretical_best);
        (word, [default, static_optimal, naive, reactive, tuned].map(share).into())
    };
    let rows = report.replicas.iter().filter(|row| row.basis == basis);
    let names = ["default", "static optimal", "naive", "reactive", "tuned"];
    let y = "% of the theoretical best";
    chart(format!("Replicas: {basis}"), y, &names, rows.map(group).collect())
}

fn volumes(report: &Report) -> Chart {
    let words = ["10 MB a node", "40 MB", "160 MB"];
    let group = |(word, row): (&'static str, &super::volume::Row)| (word, all(&row.ratios));
    let groups = words.into_iter().zip(&report.volumes).map(group).collect();
    chart("More data: what nodes here served of buses".into(), MORE, &ALL, groups)
}

fn restarts(report: &Report, basis: &str) -> Chart {
    let group = |row: &super::queue::RestartRow| {
        let words = ["1/10", "1/4", "1/2", "as it is", "2 times", "4 times"];
        let at = super::queue::FACTORS.iter().position(|factor| *factor == row.factor);
        (words[at.unwrap_or(0)], all(&row.rolled.ratios))
    };
    let rows = report.restarts.iter().filter(|row| row.basis == basis);
    chart(format!("Time of a restart: {basis}"), MORE, &ALL, rows.map(group).collect())
}

fn noise(report: &Report, basis: &str) -> Chart {
    let group = |row: &super::noise::Row| {
        let words = ["R = 0", "0.1", "0.2", "0.3", "0.4", "0.5"];
        let at = super::noise::LEVELS.iter().position(|level| *level == row.noise);
        let of = row.ratio_to_static_optimal;
        let [y, y_min, y_max] = [of.median, of.min, of.max].map(more);
        (words[at.unwrap_or(0)], vec![Point { x: 0.0, y, y_min, y_max }])
    };
    let rows = report.noise.iter().filter(|row| row.basis == basis);
    chart(format!("Noise: {basis}"), MORE, &["tuned"], rows.map(group).collect())
}

fn more(ratio: f64) -> f64 {
    100.0 * (ratio - 1.0)
}

fn rolled(rolled: &Rolled) -> [Point; 2] {
    [rolled.ratios.tuned, rolled.ratios.oracle].map(|ratio| Point::new(0.0, more(ratio)))
}

const ALL: [&str; 7] =
    ["default", "naive", "reactive", "aggressive", "tuned", "oracle", "theoretical best"];

fn all(ratios: &PerMethod<f64>) -> Vec<Point> {
    let &PerMethod {
        default, naive, reactive, aggressive, tuned, oracle, theoretical_best, ..
    } = ratios;
    let bars = [default, naive, reactive, aggressive, tuned, oracle, theoretical_best];
    bars.map(|ratio| Point::new(0.0, more(ratio))).into()
}

/// Builds a chart with bars side by side in each group, one for each name.
fn chart(title: String, y: &'static str, names: &[&str], groups: Vec<Group>) -> Chart {
    let step = 0.8 / names.len() as f64;
    let series = |(number, name): (usize, &&str)| {
        let offset = (number as f64 - (names.len() - 1) as f64 / 2.0) * step;
        let bars = groups.iter().enumerate().filter_map(|(at, (_, bars))| {
            bars.get(number).map(|bar| Point { x: at as f64 + offset, ..*bar })
        });
        Series { name: (*name).to_owned(), form: Form::Bars(0.9 * step), points: bars.collect() }
    };
    let series = names.iter().enumerate().map(series).collect();
    let words = groups.iter().map(|(word, _)| *word).collect();
    Chart { title, x: Axis::Words(words), y, series, marks: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_a_group_lie_side_by_side_and_do_not_touch_the_next_group() {
        let groups =
            vec![("slow", vec![Point::new(0.0, 3.0); 7]), ("fast", vec![Point::new(0.0, -1.0); 7])];
        let chart = chart("days".into(), MORE, &ALL, groups);
        let mut edges: Vec<(f64, f64)> = Vec::new();
        for series in &chart.series {
            let Form::Bars(width) = series.form else { panic!("bars") };
            edges
                .extend(series.points.iter().map(|bar| (bar.x - width / 2.0, bar.x + width / 2.0)));
        }
        edges.sort_by(|one, two| one.0.total_cmp(&two.0));
        assert_eq!(edges.len(), 14);
        assert!(edges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{edges:?}");
    }
}
