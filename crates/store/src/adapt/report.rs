//! The planner's report: the state of adaptation, the learned cost functions, and the decisions with their reasons.

use std::path::PathBuf;

use imago_job::prediction::{Interval, Prediction};
use imago_plan::store::considered::{Considered, Estimate, Rejected};
use imago_plan::store::layout::Operator;
use imago_plan::store::planner::{self, Advised};
use imago_plan::store::price::CPU_WEIGHT;
use serde::{Deserialize, Serialize};

use super::explanation::Explanation;
use super::options::Mode;
use crate::key::Key;

/// The state of adaptation as `GET /adapt` returns it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AdaptReport {
    /// Whether plans whose predicted saving exceeds their cost are executed or only reported.
    pub mode: Mode,
    /// The file in which the state of adaptation is persisted over restarts.
    #[serde(default)]
    pub kept: KeptReport,
    /// Placement of the key in the request; `None` if the request had no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
    /// True if the planner has ended because of an internal error; the store serves on without adaptation.
    #[serde(default)]
    pub has_ended: bool,
    /// True if changes of the design by adaptation are paused.
    pub is_paused: bool,
    /// Why the strategy cannot decide yet, such as a cost function with too few samples; `None` if it can.
    pub distrust: Option<String>,
    /// Transactions per second of the whole store, estimated over the last seconds.
    pub transactions_s: f64,
    /// Mean latency of a transaction over the last seconds, from the request until the log has the transaction, in
    /// µs; `None` if unknown.
    pub latency_us: Option<f64>,
    /// Number of alternating workloads that the planner remembers: see [`imago_plan::store::regimes`].
    #[serde(default)]
    pub regimes: usize,
    /// Number of sampled transactions of the present workload that decisions are based on.
    pub samples: usize,
    /// Number of samples that were dropped since the process started, because the planner did not fetch them in time.
    pub dropped: u64,
    /// Horizon: time for which a change of the design is credited with its predicted savings, in seconds.
    pub horizon_s: f64,
    /// Share of a core that the planner has used on average since the process started (0..1).
    pub planner_cpu: f64,
    /// CPU time that the sites' threads have used for changes of the design, in seconds; sites in separate processes
    /// do not report theirs.
    #[serde(default)]
    pub changing_cpu_s: f64,
    /// Number of operators that adaptation has executed, including those that undid others and those before restarts.
    pub changes: u64,
    /// Number of plans that increased the latency and were undone, including those before restarts.
    pub undone: u64,
    /// Why the last change of the design by adaptation failed; `None` if it succeeded.
    pub failure: Option<String>,
    /// Name of the strategy, which chooses the plans to execute.
    #[serde(default)]
    pub strategy: String,
    /// R² (coefficient of determination) of the predicted total times of transactions; `None` while there are too
    /// few. Each value is the mean of one kind of transaction at one site over about a second, and was predicted
    /// before the model learned from it.
    #[serde(default)]
    pub r_squared_transactions: Option<f64>,
    /// R² (coefficient of determination) of the predicted total times of operators; `None` while there are too few.
    /// Each time was predicted before the model learned from it.
    #[serde(default)]
    pub r_squared_operators: Option<f64>,
    /// The learned cost functions, from which the planner predicts times and loads.
    pub functions: Vec<FunctionReport>,
    /// The measured and the predicted load of each site, by site number.
    pub sites: Vec<SiteLoadReport>,
    /// The plans that were considered last, the oldest first.
    pub decisions: Vec<DecisionReport>,
}

/// The file in which the state of adaptation is persisted, and whether reading or writing it failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptReport {
    /// Path of the file `adapt.json`; `None` for a store without a folder, whose state of adaptation is lost when it
    /// ends.
    pub file: Option<PathBuf>,
    /// Why the file that existed at the start was not used; `None` if it was, or if there was none.
    pub refused: Option<String>,
    /// Why the last write of the file failed; `None` if it succeeded or nothing was written yet.
    pub failure: Option<String>,
}

/// One learned cost function, which is linear in its inputs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FunctionReport {
    /// Name of the cost function: see [`imago_plan::store::cost`].
    pub name: String,
    /// Constant term of the function, in µs; for the function `cpu`, a share of the CPU that a site has.
    pub constant: f64,
    /// Weight of each input of the function: the increase of the output, in the unit of the constant, per unit of the
    /// input.
    pub weights: Vec<f64>,
    /// Number of samples from which the function was learned so far, held-out ones included.
    pub samples: u64,
    /// R² (coefficient of determination) of the function on held-out samples; `None` while there are too few.
    pub r_squared: Option<f64>,
}

