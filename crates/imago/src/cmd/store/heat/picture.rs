//! The heat of a store as SVG: a rectangle for each run of cells with the same colour, and a mark for each change of
//! the store's design.

use std::fmt::Write as _;

use imago_store::adapt::HeatReport;
use imago_store::key::Key;

use super::{Of, SCALE, clock, named, on_scale, shortened};

/// Left margin of the picture, in pixels; the constants below are its other margins and sizes.
const LEFT: f64 = 210.0;
const TOP: f64 = 48.0;
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 560.0;
const ROW_MAX: f64 = 40.0;
const BELOW: f64 = 110.0;
/// Minimum distance between two key labels, in pixels.
const LABEL: f64 = 13.0;
/// Number of distinct colours on the scale of heat.
const SHADES: usize = 60;
/// Colours of the scale from the smallest to the largest value. They grow darker, so that the scale
/// is readable without colour vision.
const COLOURS: [[f64; 3]; 5] = [
    [255.0, 246.0, 200.0],
    [254.0, 196.0, 79.0],
    [236.0, 112.0, 20.0],
    [153.0, 40.0, 10.0],
    [50.0, 6.0, 20.0],
];
/// The SVG path of the mark of each operator (kind of design change), relative to the mark's position.
const MARKS: [(&str, &str); 5] = [
    ("split", "m0 -5l4 5l-4 5l-4 -5z"),
    ("merge", "m-4 -4h8v8h-8z"),
    ("add-replica", "m-1.5 -5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z"),
    ("remove-replica", "m-5 -1.5h10v3h-10z"),
    ("remaster", "m-4 -5l9 5l-9 5z"),
];

/// Returns the colour of a shade, from 0 to `SHADES` - 1, as #rrggbb.
fn colour(shade: usize) -> String {
    let at = shade as f64 / (SHADES - 1) as f64 * (COLOURS.len() - 1) as f64;
    let below = (at as usize).min(COLOURS.len() - 2);
    let part = at - below as f64;
    let mix = |n: usize| COLOURS[below][n] * (1.0 - part) + COLOURS[below + 1][n] * part;
    format!("#{:02x}{:02x}{:02x}", mix(0) as u8, mix(1) as u8, mix(2) as u8)
}

fn shade(per_s: f64) -> Option<usize> {
    on_scale(per_s).map(|at| (at * (SHADES - 1) as f64).round() as usize)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The positions of times and keys in the picture, in pixels.
struct Axes {
    begin_ms: f64,
    span_ms: f64,
    column: f64,
    row: f64,
    starts: Vec<Key>,
}

impl Axes {
    fn new(report: &HeatReport) -> Self {
        let columns = report.begins_ms.len().max(1);
        let column_ms = match report.begins_ms[..] {
            [first, second, ..] => second.saturating_sub(first).max(1),
            _ => 10_000,
        };
        let rows = report.ranges.len().max(1) as f64;
        Self {
            begin_ms: report.begins_ms.first().copied().unwrap_or(0) as f64,
            span_ms: (columns as u64 * column_ms) as f64,
            column: WIDTH / columns as f64,
            row: (HEIGHT / rows).min(ROW_MAX),
            starts: report
                .ranges
                .iter()
                .map(|range| range.start.parse().unwrap_or_else(|_| Key::least()))
                .collect(),
        }
    }

    fn x(&self, at_ms: u64) -> f64 {
        LEFT + (WIDTH * (at_ms as f64 - self.begin_ms) / self.span_ms).clamp(0.0, WIDTH)
    }

    /// Returns the upper edge of the row of a key's range, in pixels.
    fn y(&self, key: &Key) -> f64 {
        TOP + self.row * self.starts.partition_point(|start| start <= key).saturating_sub(1) as f64
    }

    fn bottom(&self) -> f64 {
        TOP + self.row * self.starts.len().max(1) as f64
    }
}

/// Draws the heat of a store, of the kind `of` (reads, writes, conflicts or CPU time), and returns it as the text of
/// an SVG file.
pub(super) fn svg(report: &HeatReport, of: Of) -> String {
    let axes = Axes::new(report);
    let (width, height) = (LEFT + WIDTH + 30.0, axes.bottom() + BELOW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"16\">{} by key and time</text>\n",
        of.unit()
    );
    cells(&mut svg, report, of, &axes);
    labels(&mut svg, report, &axes);
    marks(&mut svg, report, &axes);
    legend(&mut svg, of, axes.bottom() + 52.0);
    svg += "</svg>\n";
    svg
}

fn cells(svg: &mut String, report: &HeatReport, of: Of, axes: &Axes) {
    for (row, range) in report.ranges.iter().enumerate() {
        let shades = of.values(range).iter().zip(&report.seconds);
        let shades: Vec<Option<usize>> = shades
            .map(|(value, seconds)| if *seconds > 0.0 { shade(value / seconds) } else { None })
            .collect();
        let mut column = 0;
        for run in shades.chunk_by(|one, two| one == two) {
            if let Some(shade) = run[0] {
                _ = writeln!(
                    svg,
                    "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"{}\"/>",
                    LEFT + axes.column * column as f64,
                    TOP + axes.row * row as f64,
                    axes.column * run.len() as f64,
                    axes.row,
                    colour(shade)
                );
            }
            column += run.len();
        }
    }
    let height = axes.bottom() - TOP;
    _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{height:.2}\" fill=\"none\" stroke=\"#444\"/>"
    );
}

