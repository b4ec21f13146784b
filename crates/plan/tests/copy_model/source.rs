//! The source collection: a history of writes, of which any reader sees some prefix.
//!
//! A document is the number of the write that made it, so two states of a key are equal only when
//! nothing happened to it between them. The history is also the change stream: write `t` is
//! entry `t`, and a time is the number of writes before it.

use imago_plan::copy::pending_changes;

/// A document's `_id`.
pub type Key = u8;
/// Number of writes that the source had seen.
pub type Time = u16;
/// The document under a key: the write that made it, 0 for one that was there from the start.
pub type Document = Option<Time>;

/// One logged write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    pub key: Key,
    /// True if the key holds a document afterwards.
    pub present: bool,
    /// The kind of change, as a stream would show it.
    pub what: pending_changes::Change,
}

/// Every state that the collection was ever in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    initial: Vec<bool>,
    log: Vec<Change>,
}

impl Source {
    /// `initial` says of each key whether it holds a document before the first write.
    pub fn new(initial: Vec<bool>) -> Self {
        Self { initial, log: Vec::new() }
    }

    pub fn keys(&self) -> usize {
        self.initial.len()
    }

    pub fn now(&self) -> Time {
        Time::try_from(self.log.len()).expect("histories are short")
    }

    /// Write `time`, counted from 1.
    pub fn change(&self, time: Time) -> Change {
        self.log[usize::from(time) - 1]
    }

    /// The last write of `key` up to `time`, 0 when there is none.
    pub fn last_change(&self, key: Key, time: Time) -> Time {
        (1..=time).rev().find(|&time| self.change(time).key == key).unwrap_or(0)
    }

    pub fn at(&self, key: Key, time: Time) -> Document {
        let last = self.last_change(key, time);
        let present =
            if last == 0 { self.initial[usize::from(key)] } else { self.change(last).present };
        present.then_some(last)
    }

    /// Possible results of reads of `key` that are guaranteed to include everything up to `floor`,
    /// the newest first.
    pub fn seen_since(&self, key: Key, floor: Time) -> Vec<Document> {
        let mut seen = vec![self.at(key, floor)];
        for time in floor + 1..=self.now() {
            let change = self.change(time);
            if change.key == key {
                seen.push(change.present.then_some(time));
            }
        }
        seen.reverse();
        seen
    }

    /// Puts a new document under `key`, or deletes the one that is there.
    pub fn write(&mut self, key: Key, present: bool) {
        let is_new = self.at(key, self.now()).is_none();
        let what =
            if is_new { pending_changes::Change::Inserted } else { pending_changes::Change::Any };
        self.log.push(Change { key, present, what });
    }
}
