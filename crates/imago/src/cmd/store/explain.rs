//! `imago store explain KEY`: the rules of adaptation for each site, as a table and in sentences.

use std::fmt::Write as _;

use imago_store::adapt::{Explanation, RuleReport, SiteExplanation};

fn word(rule: &RuleReport) -> &'static str {
    match rule.holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
}

fn change(of: Option<(f64, f64)>, scale: f64, unit: &str) -> String {
    of.map_or_else(
        || "-".to_owned(),
        |(now, then)| format!("{:.0} -> {:.0} {unit}", now * scale, then * scale),
    )
}

/// Formats the explanation of one key: the location of its partition, a table of sites and rules, and a sentence for
/// each rule.
pub(super) fn in_words(explained: &Explanation) -> String {
    let named =
        |start: &str| if start.is_empty() { "(first)".to_owned() } else { start.to_owned() };
    let end = explained.end.as_ref().map_or_else(|| "on".to_owned(), |end| format!("up to {end}"));
    let replicas: Vec<String> = explained.replicas.iter().map(u16::to_string).collect();
    let mut text = format!(
        "{} is in the partition from {} {end}: mastered by site {}, replicas {}, {} rows, {} bytes\n",
        named(&explained.key),
        named(&explained.start),
        explained.master,
        if replicas.is_empty() { "-".to_owned() } else { replicas.join(",") },
        explained.rows,
        explained.bytes
    );
    if let Some(why) = &explained.unpredicted {
        _ = writeln!(text, "nothing is predicted: {why}");
    }
    let rules: Vec<&str> = explained
        .sites
        .first()
        .map_or_else(Vec::new, |site| site.rules.iter().map(|rule| rule.rule.as_str()).collect());
    let title: Vec<&str> = ["site"]
        .into_iter()
        .chain(rules)
        .chain(["CPU", "latency if master", "processor time"])
        .collect();
    let row = |site: &SiteExplanation| {
        let number = format!("{}{}", site.site, if site.is_master { " (master)" } else { "" });
        let words = site.rules.iter().map(|rule| word(rule).to_owned());
        let numbers = [
            change(site.cpu, 100.0, "%"),
            change(site.latency_us, 1.0, "µs"),
            change(site.work_us, 1.0, "µs"),
        ];
        std::iter::once(number).chain(words).chain(numbers).collect::<Vec<String>>()
    };
    text += &crate::table::table(&title, explained.sites.iter().map(row), &[]);
    for site in &explained.sites {
        _ = writeln!(text, "site {}:", site.site);
        for rule in &site.rules {
            _ = writeln!(text, "    {}: {}, {}", rule.rule, word(rule), rule.why);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_site_has_a_line_and_each_rule_a_word_and_a_sentence() {
        let rule =
            |rule: &str, holds, why: &str| RuleReport { rule: rule.into(), holds, why: why.into() };
        let sites = [(0, Some(true), None), (1, Some(false), Some((0.25, 0.5)))].map(
            |(site, holds, cpu)| {
                let rules = vec![
                    rule("pin", holds, "the partition is pinned to site 0"),
                    rule("pays", None, "it is so"),
                ];
                SiteExplanation {
                    site,
                    is_master: site == 0,
                    cpu,
                    rules,
                    ..SiteExplanation::default()
                }
            },
        );
        let explained = Explanation {
            key: "0:k".into(),
            start: String::new(),
            sites: sites.into(),
            ..Explanation::default()
        };
        let shown = in_words(&explained);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(
            lines[0].starts_with("0:k is in the partition from (first) on: mastered by site 0")
        );
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let columns =
            ["site", "pin", "pays", "CPU", "latency", "if", "master", "processor", "time"];
        assert_eq!(words(lines[1]), columns);
        assert_eq!(words(lines[2]), ["0", "(master)", "yes", "-", "-", "-", "-"]);
        assert_eq!(words(lines[3]), ["1", "no", "-", "25", "->", "50", "%", "-", "-"]);
        assert!(
            shown.contains("site 1:\n    pin: no, the partition is pinned to site 0\n"),
            "{shown}"
        );
    }
}
