//! The picture of predictions: for each kind, what was measured as a part of what was predicted, with the intervals.

use imago_chart::{Axis, Chart, Form, Picture, Point, Series};
use imago_job::prediction::Prediction;

/// Returns a chart for each kind of prediction: each measured value divided by the predicted one, with the bounds of the
/// interval divided likewise, in the order of the predicted values.
pub(super) fn picture<'a>(predictions: impl Iterator<Item = &'a Prediction>) -> Picture {
    let mut kinds: Vec<(&str, Vec<&Prediction>)> = Vec::new();
    for one in predictions.filter(|one| one.realized.is_some_and(|value| value > 0.0)) {
        match kinds.iter_mut().find(|(name, _)| *name == one.name) {
            Some((_, of)) => of.push(one),
            None => kinds.push((&one.name, vec![one])),
        }
    }
    let charts = kinds.into_iter().map(|(name, of)| chart(name, of));
    Picture { name: "foresight", columns: 2, charts: charts.collect() }
}

fn chart(name: &str, mut of: Vec<&Prediction>) -> Chart {
    of.sort_by(|a, b| a.predicted.expected.total_cmp(&b.predicted.expected));
    let measured = |one: &Prediction| one.realized.unwrap_or(one.predicted.expected);
    let inside = of.iter().filter(|one| one.predicted.contains(measured(one))).count();
    let points = of.iter().enumerate().map(|(index, one)| {
        let expected = one.predicted.expected;
        Point {
            x: (index + 1) as f64,
            y: measured(one) / expected,
            y_min: one.predicted.low / expected,
            y_max: one.predicted.high / expected,
        }
    });
    Chart {
        title: format!("{name}: {inside} of {} in their 90 % intervals", of.len()),
        x: Axis::Linear("predictions, the smallest first"),
        y: "measured ÷ predicted",
        series: vec![Series {
            name: name.to_owned(),
            form: Form::DotsWithExtremes,
            points: points.collect(),
        }],
        marks: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use imago_job::prediction::Interval;

    use super::*;

    fn copy_s(expected: f64, realized: Option<f64>) -> Prediction {
        let predicted = Interval::within(expected, 2.0);
        Prediction { name: "copy_s".into(), predicted, at_ms: 1_764_500_000_000, realized }
    }

    #[test]
    fn values_and_intervals_are_shown_as_parts_of_what_was_predicted() {
        let all = [copy_s(40.0, Some(50.0)), copy_s(10.0, Some(30.0)), copy_s(5.0, None)];
        let picture = picture(all.iter());
        assert_eq!(picture.charts.len(), 1);
        assert_eq!(picture.charts[0].title, "copy_s: 1 of 2 in their 90 % intervals");
        let points = &picture.charts[0].series[0].points;
        assert_eq!(points[0], Point { x: 1.0, y: 3.0, y_min: 0.5, y_max: 2.0 });
        assert_eq!(points[1], Point { x: 2.0, y: 1.25, y_min: 0.5, y_max: 2.0 });
    }
}
