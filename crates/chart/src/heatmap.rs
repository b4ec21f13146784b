//! Heat maps: a colour for each row and column, on a logarithmic scale with fixed ends, and marks with texts that a
//! reader sees under the pointer.
//!
//! They are written as SVG by hand: the drawing library of the other charts has neither such texts nor runs of cells
//! of one colour, without which a map of an hour takes ten times the space.

use std::fmt::Write as _;

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

/// The ends of a logarithmic scale; smaller and larger values are drawn as the ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The smaller end, above 0.
    pub least: f64,
    /// The larger end.
    pub most: f64,
}

impl Scale {
    /// Returns the position of a value on the scale, from 0 to 1; `None` for a value of 0.
    #[must_use]
    pub fn position(self, value: f64) -> Option<f64> {
        let (low, high) = (self.least.log10(), self.most.log10());
        (value > 0.0).then(|| ((value.log10() - low) / (high - low)).clamp(0.0, 1.0))
    }
}

/// The content of a heat map. Times are in ms since 1970.
#[derive(Clone, Debug)]
pub struct HeatMap<'m> {
    /// The text above the map.
    pub title: &'m str,
    /// Unit of the values.
    pub unit: &'m str,
    /// The text above the labels of the rows.
    pub rows_label: &'m str,
    /// The scale of the values.
    pub scale: Scale,
    /// Begin of each column.
    pub begins_ms: &'m [u64],
    /// The rows, from top to bottom.
    pub rows: Vec<Row>,
    /// The kinds of marks, for the legend: their names, and their shapes as SVG paths around the mark's position.
    pub kinds: &'m [(&'m str, &'m str)],
    /// The marks.
    pub marks: Vec<Mark>,
}

/// A row of a heat map.
#[derive(Clone, Debug)]
pub struct Row {
    /// The row's label.
    pub label: String,
    /// Value of each column; `None` where nothing was observed.
    pub values: Vec<Option<f64>>,
}

/// A mark in a heat map, at the upper edge of a row.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Time of the mark.
    pub at_ms: u64,
    /// Index of the row.
    pub row: usize,
    /// Index of the mark's kind.
    pub kind: usize,
    /// The text that a reader sees under the pointer.
    pub text: String,
}

/// Returns the colour of a shade, from 0 to `SHADES` - 1, as #rrggbb.
fn colour(shade: usize) -> String {
    let at = shade as f64 / (SHADES - 1) as f64 * (COLOURS.len() - 1) as f64;
    let below = (at as usize).min(COLOURS.len() - 2);
    let part = at - below as f64;
    let mix = |n: usize| COLOURS[below][n] * (1.0 - part) + COLOURS[below + 1][n] * part;
    format!("#{:02x}{:02x}{:02x}", mix(0) as u8, mix(1) as u8, mix(2) as u8)
}

fn shade(scale: Scale, value: f64) -> Option<usize> {
    scale.position(value).map(|at| (at * (SHADES - 1) as f64).round() as usize)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats the time of day, in UTC, of a time in ms since 1970.
#[must_use]
pub fn time_of_day(unix_ms: u64) -> String {
    let s = unix_ms / 1_000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3_600, s / 60 % 60, s % 60)
}

/// The positions of times and rows in the picture, in pixels.
struct Axes {
    begin_ms: f64,
    span_ms: f64,
    column: f64,
    row: f64,
    rows: usize,
}

impl Axes {
    fn new(map: &HeatMap<'_>) -> Self {
        let columns = map.begins_ms.len().max(1);
        let column_ms = match map.begins_ms[..] {
            [first, second, ..] => second.saturating_sub(first).max(1),
            _ => 10_000,
        };
        let rows = map.rows.len().max(1);
        Self {
            begin_ms: map.begins_ms.first().copied().unwrap_or(0) as f64,
            span_ms: (columns as u64 * column_ms) as f64,
            column: WIDTH / columns as f64,
            row: (HEIGHT / rows as f64).min(ROW_MAX),
            rows,
        }
    }

    fn x(&self, at_ms: u64) -> f64 {
        LEFT + (WIDTH * (at_ms as f64 - self.begin_ms) / self.span_ms).clamp(0.0, WIDTH)
    }

    /// Returns the upper edge of a row, in pixels.
    fn y(&self, row: usize) -> f64 {
        TOP + self.row * row as f64
    }

    fn bottom(&self) -> f64 {
        self.y(self.rows)
    }
}

/// Draws a heat map, and returns it as the text of an SVG file.
#[must_use]
pub fn svg(map: &HeatMap<'_>) -> String {
    let axes = Axes::new(map);
    let (width, height) = (LEFT + WIDTH + 30.0, axes.bottom() + BELOW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"26\" font-size=\"16\">{}</text>\n",
        escaped(map.title)
    );
    cells(&mut svg, map, &axes);
    labels(&mut svg, map, &axes);
    marks(&mut svg, map, &axes);
    legend(&mut svg, map, axes.bottom() + 52.0);
    svg += "</svg>\n";
    svg
}

