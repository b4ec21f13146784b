//! The design: which partitions there are, who masters them, and who has replicas.
//!
//! The idea: the design is what the log says, and nothing else. Whoever has read the log up to a
//! position knows the same design as everybody who has, and whether a frame counts is decided by its
//! place alone. So there is nothing to agree on but the order of the log: a change that was written
//! has happened, whoever dies at whatever message, and one that was not has not. No partition is ever
//! without a master: a remaster is one frame, release and grant in one (§4.4.3).
//!
//! Invariants (§3.1):
//! 1. Partitions cover the space of keys without a gap and without an overlap.
//! 2. A partition's master is not among its replicas.
//! 3. A frame counts only if its author's epoch is the site's last; a commit's and a change's author
//!    masters the partition, which only a bug can break, because a master knows all frames before
//!    its own that could take the partition from it, but for a fence.
//! 4. A partition's version never shrinks at any key.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::key::{Key, KeyRange};
use crate::record::{Body, Change, Frame, Operator, Site, Write};

#[cfg(test)]
mod tests;

/// All partitions, by where they begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Design {
    partitions: BTreeMap<Key, Partition>,
    lives: HashMap<Site, Life>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its keys.
    pub range: KeyRange,
    /// Counts its commits and changes.
    pub version: u64,
    /// The site that writes it.
    pub master: Site,
    /// The sites that have copies, besides.
    pub replicas: BTreeSet<Site>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    epoch: u64,
    is_fenced: bool,
}

/// Whether a frame counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Counts,
    /// It was written by a life of its site that was over.
    Void,
}

/// Why a change cannot be made to a design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// No partition begins there.
    #[error("no partition begins there")]
    NoPartition,
    /// Nothing would be on one side.
    #[error("a partition is split at a key within it, not at its first")]
    NotWithin,
    /// It is the last one.
    #[error("there is no partition behind it")]
    NothingBehind,
    /// Masters or replicas differ.
    #[error("partitions are merged when they have the same master and the same replicas")]
    NotAlike,
    /// The site has a copy already.
    #[error("the site has a copy already")]
    HasCopy,
    /// The site has no replica.
    #[error("the site has no replica")]
    NoReplica,
}

impl Partition {
    /// Whether a site has a copy.
    #[must_use]
    pub fn is_at(&self, site: Site) -> bool {
        self.master == site || self.replicas.contains(&site)
    }
}

impl Design {
    /// One partition of everything, without a replica.
    #[must_use]
    pub fn new(master: Site) -> Self {
        let all = Partition {
            range: KeyRange::everything(),
            version: 0,
            master,
            replicas: BTreeSet::new(),
        };
        Self { partitions: BTreeMap::from([(Key::least(), all)]), lives: HashMap::new() }
    }

    /// The partitions, in the order of their keys.
    pub fn partitions(&self) -> impl DoubleEndedIterator<Item = &Partition> {
        self.partitions.values()
    }

    /// The partition that a key belongs to.
    #[must_use]
    pub fn of(&self, key: &Key) -> &Partition {
        let before = self.partitions.range(..=key).next_back();
        before.expect("partitions cover all keys").1
    }

    /// The partition that begins at a key.
    #[must_use]
    pub fn beginning_at(&self, start: &Key) -> Option<&Partition> {
        self.partitions.get(start)
    }

    /// The partitions that have keys in a range.
    pub fn within(&self, range: &KeyRange) -> impl Iterator<Item = &Partition> {
        let first = self.of(&range.start).range.start.clone();
        let rest = self.partitions.range(first..).map(|(_, partition)| partition);
        rest.take_while(|partition| partition.range.overlaps(range))
    }

    /// The epoch of a site's life now; 0 before the first.
    #[must_use]
    pub fn epoch(&self, site: Site) -> u64 {
        self.lives.get(&site).map_or(0, |life| life.epoch)
    }

    /// Whether a site was given up for dead, and has not begun a new life.
    #[must_use]
    pub fn is_fenced(&self, site: Site) -> bool {
        self.lives.get(&site).is_some_and(|life| life.is_fenced)
    }

