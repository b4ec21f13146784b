//! Adaptation: the store chooses its own physical design while it serves (MorphoSys, §5). The *design* of a store is
//! the bounds of its partitions, and for each partition the site that masters it and the sites that have replicas.
//!
//! The threads of the sites sample the transactions that they run ([`crate::sampler`]). From the samples the planner
//! ([`imago_plan::store::planner`], which does no I/O) learns the workload and the costs of operations. It decides
//! which changes of the design *pay*: the predicted saving within the horizon exceeds the predicted cost of the
//! change. The [`driver`] executes these changes. No transaction waits for the planner: without it, and while it is
//! paused, the design changes by command, and where a transaction could run at no site otherwise.
//!
//! Invariants:
//! - In [`Mode::Advise`], and while paused, adaptation does not change the design.
//! - The planner uses at most 1.25 % of a core: the longer a decision takes, the later the next one begins. While its
//!   plans save ten times what a decision costs, it may use ten times as much ([`driver::CPU_SHARE_PAYING`]).
//! - A failed change does not stop the planner: it reports the failure, and continues.
//! - A change that would exceed a limit is not made, not even to undo an earlier change.

mod adaptation;
mod coalesce;
mod drain;
mod driver;
mod explain;
mod explanation;
mod heat;
mod limits;
mod options;
mod persisted;
mod report;
#[cfg(test)]
mod tests;

pub use adaptation::Adaptation;
pub use drain::{DrainFault, DrainReport, DrainState, Drains};
pub use explanation::{Explanation, NotExplained, RuleReport, SiteExplanation};
pub use heat::{HeatMark, HeatRange, HeatReport};
pub use limits::{AdaptLimits, AtMost, LimitsFault, LimitsReport, LimitsRequest, Unlimited};
pub use options::{Mode, Options};
pub use report::{
    AdaptReport, DecisionReport, ExpectedValue, FunctionReport, KeptReport, LATENCY_RATIO,
    OPERATORS_US, SiteLoadReport, Verdict,
};
