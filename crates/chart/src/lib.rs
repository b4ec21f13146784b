//! Pictures: their content, as plain data, and the files that are written from it.
//!
//! A picture is a file with one or more charts in a grid, as the papers print them: (a), (b), … . Charts are computed
//! without drawing: the caller decides what they contain, and `draw` decides their appearance.
//!
//! This crate must not know what the figures mean.

mod draw;
pub mod heatmap;
pub mod job_times;

use std::path::{Path, PathBuf};

/// The result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a picture was not written to its file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The drawing library cannot draw the picture.
    #[error("cannot draw the picture {name}: {cause}")]
    Drawing {
        /// Name of the picture ([`Picture::name`]).
        name: &'static str,
        /// The error of the drawing library, as text.
        cause: String,
    },
    /// The file of a picture, or its folder, cannot be written.
    #[error("cannot {doing}: {cause}")]
    File {
        /// The attempted action and its object, as `write plan.svg`.
        doing: String,
        /// The error of the operating system.
        #[source]
        cause: std::io::Error,
    },
}

/// A picture: the content of one SVG file, one or more charts in a grid.
pub struct Picture {
    /// Name of the picture; [`save`] gives its file this name, with the extension `.svg`.
    pub name: &'static str,
    /// Number of charts in each row of the grid.
    pub columns: usize,
    /// The charts of the grid, row by row.
    pub charts: Vec<Chart>,
}

/// One chart: axes, and the series that are drawn over them.
pub struct Chart {
    /// Title, the text above the chart.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// Label of the vertical axis (the quantity, or its unit); the axis is linear and contains 0.
    pub y: &'static str,
    /// The series of points, in the order of the legend.
    pub series: Vec<Series>,
    /// Vertical lines in the chart, each at a value of the horizontal axis and with a word beside it.
    pub marks: Vec<(f64, &'static str)>,
}

/// The horizontal axis of a chart.
pub enum Axis {
    /// A linear axis; the field is its label.
    Linear(&'static str),
    /// A logarithmic axis, which shows values above 0 only; the field is its label.
    Log(&'static str),
    /// An axis with these words as labels at the values 0, 1, 2, ….
    Words(Vec<&'static str>),
}

/// A series of points of a chart, drawn in one colour.
pub struct Series {
    /// Name of the series in the legend.
    pub name: String,
    /// The way in which the points are drawn.
    pub form: Form,
    /// The points, in the order in which a line connects them.
    pub points: Vec<Point>,
}

/// The way in which the points of a series are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// Separate dots.
    Dots,
    /// Separate dots, with a vertical bar at each from its least to its greatest value.
    DotsWithExtremes,
    /// A line through the points.
    Line,
    /// A line through the points, with a vertical bar at each from its least to its greatest value.
    LineWithExtremes,
    /// For each point, a bar from 0 to the value, with its least and greatest value; the field is the width of the
    /// bar, in units of the horizontal axis.
    Bars(f64),
}

/// A point of a series: a value, with its extremes over several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Value on the horizontal axis.
    pub x: f64,
    /// Value on the vertical axis; with several runs, their median.
    pub y: f64,
    /// Least value of all runs; equal to `y` for a single run.
    pub y_min: f64,
    /// Greatest value of all runs; equal to `y` for a single run.
    pub y_max: f64,
}

impl Point {
    /// Returns the point of a value `y` that was measured once.
    #[must_use]
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, y_min: y, y_max: y }
    }
}

/// Writes each picture as an SVG file into a folder, which is created if it does not exist, and returns the paths of
/// the files. If `folder` is `None`, writes nothing and returns no paths.
///
/// # Errors
/// Returns an error if a picture cannot be drawn, or its file cannot be written.
pub fn save(pictures: &[Picture], folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let Some(folder) = folder else { return Ok(Vec::new()) };
    std::fs::create_dir_all(folder)
        .map_err(file_error(format!("make the folder {}", folder.display())))?;
    let mut files = Vec::new();
    for picture in pictures {
        let file = folder.join(picture.name).with_extension("svg");
        write(picture, &file)?;
        files.push(file);
    }
    Ok(files)
}

/// Writes a picture as an SVG file.
///
/// # Errors
/// Returns an error if the picture cannot be drawn, or the file cannot be written.
pub fn write(picture: &Picture, file: &Path) -> Result<()> {
    let svg = draw::svg(picture)
        .map_err(|cause| Error::Drawing { name: picture.name, cause: cause.to_string() })?;
    std::fs::write(file, svg).map_err(file_error(format!("write {}", file.display())))
}

/// Returns a function for `map_err` that converts an error of the operating system into [`Error::File`]; `doing` is
/// the attempted action.
fn file_error(doing: String) -> impl FnOnce(std::io::Error) -> Error {
    move |cause| Error::File { doing, cause }
}

/// Returns the cumulative distribution of the values, in ascending order: for each value as `x`, the percentage of
/// all values that do not exceed it as `y`.
pub fn distribution(values: impl IntoIterator<Item = f64>) -> Vec<Point> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let all = values.len() as f64;
    let ranked = values.into_iter().enumerate();
    ranked.map(|(rank, value)| Point::new(value, 100.0 * (rank + 1) as f64 / all)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(x: Axis, form: Form) -> Chart {
        let points = vec![Point::new(1.0, -2.0), Point::new(10.0, 3.0)];
        let series = ["greedy", "balanced"].map(|name| {
            let points = points.clone();
            Series { name: name.into(), form, points }
        });
        let series = series.into();
        Chart { title: "(a) Uniform".into(), x, y: "ms", series, marks: vec![(5.0, "commit")] }
    }

    #[test]
    fn a_picture_is_one_file_with_the_words_of_all_its_charts() {
        let folder = tempfile::tempdir().unwrap();
        let charts = vec![
            chart(Axis::Linear("s"), Form::Dots),
            chart(Axis::Log("size"), Form::LineWithExtremes),
            chart(Axis::Words(vec!["left", "right"]), Form::Bars(0.2)),
        ];
        let picture = Picture { name: "fig", columns: 2, charts };
        let files = save(&[picture], Some(&folder.path().join("new"))).unwrap();
        assert_eq!(files, [folder.path().join("new/fig.svg")]);
        let svg = std::fs::read_to_string(&files[0]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for word in ["(a) Uniform", "commit", "size", "right", "balanced"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
    }

    #[test]
    fn a_chart_without_points_is_drawn_empty() {
        let empty = Chart { series: Vec::new(), ..chart(Axis::Log("s"), Form::Line) };
        let svg = draw::svg(&Picture { name: "fig", columns: 1, charts: vec![empty] }).unwrap();
        assert!(svg.contains("(a) Uniform"));
    }

    #[test]
    fn a_distribution_rises_to_all_of_it() {
        let points = distribution([3.0, 1.0, 2.0, 2.0]);
        let points: Vec<_> = points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(points, [(1.0, 25.0), (2.0, 50.0), (2.0, 75.0), (3.0, 100.0)]);
    }
}
