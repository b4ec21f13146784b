//! Locks for transactions for which the design is changed first: one holds the keys of all partitions that it needs, from its
//! first step until it has run, or has been sent to its site for the first time.
//!
//! Without them two transactions that need one partition at two sites could take it from each other for ever. Transactions
//! without common partitions change the design at the same time.
//!
//! Invariants:
//! - Of two requests for overlapping keys the earlier one is granted first, and the later one after the earlier one has ended:
//!   so there is no deadlock, and each request is granted at last.
//! - A request that is dropped, granted or not, does not hold anybody up.
//!
//! The locks ensure progress, and nothing else: partitions may be split, merged and moved by others meanwhile.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use tokio::sync::oneshot;

use crate::design::Design;
use crate::key::{Key, KeyRange};
use crate::sync::{Mutex, MutexGuard};

/// The locks of a process.
#[derive(Default)]
pub(in crate::engine) struct MoveLocks(Mutex<Requests>);

#[derive(Default)]
struct Requests {
    /// The number of the next request.
    next: u64,
    /// Requests that have not ended, by number.
    all: BTreeMap<u64, Request>,
}

struct Request {
    ranges: Vec<KeyRange>,
    /// Number of earlier requests for overlapping keys that have not ended.
    before: usize,
    /// Grants the request; `None` once it is granted.
    grant: Option<oneshot::Sender<()>>,
}

/// A lock on ranges of keys, held or waited for until it is dropped.
pub(in crate::engine) struct MoveLock<'a> {
    locks: &'a MoveLocks,
    number: u64,
}

impl MoveLocks {
    /// Waits for the lock on these ranges, which [`ranges_of`] returned.
    pub async fn lock(&self, ranges: Vec<KeyRange>) -> MoveLock<'_> {
        let (lock, granted) = self.request(ranges);
        if let Some(granted) = granted {
            // The sender is kept until the request is granted, or dropped with this future.
            _ = granted.await;
        }
        lock
    }

    fn request(&self, ranges: Vec<KeyRange>) -> (MoveLock<'_>, Option<oneshot::Receiver<()>>) {
        let mut requests = self.requests();
        let number = requests.next;
        requests.next += 1;
        let before = requests.all.values().filter(|one| overlap(&one.ranges, &ranges)).count();
        let (grant, granted) = if before > 0 {
            let (grant, granted) = oneshot::channel();
            (Some(grant), Some(granted))
        } else {
            (None, None)
        };
        requests.all.insert(number, Request { ranges, before, grant });
        (MoveLock { locks: self, number }, granted)
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MoveLock<'_> {
    fn drop(&mut self) {
        let mut requests = self.locks.requests();
        let ended = requests.all.remove(&self.number).expect("a request ends once");
        let later = requests.all.range_mut(self.number..).map(|(_, one)| one);
        for one in later.filter(|one| overlap(&one.ranges, &ended.ranges)) {
            one.before -= 1;
            if one.before == 0
                && let Some(grant) = one.grant.take()
            {
                _ = grant.send(());
            }
        }
    }
}

/// Returns the ranges of the partitions that a transaction needs, in key order, without overlaps.
pub(crate) fn ranges_of(design: &Design, reads: &[KeyRange], writes: &[Key]) -> Vec<KeyRange> {
    let read = reads.iter().flat_map(|range| design.within(range));
    let needed = read.chain(writes.iter().map(|key| design.of(key)));
    let mut all: Vec<&KeyRange> = needed.map(|partition| &partition.range).collect();
    all.sort_by(|one, other| one.start.cmp(&other.start));
    let mut ranges: Vec<KeyRange> = Vec::new();
    for range in all {
        if !ranges.last_mut().is_some_and(|last| last.join(range)) {
            ranges.push(range.clone());
        }
    }
    ranges
}

