//! Applies the log to a site: each entry that the site receives, either from the whole log or from its subscription.

use super::{Core, refused};
use crate::design::{Design, Verdict};
use crate::record::{Body, LogEntry, Position};
use crate::subscription::Delivery;

impl Core {
    /// Applies entries of the whole log, of which the first has position `first`, and retries waiting requests.
    /// Entries that the site has already are skipped.
    pub(super) fn follow_all(&mut self, first: Position, entries: &[LogEntry]) {
        // A site that began from an image may receive entries that the image contains.
        let old = usize::try_from(first.entries_to(self.known + 1)).unwrap_or(usize::MAX);
        for (position, entry) in first.onward().zip(entries).skip(old) {
            self.follow(position, entry, Design::follow);
        }
        self.resume_waiting();
    }

    /// Applies deliveries of the site's subscription, which begin at position `first`, and retries waiting requests.
    pub(super) fn follow_deliveries(&mut self, first: Position, deliveries: Vec<Delivery<'_>>) {
        assert_eq!(first, self.known + 1, "the log comes in its order");
        for delivery in deliveries {
            match delivery {
                Delivery::Passed(entries) => self.known += entries,
                Delivery::Entry(entry) => {
                    let is_own = (entry.by.site, entry.by.epoch) == (self.site, self.epoch);
                    let follow = if is_own { Design::follow_own } else { Design::follow_part };
                    self.follow(self.known + 1, &entry, follow);
                }
                Delivery::Begins { start, version, installation } => {
                    self.design.correct_version(&start, version);
                    self.begin_installation(start, installation);
                }
            }
        }
        self.resume_waiting();
    }

    /// Sends requested rows that the log now has, and retries waiting requests, if the site is live.
    fn resume_waiting(&mut self) {
        if self.is_live {
            self.send_requested_rows();
            self.send_grants();
            self.advance_coordinated();
            self.attempt_all();
        }
    }

    /// Applies the log entry at the next position. `follow_design` applies it to the design, by what the site receives of
    /// the log.
    fn follow(
        &mut self,
        position: Position,
        entry: &LogEntry,
        follow_design: fn(&mut Design, &LogEntry) -> Verdict,
    ) {
        assert_eq!(position, self.known + 1, "the log comes in its order");
        self.known = position;
        let is_of_this_life = entry.by.site == self.site && entry.by.epoch == self.epoch;
        let is_own = is_of_this_life && entry.body != Body::Fence;
        let verdict = follow_design(&mut self.design, entry);
        self.design_changes += u64::from(entry.is_of_design());
        if !self.is_over && self.ends_epoch(entry, verdict) {
            self.end();
        }
        if self.is_over {
            return;
        }
        if is_own && verdict != Verdict::Void {
            assert_eq!(entry.by.number, self.ordered + 1, "own entries come in their order");
            self.ordered = entry.by.number;
            self.forget_undo();
        }
        match (&entry.body, verdict) {
            (_, Verdict::Void) => {}
            #[cfg(test)]
            (body, _) if !is_own && self.swap_with_next(body) => {}
            (Body::Join, _) => self.is_live |= is_own,
            // A commit of this site was applied when it was written.
            (Body::Commit(writes), _) if is_own => self.note_logged(writes),
            (Body::Commit(writes), _) => writes.iter().for_each(|write| self.replicate(write)),
            (Body::Change(change), Verdict::Counts) if self.lacks_granted_replica(change) => {
                return self.end();
            }
            (Body::Change(change), Verdict::Counts) => {
                self.reshape(change);
                self.notice(change);
            }
            (Body::Change(_), Verdict::Refused(impossible)) => {
                let held = self
                    .answers
                    .front_mut()
                    .filter(|held| is_own && held.has_written && held.number == self.ordered);
                if let Some(held) = held {
                    held.answer = Err(refused(&impossible));
                }
            }
            (Body::Fence, _) => self.inherit(),
            (Body::DistributedCommit(commit), verdict) => {
                let coordinator = (entry.by.site, entry.by.epoch);
                let is_committed = verdict == Verdict::Counts;
                self.follow_distributed(coordinator, commit, position, is_committed);
            }
            (Body::Change(_), Verdict::Aborted) => unreachable!("only a commit is aborted"),
        }
        if !self.changing.is_empty() {
            let ordered = self.ordered;
            self.changing.retain(|_, number| *number > ordered);
        }
        if (self.is_live || self.has_retained_rows) && entry.is_of_design() {
            self.align_copies();
        }
        if matches!(entry.body, Body::Join | Body::Fence) {
            self.end_lost_transactions();
        }
        if self.is_live {
            self.release(position);
        }
    }

    /// Returns true if a log entry with this verdict ends the site's epoch: a fence by another process, a newer
    /// epoch, or an entry of this epoch that is void. An entry of an earlier epoch has no effect.
    fn ends_epoch(&self, entry: &LogEntry, verdict: Verdict) -> bool {
        let by = entry.by;
        if by.site != self.site || by.epoch < self.epoch {
            return false;
        }
        match entry.body {
            Body::Join if by.epoch > self.epoch => verdict == Verdict::Counts,
            _ if by.epoch > self.epoch => false,
            Body::Fence => verdict == Verdict::Counts,
            _ => verdict == Verdict::Void && by.number > self.ordered,
        }
    }
}
