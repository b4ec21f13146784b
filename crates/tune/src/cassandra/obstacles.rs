//! Reasons against a change of a Cassandra node's configuration at this moment.

use std::collections::BTreeMap;
use std::fmt;

use uuid::Uuid;

/// Maximum difference of two nodes' clocks at which a roll is allowed, in ms. Of two writes the one with the later
/// timestamp wins, and the ages of jobs are measured by these clocks.
const CLOCK_SKEW_MS_MAX: i64 = 5_000;
/// Version of Cassandra whose settings are known.
const KNOWN_VERSION: &str = "5.0";

/// Reasons why no node may be changed or stopped now.
#[derive(Clone, Debug, Default)]
pub(super) struct Obstacles {
    /// Descriptions of obstacles that need an operator, such as a node that is down.
    pub lasting: Vec<String>,
    /// Descriptions of writes that a node has missed, which other nodes send to it by themselves.
    pub passing: Vec<String>,
}

impl Obstacles {
    /// Returns true if there is no obstacle.
    pub fn is_empty(&self) -> bool {
        self.lasting.is_empty() && self.passing.is_empty()
    }

    /// Returns true if all obstacles disappear by themselves, so that waiting is enough.
    pub fn are_transient(&self) -> bool {
        self.lasting.is_empty()
    }

    /// Returns the descriptions of all obstacles, the lasting ones first.
    pub fn texts(self) -> Vec<String> {
        [self.lasting, self.passing].concat()
    }
}

impl fmt::Display for Obstacles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.clone().texts().join("; "))
    }
}

/// Returns the reason against a roll that nodes have different schemas, and None if all have the same; `schemas` has
/// the names of the nodes by their schema version.
pub(super) fn disagreement(schemas: BTreeMap<Uuid, Vec<&str>>) -> Option<String> {
    if schemas.len() < 2 {
        return None;
    }
    let groups: Vec<String> = schemas.into_values().map(|names| names.join(" and ")).collect();
    Some(format!("the nodes have different schemas: {}", groups.join("; ")))
}

/// Returns the reason against a roll that clocks differ too much, and None if they do not; `clocks` has the offset of
/// each node's clock in ms, and the node's name.
pub(super) fn clock_skew(clocks: &[(i64, &str)]) -> Option<String> {
    let (behind, slow) = clocks.iter().min()?;
    let (ahead, quick) = clocks.iter().max()?;
    let apart_ms = ahead - behind;
    (apart_ms > CLOCK_SKEW_MS_MAX).then(|| {
        format!("the clock of {quick} is {:.1} s ahead of that of {slow}", apart_ms as f64 / 1e3)
    })
}

/// Returns the reason against a roll that the settings of a node's version of Cassandra are unknown, and None if they
/// are known: names and defaults differ by version.
pub(super) fn unknown_version(name: &str, version: &str) -> Option<String> {
    let is_known =
        version.strip_prefix(KNOWN_VERSION).is_some_and(|rest| rest.starts_with(['.', '-']));
    (!is_known).then(|| {
        format!("{name} runs Cassandra {version}, and settings are known of {KNOWN_VERSION}")
    })
}