/// Load of one site, as a share of the CPU that the site has: of a core, or of `--site-cpu`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteLoadReport {
    /// Number of the site.
    pub site: u16,
    /// Measured load of the site's thread since the planner's last round (0..1).
    pub cpu: f64,
    /// Load of the site that the cost model predicts for the present design, as a share of the CPU that the site has.
    pub predicted_cpu: f64,
}

/// Outcome of a plan that the planner considered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// The plan was executed completely.
    Done,
    /// The plan was executed, increased the latency, and was undone.
    Undone,
    /// The plan's predicted saving exceeds its cost, but it was not executed, for this reason.
    Advised(String),
    /// The planner did not choose the plan, for this reason.
    Rejected(String),
    /// The execution of the plan failed, for this reason.
    Failed(String),
}

/// An expected value and its 90 % interval: what was predicted, as far as the same of earlier plans of the same kind came true.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpectedValue {
    /// The value falls below this in 5 of 100 cases.
    pub low: f64,
    /// The expected value.
    pub expected: f64,
    /// The value exceeds this in 5 of 100 cases.
    pub high: f64,
}

/// Quantile of the standard normal distribution for a 90 % interval.
const NORMAL_90: f64 = 1.645;

impl ExpectedValue {
    /// Returns the interval of an estimate; `None` without a value above 0.
    fn of(Estimate { expected, log_error }: Estimate) -> Option<Self> {
        let factor = (NORMAL_90 * log_error).exp();
        let value = Self { low: expected / factor, expected, high: expected * factor };
        (value.low > 0.0 && value.high.is_finite()).then_some(value)
    }
}

/// A plan to change the design that the planner considered, and its outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecisionReport {
    /// Time of the decision, in ms since adaptation began. With persisted state the clock continues after a restart,
    /// without the time in between.
    pub at_ms: u64,
    /// First key of the transaction that the plan was made for; `None` for the removal of a replica.
    pub trigger: Option<String>,
    /// The design that the plan leads to, if it changes the masters and replicas of all partitions.
    #[serde(default)]
    pub redesign: Option<String>,
    /// Number of the site that the plan was made for: the one that is to run the transaction, or to lose the replica.
    pub site: u16,
    /// Operators of the plan, in order, in the form in which a user types them. Those of a redesign are listed only if it
    /// was executed.
    pub operators: Vec<String>,
    /// For each operator of the plan, the start of the partition that it changes, or the key at which it splits.
    pub partitions: Vec<String>,
    /// Predicted mean latency of a transaction with the design before the plan and with the plan's design, in µs.
    pub predicted_us: (f64, f64),
    /// Predicted CPU time of all sites per transaction with the design before the plan and with the plan's design, in
    /// µs.
    #[serde(default)]
    pub predicted_work_us: (f64, f64),
    /// Weight of a µs of CPU time in the predicted saving, relative to a µs of latency.
    #[serde(default)]
    pub work_weight: f64,
    /// The earlier change that the plan reverses, and its age, as text; `None` if the plan reverses none.
    #[serde(default)]
    pub takes_back: Option<String>,
    /// The share (0..1) of the predicted saving that counts: what came true of the savings that were predicted for earlier
    /// plans of this kind.
    #[serde(default = "all")]
    pub realized: f64,
    /// The expected ratio of the measured latencies after and before the plan; `None` in reports that do not tell it.
    #[serde(default)]
    pub latency_ratio: Option<ExpectedValue>,
    /// The time that the plan's operators are expected to take together, in µs; `None` in reports that do not tell it.
    #[serde(default)]
    pub operators_us: Option<ExpectedValue>,
    /// The time that they took, in µs; `None` unless all were executed.
    #[serde(default)]
    pub operators_took_us: Option<f64>,
    /// Predicted saving of all transactions within the horizon if the plan is executed, in µs: latency, and weighted
    /// CPU time, as far as it counts.
    pub benefit_us: f64,
    /// Predicted time that the execution of the plan's operators takes, in µs.
    pub cost_us: f64,
    /// Outcome of the plan.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Measured mean latency of a transaction before and after the plan, in µs; `None` until it is measured.
    pub measured_us: Option<(f64, f64)>,
    /// Standard error of the difference of the two measured mean latencies, in µs: a difference below twice this may
    /// be chance. `None` until they are measured.
    #[serde(default)]
    pub measured_error_us: Option<f64>,
}

/// What counts of a predicted saving, in reports that do not tell it.
fn all() -> f64 {
    1.0
}

/// Name of the prediction of a plan: the mean latency of a transaction after it, divided by that before it.
pub const LATENCY_RATIO: &str = "latency_ratio";
/// Name of the prediction of the time that the operators of a plan take together, in µs.
pub const OPERATORS_US: &str = "operators_us";

