//! The plans that a decision considers, each with its predicted saving and cost, and the reason why it was not chosen.

use super::layout::{Key, Operator, Site};
use super::plans::NoPlan;
use super::ranks::Ranks;
use super::redesign::Redesign;

/// Number of operators above which a plan is large: no unit, but the sum of the changes of many partitions. What has become
/// impossible of it, because transactions have changed the design meanwhile, is left out. It is executed without rests,
/// since transactions change the design back in the meantime, and later plans wait for longer instead.
pub const LARGE_ABOVE: usize = 8;

/// The reason for which a decision did not choose a plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Rejected<K: std::fmt::Debug> {
    /// No plan lets the transaction run at the site, for the given reason.
    NoPlan(NoPlan<K>),
    /// The plan saves no more than it costs: λ · E − C is not above zero.
    DoesNotPay,
    /// The plan saves less than the least gain ([`super::parameters::Parameters::least_gain`]).
    TooLittle,
    /// The saving cannot be told from the chance of the samples ([`super::significance`]).
    WithinError,
    /// The redesign leaves more transactions without a site than before, and each of these would change it again.
    Unstable,
    /// Plans that save more were chosen instead, or this plan was impossible after them.
    Another,
    /// This site would exceed its memory limit.
    Memory(Site),
    /// The guardrails hold the plan back, for this reason: see [`super::guardrails`].
    OnHold(String),
    /// The plan saves too little when its effect on the other expected workloads is included.
    Harmful,
}

impl Rejected<u32> {
    pub(super) fn named<K: Key>(self, ranks: &Ranks<K>) -> Rejected<K> {
        match self {
            Self::NoPlan(why) => Rejected::NoPlan(ranks.no_plan(&why)),
            Self::DoesNotPay => Rejected::DoesNotPay,
            Self::TooLittle => Rejected::TooLittle,
            Self::WithinError => Rejected::WithinError,
            Self::Unstable => Rejected::Unstable,
            Self::Another => Rejected::Another,
            Self::Memory(site) => Rejected::Memory(site),
            Self::OnHold(why) => Rejected::OnHold(why),
            Self::Harmful => Rejected::Harmful,
        }
    }
}

/// The reason for which the guardrails hold an operator back.
#[derive(Clone, Debug, PartialEq)]
pub enum Hold {
    /// The operator must not be executed now, for this reason.
    Forbidden(String),
    /// The operator reverses an earlier change, which the text names: it has to save this many times the least gain.
    Reversal(f64, String),
}

/// A value that is above zero, and how far it may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The expected value.
    pub expected: f64,
    /// Standard error of the value's logarithm.
    pub log_error: f64,
}

impl Estimate {
    /// Returns an estimate without an error.
    #[must_use]
    pub fn exact(expected: f64) -> Self {
        Self { expected, log_error: 0.0 }
    }
}

/// A plan that a decision considered, with its predicted saving and cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered<K: std::fmt::Debug> {
    /// First key of the transaction or division that the plan was made for; `None` for the removal of a replica, and
    /// for a redesign.
    pub trigger: Option<K>,
    /// The design that the plan leads to, if it changes all partitions.
    pub redesign: Option<Redesign>,
    /// The site that is to run these transactions; for the removal of a replica, the site that has the replica.
    pub site: Site,
    /// Operators of the plan, in the order of their execution.
    pub operators: Vec<Operator<K>>,
    /// Predicted mean latency of a transaction on the present design and on the plan's design, in µs.
    pub latency_us: (f64, f64),
    /// Predicted CPU time of all sites per transaction on the present design and on the plan's design, in µs.
    pub work_us: (f64, f64),
    /// The earlier change that the plan reverses, with the age of that change; `None` if the plan reverses none.
    pub takes_back: Option<String>,
    /// The share (0..1) of the predicted saving that counts: what came true of the savings predicted for earlier plans of
    /// this kind ([`super::calibration`]).
    pub realized: f64,
    /// The ratio of the mean latency on the plan's design to that on the present one: the predicted ratio, as far as those of
    /// earlier plans of this kind came true. Its error is how far earlier plans lay from it and, for plans that were chosen,
    /// the error of the samples.
    pub latency_ratio: Estimate,
    /// The time that the plan's operators take together, in µs, by the cost functions alone.
    pub operators_us: f64,
    /// The same as expected by how long the operators of earlier plans of this kind took.
    pub operators_expected_us: Estimate,
    /// The time that the plan's operators took together, in µs; `None` unless all of them were executed.
    pub operators_took_us: Option<f64>,
    /// E: the saving of all transactions within the horizon, in µs of latency and weighted CPU time, as far as it counts.
    pub benefit_us: f64,
    /// C: the predicted time that the plan's operators take, in µs, times [`super::parameters::Parameters::cost_factor`].
    pub cost_us: f64,
    /// Why the plan was not chosen; `None` if it was.
    pub rejected: Option<Rejected<K>>,
}

impl<K: std::fmt::Debug> Considered<K> {
    /// Returns the plan's net saving λ · E − C, in µs.
    #[must_use]
    pub fn net_us(&self, lambda: f64) -> f64 {
        lambda * self.benefit_us - self.cost_us
    }
}
