//! Figs. 4 to 6 as the paper draws them: each operation as a dot at the time when it was due, below zero if it
//! failed; and the distributions of the latencies of the operations that succeeded.

use super::{Kind, Watched, succeeded};
use crate::traffic::{Sample, Window};
use imago_chart::{Axis, Chart, Form, Picture, Point, Series, distribution};

const LATENCY: &str = "latency (ms); failed: negative";
const SHARE: &str = "operations (%)";

/// The loads in the order of Fig. 4, with their titles; Fig. 6 leaves out the load without writes.
const IN_TIME: [(Kind, &str); 4] = [
    (Kind::ReadOnly, "Read only"),
    (Kind::Uniform, "Uniform"),
    (Kind::Zipf, "Zipf"),
    (Kind::Latest, "Latest"),
];

pub(super) fn pictures(all: &[Watched]) -> [Picture; 3] {
    let is_watched = |kind| all.iter().any(|watched| watched.kind == kind);
    let kinds: Vec<_> = IN_TIME.into_iter().filter(|(kind, _)| is_watched(*kind)).collect();
    let reads = numbered(&kinds, all, true);
    let mut writes = numbered(&kinds[1..], all, false);
    let letter = ('a'..).nth(writes.len()).expect("four loads at most");
    let title = format!("({letter}) Write latencies");
    writes.push(distributions(&title, &kinds[1..], all, false));
    let read_latencies = distributions("Read latencies", &kinds, all, true);
    [
        Picture { name: "morphus-fig4", columns: 2, charts: reads },
        Picture { name: "morphus-fig5", columns: 1, charts: vec![read_latencies] },
        Picture { name: "morphus-fig6", columns: 2, charts: writes },
    ]
}

fn numbered(kinds: &[(Kind, &str)], all: &[Watched], reads: bool) -> Vec<Chart> {
    let side = if reads { "reads" } else { "writes" };
    let chart = |(letter, (kind, name)): (char, &(Kind, &str))| {
        let title = format!("({letter}) {name}: {side}");
        of(all, *kind).timeline(title, reads)
    };
    ('a'..).zip(kinds).map(chart).collect()
}

fn of(all: &[Watched], kind: Kind) -> &Watched {
    all.iter()
        .find(|watched| watched.kind == kind)
        .expect("only loads that were watched are asked for")
}

impl Watched {
    fn timeline(&self, title: String, reads: bool) -> Chart {
        let Self { before, during, after, .. } = *self;
        let whole = Window { from_ns: before.from_ns, to_ns: after.to_ns };
        let began_s = whole.from_ns as f64 / 1e9;
        let samples = self.result.samples(reads, whole);
        let dots = |is_acknowledged: bool, name: &str| {
            let shown = samples.iter().filter(|one| one.is_acknowledged == is_acknowledged);
            let points = shown.map(|one| dot(one, began_s)).collect();
            Series { name: name.to_owned(), form: Form::Dots, points }
        };
        let ended_s = during.to_ns as f64 / 1e9 - began_s;
        let marks = vec![
            (during.from_ns as f64 / 1e9 - began_s, "change"),
            (ended_s - self.commit_s, "commit"),
            (ended_s, "end"),
        ];
        let series = vec![dots(true, "succeeded"), dots(false, "failed")];
        Chart { title, x: Axis::Linear("time (s)"), y: LATENCY, series, marks }
    }
}

fn dot(sample: &Sample, began_s: f64) -> Point {
    let sign = if sample.is_acknowledged { 1.0 } else { -1.0 };
    Point::new(sample.due_s - began_s, sign * sample.latency_ms)
}

fn distributions(title: &str, kinds: &[(Kind, &str)], all: &[Watched], reads: bool) -> Chart {
    let line = |name: &str, watched: &Watched, within| {
        let points = distribution(succeeded(&watched.result.samples(reads, within)));
        Series { name: name.to_owned(), form: Form::Line, points }
    };
    let uniform = of(all, Kind::Uniform);
    let mut series = vec![line("No reconfiguration", uniform, uniform.before)];
    series.extend(kinds.iter().map(|(kind, name)| {
        let watched = of(all, *kind);
        line(name, watched, watched.during)
    }));
    let x = Axis::Log("latency (ms), logarithmic");
    Chart { title: title.to_owned(), x, y: SHARE, series, marks: Vec::new() }
}