fn labels(svg: &mut String, report: &HeatReport, axes: &Axes) {
    let every = (LABEL / axes.row).ceil().max(1.0) as usize;
    for (row, range) in report.ranges.iter().enumerate().step_by(every) {
        let y = TOP + axes.row * row as f64;
        let key = escaped(&shortened(named(&range.start), 32));
        _ = writeln!(
            svg,
            "<path d=\"M{:.1} {y:.2}h-4\" stroke=\"#444\"/><text x=\"{:.1}\" y=\"{:.2}\" text-anchor=\"end\">{key}</text>",
            LEFT,
            LEFT - 7.0,
            y + 4.0
        );
    }
    let y = axes.bottom();
    let every = report.begins_ms.len().div_ceil(8).max(1);
    for begin_ms in report.begins_ms.iter().step_by(every) {
        let x = axes.x(*begin_ms);
        _ = writeln!(
            svg,
            "<path d=\"M{x:.2} {y:.2}v4\" stroke=\"#444\"/><text x=\"{x:.2}\" y=\"{:.2}\" text-anchor=\"middle\">{}</text>",
            y + 16.0,
            clock(*begin_ms)
        );
    }
    _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.2}\">time (UTC)</text>", y + 30.0);
    _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">keys from</text>",
        LEFT - 7.0,
        TOP - 8.0
    );
}

fn glyph(operator: &str) -> &'static str {
    MARKS.iter().find(|(name, _)| *name == operator).map_or(MARKS[0].1, |(_, path)| path)
}

fn marks(svg: &mut String, report: &HeatReport, axes: &Axes) {
    for mark in &report.marks {
        let key = mark.key.parse().unwrap_or_else(|_| Key::least());
        let site = mark.site.map(|site| format!(" --site {site}")).unwrap_or_default();
        _ = writeln!(
            svg,
            "<path d=\"M{:.2} {:.2}{}\" fill=\"#06c\" stroke=\"white\" stroke-width=\"0.8\"><title>{} {}{site}, {}</title></path>",
            axes.x(mark.at_ms),
            axes.y(&key),
            glyph(&mark.operator),
            mark.operator,
            escaped(named(&mark.key)),
            clock(mark.at_ms)
        );
    }
}

/// Draws the scale of heat and the legend of the marks at the height `y`, in pixels.
fn legend(svg: &mut String, of: Of, y: f64) {
    const LONG: f64 = 360.0;
    for shade in 0..SHADES {
        let step = LONG / SHADES as f64;
        _ = writeln!(
            svg,
            "<rect x=\"{:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"12\" fill=\"{}\"/>",
            LEFT + step * shade as f64,
            step + 0.3,
            colour(shade)
        );
    }
    let mut value = SCALE.0;
    while value <= SCALE.1 * 1.01 {
        let x = LEFT + LONG * on_scale(value).unwrap_or(0.0);
        _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value}</text>",
            y + 25.0
        );
        value = (value * 100.0).round() / 10.0;
    }
    _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\">{}; white: none</text>",
        LEFT + LONG + 14.0,
        y + 10.0,
        of.unit()
    );
    for (n, (name, path)) in MARKS.iter().enumerate() {
        let x = LEFT + 6.0 + n as f64 * 130.0;
        _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}{path}\" fill=\"#06c\"/><text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            y + 43.0,
            x + 12.0,
            y + 47.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn cells_axes_marks_and_scale_are_drawn() {
        let svg = svg(&example(), Of::Reads);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"), "{svg}");
        for word in [
            "reads/s by key and time",
            "01:00:10",
            "100000",
            "(first)",
            "0:z&lt;&amp;",
            "remaster 0:m --site 1",
        ] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        // The hottest cell has the last colour, the coolest, of 1/s, the one at a sixth of the scale.
        assert!(svg.contains(&format!("fill=\"{}\"/>", colour(SHADES - 1))), "{svg}");
        assert_eq!(shade(1.0), Some(10));
        let axes = Axes::new(&example());
        assert_eq!((axes.x(3_600_000), axes.x(3_630_000)), (LEFT, LEFT + WIDTH));
        assert_eq!((axes.y(&Key::least()), axes.y(&"0:m".parse().unwrap())), (TOP, TOP + ROW_MAX));
    }

    #[test]
    fn one_value_has_one_colour_in_every_picture() {
        let shades: Vec<String> = (0..SHADES).map(colour).collect();
        let unlike: std::collections::BTreeSet<&String> = shades.iter().collect();
        assert_eq!(unlike.len(), SHADES);
    }

    #[test]
    fn a_report_without_anything_is_an_empty_picture() {
        assert!(svg(&HeatReport::default(), Of::Cpu).ends_with("</svg>\n"));
    }
}
