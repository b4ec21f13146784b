//! Drawing of pictures as SVG.
//!
//! Values of a logarithmic axis are replaced by their logarithms here, and its labels show the powers, so that one
//! kind of coordinates serves every chart.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::{Axis, Chart, Form, Picture, Point, Series};

type Failed = Box<dyn std::error::Error>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Width and height of one chart of a picture, in pixels.
const CHART: (u32, u32) = (620, 380);
/// Colours of the series of a chart, in order. They differ for red-blind and green-blind readers too (Okabe and Ito).
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(120, 120, 120),
    RGBColor(240, 228, 66),
    RGBColor(0, 0, 0),
];
/// Width and height of the space for the name of a series in the legend, in pixels.
const NAME: (u32, u32) = (135, 18);
const NAMES_IN_ROW: usize = 4;
/// Maximum number of labels on the horizontal axis: so few that an axis of small whole numbers has no halves between
/// them.
const X_LABELS_MAX: usize = 6;
const FONT: &str = "sans-serif";

/// Draws a picture and returns it as the text of an SVG file.
pub(super) fn svg(picture: &Picture) -> Result<String, Failed> {
    let columns = picture.columns.clamp(1, picture.charts.len().max(1));
    let rows = picture.charts.len().div_ceil(columns).max(1);
    let size = (CHART.0 * u32::try_from(columns)?, CHART.1 * u32::try_from(rows)?);
    let mut text = String::new();
    {
        let whole = SVGBackend::with_string(&mut text, size).into_drawing_area();
        whole.fill(&WHITE)?;
        for (area, chart) in whole.split_evenly((rows, columns)).iter().zip(&picture.charts) {
            draw(area, chart)?;
        }
        whole.present()?;
    }
    Ok(text)
}

fn draw(area: &Area, chart: &Chart) -> Result<(), Failed> {
    let rows = chart.series.len().div_ceil(NAMES_IN_ROW).max(1);
    let (above, below) = area.split_vertically(CHART.1 - NAME.1 * u32::try_from(rows)? - 4);
    let mut plane = ChartBuilder::on(&above)
        .caption(&chart.title, (FONT, 17))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(62)
        .build_cartesian_2d(x_range(chart), y_range(chart))?;
    mesh(&mut plane, chart)?;
    for (series, colour) in coloured(&chart.series) {
        points(&mut plane, chart, series, colour)?;
    }
    let (bottom, top) = (y_range(chart).start, y_range(chart).end);
    for (index, (at, word)) in chart.marks.iter().enumerate() {
        let at = place(&chart.x, *at);
        let line = [(at, bottom), (at, top)];
        plane.draw_series(std::iter::once(PathElement::new(line, BLACK.mix(0.5))))?;
        // Words are placed one below the other, because marks may be close to each other.
        let height = top - 0.045 * index as f64 * (top - bottom);
        let word = Text::new(*word, (at, height), (FONT, 12));
        plane.draw_series(std::iter::once(word))?;
    }
    legend(&below, &chart.series)
}

/// Draws the legend, the names of the series, in rows into `area`. A single series gets no legend.
fn legend(area: &Area, series: &[Series]) -> Result<(), Failed> {
    for (index, (series, colour)) in coloured(series).enumerate().filter(|_| series.len() > 1) {
        let at = |index: usize, step: u32| i32::try_from(index).map(|n| n * step as i32);
        let x = 70 + at(index % NAMES_IN_ROW, NAME.0)?;
        let y = at(index / NAMES_IN_ROW, NAME.1)?;
        area.draw(&Rectangle::new([(x, y + 2), (x + 14, y + 10)], colour.filled()))?;
        area.draw(&Text::new(series.name.as_str(), (x + 20, y), (FONT, 12)))?;
    }
    Ok(())
}

fn coloured(series: &[Series]) -> impl Iterator<Item = (&Series, RGBColor)> {
    series.iter().zip(COLOURS.into_iter().cycle())
}

