//! The text output of `imago verify`.

use imago_mongo::verify::{Report, StructureDifference};

use super::Outcome;

/// Formats the reports of all verified collections, one after the other, as text.
pub(super) fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    for report in &outcome.collections {
        describe(report, &mut text);
    }
    for ns in &outcome.only_at_destination {
        text += &format!("{ns}: only at the destination\n");
    }
    for left_out in &outcome.left_out {
        text += &format!("{left_out}\n");
    }
    text
}

fn describe(report: &Report, text: &mut String) {
    let verdict = if report.is_clean() { "equal" } else { "DIFFERENT" };
    let names = if report.source == report.destination {
        report.source.clone()
    } else {
        format!("{} = {}", report.source, report.destination)
    };
    let seconds = report.elapsed_ms / 1_000;
    let tenths = report.elapsed_ms % 1_000 / 100;
    let mut line = |line: String| text.extend([line.as_str(), "\n"]);
    line(format!("{names}: {verdict}"));
    if report.is_missing {
        let documents = report.missing;
        return line(format!(
            "  the destination does not have it; the source has {documents} documents"
        ));
    }
    line(format!("  {} documents compared in {seconds}.{tenths} s", report.compared));
    if let Some(last_ops) = &report.last_ops {
        line(format!(
            "  the last {} operations ({} were asked for, read from the {}) wrote {} documents",
            last_ops.found, last_ops.wanted, last_ops.read_from, last_ops.documents
        ));
    }
    if report.suspected > 0 {
        line(format!(
            "  {} looked different at first, {} of them no longer when looked at again",
            report.suspected, report.resolved
        ));
    }
    if report.expired > 0 {
        line(format!(
            "  {} of these have passed their time by a TTL index, and one side's server has deleted them \
             already",
            report.expired
        ));
    }
    if report.document_differences() > 0 {
        line(format!(
            "  missing {}, extra {}, different {}, duplicate {}",
            report.missing, report.extra, report.different, report.duplicate
        ));
    }
    if report.unsettled > 0 {
        line(format!("  {} of these were still changing at the last look", report.unsettled));
    }
    for mismatch in &report.differences {
        line(format!("    {:<9} {}", mismatch.kind.word(), mismatch.id));
    }
    let unlisted = report.document_differences() - report.differences.len() as u64;
    if unlisted > 0 {
        line(format!("    and {unlisted} more"));
    }
    for (what, differences) in
        [("option", &report.options_differences), ("index", &report.index_differences)]
    {
        for difference in differences {
            line(structural(what, difference));
        }
    }
    if let Some(reason) = &report.incomplete {
        line(format!("  incomplete: {reason}"));
    }
}

fn structural(what: &str, difference: &StructureDifference) -> String {
    let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
    format!(
        "    {what} {}: source {}, destination {}",
        difference.name,
        side(&difference.source),
        side(&difference.destination)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_what_differs_and_how_much_is_not_listed() {
        let report = Report {
            source: "a.b".into(),
            destination: "c.d".into(),
            compared: 10,
            missing: 3,
            elapsed_ms: 1_250,
            ..Report::default()
        };
        let outcome = Outcome {
            clean: false,
            differences: 3,
            collections: vec![report],
            only_at_destination: vec!["c.e".parse().unwrap()],
            left_out: Vec::new(),
        };
        assert_eq!(
            text(&outcome),
            "a.b = c.d: DIFFERENT\n  10 documents compared in 1.2 s\n  \
             missing 3, extra 0, different 0, duplicate 0\n    and 3 more\n\
             c.e: only at the destination\n"
        );
    }
}
