//! Detects whether clients are active at a server, from its operation counters.
//!
//! A failed read of the counters is no evidence. A server that refuses to report its counters is
//! assumed to have clients. A server that is too busy to answer in time is most likely busy with
//! the job itself, so the last finding remains valid for a while.

/// Number of reads per second of a collection that may be those of the job's workers on other machines. The reads of
/// this process are known and subtracted.
const WORKER_READS_S_MAX: u64 = 10;
/// Number of consecutive polls without an answer after which clients are assumed to be active.
const SILENT_MAX: u32 = 4;

/// The result of one poll of a server's operation counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollResult {
    /// The server reported its counters: the operations since the last successful poll.
    Counted {
        /// Number of reads of the collections that the job reads, without those of this process.
        reads: u64,
        /// Number of operations on other user collections, and of writes to the collections that
        /// the job reads.
        others: u64,
        /// Time since the last successful poll, in milliseconds.
        ms: u64,
    },
    /// The first successful poll of the server's counters, with which the next one is compared.
    First,
    /// The server did not answer in time.
    Silent,
    /// The server refused access to its counters.
    Refused,
}

/// The finding whether clients are active at a server, from the polls so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    found: bool,
    silent: u32,
}

impl Presence {
    /// Returns true if clients are assumed to be active at the server.
    #[must_use]
    pub fn has_clients(self) -> bool {
        self.found
    }

    /// Returns the finding after another poll with the result `look`.
    #[must_use]
    pub fn after(self, look: PollResult) -> Self {
        match look {
            PollResult::Counted { reads, others, ms } => {
                let found = others > 0
                    || reads.saturating_mul(1_000) > ms.saturating_mul(WORKER_READS_S_MAX);
                Self { found, silent: 0 }
            }
            PollResult::First => Self { silent: 0, ..self },
            PollResult::Silent => {
                let silent = self.silent.saturating_add(1);
                Self { found: self.found || silent >= SILENT_MAX, silent }
            }
            PollResult::Refused => Self { found: true, silent: 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const QUIET: PollResult = PollResult::Counted { reads: 20, others: 0, ms: 2_500 };

    fn after(polls: &[PollResult]) -> bool {
        polls.iter().fold(Presence::default(), |seen, look| seen.after(*look)).has_clients()
    }

    #[test]
    fn a_server_that_is_too_busy_to_answer_has_no_clients_for_that() {
        assert!(!after(&[PollResult::First, QUIET, PollResult::Silent, PollResult::Silent, QUIET]));
        assert!(!after(&[
            PollResult::First,
            PollResult::Silent,
            QUIET,
            PollResult::Silent,
            PollResult::Silent
        ]));
    }

    #[test]
    fn one_of_which_nothing_is_known_has() {
        assert!(after(&[PollResult::Refused]));
        assert!(after(&[
            PollResult::First,
            QUIET,
            PollResult::Silent,
            PollResult::Silent,
            PollResult::Silent,
            PollResult::Silent
        ]));
    }

    #[test]
    fn clients_are_found_at_once_and_stay_found_while_the_server_is_silent() {
        let busy = PollResult::Counted { reads: 0, others: 1, ms: 2_500 };
        assert!(after(&[PollResult::First, QUIET, busy, PollResult::Silent]));
        assert!(after(&[
            PollResult::First,
            PollResult::Counted { reads: 26, others: 0, ms: 2_500 }
        ]));
        assert!(!after(&[PollResult::First, busy, QUIET]));
    }

    proptest! {
        /// The last answer decides, also over what was found before.
        #[test]
        fn a_count_decides_by_itself(found: bool, silent in 0..9_u32, reads in 0..99_u64, others in 0..3_u64) {
            let look = PollResult::Counted { reads, others, ms: 1_000 };
            let seen = Presence { found, silent }.after(look);
            prop_assert_eq!(seen.has_clients(), others > 0 || reads > WORKER_READS_S_MAX);
        }
    }
}
