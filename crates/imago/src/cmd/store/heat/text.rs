//! The heat of a store as text: a line for each key range, or for some adjacent ones, and a character for each time
//! interval.

use std::fmt::Write as _;
use std::ops::Range;

use imago_chart::heatmap::time_of_day;
use imago_plan::store::heat::grouped;
use imago_store::adapt::{HeatMark, HeatReport};

use super::{Of, SCALE, named, shortened};

/// Maximum number of rows of the map; the constants below are the maxima of its columns and of a key's characters.
pub(super) const ROWS_MAX: usize = 24;
const COLUMNS_MAX: usize = 72;
const KEY_MAX: usize = 24;
/// Characters for no heat, and for nine steps from the smallest to the largest rate.
const STEPS: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];

fn step(per_s: f64) -> char {
    SCALE.position(per_s).map_or(STEPS[0], |at| STEPS[1 + ((at * 9.0) as usize).min(8)])
}

/// Returns the letter for the design changes in one time interval: that of their kind, a star if there are several
/// kinds, or a blank if there are none.
fn letter(marks: &[&HeatMark]) -> char {
    let of = |mark: &HeatMark| match mark.operator.as_str() {
        "split" => 's',
        "merge" => 'm',
        "add-replica" => '+',
        "remove-replica" => '-',
        _ => '>',
    };
    match marks {
        [] => ' ',
        [first, rest @ ..] if rest.iter().all(|mark| of(mark) == of(first)) => of(first),
        _ => '*',
    }
}

/// Formats the heat of a store, of the kind `of` (reads, writes, conflicts or CPU time), in at most `rows_max` rows,
/// with axes and a legend.
pub(super) fn map(report: &HeatReport, of: Of, rows_max: usize) -> String {
    let columns = report.begins_ms.len();
    if columns == 0 || report.ranges.is_empty() {
        return "nothing was sampled yet\n".to_owned();
    }
    let each = columns.div_ceil(COLUMNS_MAX);
    let spans: Vec<Range<usize>> =
        (0..columns).step_by(each).map(|first| first..(first + each).min(columns)).collect();
    let uses: Vec<f64> = report.ranges.iter().map(|range| of.values(range).iter().sum()).collect();
    let rows = grouped(&uses, rows_max);
    let label = |rows: &Range<usize>| shortened(named(&report.ranges[rows.start].start), KEY_MAX);
    let width = rows.iter().map(|rows| label(rows).chars().count()).max().unwrap_or(0).max(7);
    let seconds = |span: &Range<usize>| report.seconds[span.clone()].iter().sum::<f64>();
    let mut text = format!("{}, {} ranges of keys", of.unit(), report.ranges.len());
    if let [first, second, ..] = report.begins_ms[..] {
        let column_s = second.saturating_sub(first) as f64 / 1_000.0;
        _ = write!(text, ", {:.0} s a column", each as f64 * column_s);
    }
    text.push('\n');
    for rows in &rows {
        let value = |span: &Range<usize>| -> f64 {
            let ranges = &report.ranges[rows.clone()];
            ranges.iter().flat_map(|range| &of.values(range)[span.clone()]).sum()
        };
        let cells = spans.iter().map(|span| match seconds(span) {
            s if s > 0.0 => step(value(span) / s),
            _ => STEPS[0],
        });
        _ = writeln!(text, "{:>width$} |{}", label(rows), cells.collect::<String>().trim_end());
    }
    let marks = spans.iter().map(|span| {
        let end_ms = report.begins_ms.get(span.end).copied().unwrap_or(u64::MAX);
        let within = report.begins_ms[span.start]..end_ms;
        letter(&report.marks.iter().filter(|mark| within.contains(&mark.at_ms)).collect::<Vec<_>>())
    });
    let marks: String = marks.collect();
    if !marks.trim().is_empty() {
        _ = writeln!(text, "{:>width$} |{}", "changes", marks.trim_end());
    }
    let (first, last) =
        (time_of_day(report.begins_ms[0]), time_of_day(report.begins_ms[columns - 1]));
    let gap = spans.len().saturating_sub(16).max(1);
    _ = match columns {
        1 => writeln!(text, "{:>width$} |{first} UTC", ""),
        _ => writeln!(text, "{:>width$} |{first}{:gap$}{last} UTC", "", ""),
    };
    text += "none ' '";
    for (n, step) in STEPS.iter().enumerate().skip(1) {
        let from = 10_f64.powf(-1.0 + 6.0 * (n - 1) as f64 / 9.0);
        _ = match n {
            1 => write!(text, "  {step} less"),
            _ if from < 10.0 => write!(text, "  {step} {from:.1}"),
            _ => write!(text, "  {step} {from:.0}"),
        };
    }
    text += " and more\n";
    if !marks.trim().is_empty() {
        text +=
            "changes: s split, m merge, + add-replica, - remove-replica, > remaster, * several\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn hotter_cells_have_later_characters_and_changes_stand_below() {
        let shown = map(&example(), Of::Reads, ROWS_MAX);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "reads/s, 3 ranges of keys, 10 s a column");
        // 1/s and 10,000/s; 10/s; beyond the scale.
        assert_eq!(&lines[1..4], ["(first) | :%", "    0:m |=", "  0:z<& |@"]);
        assert_eq!(lines[4], "changes |s>");
        assert_eq!(lines[5], "        |01:00:00 01:00:20 UTC");
        assert!(lines[6].starts_with("none ' '  . less  : 0.5  - 2.2  = 10  + 46"), "{shown}");
        let shown = map(&example(), Of::Cpu, ROWS_MAX);
        assert!(shown.contains("(first) | *"), "{shown}");
    }

    #[test]
    fn columns_are_as_long_as_they_are_and_rows_as_many_as_there_may_be() {
        let report = HeatReport { begins_ms: vec![0, 2_000, 4_000], ..example() };
        let shown = map(&report, Of::Reads, 2);
        assert!(shown.starts_with("reads/s, 3 ranges of keys, 2 s a column\n"), "{shown}");
        assert_eq!(shown.lines().filter(|line| line.contains(" |")).count(), 4, "{shown}");
    }

    #[test]
    fn nothing_is_told_where_there_is_nothing() {
        assert_eq!(map(&HeatReport::default(), Of::Cpu, ROWS_MAX), "nothing was sampled yet\n");
    }
}
