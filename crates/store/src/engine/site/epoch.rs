//! The epochs of sites: the number of the next one, and the process that began one.
//!
//! A log in a folder has one process at a time, and epochs are counted. A log in Kafka can be opened by two processes
//! at once that do not know of each other. An epoch therefore contains the *term* in which it was begun: each process
//! begins a term above all terms that it found in the log. The term includes a random number that distinguishes the
//! process from others that found the same terms. All epochs of one term are above all epochs of another, however
//! many either process begins: the log accepts one process for all sites, and never a mixture. A process that finds a
//! later term at one of its sites stops. If it began the site again, the two processes would take the site from each
//! other for ever.
//!
//! A process whose sites are remote *claims* them when it begins, with an epoch for each that no process serves:
//! otherwise the process would own the log only once the last of the sites has registered.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::{Duration, Instant};

use crate::design::Design;
use crate::engine::{BEGIN_WAIT, LogOptions, SITES_MAX, Shared, Store, StoreError};
use crate::record::{Author, Body, Epoch, LogEntry, Site};
use crate::sync::thread;

/// Number of low bits of an epoch that count the epochs of a term, if several processes may have the log.
const COUNT_BITS: u32 = 14;
/// Number of bits of an epoch above the count that hold the random number of the process that began it.
const PROCESS_BITS: u32 = 26;
/// Number of bits of an epoch below the count of terms.
const TERM_BITS: u32 = COUNT_BITS + PROCESS_BITS;
/// Maximum number of epochs of one site in a term.
const EPOCHS: u64 = 1 << COUNT_BITS;
/// Number of different random numbers of processes.
const PROCESSES: u64 = 1 << PROCESS_BITS;

/// The rule by which a process numbers the epochs of its sites.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Epochs {
    /// The epoch below all that this process gives its sites; `None` if no other process can have the log.
    term: Option<Epoch>,
}

impl Epochs {
    /// Returns the rule for a log that only this process can have: epochs are counted.
    pub(in crate::engine) fn of_one_process() -> Self {
        Self { term: None }
    }

    /// Returns the rule for a log that other processes may have too: the term is above all epochs in the design
    /// `found`.
    pub(in crate::engine) fn of_one_of_many(found: &Design) -> Self {
        let newest = (0..SITES_MAX).map(|site| found.epoch(Site(site))).max();
        let drawn = RandomState::new().build_hasher().finish() % PROCESSES;
        Self::behind(newest.unwrap_or_default(), drawn)
    }

    /// Returns the rule of the process with the random number `process`, in the term after the one of `epoch`.
    fn behind(Epoch(epoch): Epoch, process: u64) -> Self {
        let term = ((epoch >> TERM_BITS) + 1) << TERM_BITS | process << COUNT_BITS;
        Self { term: Some(Epoch(term)) }
    }

    /// Returns the epoch that this process gives a site whose newest epoch is `epoch`.
    pub(in crate::engine) fn next(self, epoch: Epoch) -> Epoch {
        let following = Epoch(epoch.0 + 1);
        let Some(term) = self.term else { return following };
        if process(epoch) != process(term) {
            return Epoch(term.0 + 1);
        }
        match epoch.0 % EPOCHS {
            // The numbers of this term are used up.
            last if last == EPOCHS - 1 => Self::behind(epoch, process(term)).next(Epoch(0)),
            _ => following,
        }
    }

    /// True if `epoch` was begun by another process, which has taken over the log.
    pub(in crate::engine) fn is_over(self, epoch: Epoch) -> bool {
        self.term.is_some_and(|term| epoch > term && process(epoch) != process(term))
    }

    /// Returns the epoch by which this process claims its remote sites, or `None` if no other process can have the
    /// log.
    pub(in crate::engine) fn claim(self) -> Option<Epoch> {
        self.term
    }