fn mesh(plane: &mut Plane, chart: &Chart) -> Result<(), Failed> {
    let label = |x: &f64| match &chart.x {
        Axis::Linear(_) => number(*x),
        Axis::Log(_) => number(10_f64.powf(*x)),
        Axis::Words(words) => word(words, *x),
    };
    let named = match &chart.x {
        Axis::Linear(what) | Axis::Log(what) => *what,
        Axis::Words(_) => "",
    };
    let mut mesh = plane.configure_mesh();
    mesh.x_desc(named)
        .y_desc(chart.y)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13))
        .light_line_style(TRANSPARENT)
        .x_labels(X_LABELS_MAX)
        .x_label_formatter(&label);
    if matches!(chart.x, Axis::Words(_)) {
        mesh.disable_x_mesh().x_labels(2 * X_LABELS_MAX);
    }
    mesh.draw()?;
    Ok(())
}

fn points(plane: &mut Plane, chart: &Chart, of: &Series, colour: RGBColor) -> Result<(), Failed> {
    let is_shown = |point: &&Point| !matches!(chart.x, Axis::Log(_)) || point.x > 0.0;
    let shown: Vec<(f64, Point)> =
        of.points.iter().filter(is_shown).map(|p| (place(&chart.x, p.x), *p)).collect();
    let extremes = |colour| {
        shown.iter().map(move |(x, point)| {
            ErrorBar::new_vertical(*x, point.y_min, point.y, point.y_max, colour, 8)
        })
    };
    let path = shown.iter().map(|(x, point)| (*x, point.y));
    match of.form {
        Form::Dots => {
            plane.draw_series(path.map(|at| Circle::new(at, 1, colour.mix(0.7).filled())))?;
        }
        Form::DotsWithExtremes => {
            plane.draw_series(extremes(COLOURS[6]))?;
            plane.draw_series(path.map(|at| Circle::new(at, 4, colour.filled())))?;
        }
        Form::Line => {
            plane.draw_series(LineSeries::new(path, colour.stroke_width(2)))?;
        }
        Form::LineWithExtremes => {
            plane.draw_series(extremes(colour))?;
            plane.draw_series(LineSeries::new(path, colour.stroke_width(2)))?;
        }
        Form::Bars(width) => {
            let half = width / 2.0;
            let bar = |(x, y)| Rectangle::new([(x - half, 0.0), (x + half, y)], colour.filled());
            plane.draw_series(path.map(bar))?;
            plane.draw_series(extremes(BLACK))?;
        }
    }
    Ok(())
}

/// Returns the coordinate of the value `x` on its axis: its decimal logarithm on a logarithmic axis, else the value
/// itself.
fn place(axis: &Axis, x: f64) -> f64 {
    if matches!(axis, Axis::Log(_)) { x.log10() } else { x }
}

fn word(words: &[&str], x: f64) -> String {
    let nearest = x.round();
    let is_one = (x - nearest).abs() < 1e-6 && nearest >= 0.0;
    let word = is_one.then(|| words.get(nearest as usize)).flatten();
    word.map_or_else(String::new, |word| (*word).to_owned())
}

/// Formats a number with two decimals below 10, one below 100 and none from 100 on, without trailing zeros.
fn number(value: f64) -> String {
    if value.abs() >= 100.0 {
        return format!("{value:.0}");
    }
    let text = if value.abs() >= 10.0 { format!("{value:.1}") } else { format!("{value:.2}") };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn x_range(chart: &Chart) -> Range<f64> {
    if let Axis::Words(words) = &chart.x {
        return -0.5..words.len() as f64 - 0.5;
    }
    let values = chart.series.iter().flat_map(|series| &series.points).map(|point| point.x);
    let shown = values.filter(|x| !matches!(chart.x, Axis::Log(_)) || *x > 0.0);
    let (low, high) = extremes(shown.map(|x| place(&chart.x, x))).unwrap_or((0.0, 1.0));
    let margin = ((high - low) * 0.03).max(1e-3);
    low - margin..high + margin
}

fn y_range(chart: &Chart) -> Range<f64> {
    let points = chart.series.iter().flat_map(|series| &series.points);
    let values = points.flat_map(|point| [point.y_min, point.y_max]).chain([0.0]);
    let (low, high) = extremes(values).unwrap_or((0.0, 1.0));
    // This is the space above the points for the words of the marks.
    let room = if chart.marks.is_empty() { 0.0 } else { 0.1 };
    let height = (high - low).max(1e-3);
    let bottom = if low < 0.0 { low - 0.05 * height } else { 0.0 };
    bottom..high + (0.05 + room) * height
}

fn extremes(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |known, value| {
        let (low, high) = known.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}
