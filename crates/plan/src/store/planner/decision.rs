//! What the planner reports: its decisions, what came of them, and what they were based on.

use std::collections::BTreeMap;

use crate::store::controller::Outlook;
use crate::store::cost::CostModel;
use crate::store::decide::{Considered, Parameters};
use crate::store::guardrails::Watched;
use crate::store::layout::Site;
use crate::store::price::Price;

/// Why a plan that pays is not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advised {
    /// Adaptation is paused.
    Paused,
    /// Plans are only reported.
    OnlyAdvises,
    /// The plan has to pay again in the next decision.
    NotSustained,
    /// A limit was lowered since it was decided.
    LimitLowered,
    /// The number of changes per second is limited.
    RateLimited,
}

/// The outcome of a plan that was considered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The plan was executed.
    Done,
    /// The plan pays and is not executed, for this reason.
    Advised(Advised),
    /// The plan was not chosen, as [`Considered::rejected`] says.
    Rejected,
    /// The plan could not be executed, for this reason.
    Failed(String),
}

/// What the planner reports of its decisions; each decision has a number.
#[derive(Clone, Debug)]
pub enum Event<K: std::fmt::Debug> {
    /// A plan has an outcome.
    Decided {
        /// Number of the decision.
        number: u64,
        /// Time of the decision, in ms.
        at_ms: u64,
        /// The plan.
        plan: Box<Considered<K>>,
        /// The outcome of the plan.
        verdict: Verdict,
    },
    /// The effect of an executed plan was measured.
    Measured {
        /// Number of the decision.
        number: u64,
        /// The change with the latencies before and after it.
        watched: Box<Watched<K>>,
    },
    /// An executed plan made the latency worse, and was undone.
    Undone {
        /// Number of the decision; `None` if it is not known any more.
        number: Option<u64>,
    },
    /// The cost functions were discarded, because sites have this share of a core now.
    CostsDiscarded {
        /// Share of a core (0..1).
        core_share: f64,
    },
}

/// What a decision was based on.
#[derive(Clone, Debug)]
pub struct DecisionSnapshot<K> {
    /// The workload.
    pub outlook: Outlook<K>,
    /// Log lag of each site, in entries.
    pub lag_entries: BTreeMap<Site, f64>,
    /// The learned costs.
    pub cost: CostModel,
    /// The parameters, with the additional gain that uncertainty required.
    pub parameters: Parameters,
    /// The predicted price of the design.
    pub price: Price,
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
            distrust: None,
        }
    }
}
