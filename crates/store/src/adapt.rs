//! Adaptation: the store chooses its own design while it serves (MorphoSys, §5).
//!
//! The sites' threads sample what they run ([`crate::sampler`]); the planner, beside them, learns from the samples what
//! the workload is and what operations take, decides by [`imago_plan::design`] which changes of the design pay,
//! carries these out, and looks what came of them ([`planner`]). Nothing waits for it: without it, and while it
//! is paused, the store changes its design as little as transactions need.
//!
//! Invariants:
//! - In [`Mode::Advise`], and while it is paused, the design is not changed.
//! - The planner uses at most [`planner::CPU_SHARE`] of a core: the longer a decision takes, the longer it waits
//!   for the next.
//! - It goes on when a change fails: what failed is told, and looked at again.
//! - A change of the design that would exceed a limit is not made, also not to take an earlier one back.

mod carry_out;
mod drain;
mod explain;
mod heat;
mod kept;
mod learn;
mod limits;
mod planner;
mod report;
mod site_work;
#[cfg(test)]
mod tests;

pub use drain::{DrainFault, DrainReport, DrainState, Drains};
pub use explain::{Explanation, NotExplained, RuleReport, SiteExplanation};
pub use heat::{HeatMark, HeatRange, HeatReport};
pub use kept::KeptReport;
pub use limits::{AdaptLimits, AtMost, LimitsFault, LimitsReport, LimitsRequest, Unlimited};
pub use planner::{Adaptation, Mode, Options};
pub use report::{AdaptReport, DecisionReport, FunctionReport, SiteLoadReport, Verdict};
