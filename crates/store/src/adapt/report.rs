//! The planner's report: the functions that it has learned, and its decisions with their reasons.

use imago_plan::design::decide::{Considered, Rejected};
use imago_plan::design::layout::Operator;
use serde::{Deserialize, Serialize};

use super::Mode;
use super::explain::Explanation;
use super::kept::KeptReport;
use crate::key::Key;

/// Adaptation as it stands.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AdaptReport {
    /// Its mode: it only advises, or changes the design.
    pub mode: Mode,
    /// The place where this knowledge is kept over restarts.
    #[serde(default)]
    pub kept: KeptReport,
    /// Of a key that was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
    /// True if the planner has ended by a fault of its own.
    #[serde(default)]
    pub has_ended: bool,
    /// True if adaptation is paused.
    pub is_paused: bool,
    /// Why nothing is decided by the cost model yet, if so.
    pub distrust: Option<String>,
    /// Transactions a second, of the last seconds.
    pub transactions_s: f64,
    /// Their mean latency from the request to the log, in µs.
    pub latency_us: Option<f64>,
    /// Samples that decisions are made by.
    pub samples: usize,
    /// Samples that were dropped.
    pub dropped: u64,
    /// For how long a change is credited with what it saves, in seconds.
    pub horizon_s: f64,
    /// The share of a core that the planner used.
    pub planner_cpu: f64,
    /// The processor time of the sites' threads for changes of the design, in seconds of a core; of sites apart it is not
    /// told.
    #[serde(default)]
    pub changing_cpu_s: f64,
    /// Operators that were carried out, and of those that were undone.
    pub changes: u64,
    /// Plans that made things worse and were undone.
    pub undone: u64,
    /// Why the last change failed, if it did.
    pub failure: Option<String>,
    /// The strategy that decides.
    #[serde(default)]
    pub strategy: String,
    /// R² of what transactions were predicted to take in all, the mean of those of one kind at one site each second,
    /// before anything was learned from it.
    #[serde(default)]
    pub r_squared_transactions: Option<f64>,
    /// The same of operators, each by itself.
    #[serde(default)]
    pub r_squared_operators: Option<f64>,
    /// The learned functions.
    pub functions: Vec<FunctionReport>,
    /// The sites' loads.
    pub sites: Vec<SiteLoadReport>,
    /// The last decisions, the newest last.
    pub decisions: Vec<DecisionReport>,
}

/// A learned cost function.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FunctionReport {
    /// Its name: see [`imago_plan::design::cost`].
    pub name: String,
    /// Its constant, in µs; of `cpu` as a share of what a site has.
    pub constant: f64,
    /// The weight of each input: its addition to the output for each unit.
    pub weights: Vec<f64>,
    /// From how many samples.
    pub samples: u64,
    /// R² on samples that it was not learned from.
    pub r_squared: Option<f64>,
}

/// A site's load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteLoadReport {
    /// Its number.
    pub site: u16,
    /// The share that its thread used of what it has: of a core, or of `--site-cpu`.
    pub cpu: f64,
    /// The share that the model predicts for the design.
    pub predicted_cpu: f64,
}

/// The outcome of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// It was carried out.
    Done,
    /// It was carried out, made things worse, and was taken back.
    Undone,
    /// It pays, and is not carried out.
    Advised(String),
    /// It was not chosen.
    Rejected(String),
    /// The store refused it.
    Failed(String),
}

/// A plan that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionReport {
    /// The time in ms since adaptation began; over restarts, if it is kept, without the time in between.
    pub at_ms: u64,
    /// The key of the transaction that gave rise to it.
    pub trigger: Option<String>,
    /// The site that it is for.
    pub site: u16,
    /// Its operators, in order.
    pub operators: Vec<String>,
    /// The starts of the partitions that it changes.
    pub partitions: Vec<String>,
    /// The mean latency by the cost model, before and after, in µs.
    pub predicted_us: (f64, f64),
    /// The predicted saving within the horizon, in µs.
    pub benefit_us: f64,
    /// The predicted cost of its operators, in µs.
    pub cost_us: f64,
    /// The outcome of the plan.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The mean latency that was measured before and afterwards, in µs.
    pub measured_us: Option<(f64, f64)>,
    /// The standard error of the difference of the two, in µs: what is not beyond twice this cannot be told from chance.
    #[serde(default)]
    pub measured_error_us: Option<f64>,
}

impl DecisionReport {
    pub(super) fn of(at_ms: u64, plan: &Considered<Key>, verdict: Verdict) -> Self {
        let key = |operator: &Operator<Key>| operator.key().to_string();
        Self {
            at_ms,
            trigger: plan.trigger.as_ref().map(Key::to_string),
            site: plan.site,
            operators: plan.operators.iter().map(told).collect(),
            partitions: plan.operators.iter().map(key).collect(),
            predicted_us: plan.latency_us,
            benefit_us: plan.benefit_us,
            cost_us: plan.cost_us,
            verdict,
            measured_us: None,
            measured_error_us: None,
        }
    }
}

/// An operator in words, as it would be typed.
fn told(operator: &Operator<Key>) -> String {
    match operator {
        Operator::Split(key) => format!("split {key}"),
        Operator::Merge(start) => format!("merge {}", named(start)),
        Operator::AddReplica(start, site) => format!("add-replica {} --site {site}", named(start)),
        Operator::RemoveReplica(start, site) => {
            format!("remove-replica {} --site {site}", named(start))
        }
        Operator::Remaster(start, site) => format!("remaster {} --site {site}", named(start)),
    }
}

pub(super) fn named(start: &Key) -> String {
    let text = start.to_string();
    if text.is_empty() { "(first)".to_owned() } else { text }
}

/// Why a plan was not chosen, in a sentence.
pub(super) fn reason(rejected: &Rejected<Key>) -> String {
    match rejected {
        Rejected::NoPlan(why) => why.to_string(),
        Rejected::DoesNotPay => "it saves less than it costs".to_owned(),
        Rejected::TooLittle => "it saves less than the least gain".to_owned(),
        Rejected::Another => "another plan saves more".to_owned(),
        Rejected::Memory(site) => format!("site {site} would hold more than it may"),
        Rejected::Held(why) => why.clone(),
    }
}
