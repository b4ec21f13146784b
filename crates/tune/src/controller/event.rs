//! Events that a controller reports as they happen; it persists decisions, changes and judgements among them.

use std::collections::BTreeMap;
use std::fmt;

use imago_plan::tune::gain_interval::{Gain, gain_interval};
use imago_plan::tune::judge::{Judgement, UndoReason};
use imago_plan::tune::workload::KINDS;
use serde::{Deserialize, Serialize};

use crate::decisions::{Entry, Kind};
use crate::tuner::Decision;

/// A change from one configuration to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Name of the configuration before the change.
    pub from: String,
    /// Name of the configuration after the change.
    pub to: String,
    /// Expected gain of the change within the look-ahead, after its cost, as a share of the operations served without
    /// it; zero for a reversion.
    pub predicted: f64,
}

/// Judgement of a change by samples before and after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The change that was judged.
    pub change: Change,
    /// Gain that the measurements predict for the present mix, without the cost of the change, as a share; null if
    /// there are too few samples to compare.
    pub predicted: Option<f64>,
    /// 90 % interval of the predicted gain, from how the predictions of earlier changes came true: lower and upper end, as
    /// shares; null if there are too few samples to compare.
    #[serde(default)]
    pub predicted_interval: Option<[f64; 2]>,
    /// Measured gain in throughput by the change, as a share; null if there are too few samples to compare.
    pub realised: Option<f64>,
    /// Twice the standard error of [`Self::realised`], as a share; null if there are too few samples to compare.
    pub noise: Option<f64>,
    /// Median latency after the change divided by the median latency before it; null if unknown.
    pub median_times: Option<f64>,
    /// 99th percentile of the latency after the change divided by that before the change; null if unknown.
    pub slowest_times: Option<f64>,
    /// The same ratios of median and 99th percentile by the measurements for the present mix; null if these have no latencies.
    #[serde(default)]
    pub predicted_times: Option<[f64; 2]>,
    /// True if the cluster had the configuration from before the change when it was judged: it was that one's turn.
    #[serde(default)]
    pub is_taken_back: bool,
    /// Share of memory in use after the change, 0 to 1; null if unknown.
    pub memory: Option<f64>,
    /// Reason why the change is reverted; null if the change stays.
    pub worse: Option<String>,
}

impl Judged {
    pub(super) fn new(change: Change, judgement: Option<&Judgement>, past: &[Gain]) -> Self {
        let worse =
            judgement.and_then(|judgement| judgement.undo_reason).map(|worse| match worse {
                UndoReason::Throughput => "clients are served less, and wait longer",
                UndoReason::TailLatency => "the slowest answers take too long",
                UndoReason::Memory => "memory runs short",
            });
        Self {
            change,
            predicted: judgement.map(|one| one.predicted),
            predicted_interval: judgement.map(|one| gain_interval(one.predicted, past)),
            realised: judgement.map(|one| one.realised.mean),
            noise: judgement.map(|one| one.realised.noise),
            median_times: judgement.and_then(|one| one.median),
            slowest_times: judgement.and_then(|one| one.slowest),
            predicted_times: None,
            is_taken_back: false,
            memory: judgement.and_then(|one| one.memory),
            worse: worse.map(str::to_owned),
        }
    }

    /// Returns the judgement in an entry of the log of decisions; `None` if the entry is another one, or of an earlier version.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Self> {
        let is_one = entry.kind == Kind::Judged;
        is_one.then(|| serde_json::from_value(entry.detail.clone()).ok()).flatten()
    }

    /// Returns the predicted and the realised gain; `None` if there were too few samples.
    #[must_use]
    pub fn gain(&self) -> Option<Gain> {
        Some((self.predicted?, self.realised?))
    }
}

/// Totals of one run of a controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Number of intervals that the run observed completely.
    pub intervals: u64,
    /// Number of decisions in the run, repetitions of an earlier one included.
    pub decisions: u64,
    /// Number of changes that the run started, without reversions.
    pub changes: u64,
    /// Number of completed reversions in the run.
    pub undone: u64,
    /// Number of rolls in the run that failed after their start.
    pub failed: u64,
    /// Judgements of changes in the run, in order.
    pub judged: Vec<Judged>,
}

