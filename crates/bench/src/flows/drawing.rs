//! Charts of Figs. 3, 9a and 9b as in the paper, for its two networks with the first window, and Table 2 as bars.

use super::geo::{self, Tags};
use super::strategy::{BARS, Strategy};
use super::{Bar, NETWORKS, Simulated};
use crate::statistics::Figure;
use imago_chart::{Axis, Chart, Form, Picture, Point, Series};

/// Number of networks that are the paper's. They are the first in [`NETWORKS`].
const PAPERS_NETWORKS: usize = 2;
/// Name of the network of Fig. 3.
const HOMOGENEOUS: &str = NETWORKS[0].0;
/// Distance between the middles of adjacent bars in Fig. 9a, on the x axis.
const STEP: f64 = 0.16;

/// Returns a picture for each figure. Entries of `strategies` and `geo` with other windows are ignored.
pub(super) fn pictures(
    strategies: &[Simulated],
    geo: &[geo::Row],
    window_kib: u32,
) -> Vec<Picture> {
    let is_drawn = |one: &&Simulated| one.bar.window_kib == window_kib;
    let bars: Vec<&Bar> = strategies.iter().filter(is_drawn).map(|one| &one.bar).collect();
    let rows: Vec<&geo::Row> = geo.iter().filter(|row| row.window_kib == window_kib).collect();
    let one = |name, chart| Picture { name, columns: 1, charts: vec![chart] };
    vec![
        one("morphus-fig3", stragglers(&bars)),
        one("morphus-fig9a", makespans(&bars)),
        Picture { name: "morphus-fig9b", columns: PAPERS_NETWORKS, charts: completions(&bars) },
        Picture { name: "morphus-table2", columns: 2, charts: data_centres(&rows) },
    ]
}

/// Returns the bars of a network.
fn of<'a>(topology: &'a str, bars: &'a [&'a Bar]) -> impl Iterator<Item = &'a Bar> {
    bars.iter().copied().filter(move |bar| bar.topology == topology)
}

fn networks() -> impl Iterator<Item = &'static str> {
    NETWORKS.into_iter().take(PAPERS_NETWORKS).map(|(name, _)| name)
}

fn name(bar: &Bar) -> String {
    let name = match bar.strategy {
        Strategy::Fixed => "fixed",
        Strategy::ChunkBased => "chunk-based",
        Strategy::Orchestra => "Orchestra",
        Strategy::Wfs => "WFS",
    };
    bar.k.map_or_else(|| name.to_owned(), |k| format!("{name}, K = {k}"))
}

/// Returns the chart of Fig. 3.
fn stragglers(bars: &[&Bar]) -> Chart {
    let is_shown = |bar: &&Bar| bar.strategy == Strategy::ChunkBased;
    let series = of(HOMOGENEOUS, bars).filter(is_shown).map(completion).collect();
    complete(format!("New chunks, chunk-based, {HOMOGENEOUS} network"), series)
}

/// Returns the charts of Fig. 9b, one for each network. They include the strategy of Fig. 3.
fn completions(bars: &[&Bar]) -> Vec<Chart> {
    let largest_k = BARS.iter().filter_map(|(_, k)| *k).max();
    let is_shown = |bar: &&Bar| match bar.strategy {
        Strategy::Fixed | Strategy::ChunkBased => true,
        Strategy::Orchestra => false,
        Strategy::Wfs => bar.k == largest_k,
    };
    let chart = |topology: &'static str| {
        let series = of(topology, bars).filter(is_shown).map(completion).collect();
        complete(format!("New chunks, {topology} network"), series)
    };
    networks().map(chart).collect()
}

fn complete(title: String, series: Vec<Series>) -> Chart {
    let (x, y) = (Axis::Linear("seconds"), "% of new chunks complete");
    Chart { title, x, y, series, marks: Vec::new() }
}

/// Returns the percentage of new chunks that are complete, over time: at the first chunk, and then at each tenth of
/// the chunks.
fn completion(bar: &Bar) -> Series {
    let tenths_s = &bar.times.chunk_tenths_s;
    let nothing = [Point::new(0.0, 0.0), Point::new(tenths_s[0], 0.0)];
    let first = Point::new(tenths_s[0], (100.0 / bar.chunks as f64).min(10.0));
    let tenth = |(tenth, at_s): (usize, &f64)| Point::new(*at_s, 10.0 * tenth as f64);
    let rest = tenths_s.iter().enumerate().skip(1).map(tenth);
    let points = nothing.into_iter().chain([first]).chain(rest).collect();
    Series { name: name(bar), form: Form::Line, points }
}

/// Returns the chart of Fig. 9a.
fn makespans(bars: &[&Bar]) -> Chart {
    let series = |index: usize| {
        let middle = (BARS.len() - 1) as f64 / 2.0;
        let own = networks()
            .enumerate()
            .filter_map(|(at, topology)| Some((at, of(topology, bars).nth(index)?)));
        let own: Vec<(usize, &Bar)> = own.collect();
        let point = |(at, bar): &(usize, &Bar)| {
            bar_of(*at as f64 + (index as f64 - middle) * STEP, bar.times.spread.makespan_s)
        };
        let points = own.iter().map(point).collect();
        let name = own.first().map_or_else(String::new, |(_, bar)| name(bar));
        Series { name, form: Form::Bars(0.14), points }
    };
    Chart {
        title: "Time until everything has arrived".to_owned(),
        x: Axis::Words(networks().collect()),
        y: "seconds",
        series: (0..BARS.len()).map(series).collect(),
        marks: Vec::new(),
    }
}

/// Returns the charts of Table 2: the time, and the traffic between data centres.
fn data_centres(rows: &[&geo::Row]) -> Vec<Chart> {
    let mut receivers: Vec<&'static str> = rows.iter().map(|row| row.receivers).collect();
    receivers.dedup();
    let chart = |title: &str, y, value: fn(&geo::Row) -> Figure| {
        let series = |(tags, name, offset): (Tags, &str, f64)| {
            let own = rows.iter().filter(|row| row.tags == tags);
            let point = |row: &&geo::Row| {
                let group = receivers.iter().position(|of| *of == row.receivers).unwrap_or(0);
                bar_of(group as f64 + offset, value(row))
            };
            let points = own.map(point).collect();
            Series { name: name.to_owned(), form: Form::Bars(0.26), points }
        };
        let both = [(Tags::Unaware, "tag-unaware", -0.15), (Tags::Aware, "tag-aware", 0.15)];
        let x = Axis::Words(receivers.clone());
        let series = both.into_iter().map(series).collect();
        Chart { title: title.to_owned(), x, y, series, marks: Vec::new() }
    };
    vec![
        chart("Time until all has arrived, by who gets it", "seconds", |row| row.spread.makespan_s),
        chart("What crosses between data centres", "MB", |row| row.spread.crossing_mb),
    ]
}

fn bar_of(x: f64, figure: Figure) -> Point {
    let Figure { median, min, max } = figure;
    Point { x, y: median, y_min: min, y_max: max }
}
