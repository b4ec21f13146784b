//! The planner's reports: its decisions, their outcomes, and the state on which they were based.

use std::collections::BTreeMap;

use crate::store::considered::Considered;
use crate::store::controller::Outlook;
use crate::store::cost::CostModel;
use crate::store::guardrails::Watched;
use crate::store::layout::Site;
use crate::store::parameters::Parameters;
use crate::store::price::Price;

/// The reason for which a plan that saves more than it costs is only reported, and not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advised {
    /// Adaptation is paused ([`super::Permission::Paused`]).
    Paused,
    /// Plans may only be reported ([`super::Permission::Advise`]).
    OnlyAdvises,
    /// Too few consecutive decisions have chosen the plan; the next one may execute it.
    NotSustained,
    /// The plan exceeds a limit that was lowered after the plan was decided.
    LimitLowered,
    /// The plan would exceed the limit on the number of changes per second.
    RateLimited,
}

/// The outcome of a plan that a decision considered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The plan was executed.
    Done,
    /// The plan saves more than it costs, and is not executed, for this reason.
    Advised(Advised),
    /// The plan was not chosen, for the reason that [`Considered::rejected`] gives.
    Rejected,
    /// The plan could not be executed, for this reason.
    Failed(String),
}

/// A report of the planner about one of its decisions. Each considered plan has a number, which its later events
/// repeat.
#[derive(Clone, Debug)]
pub enum Event<K: std::fmt::Debug> {
    /// A plan that was considered has an outcome.
    Decided {
        /// Number of the considered plan.
        number: u64,
        /// Time of the decision, in ms of the planner's clock.
        at_ms: u64,
        /// The considered plan, with its predicted saving and cost.
        plan: Box<Considered<K>>,
        /// The outcome of the plan.
        verdict: Verdict,
    },
    /// The effect of an executed plan on the latency was measured.
    Measured {
        /// Number of the executed plan.
        number: u64,
        /// The change with the latencies before and after it.
        watched: Box<Watched<K>>,
    },
    /// An executed plan made the latency worse, and was undone.
    Undone {
        /// Number of the plan that was undone; `None` if it is not known any more.
        number: Option<u64>,
    },
    /// The learned cost functions were discarded, because the CPU share of the sites changed.
    CostsDiscarded {
        /// The least share of a core (0..1) that any site has now.
        core_share: f64,
    },
}

/// The state on which a decision was based.
#[derive(Clone, Debug)]
pub struct DecisionSnapshot<K> {
    /// The workload, present and expected.
    pub outlook: Outlook<K>,
    /// Log lag of each site, in entries.
    pub lag_entries: BTreeMap<Site, f64>,
    /// The learned costs of transactions and operators.
    pub cost: CostModel,
    /// The parameters of the decision, with the additional gain and cost that uncertainty required.
    pub parameters: Parameters,
    /// The predicted price of the present design.
    pub price: Price,
    /// Predicted net saving of the plans that may be executed now or by the next decision, in µs of transactions.
    pub saves_us: f64,
    /// Why the strategy cannot decide yet; `None` if it can.
    pub distrust: Option<String>,
}

impl<K> Default for DecisionSnapshot<K> {
    /// Returns the snapshot of a planner that knows of no workload.
    fn default() -> Self {
        Self {
            outlook: Outlook::default(),
            lag_entries: BTreeMap::new(),
            cost: CostModel::default(),
            parameters: Parameters::default(),
            price: Price::default(),
            saves_us: 0.0,
            distrust: None,
        }
    }
}
