//! The facts that hold in every state.

use crate::desk::Desk;
use crate::job::Row;
use crate::protocol::{LEFTOVER, Protocol, State};
use crate::source::{Key, Time};

impl<D: Desk> State<D> {
    /// True if the coordinator would call the copy drained: the destination is the source as of the
    /// position that it has read.
    pub fn is_drained(&self) -> bool {
        self.coordinator.is_drained() && self.job.is_copied()
    }

    /// Drained means equal: each key at the destination is what the source held at the stream's
    /// position, or later. At the end of the stream that is what the source holds now, and no
    /// document more.
    pub fn drained_is_equal(&self) -> bool {
        let held = |key: Key| {
            let seen = self.source.seen_since(key, self.coordinator.read_to());
            seen.contains(&self.dest[usize::from(key)])
        };
        !self.is_drained() || self.keys().all(held)
    }

    fn keys(&self) -> impl Iterator<Item = Key> + use<D> {
        (0..self.source.keys()).map(|key| key as Key)
    }

    /// A change that the stream would not show again is at the destination, or will be read by
    /// the worker that copies its slice, and the destination has nothing older.
    pub fn checkpoint_is_safe(&self, protocol: &Protocol) -> bool {
        self.keys().all(|key| {
            let change = self.source.last_change(key, self.job.checkpoint);
            change == 0 || self.is_safe(key, change, protocol.layout.slice_of(key))
        })
    }

    fn is_safe(&self, key: Key, change: Time, slice: usize) -> bool {
        let at_destination = &self.dest[usize::from(key)];
        let is_current = self.source.seen_since(key, change).contains(at_destination);
        match self.job.rows[slice] {
            Row::Copied => is_current,
            Row::Pending | Row::Offered | Row::Leased => {
                let mut holders = self.workers.iter().filter(|w| w.slice == Some(slice));
                let will_be_read = change <= self.job.horizon
                    && holders.all(|w| w.horizon.is_none_or(|horizon| change <= horizon));
                let is_blank = matches!(*at_destination, None | Some(LEFTOVER));
                will_be_read && (is_blank || is_current)
            }
        }
    }

    /// Invariant 4: the changes of a key are applied one after another.
    pub fn rounds_are_disjoint(&self) -> bool {
        !self.coordinator.key_is_in_two_rounds()
    }

    /// True if some step is possible, or else the copy and its checkpoint are complete.
    pub fn rest_is_complete(&self, protocol: &Protocol) -> bool {
        let now = self.source.now();
        let complete =
            self.is_drained() && self.coordinator.read_to() == now && self.job.checkpoint == now;
        complete || !protocol.progress(self).is_empty()
    }

    /// Dirty keys were dropped, and the checkpoint passed them before their slice was ever leased.
    pub fn has_dropped(&self, protocol: &Protocol) -> bool {
        self.keys().any(|key| {
            self.job.rows[protocol.layout.slice_of(key)] == Row::Pending
                && self.source.last_change(key, self.job.checkpoint) > 0
        })
    }

    /// A copy that lived through everything that `protocol` allows is complete.
    pub fn is_complete_after_everything(&self, protocol: &Protocol) -> bool {
        self.is_drained()
            && self.source.now() == protocol.writes_max
            && self.coordinator.read_to() == protocol.writes_max
            && self.lead_kills == protocol.coordinator_kills_max
            && self.worker_kills == protocol.worker_kills_max
    }
}