    /// Returns the log entries that claim the sites with numbers below `sites`; no entries if no other process can
    /// have the log.
    pub(in crate::engine) fn claims(self, sites: u16) -> Vec<LogEntry> {
        let claimed = |epoch| {
            let by = move |site| Author { site: Site(site), epoch, number: 1 };
            (0..sites).map(by).map(|by| LogEntry { by, body: Body::Join })
        };
        self.term.into_iter().flat_map(claimed).collect()
    }
}

impl Store {
    /// Waits until the log contains the beginning of every site's new epoch, or the claim of the site.
    pub(in crate::engine) fn await_sites(&self) -> Result<(), StoreError> {
        let until = Instant::now() + BEGIN_WAIT;
        let sites = (0..self.sites() as u16).map(Site);
        loop {
            let now = self.shared.map.load();
            let begun = |site: Site| now.design.epoch(site) > self.shared.first.design.epoch(site);
            if sites.clone().all(begun) {
                let known = now.known;
                self.shared.stepped.advance_to(known);
                return Ok(());
            }
            // Absent brokers may return; a full disk needs an operator.
            let is_patient = matches!(self.shared.log, Some(LogOptions::Kafka { .. }));
            if let Some(why) = if is_patient { self.end() } else { self.trouble() } {
                return Err(StoreError::NotBegun(why));
            }
            if Instant::now() > until {
                let why = self.trouble().unwrap_or_else(|| "the log does not go on".into());
                return Err(StoreError::NotBegun(why));
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Shared {
    /// Ends this process's use of the log, because another process began an epoch of `site`.
    pub(in crate::engine) fn end_for_another(&self, site: Site) {
        let log = self.log.as_ref().map_or("the log".to_owned(), LogOptions::to_string);
        _ = self.end.set(format!("another process took over {log}, and began {site} anew"));
    }
}

/// Returns the random number of the process that began an epoch.
fn process(Epoch(epoch): Epoch) -> u64 {
    epoch >> COUNT_BITS & (PROCESSES - 1)
}

/// Returns the number of an epoch, counted from 1; 0 if the site has not begun. If several processes may have the
/// log, only the epochs of the process that began this one are counted.
pub(crate) fn count(Epoch(epoch): Epoch) -> u64 {
    if epoch >> TERM_BITS == 0 { epoch } else { epoch % EPOCHS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_counted_and_each_process_knows_its_own() {
        let alone = Epochs::of_one_process();
        let none = Epoch(0);
        assert_eq!((alone.next(none), alone.next(Epoch(7))), (Epoch(1), Epoch(8)));
        assert_eq!(count(Epoch(8)), 8);
        assert!(!alone.is_over(Epoch(8)) && alone.claims(3).is_empty());
        let (one, other) = (Epochs::behind(none, 7), Epochs::behind(none, 9));
        let first = one.next(none);
        assert_eq!((count(first), count(one.next(first)), count(other.next(first))), (1, 2, 1));
        assert_eq!(one.claim().map(count), Some(0));
    }

    #[test]
    fn of_two_processes_that_found_the_same_one_has_all_epochs_above_those_of_the_other() {
        let (one, other) = (Epochs::behind(Epoch(5), 7), Epochs::behind(Epoch(5), 9));
        let many = (0..100).fold(Epoch(0), |epoch, _| one.next(epoch));
        let claim = other.claim().unwrap();
        assert!(claim > many && one.is_over(claim) && !other.is_over(many));
        assert!(other.next(many) > claim && !other.is_over(other.next(many)));
    }

    #[test]
    fn a_later_process_is_above_also_where_numbers_ran_out() {
        let one = Epochs::behind(Epoch(0), PROCESSES - 1);
        let many = (0..2 * EPOCHS).fold(Epoch(0), |epoch, _| one.next(epoch));
        assert!(many.0 > one.claim().unwrap().0 + EPOCHS && !one.is_over(many));
        let later = Epochs::behind(many, 0);
        assert!(later.claim().unwrap() > many && one.is_over(later.claim().unwrap()));
    }
}
