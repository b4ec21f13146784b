//! Which life of a site comes next, and who began one.
//!
//! A log in a folder has one process at a time, and lives are counted. One in Kafka can be opened by two
//! at once, which know nothing of each other: so the epoch of a life says also which process began it.
//! Then two that begin the same life are two lives, of which the log takes one; and a process that finds
//! a site of its own begun anew by another one is not wanted any more. Were it to begin the site once
//! more, the two would take it from each other for ever.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// In an epoch of many processes: the count of lives is above, the process below.
const PROCESS_BITS: u32 = 32;

/// How a process's sites begin their lives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lives {
    /// None where there is no other.
    process: Option<u32>,
}

impl Lives {
    pub(super) fn of_one_process() -> Self {
        Self { process: None }
    }

    /// Of a process among others, which is told from them by chance.
    pub(super) fn of_one_of_many() -> Self {
        let drawn = RandomState::new().build_hasher().finish();
        Self { process: Some((drawn >> PROCESS_BITS) as u32) }
    }

    /// The epoch with which a process begins a site that had one, when its sites had these. One of many
    /// begins all of them above all: of two processes that start at once, one has the greater epochs.
    pub(super) fn first(self, own: u64, all: impl Iterator<Item = u64>) -> u64 {
        self.next(if self.process.is_some() { all.fold(own, u64::max) } else { own })
    }

    /// The epoch of the life behind one.
    pub(super) fn next(self, epoch: u64) -> u64 {
        match self.process {
            None => epoch + 1,
            Some(process) => ((epoch >> PROCESS_BITS) + 1) << PROCESS_BITS | u64::from(process),
        }
    }

    /// Whether another process began this life.
    pub(super) fn is_anothers(self, epoch: u64) -> bool {
        self.process.is_some_and(|process| epoch & u64::from(u32::MAX) != u64::from(process))
    }
}

/// Which of its site's lives has an epoch, from 1 on.
pub(crate) fn count(epoch: u64) -> u64 {
    if epoch >> PROCESS_BITS == 0 { epoch } else { epoch >> PROCESS_BITS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_are_counted_and_each_process_knows_its_own() {
        let alone = Lives::of_one_process();
        assert_eq!((alone.next(0), alone.next(7), count(alone.next(7))), (1, 8, 8));
        assert!(!alone.is_anothers(8));
        let (one, other) = (Lives { process: Some(7) }, Lives { process: Some(9) });
        assert_eq!(
            (alone.first(3, [9].into_iter()), count(one.first(3, [9 << 32].into_iter()))),
            (4, 10)
        );
        let first = one.next(0);
        assert_eq!((count(first), count(one.next(first)), count(other.next(first))), (1, 2, 2));
        assert!(one.next(first) > other.next(0) && other.next(first) > one.next(first));
        assert!(other.is_anothers(first) && !one.is_anothers(one.next(other.next(first))));
    }
}
