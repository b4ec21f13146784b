//! A worker: leases a slice, reads the horizon, copies document by document.

use crate::bug::Bug;
use crate::job::{Job, Row};
use crate::protocol::{Layout, Protocol};
use crate::source::{Document, Key, Source, Time};

/// A worker's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Worker {
    pub slice: Option<usize>,
    pub horizon: Option<Time>,
    /// Number of keys of the slice that are dealt with.
    pub done: usize,
    /// A document that was read and not yet written.
    pub hand: Option<(Key, Time)>,
    /// The slice was offered to other workers, which this one does not know.
    pub robbed: bool,
}

/// A step of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Lease(usize),
    ReadHorizon,
    Read(Document),
    Store,
    MarkCopied,
}

impl Worker {
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// The key that it reads next.
    fn next_key(&self, layout: &Layout) -> Option<Key> {
        let slice = self.slice?;
        layout.keys_of(slice).nth(self.done)
    }

    pub fn steps(&self, protocol: &Protocol, job: &Job, source: &Source) -> Vec<Step> {
        let early = protocol.has(Bug::HorizonReadBeforeLease);
        let Some(slice) = self.slice else {
            if early && self.horizon.is_none() {
                return vec![Step::ReadHorizon];
            }
            let on_offer = |row: &Row| matches!(row, Row::Pending | Row::Offered);
            let rows = job.rows.iter().enumerate();
            return rows.filter(|(_, row)| on_offer(row)).map(|(i, _)| Step::Lease(i)).collect();
        };
        let Some(horizon) = self.horizon else { return vec![Step::ReadHorizon] };
        if self.hand.is_some() {
            let last = self.done + 1 == protocol.layout.keys_of(slice).count();
            let hasty = protocol.has(Bug::CopiedBeforeLastWrite) && last;
            return if hasty && job.rows[slice] != Row::Copied {
                vec![Step::Store, Step::MarkCopied]
            } else {
                vec![Step::Store]
            };
        }
        let Some(key) = self.next_key(&protocol.layout) else { return vec![Step::MarkCopied] };
        let floor = if protocol.has(Bug::ReadBeforeHorizon) { 0 } else { horizon };
        source.seen_since(key, floor).into_iter().map(Step::Read).collect()
    }

    pub fn step(&mut self, protocol: &Protocol, step: Step, job: &mut Job, dest: &mut [Document]) {
        match step {
            Step::Lease(slice) => {
                job.rows[slice] = Row::Leased;
                self.slice = Some(slice);
            }
            Step::ReadHorizon => self.horizon = Some(job.horizon),
            Step::Read(document) => {
                let key = self.next_key(&protocol.layout).expect("a key is left to read");
                match document {
                    Some(document) => self.hand = Some((key, document)),
                    None => self.done += 1,
                }
            }
            Step::Store => {
                let (key, document) = self.hand.take().expect("a document is in hand");
                let place = &mut dest[usize::from(key)];
                if place.is_none() || !protocol.has(Bug::InsertKeepsOlder) {
                    *place = Some(document);
                }
                self.done += 1;
                if self.slice.is_some_and(|slice| job.rows[slice] == Row::Copied) && !self.robbed {
                    *self = Self::default();
                }
            }
            Step::MarkCopied => {
                if !self.robbed {
                    job.rows[self.slice.expect("it has a slice")] = Row::Copied;
                }
                if self.hand.is_none() {
                    *self = Self::default();
                }
            }
        }
    }

    /// Its memory is lost, its slice is on offer again.
    pub fn kill(&mut self, job: &mut Job) {
        if let Some(slice) = self.slice
            && job.rows[slice] == Row::Leased
            && !self.robbed
        {
            job.rows[slice] = Row::Offered;
        }
        *self = Self::default();
    }
}
