//! The heat of a store as a picture: ranges of keys by time, with a mark for each change of the store's design.

use imago_chart::heatmap::{HeatMap, Mark, Row, svg, time_of_day};
use imago_store::adapt::{HeatMark, HeatReport};
use imago_store::key::Key;

use super::{Of, SCALE, named, shortened};

/// Maximum number of characters of a row's label.
const KEY_MAX: usize = 32;
/// The SVG path of the mark of each operator (kind of design change), relative to the mark's position.
const MARKS: [(&str, &str); 5] = [
    ("split", "m0 -5l4 5l-4 5l-4 -5z"),
    ("merge", "m-4 -4h8v8h-8z"),
    ("add-replica", "m-1.5 -5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z"),
    ("remove-replica", "m-5 -1.5h10v3h-10z"),
    ("remaster", "m-4 -5l9 5l-9 5z"),
];

/// Draws the heat of a store, of the kind `of` (reads, writes, conflicts or CPU time), and returns it as the text of
/// an SVG file.
pub(super) fn picture(report: &HeatReport, of: Of) -> String {
    let starts: Vec<Key> = report
        .ranges
        .iter()
        .map(|range| range.start.parse().unwrap_or_else(|_| Key::least()))
        .collect();
    let rows = report.ranges.iter().map(|range| Row {
        label: shortened(named(&range.start), KEY_MAX),
        values: (of.values(range).iter().zip(&report.seconds))
            .map(|(value, seconds)| (*seconds > 0.0).then(|| value / seconds))
            .collect(),
    });
    let mark = |mark: &HeatMark| {
        let key = mark.key.parse().unwrap_or_else(|_| Key::least());
        let site = mark.site.map(|site| format!(" --site {site}")).unwrap_or_default();
        let kind = MARKS.iter().position(|(name, _)| *name == mark.operator);
        let (what, at) = (&mark.operator, time_of_day(mark.at_ms));
        Mark {
            at_ms: mark.at_ms,
            row: starts.partition_point(|start| *start <= key).saturating_sub(1),
            kind: kind.unwrap_or(0),
            text: format!("{what} {}{site}, {at}", named(&mark.key)),
        }
    };
    svg(&HeatMap {
        title: &format!("{} by key and time", of.unit()),
        unit: of.unit(),
        rows_label: "keys from",
        scale: SCALE,
        begins_ms: &report.begins_ms,
        rows: rows.collect(),
        kinds: &MARKS,
        marks: report.marks.iter().map(mark).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn ranges_marks_and_scale_are_drawn() {
        let svg = picture(&example(), Of::Reads);
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
        // The mark of a change stands at the upper edge of its key's range, the second row.
        assert!(svg.contains(" 88.00m-4 -5l9 5l-9 5z"), "{svg}");
    }

    #[test]
    fn a_report_without_anything_is_an_empty_picture() {
        assert!(picture(&HeatReport::default(), Of::Cpu).ends_with("</svg>\n"));
    }
}