impl AdaptReport {
    /// Returns what the executed plans among the decisions predicted, beside what was measured.
    #[must_use]
    pub fn predictions(&self) -> Vec<Prediction> {
        let executed = self.decisions.iter().filter(|one| one.is_executed());
        executed.flat_map(DecisionReport::predictions).collect()
    }
}

impl Verdict {
    pub(super) fn of(plan: &Considered<Key>, verdict: planner::Verdict) -> Self {
        match verdict {
            planner::Verdict::Done => Self::Done,
            planner::Verdict::Advised(why) => Self::Advised(not_executed(why).to_owned()),
            planner::Verdict::Rejected => {
                Self::Rejected(plan.rejected.as_ref().map(reason).unwrap_or_default())
            }
            planner::Verdict::Failed(why) => Self::Failed(why),
        }
    }
}

/// Returns why a plan whose predicted saving exceeds its cost is not executed, as a sentence.
fn not_executed(why: Advised) -> &'static str {
    match why {
        Advised::Paused => "adaptation is paused",
        Advised::OnlyAdvises => "the mode of adaptation is advise",
        Advised::NotSustained => "it must pay in the next decision, too",
        Advised::LimitLowered => "a limit was lowered meanwhile",
        Advised::RateLimited => "the limit of changes a second is reached",
    }
}

impl DecisionReport {
    /// Returns true if the plan was executed, even if it was undone afterwards.
    #[must_use]
    pub fn is_executed(&self) -> bool {
        matches!(self.verdict, Verdict::Done | Verdict::Undone)
    }

    /// Returns what the plan predicted, beside what was measured.
    fn predictions(&self) -> impl Iterator<Item = Prediction> {
        let ratio = self.measured_us.map(|(before, after)| after / before);
        let of = [
            (LATENCY_RATIO, self.latency_ratio, ratio),
            (OPERATORS_US, self.operators_us, self.operators_took_us),
        ];
        let prediction = |(name, value, realized): (&str, Option<ExpectedValue>, Option<f64>)| {
            let ExpectedValue { low, expected, high } = value?;
            let predicted = Interval::new(low, expected, high);
            Some(Prediction { name: name.to_owned(), predicted, at_ms: self.at_ms, realized })
        };
        of.into_iter().filter_map(prediction)
    }

    pub(super) fn of(at_ms: u64, plan: &Considered<Key>, verdict: Verdict) -> Self {
        let key = |operator: &Operator<Key>| operator.key().to_string();
        // A redesign has operators for all partitions: those that nothing came of are left out.
        let is_executed = matches!(verdict, Verdict::Done | Verdict::Undone | Verdict::Failed(_));
        let is_listed = plan.redesign.is_none() || is_executed;
        let operators = if is_listed { &plan.operators[..] } else { &[] };
        Self {
            at_ms,
            trigger: plan.trigger.as_ref().map(Key::to_string),
            redesign: plan.redesign.map(|redesign| redesign.to_string()),
            site: plan.site,
            operators: operators.iter().map(told).collect(),
            partitions: operators.iter().map(key).collect(),
            predicted_us: plan.latency_us,
            predicted_work_us: plan.work_us,
            work_weight: CPU_WEIGHT,
            takes_back: plan.takes_back.clone(),
            realized: plan.realized,
            latency_ratio: ExpectedValue::of(plan.latency_ratio),
            operators_us: ExpectedValue::of(plan.operators_expected_us),
            operators_took_us: plan.operators_took_us,
            benefit_us: plan.benefit_us,
            cost_us: plan.cost_us,
            verdict,
            measured_us: None,
            measured_error_us: None,
        }
    }
}

/// Returns an operator in the form in which a user types it.
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

/// Returns why the planner did not choose a plan, as a sentence.
fn reason(rejected: &Rejected<Key>) -> String {
    match rejected {
        Rejected::NoPlan(why) => why.to_string(),
        Rejected::DoesNotPay => "it saves less than it costs".to_owned(),
        Rejected::TooLittle => "it saves less than the least gain".to_owned(),
        Rejected::WithinError => {
            "the saving is within the error of a prediction from so many samples".to_owned()
        }
        Rejected::Unstable => {
            "more transactions than now would find no site, and change the design again".to_owned()
        }
        Rejected::Another => "another plan saves more".to_owned(),
        Rejected::Memory(site) => format!("site {site} would exceed its memory limit"),
        Rejected::OnHold(why) => why.clone(),
        Rejected::Harmful => {
            "it would cost more in workloads that are expected to return than it saves now"
                .to_owned()
        }
    }
}
