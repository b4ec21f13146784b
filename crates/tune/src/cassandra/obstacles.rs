//! Reasons against a change of a node's configuration at this moment.

use std::collections::BTreeMap;
use std::fmt;

use uuid::Uuid;

/// Maximum difference of two nodes' clocks, in ms. Of two writes the one with the later timestamp wins, and the ages of
/// jobs are measured by these clocks.
const CLOCK_SKEW_MS_MAX: i64 = 5_000;
/// Version of Cassandra whose settings are known.
const KNOWN_VERSION: &str = "5.0";

/// Reasons why no node may be changed now.
#[derive(Clone, Debug, Default)]
pub(super) struct Obstacles {
    /// Obstacles that need an operator, such as a node that is down.
    pub lasting: Vec<String>,
    /// Writes that a node has missed: the others send them to it by themselves.
    pub passing: Vec<String>,
}

impl Obstacles {
    pub fn is_empty(&self) -> bool {
        self.lasting.is_empty() && self.passing.is_empty()
    }

    /// True if waiting is enough to overcome all of them.
    pub fn are_transient(&self) -> bool {
        self.lasting.is_empty()
    }

    pub fn texts(self) -> Vec<String> {
        [self.lasting, self.passing].concat()
    }
}

impl fmt::Display for Obstacles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.clone().texts().join("; "))
    }
}

/// Returns the reason against a roll if nodes have different schemas; `schemas` has the names of nodes by version.
pub(super) fn disagreement(schemas: BTreeMap<Uuid, Vec<&str>>) -> Option<String> {
    if schemas.len() < 2 {
        return None;
    }
    let groups: Vec<String> = schemas.into_values().map(|names| names.join(" and ")).collect();
    Some(format!("the nodes have different schemas: {}", groups.join("; ")))
}

/// Returns the reason against a roll if clocks differ too much; `clocks` has offsets in ms and names of nodes.
pub(super) fn clock_skew(clocks: &[(i64, &str)]) -> Option<String> {
    let (behind, slow) = clocks.iter().min()?;
    let (ahead, quick) = clocks.iter().max()?;
    let apart_ms = ahead - behind;
    (apart_ms > CLOCK_SKEW_MS_MAX).then(|| {
        format!("the clock of {quick} is {:.1} s ahead of that of {slow}", apart_ms as f64 / 1e3)
    })
}

/// Returns the reason against a roll if the settings of this version are unknown: names and defaults differ by version.
pub(super) fn unknown_version(name: &str, version: &str) -> Option<String> {
    let is_known =
        version.strip_prefix(KNOWN_VERSION).is_some_and(|rest| rest.starts_with(['.', '-']));
    (!is_known).then(|| {
        format!("{name} runs Cassandra {version}, and settings are known of {KNOWN_VERSION}")
    })
}
