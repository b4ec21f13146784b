//! The placement of a key's partition, explained: each site as its possible master, with the rules for and against it.

use imago_plan::store::guardrails::Guardrails;
use imago_plan::store::planner::DecisionSnapshot;
use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::transaction::Abort;

/// State of the planner after its last round, from which placements are explained.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub snapshot: DecisionSnapshot<Key>,
    /// The planner's guardrails, with their bans and cool-downs; `None` before the first round.
    pub brakes: Option<Guardrails<Key>>,
}

/// The placement of the partition that contains a key, and each site as that partition's possible master.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The key in the request, in the text form of [`Key`].
    pub key: String,
    /// First key of the partition that contains the requested key; empty for the least key of all.
    pub start: String,
    /// First key after the partition; `None` for the last partition.
    pub end: Option<String>,
    /// Number of the site that masters the partition now.
    pub master: u16,
    /// Numbers of the sites that have replicas of the partition, in ascending order.
    pub replicas: Vec<u16>,
    /// Approximate number of rows of the partition.
    pub rows: u64,
    /// Approximate size of the partition's keys and values, in bytes.
    pub bytes: u64,
    /// Why the cost model predicts nothing for any site; `None` if it can predict.
    pub unpredicted: Option<String>,
    /// Each site of the store as the possible master of the partition, in the order of the sites' numbers.
    pub sites: Vec<SiteExplanation>,
}

/// One site as the possible master of a partition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SiteExplanation {
    /// Number of the site.
    pub site: u16,
    /// True if the site masters the partition now.
    pub is_master: bool,
    /// Predicted load of the site with the present design, and with the site as the master, as a share of the CPU
    /// that the site has (1: all of it); `None` without a prediction.
    pub cpu: Option<(f64, f64)>,
    /// Predicted mean latency of all transactions of the store with the present design, and with the site as the
    /// master, in µs; `None` without a prediction.
    pub latency_us: Option<(f64, f64)>,
    /// Predicted CPU time of all sites per transaction with the present design, and with the site as the master, in
    /// µs; `None` without a prediction.
    #[serde(default)]
    pub work_us: Option<(f64, f64)>,
    /// Predicted time that all transactions save within the horizon if the site becomes the master, and time that the
    /// change takes, in µs; `None` for the present master, and without a prediction.
    pub saved_and_cost_us: Option<(f64, f64)>,
    /// The results of all rules that decide whether the site could be the master.
    pub rules: Vec<RuleReport>,
}

/// The result of one rule, which speaks for or against a site as the master of a partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Name of the rule, such as `pin` or `memory`.
    pub rule: String,
    /// True if the rule speaks for the site, false if it speaks against it; `None` if it does not apply, or its result
    /// is unknown.
    pub holds: Option<bool>,
    /// The reason for the result, as a sentence.
    pub why: String,
}

/// The reason why the placement of a key cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExplained {
    /// The key has no row, and no partition begins at it. The fields are the key, the start of the partition that it
    /// would belong to, and the master of that partition.
    #[error(
        "{0} has no row; it would lie in the partition from {1} on, which site {2} masters: `imago store explain` \
             takes a key with a row, or where a partition begins"
    )]
    NoRow(String, String, u16),
    /// The store could not read whether the key has a row, because of this error.
    #[error("the row could not be read: {0}")]
    Unread(#[from] Abort),
}
