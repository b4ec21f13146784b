//! The states of a job and the permitted transitions.
//!
//! `Planned → Running(phase) ⇄ Paused → Done | Failed | Cancelled`. A failed job may be resumed, because its
//! work still exists; a done or cancelled job never changes again.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The state of a job in its life cycle. The names of phases are chosen by the operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// The plan is stored, and nothing was executed.
    Planned,
    /// A process works at the job, or worked at it until it was interrupted.
    Running {
        /// The phase that the operation is in.
        phase: String,
    },
    /// The operator paused the job, which waits to be resumed.
    Paused {
        /// The phase in which the job was paused, and in which it will resume.
        phase: String,
    },
    /// The operation is complete. The state is final.
    Done,
    /// The job failed; it may be resumed when the cause of the failure is removed.
    Failed {
        /// The error as a text: the problem, the affected object, and the remedy.
        error: String,
    },
    /// The operator cancelled the job; the source is untouched. The state is final.
    Cancelled,
}

/// The error of a state transition that is not permitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {from} cannot become {to}")]
pub struct IllegalTransition {
    /// The state that the job is in.
    pub from: State,
    /// The state that was requested, and may not follow `from`.
    pub to: State,
}

impl State {
    /// Checks that the state `to` may follow this state, and returns an error if not. The same state may always be
    /// saved again.
    pub fn check_transition(&self, to: &State) -> Result<(), IllegalTransition> {
        use State::{Cancelled, Done, Failed, Paused, Planned, Running};
        let legal = match (self, to) {
            (from, to) if from == to => true,
            (Planned, Running { .. } | Failed { .. } | Cancelled) => true,
            (Running { phase: at }, Paused { phase }) => at == phase,
            (Running { .. }, Running { .. } | Done | Failed { .. } | Cancelled) => true,
            (Paused { phase: at }, Running { phase }) => at == phase,
            (Paused { .. }, Failed { .. } | Cancelled) => true,
            // The job was resumed, and failed for another reason.
            (Failed { .. }, Running { .. } | Failed { .. } | Cancelled) => true,
            _ => false,
        };
        if legal { Ok(()) } else { Err(IllegalTransition { from: self.clone(), to: to.clone() }) }
    }

    /// Returns true if no other state can follow this one: the job is done or cancelled.
    pub fn is_final(&self) -> bool {
        matches!(self, State::Done | State::Cancelled)
    }

    /// Returns the name of the state in one word, such as `running`, without its phase or error.
    pub fn word(&self) -> &'static str {
        match self {
            State::Planned => "planned",
            State::Running { .. } => "running",
            State::Paused { .. } => "paused",
            State::Done => "done",
            State::Failed { .. } => "failed",
            State::Cancelled => "cancelled",
        }
    }

    /// Returns the phase of a running or paused job; `None` in other states.
    pub fn phase(&self) -> Option<&str> {
        match self {
            State::Running { phase } | State::Paused { phase } => Some(phase),
            State::Planned | State::Done | State::Failed { .. } | State::Cancelled => None,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            State::Planned => f.write_str("planned"),
            State::Running { phase } => write!(f, "running ({phase})"),
            State::Paused { phase } => write!(f, "paused ({phase})"),
            State::Done => f.write_str("done"),
            State::Failed { error } => write!(f, "failed ({error})"),
            State::Cancelled => f.write_str("cancelled"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(phase: &str) -> State {
        State::Running { phase: phase.to_owned() }
    }

    fn paused(phase: &str) -> State {
        State::Paused { phase: phase.to_owned() }
    }

    fn all() -> Vec<State> {
        let failed = State::Failed { error: "the disk is full".to_owned() };
        let (run, pause) = (running("copy"), paused("copy"));
        vec![State::Planned, run, pause, State::Done, failed, State::Cancelled]
    }

    /// Rows: from; columns: to; in the order of [`all`].
    #[test]
    fn the_whole_table_of_transitions() {
        let table = [
            "xx..xx", // planned
            ".xxxxx", // running
            ".xx.xx", // paused
            "...x..", // done
            ".x..xx", // failed
            ".....x", // cancelled
        ];
        for (from, row) in all().iter().zip(table) {
            for (to, mark) in all().iter().zip(row.chars()) {
                assert_eq!(from.check_transition(to).is_ok(), mark == 'x', "{from} → {to}");
            }
        }
    }

    #[test]
    fn what_failed_may_fail_again_for_another_reason() {
        let failed = |error: &str| State::Failed { error: error.to_owned() };
        assert_eq!(failed("no primary").check_transition(&failed("the disk is full")), Ok(()));
    }

    #[test]
    fn a_pause_keeps_the_phase() {
        assert!(running("copy").check_transition(&paused("replay")).is_err());
        assert!(paused("copy").check_transition(&running("replay")).is_err());
        assert!(running("copy").check_transition(&running("replay")).is_ok());
    }

    #[test]
    fn nothing_follows_a_final_state() {
        for from in all().iter().filter(|state| state.is_final()) {
            for to in all().iter().filter(|to| *to != from) {
                assert!(from.check_transition(to).is_err(), "{from} → {to}");
            }
        }
    }

    #[test]
    fn a_refusal_names_both_states() {
        let refused = State::Done.check_transition(&running("copy"));
        let text = refused.map_err(|error| error.to_string());
        assert_eq!(text, Err("a job that is done cannot become running (copy)".to_owned()));
    }
}
