//! The options with which adaptation decides.

use imago_plan::store::guardrails::Limits;
use imago_plan::store::parameters::Parameters;
use serde::{Deserialize, Serialize};

/// Selects whether adaptation executes the design changes whose predicted saving exceeds their cost, or only reports
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Adaptation reports such changes as advice and does not change the design.
    #[default]
    Advise,
    /// Adaptation executes such changes.
    On,
}

/// The options with which adaptation decides.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether plans whose predicted saving exceeds their cost are executed or only reported.
    pub mode: Mode,
    /// Parameters by which the planner compares the savings and costs of plans.
    pub parameters: Parameters,
    /// Limits of the guardrails, which delay or forbid changes that the planner would choose.
    pub limits: Limits,
    /// Seed of the planner's random number generator.
    pub seed: u64,
}