/// True if a key is in both of two lists of ranges, each in key order and without overlaps.
pub(crate) fn overlap(ones: &[KeyRange], others: &[KeyRange]) -> bool {
    let (mut ones, mut others) = (ones.iter().peekable(), others.iter().peekable());
    while let (Some(one), Some(other)) = (ones.peek(), others.peek()) {
        if one.overlaps(other) {
            return true;
        }
        _ = if one.start < other.start { ones.next() } else { others.next() };
    }
    false
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use proptest::prelude::*;

    use super::*;
    use crate::record::{Change, Operator, Site};

    fn user(n: u8) -> Key {
        format!("1:user{n:08}").parse().expect("it is a key")
    }

    /// Ranges between some of 16 keys, in key order and without overlaps.
    fn ranges() -> impl Strategy<Value = Vec<KeyRange>> {
        prop::collection::btree_set(0..16_u8, 2..8).prop_map(|bounds| {
            let bounds: Vec<u8> = bounds.into_iter().collect();
            let range = |pair: &[u8]| KeyRange { start: user(pair[0]), end: Some(user(pair[1])) };
            bounds.chunks_exact(2).map(range).collect()
        })
    }

    fn keys_of(ranges: &[KeyRange]) -> Vec<u8> {
        (0..16).filter(|n| ranges.iter().any(|range| range.contains(&user(*n)))).collect()
    }

    proptest! {
        #[test]
        fn ranges_overlap_if_they_have_a_key_in_common(ones in ranges(), others in ranges()) {
            let others_keys = keys_of(&others);
            let is_common = keys_of(&ones).iter().any(|key| others_keys.contains(key));
            prop_assert_eq!(overlap(&ones, &others), is_common);
        }

        #[test]
        fn a_request_is_granted_once_all_earlier_ones_for_its_keys_have_ended(
            steps in prop::collection::vec((any::<bool>(), ranges(), any::<usize>()), 1..60)
        ) {
            let locks = MoveLocks::default();
            // Requests that have not ended, in their order, and what grants each unless it is granted at once.
            let mut open = Vec::new();
            for (is_request, ranges, which) in steps {
                if is_request || open.is_empty() {
                    let (lock, granted) = locks.request(ranges.clone());
                    open.push((ranges, lock, granted));
                } else {
                    // Whether it is granted or not, as if its client had gone.
                    open.remove(which % open.len());
                }
                for at in 0..open.len() {
                    let keys = keys_of(&open[at].0);
                    let is_free = |(ranges, ..): &(Vec<KeyRange>, _, _)| {
                        keys_of(ranges).iter().all(|key| !keys.contains(key))
                    };
                    let expected = open[..at].iter().all(is_free);
                    let granted = open[at].2.as_mut();
                    let granted = granted.is_none_or(|granted| granted.try_recv().is_ok());
                    if granted {
                        open[at].2 = None;
                    }
                    prop_assert_eq!(granted, expected, "request {} of {}", at, open.len());
                }
            }
        }
    }

    #[test]
    fn whole_partitions_are_locked() {
        let mut design = Design::new(Site(0));
        for n in [10, 20, 30, 40] {
            let start = design.of(&user(n)).range.start.clone();
            let change = Change { start, operator: Operator::Split(user(n)) };
            design.change(&change).expect("it can be split there");
        }
        let reads = [KeyRange { start: user(12), end: Some(user(21)) }];
        let locked = ranges_of(&design, &reads, &[user(44), user(45), user(25)]);
        let tenth_on = KeyRange { start: user(10), end: Some(user(30)) };
        assert_eq!(locked, [tenth_on, KeyRange { start: user(40), end: None }]);
    }

    #[tokio::test]
    async fn a_request_that_waits_is_granted_when_the_lock_is_dropped() {
        let locks = MoveLocks::default();
        let (ones, others) = ([KeyRange::only(&user(1))], [KeyRange::only(&user(2))]);
        let held = locks.lock(ones.to_vec()).await;
        let _other = locks.lock(others.to_vec()).await;
        let mut waiting = Box::pin(locks.lock(ones.to_vec()));
        let is_pending =
            poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending()));
        assert!(is_pending.await);
        drop(held);
        drop(waiting.await);
        assert!(locks.requests().all.len() == 1, "the other one is held");
    }
}