    /// Goes on by the next frame of the log.
    ///
    /// # Panics
    /// At a frame that nobody may have written: its author does not master the partition.
    pub fn follow(&mut self, frame: &Frame) -> Verdict {
        let author = frame.by;
        let life = self.lives.entry(author.site).or_default();
        if let Body::Join = frame.body {
            if author.epoch <= life.epoch {
                return Verdict::Void;
            }
            *life = Life { epoch: author.epoch, is_fenced: false };
            return Verdict::Counts;
        }
        if author.epoch != life.epoch || life.is_fenced {
            return Verdict::Void;
        }
        match &frame.body {
            Body::Commit(writes) => writes.iter().for_each(|write| self.write(author.site, write)),
            Body::Change(change) => {
                let partition = self.partitions.get(&change.start);
                let master = partition.map(|partition| partition.master);
                assert_eq!(master, Some(author.site), "a partition is changed by its master");
                let made = self.change(change);
                made.expect("a master changes only what it can");
            }
            Body::Fence(heirs) => {
                life.is_fenced = true;
                self.inherit(author.site, heirs);
            }
            Body::Join => unreachable!("handled above"),
        }
        Verdict::Counts
    }

    fn write(&mut self, by: Site, write: &Write) {
        let partition = self.partitions.get_mut(&write.start).expect("a partition begins there");
        assert_eq!(partition.master, by, "a partition is written by its master");
        assert_eq!(partition.version + 1, write.version, "each commit is the next version");
        assert!(write.rows.iter().all(|(key, _)| partition.range.contains(key)));
        partition.version = write.version;
    }

    /// Changes the design (§3.1). It is as it was where that is impossible.
    ///
    /// # Errors
    /// See [`Impossible`].
    pub fn change(&mut self, change: &Change) -> Result<(), Impossible> {
        let start = &change.start;
        let partition = self.partitions.get_mut(start).ok_or(Impossible::NoPartition)?;
        match &change.operator {
            Operator::Split(at) => {
                if at <= start || !partition.range.contains(at) {
                    return Err(Impossible::NotWithin);
                }
                partition.version += 1;
                let mut behind = partition.clone();
                partition.range.end = Some(at.clone());
                behind.range.start = at.clone();
                self.partitions.insert(at.clone(), behind);
            }
            Operator::Merge => {
                let end = partition.range.end.clone().ok_or(Impossible::NothingBehind)?;
                let first = partition.clone();
                let behind = &self.partitions[&end];
                if (first.master, &first.replicas) != (behind.master, &behind.replicas) {
                    return Err(Impossible::NotAlike);
                }
                let behind = self.partitions.remove(&end).expect("it is there");
                let merged = Partition {
                    range: KeyRange { start: start.clone(), end: behind.range.end },
                    version: first.version.max(behind.version) + 1,
                    ..first
                };
                self.partitions.insert(start.clone(), merged);
            }
            Operator::AddReplica(site) => {
                if partition.is_at(*site) {
                    return Err(Impossible::HasCopy);
                }
                partition.version += 1;
                partition.replicas.insert(*site);
            }
            Operator::RemoveReplica(site) => {
                if !partition.replicas.remove(site) {
                    return Err(Impossible::NoReplica);
                }
                partition.version += 1;
            }
            Operator::Remaster(to) => {
                if !partition.replicas.remove(to) {
                    return Err(Impossible::NoReplica);
                }
                partition.version += 1;
                partition.replicas.insert(partition.master);
                partition.master = *to;
            }
        }
        Ok(())
    }

    /// What a dead site mastered goes to its heirs, and it has replicas of nothing. What has no other
    /// copy stays its own: it is written again when the site is back.
    fn inherit(&mut self, dead: Site, heirs: &[(Key, Site)]) {
        for partition in self.partitions.values_mut() {
            partition.replicas.remove(&dead);
        }
        for (start, heir) in heirs {
            let partition = self.partitions.get_mut(start).expect("a partition begins there");
            assert_eq!(partition.master, dead, "what is inherited was the dead site's");
            assert!(partition.replicas.remove(heir), "an heir has a copy");
            partition.version += 1;
            partition.master = *heir;
        }
    }
}
