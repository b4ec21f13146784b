//! The finding of a rule: its place, and its remedy.

use std::fmt;

/// One violation of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The file, or the name of a dependency, that breaks the rule.
    pub subject: String,
    /// The line, counted from 1, when the rule is about a line.
    pub line: Option<usize>,
    /// The violation, and its remedy.
    pub what: String,
}

impl Finding {
    /// A finding about a whole file or dependency.
    pub fn whole(subject: &str, what: impl Into<String>) -> Self {
        Self { subject: subject.to_owned(), line: None, what: what.into() }
    }

    /// A finding about one line; `index` counts from 0, as `enumerate` does.
    pub fn at(subject: &str, index: usize, what: impl Into<String>) -> Self {
        Self { subject: subject.to_owned(), line: Some(index + 1), what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.subject, self.what),
            None => write!(f, "{}: {}", self.subject, self.what),
        }
    }
}

/// An exception to a rule: its subject, and a reason that a reader would accept.
pub type Exception = (&'static str, &'static str);

/// Drops what an exception excuses, and reports each exception that excuses nothing: the list may
/// only shrink, or grow with a reason.
pub fn excuse(found: Vec<Finding>, exceptions: &[Exception]) -> Vec<Finding> {
    let unused = exceptions.iter().filter_map(|(subject, reason)| {
        let needed = found.iter().any(|f| f.subject == *subject);
        let what = if reason.is_empty() {
            "is excepted without a reason: give one"
        } else if !needed {
            "is excepted but no longer needs it: remove the exception"
        } else {
            return None;
        };
        Some(Finding::whole(subject, what))
    });
    let unused: Vec<_> = unused.collect();
    found
        .into_iter()
        .filter(|f| exceptions.iter().all(|(subject, _)| f.subject != *subject))
        .chain(unused)
        .collect()
}

/// Fails with every finding and the rule's remedy.
#[track_caller]
pub fn assert_clean(found: Vec<Finding>, remedy: &str) {
    assert!(
        found.is_empty(),
        "{} found.\n{}\nTo mend it: {remedy}\n",
        found.len(),
        found.iter().map(|f| format!("  {f}\n")).collect::<String>(),
    );
}

#[test]
fn an_exception_excuses_its_subject_alone() {
    let found = vec![Finding::whole("a.rs", "long"), Finding::whole("b.rs", "long")];
    assert_eq!(excuse(found, &[("a.rs", "one table")]), [Finding::whole("b.rs", "long")]);
}

#[test]
fn an_exception_that_is_no_longer_needed_is_found() {
    let found = excuse(Vec::new(), &[("a.rs", "one table")]);
    assert!(found.len() == 1 && found[0].what.contains("no longer"), "{found:?}");
}

#[test]
fn an_exception_without_a_reason_is_found() {
    let found = excuse(vec![Finding::whole("a.rs", "long")], &[("a.rs", "")]);
    assert!(found.len() == 1 && found[0].what.contains("without a reason"), "{found:?}");
}