fn cells(svg: &mut String, map: &HeatMap<'_>, axes: &Axes) {
    for (number, row) in map.rows.iter().enumerate() {
        let shades: Vec<Option<usize>> =
            row.values.iter().map(|value| shade(map.scale, (*value)?)).collect();
        let mut column = 0;
        for run in shades.chunk_by(|one, two| one == two) {
            if let Some(shade) = run[0] {
                _ = writeln!(
                    svg,
                    "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"{}\"/>",
                    LEFT + axes.column * column as f64,
                    axes.y(number),
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

fn labels(svg: &mut String, map: &HeatMap<'_>, axes: &Axes) {
    let every = (LABEL / axes.row).ceil().max(1.0) as usize;
    for (number, row) in map.rows.iter().enumerate().step_by(every) {
        let y = axes.y(number);
        _ = writeln!(
            svg,
            "<path d=\"M{:.1} {y:.2}h-4\" stroke=\"#444\"/><text x=\"{:.1}\" y=\"{:.2}\" text-anchor=\"end\">{}</text>",
            LEFT,
            LEFT - 7.0,
            y + 4.0,
            escaped(&row.label)
        );
    }
    let y = axes.bottom();
    let every = map.begins_ms.len().div_ceil(8).max(1);
    for begin_ms in map.begins_ms.iter().step_by(every) {
        let x = axes.x(*begin_ms);
        _ = writeln!(
            svg,
            "<path d=\"M{x:.2} {y:.2}v4\" stroke=\"#444\"/><text x=\"{x:.2}\" y=\"{:.2}\" text-anchor=\"middle\">{}</text>",
            y + 16.0,
            time_of_day(*begin_ms)
        );
    }
    _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"{:.2}\">time (UTC)</text>", y + 30.0);
    _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
        LEFT - 7.0,
        TOP - 8.0,
        escaped(map.rows_label)
    );
}

fn marks(svg: &mut String, map: &HeatMap<'_>, axes: &Axes) {
    for mark in &map.marks {
        _ = writeln!(
            svg,
            "<path d=\"M{:.2} {:.2}{}\" fill=\"#06c\" stroke=\"white\" stroke-width=\"0.8\"><title>{}</title></path>",
            axes.x(mark.at_ms),
            axes.y(mark.row),
            map.kinds[mark.kind].1,
            escaped(&mark.text)
        );
    }
}

/// Draws the scale and the legend of the marks at the height `y`, in pixels.
fn legend(svg: &mut String, map: &HeatMap<'_>, y: f64) {
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
    let mut value = map.scale.least;
    while value <= map.scale.most * 1.01 {
        let x = LEFT + LONG * map.scale.position(value).unwrap_or(0.0);
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
        map.unit
    );
    for (n, (name, path)) in map.kinds.iter().enumerate() {
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
    use super::*;

    const SCALE: Scale = Scale { least: 0.1, most: 100_000.0 };

    #[test]
    fn the_scale_is_logarithmic_and_has_ends() {
        assert_eq!(SCALE.position(0.0), None);
        assert_eq!((SCALE.position(0.001), SCALE.position(1e9)), (Some(0.0), Some(1.0)));
        assert!((SCALE.position(100.0).unwrap() - 0.5).abs() < 1e-9);
        // 1/s lies at a sixth of the scale.
        assert_eq!(shade(SCALE, 1.0), Some(10));
    }

    #[test]
    fn one_value_has_one_colour_in_every_picture() {
        let shades: Vec<String> = (0..SHADES).map(colour).collect();
        let unlike: std::collections::BTreeSet<&String> = shades.iter().collect();
        assert_eq!(unlike.len(), SHADES);
    }

    #[test]
    fn adjacent_cells_of_one_colour_are_one_rectangle() {
        let row = |values: [Option<f64>; 3]| Row { label: "a<b".into(), values: values.into() };
        let map = HeatMap {
            title: "reads/s by key and time",
            unit: "reads/s",
            rows_label: "keys from",
            scale: SCALE,
            begins_ms: &[3_600_000, 3_610_000, 3_620_000],
            rows: vec![row([Some(5.0), Some(5.0), None]), row([None, Some(0.0), Some(1e9)])],
            kinds: &[],
            marks: Vec::new(),
        };
        let svg = svg(&map);
        let cells = svg.matches("height=\"40.00\" fill=\"#").count();
        assert_eq!(cells, 2, "{svg}");
        assert!(svg.contains(&format!("fill=\"{}\"/>", colour(SHADES - 1))), "{svg}");
        assert!(svg.contains("a&lt;b") && svg.contains("01:00:10"), "{svg}");
        let axes = Axes::new(&map);
        assert_eq!((axes.x(3_600_000), axes.x(3_630_000)), (LEFT, LEFT + WIDTH));
        assert_eq!((axes.y(0), axes.y(1)), (TOP, TOP + ROW_MAX));
        assert_eq!(time_of_day(86_400_000 + 3_723_999), "01:02:03");
    }

    #[test]
    fn a_map_without_anything_is_an_empty_picture() {
        let text = svg(&HeatMap {
            title: "reads/s by key and time",
            unit: "reads/s",
            rows_label: "keys from",
            scale: SCALE,
            begins_ms: &[],
            rows: Vec::new(),
            kinds: &[],
            marks: Vec::new(),
        });
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
    }
}
