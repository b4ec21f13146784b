//! Figs. 8a to 8d as the paper draws them: the times of both placements, and the phases of the balanced one. The
//! picture of Fig. 8a also shows the number of chunks.

use imago_mongo::reshard::plan::Placing;

use super::{Measured, PLACINGS, Part};
use crate::morphus::name;
use crate::statistics::Figure;
use imago_chart::{Axis, Chart, Form, Picture, Point, Series};

/// The phases in the order in which a change goes through them.
const PHASES: [&str; 7] = ["plan", "prepare", "execute", "index", "recover", "verify", "commit"];

impl Part {
    const ALL: [Self; 4] = [Self::A, Self::B, Self::C, Self::D];

    fn file(self) -> &'static str {
        match self {
            Self::A => "morphus-fig8a",
            Self::B => "morphus-fig8b",
            Self::C => "morphus-fig8c",
            Self::D => "morphus-fig8d",
        }
    }

    /// Returns the label of the horizontal axis.
    fn varied(self) -> &'static str {
        match self {
            Self::A => "documents, thousands",
            Self::B => "operations per second",
            Self::C => "replica sets",
            Self::D => "members of each replica set",
        }
    }

    fn x(self, point: &Measured) -> f64 {
        match self {
            Self::A => point.setup.documents as f64 / 1e3,
            Self::B => f64::from(point.setup.rate_per_s),
            Self::C => f64::from(point.setup.shards),
            Self::D => f64::from(point.setup.members),
        }
    }
}

/// Returns a picture for each part that was measured.
pub(super) fn pictures(points: &[Measured]) -> Vec<Picture> {
    let picture = |part: Part| {
        let own: Vec<&Measured> = points.iter().filter(|point| point.part == part).collect();
        let mut charts = vec![times(part, &own)];
        if part == Part::A {
            charts.push(chunks(part, &own));
        }
        Picture { name: part.file(), columns: charts.len(), charts }
    };
    let is_measured = |part: &Part| points.iter().any(|point| point.part == *part);
    Part::ALL.into_iter().filter(is_measured).map(picture).collect()
}

fn times(part: Part, points: &[&Measured]) -> Chart {
    let total = |placing: Placing| {
        let own = points.iter().filter(|point| point.placement == placing);
        let point = |point: &&Measured| {
            let Figure { median, min, max } = point.seconds;
            Point { x: part.x(point), y: median, y_min: min, y_max: max }
        };
        let points = own.map(point).collect();
        Series { name: name(placing).to_owned(), form: Form::LineWithExtremes, points }
    };
    let phase = |phase: &'static str| {
        let own = points.iter().filter(|point| point.placement == Placing::Balanced);
        let at = |point: &&Measured| Some(Point::new(part.x(point), *point.phases.get(phase)?));
        let points: Vec<Point> = own.filter_map(at).collect();
        let name = format!("{phase} of H");
        (!points.is_empty()).then_some(Series { name, form: Form::Line, points })
    };
    let series = PLACINGS.into_iter().map(total).chain(PHASES.into_iter().filter_map(phase));
    Chart {
        title: "Time of the change, and its phases".to_owned(),
        x: Axis::Linear(part.varied()),
        y: "seconds",
        series: series.collect(),
        marks: Vec::new(),
    }
}

fn chunks(part: Part, points: &[&Measured]) -> Chart {
    let own = points.iter().filter(|point| point.placement == Placing::Balanced);
    let points = own.map(|point| Point::new(part.x(point), point.chunks as f64)).collect();
    Chart {
        title: "New chunks".to_owned(),
        x: Axis::Linear(part.varied()),
        y: "chunks",
        series: vec![Series { name: "chunks".to_owned(), form: Form::Line, points }],
        marks: Vec::new(),
    }
}
