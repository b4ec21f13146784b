//! What a controller says, as it happens; the same is kept in the cluster.

use std::collections::BTreeMap;
use std::fmt;

use imago_plan::tune::judge::{Judgement, Worse};
use imago_plan::tune::workload::KINDS;
use serde::{Deserialize, Serialize};

use crate::tuner::Decision;

/// A change from one configuration to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The configuration before.
    pub from: String,
    /// The configuration behind.
    pub to: String,
    /// The gain within the look-ahead, the change itself included, as a share.
    pub predicted: f64,
}

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The change.
    pub change: Change,
    /// The gain that the measurements predict for what clients ask for now, the change itself not included; null if
    /// nothing could be compared.
    pub predicted: Option<f64>,
    /// The gain that was seen.
    pub realised: Option<f64>,
    /// Twice its standard error.
    pub noise: Option<f64>,
    /// The median time of an answer, as a multiple of that before.
    pub median_times: Option<f64>,
    /// The time that one of a hundred exceeds, likewise.
    pub slowest_times: Option<f64>,
    /// The share of the memory in use.
    pub memory: Option<f64>,
    /// Why it is undone; null: it stays.
    pub worse: Option<String>,
}

impl Judged {
    pub(super) fn new(change: Change, judgement: Option<&Judgement>) -> Self {
        let worse = judgement.and_then(|judgement| judgement.worse).map(|worse| match worse {
            Worse::Less => "clients are served less, and wait longer",
            Worse::Slowest => "the slowest answers take too long",
            Worse::Memory => "memory runs short",
        });
        Self {
            change,
            predicted: judgement.map(|one| one.predicted),
            realised: judgement.map(|one| one.realised.mean),
            noise: judgement.map(|one| one.realised.noise),
            median_times: judgement.and_then(|one| one.median),
            slowest_times: judgement.and_then(|one| one.slowest),
            memory: judgement.and_then(|one| one.memory),
            worse: worse.map(str::to_owned),
        }
    }
}

/// What came of all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// Intervals that were seen whole.
    pub intervals: u64,
    /// Plans.
    pub decisions: u64,
    /// Changes that were begun; those that undo one are not counted.
    pub changes: u64,
    /// Changes that were undone.
    pub undone: u64,
    /// Rolls that failed.
    pub failed: u64,
    /// What came of each change.
    pub judged: Vec<Judged>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The controller begins.
    Begins {
        /// The configuration that the cluster has.
        configuration: String,
        /// Intervals that the trace has already.
        intervals: usize,
        /// Nodes that a roll may stop together.
        nodes_at_once: usize,
    },
    /// An interval was seen.
    Observed {
        /// Its start, in seconds since 1970.
        start_s: u64,
        /// Reads, updates, inserts and scans.
        operations: [u64; KINDS],
        /// Operations a second.
        rate_s: f64,
        /// Nodes that the last look missed, and why.
        missed: BTreeMap<String, String>,
    },
    /// A decision.
    Decided {
        /// The decision.
        #[serde(flatten)]
        decision: Box<Decision>,
        /// Why it is not followed; null: it is.
        not_done: Option<String>,
    },
    /// A change begins.
    Changing {
        /// The change.
        change: Change,
        /// True if it undoes another one.
        is_undoing: bool,
    },
    /// A change ended.
    Changed {
        /// The change.
        change: Change,
        /// True if it undid another one.
        is_undoing: bool,
        /// How long it took, in seconds.
        elapsed_s: f64,
        /// The roll's job.
        job: String,
    },
    /// A change failed.
    Failed {
        /// The change.
        change: Change,
        /// The reason.
        why: String,
    },
    /// What came of a change.
    Judged(Judged),
    /// Something that an operator should know.
    Warning {
        /// A short name.
        kind: &'static str,
        /// What happened.
        what: String,
        /// What to do.
        help: String,
    },
}

impl Event {
    /// What two decisions have in common that say the same: numbers differ from one interval to the next.
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
                missed.iter().try_for_each(|(node, why)| write!(f, "; {node} was missed: {why}"))
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
                        "changing from {from} to {to}, which is to bring {}",
                        percent(*predicted)
                    )
                }
            }
            Self::Changed { change, elapsed_s, job, .. } => {
                write!(f, "all nodes have {} after {elapsed_s:.0} s (job {job})", change.to)
            }
            Self::Failed { change, why } => {
                write!(f, "the change to {} failed: {why}; it is left alone for a day", change.to)
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
                "{}: too little was seen before it to say what it brought",
                self.change.to
            );
        };
        write!(
            f,
            "{} serves {} (± {:.1} %) of what {} did, and {} was predicted",
            self.change.to,
            percent(realised),
            noise * 100.0,
            self.change.from,
            percent(predicted)
        )?;
        if let Some(times) = self.median_times {
            write!(f, "; an answer takes {times:.2} times as long")?;
        }
        match &self.worse {
            Some(why) => write!(f, "; it is undone, because {why}"),
            None => write!(f, "; it stays"),
        }
    }
}