/// An event in the run of a controller.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The controller starts with this state.
    Begins {
        /// Name of the configuration that the cluster has.
        configuration: String,
        /// Number of intervals that the trace has so far.
        intervals: usize,
        /// Maximum number of nodes that a roll stops together.
        nodes_at_once: usize,
    },
    /// An interval ended whose operations were observed.
    Observed {
        /// Start of the observed interval, in seconds since 1970.
        start_s: u64,
        /// Numbers of reads, updates, inserts and scans in the interval.
        operations: [u64; KINDS],
        /// Rate of operations in the interval, in operations per second.
        rate_s: f64,
        /// Errors of nodes whose counters could not be read in the interval's last sample, by the node's name.
        missed: BTreeMap<String, String>,
    },
    /// The controller decided to change the configuration or to stay.
    Decided {
        /// The decision of the tuner, with its reasons.
        #[serde(flatten)]
        decision: Box<Decision>,
        /// Reason why the controller does not make the decided change; null if it does, or if no change is due.
        not_done: Option<String>,
    },
    /// A change from one configuration to another starts.
    Changing {
        /// The change that starts.
        change: Change,
        /// True if the change reverts an earlier one.
        is_undoing: bool,
    },
    /// A change from one configuration to another has completed.
    Changed {
        /// The change that has completed.
        change: Change,
        /// True if the change has reverted an earlier one.
        is_undoing: bool,
        /// Duration of the roll that made the change, in seconds.
        elapsed_s: f64,
        /// ID of the job of the roll that made the change.
        job: String,
    },
    /// A configuration gets its turn, while a live change is judged.
    Turn {
        /// Name of the configuration.
        configuration: String,
        /// Number of the turn, from 1.
        number: usize,
        /// Number of all turns.
        all: usize,
    },
    /// A change from one configuration to another has failed after its start.
    Failed {
        /// The change that has failed.
        change: Change,
        /// Error with which the change failed, with its causes.
        why: String,
    },
    /// A change was judged by the samples before and after it.
    Judged(Judged),
    /// The controller warns the operator.
    Warning {
        /// Short identifier of the warning's cause, for programs.
        kind: &'static str,
        /// Description of the event or state that the operator is warned of.
        what: String,
        /// Remedy, or the controller's reaction to the event.
        help: String,
    },
}

impl Event {
    /// Returns a text that is equal for equivalent decisions: it leaves out the numbers, which differ in each
    /// interval. For other events it is the event's full text.
    pub(super) fn sameness(&self) -> String {
        let Self::Decided { decision, not_done } = self else { return self.to_string() };
        let planned = decision.planned.first().map_or("", |change| &change.to);
        let (to, not_done) =
            (decision.change_to.as_deref().unwrap_or(""), not_done.as_deref().unwrap_or(""));
        let text: String = decision.because.chars().filter(|c| !c.is_ascii_digit()).collect();
        format!("{}|{to}|{planned}|{not_done}|{text}", decision.configuration)
    }
}

fn percent(share: f64) -> String {
    format!("{:+.1} %", share * 100.0)
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begins { configuration, intervals, nodes_at_once } => write!(
                f,
                "the cluster has {configuration}; {intervals} intervals are known; a roll stops {nodes_at_once} at a time"
            ),
            Self::Observed {
                operations: [reads, updates, inserts, scans], rate_s, missed, ..
            } => {
                write!(
                    f,
                    "{rate_s:.0}/s: {reads} reads, {updates} updates, {inserts} inserts, {scans} scans"
                )?;
                missed
                    .iter()
                    .try_for_each(|(node, why)| write!(f, "; no counts from {node}: {why}"))
            }
            Self::Decided { decision, not_done } => {
                match (&decision.change_to, not_done) {
                    (None, _) => write!(f, "stay with {}", decision.configuration)?,
                    (Some(to), None) => {
                        write!(f, "change from {} to {to}", decision.configuration)?
                    }
                    (Some(to), Some(why)) => {
                        write!(
                            f,
                            "would change from {} to {to}, and does not: {why}",
                            decision.configuration
                        )?;
                    }
                }
                write!(f, "; {}", decision.because)?;
                decision.alternatives.iter().try_for_each(|other| write!(f, "; {}", other.because))
            }
            Self::Changing { change: Change { from, to, predicted }, is_undoing } => {
                if *is_undoing {
                    write!(f, "going back from {from} to {to}")
                } else {
                    write!(
                        f,
                        "changing from {from} to {to}, with a predicted gain of {}",
                        percent(*predicted)
                    )
                }
            }
            Self::Changed { change, elapsed_s, job, .. } => {
                write!(f, "all nodes have {} after {elapsed_s:.0} s (job {job})", change.to)
            }
            Self::Turn { configuration, number, all } => {
                write!(f, "{configuration} takes its turn ({number} of {all})")
            }
            Self::Failed { change, why } => {
                write!(
                    f,
                    "the change to {} failed: {why}; it is not tried again for a day",
                    change.to
                )
            }
            Self::Judged(judged) => judged.fmt(f),
            Self::Warning { what, help, .. } => write!(f, "{what}: {help}"),
        }
    }
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(predicted), Some(realised), Some(noise)) =
            (self.predicted, self.realised, self.noise)
        else {
            return write!(
                f,
                "{}: too little was measured before the change to judge it",
                self.change.to
            );
        };
        write!(
            f,
            "{} serves {} (± {:.1} %) relative to {}, and {} was predicted",
            self.change.to,
            percent(realised),
            noise * 100.0,
            self.change.from,
            percent(predicted)
        )?;
        if let Some([low, high]) = self.predicted_interval {
            write!(f, " ({} to {})", percent(low), percent(high))?;
        }
        if let Some(times) = self.median_times {
            write!(f, "; a reply takes {times:.2} times as long")?;
        }
        if let Some([predicted, _]) = self.predicted_times {
            write!(f, " ({predicted:.2} was predicted)")?;
        }
        match &self.worse {
            Some(why) => write!(f, "; it is undone, because {why}"),
            None if self.is_taken_back => {
                write!(
                    f,
                    "; {}, whose turn it was, stays until the next decision",
                    self.change.from
                )
            }
            None => write!(f, "; it stays"),
        }
    }
}
