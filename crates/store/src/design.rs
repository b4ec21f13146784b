//! The design: the partitions, their masters, and their replicas.
//!
//! The design is a function of the log alone. Two readers of the same prefix of the log know the same design,
//! and the position of a log entry alone decides whether it counts. So the order of the log is the only thing
//! to agree on: a change in the log has happened, whichever process dies at whichever message, and a change
//! that is not in the log has not. No partition is ever without a master: a remaster is one log entry that
//! releases and grants (§4.4.3).
//!
//! Invariants (§3.1):
//! 1. Partitions cover the space of keys without a gap and without an overlap.
//! 2. A partition's master is not among its replicas.
//! 3. A log entry counts only in its author's last epoch, and only as the next of that epoch: behind a
//!    missing entry none counts, and none counts twice. The author of an entry that counts masters the
//!    partition: only the author itself, or a fence, could have taken it away.
//! 4. A partition's version never shrinks at any key.
//! 5. A partition that is pinned to a site is mastered by another site only from that site's fence until its
//!    return.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::key::{Key, KeyRange};
use crate::record::{Body, Change, Epoch, LogEntry, Operator, Site, Write};

mod before_pins;
#[cfg(test)]
mod tests;

pub(crate) use before_pins::BeforePins;

/// All partitions, by where they begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Design {
    partitions: BTreeMap<Key, Partition>,
    epochs: HashMap<Site, EpochState>,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Its keys.
    pub range: KeyRange,
    /// Counts its commits and changes.
    pub version: u64,
    /// The site that writes it.
    pub master: Site,
    /// The sites that have copies, besides.
    pub replicas: BTreeSet<Site>,
    /// The site that is to be its master, if that is not to be any.
    pub pin: Option<Site>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct EpochState {
    epoch: Epoch,
    /// The number of its last log entry.
    number: u64,
    is_fenced: bool,
}

/// The effect of a log entry: it counts, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Counts,
    /// It was written by an epoch of its site that was over, or out of that epoch's order.
    Void,
    /// Its change was impossible where it stands: nothing happened.
    Refused(Impossible),
}

/// The reason why a change cannot be made to a design.
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
    /// Their pins differ.
    #[error("partitions are merged when they are pinned to the same site, or neither of them is")]
    PinsDiffer,
    /// Another site is to be its master.
    #[error("the partition is pinned to {0}: unpin it, or pin it to another site")]
    Pinned(Site),
    /// No site is.
    #[error("the partition is not pinned")]
    NotPinned,
    /// The site has a copy already.
    #[error("the site has a copy already")]
    HasCopy,
    /// The site has no replica.
    #[error("the site has no replica")]
    NoReplica,
    /// The epoch in which the site made its copy is over.
    #[error("the site has lost its copy")]
    Lost,
}

impl Partition {
    /// True if a site has a copy.
    #[must_use]
    pub fn is_at(&self, site: Site) -> bool {
        self.master == site || self.replicas.contains(&site)
    }

    /// The same, and the site that it is pinned to.
    pub(crate) fn known_sites(&self) -> impl Iterator<Item = Site> {
        self.sites().chain(self.pin)
    }

    fn hand_over(&mut self, to: Site) {
        self.replicas.remove(&to);
        self.replicas.insert(self.master);
        self.master = to;
    }

    /// The sites that have copies, the master first.
    pub fn sites(&self) -> impl Iterator<Item = Site> {
        std::iter::once(self.master).chain(self.replicas.iter().copied())
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
            pin: None,
        };
        Self { partitions: BTreeMap::from([(Key::least(), all)]), epochs: HashMap::new() }
    }

    /// The same design, of keys in memory of their own.
    #[must_use]
    pub fn apart(&self) -> Self {
        let apart = |(start, partition): (&Key, &Partition)| {
            let range = partition.range.apart();
            (start.apart(), Partition { range, ..partition.clone() })
        };
        Self {
            partitions: self.partitions.iter().map(apart).collect(),
            epochs: self.epochs.clone(),
        }
    }

    /// True if it is a valid design (invariants 1 and 2), which is not certain after it was read.
    pub(crate) fn is_whole(&self) -> bool {
        let mut end = Some(Key::least());
        let follows = |(start, partition): (&Key, &Partition)| {
            let begins = Some(start) == end.as_ref() && partition.range.start == *start;
            end.clone_from(&partition.range.end);
            let is_one = !partition.range.is_empty();
            begins && is_one && !partition.replicas.contains(&partition.master)
        };
        self.partitions.iter().all(follows) && end.is_none()
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

    /// The only site that can become a partition's master, if there is only one: a pin does not bind
    /// while its site is dead, or what others inherit could not come together.
    #[must_use]
    pub fn bound_to(&self, partition: &Partition) -> Option<Site> {
        partition.pin.filter(|pin| !self.is_fenced(*pin))
    }

    /// A site's epoch now; 0 before the first.
    #[must_use]
    pub fn epoch(&self, site: Site) -> Epoch {
        self.epochs.get(&site).map_or(Epoch(0), |epoch| epoch.epoch)
    }

    /// True if a site was given up for dead, and has not begun a new epoch.
    #[must_use]
    pub fn is_fenced(&self, site: Site) -> bool {
        self.epochs.get(&site).is_some_and(|epoch| epoch.is_fenced)
    }

    /// The sites that take part, in any order.
    pub fn live_sites(&self) -> impl Iterator<Item = Site> {
        let live = |(_, state): &(&Site, &EpochState)| state.epoch > Epoch(0) && !state.is_fenced;
        self.epochs.iter().filter(live).map(|(site, _)| *site)
    }

    /// Goes on by the next entry of the log.
    ///
    /// # Panics
    /// At a log entry that cannot be valid: its author does not master the partition.
    pub fn follow(&mut self, entry: &LogEntry) -> Verdict {
        self.follow_as(entry, true)
    }

    /// Goes on by the next entry of a stream that leaves out entries of this author, and none but commits of
    /// those that count. The versions of the partitions that these wrote are behind the log's from then on.
    pub(crate) fn follow_part(&mut self, entry: &LogEntry) -> Verdict {
        self.follow_as(entry, false)
    }

    /// The version of a partition where the stream left out commits to it.
    pub(crate) fn correct_version(&mut self, start: &Key, version: u64) {
        if let Some(partition) = self.partitions.get_mut(start) {
            assert!(partition.version <= version, "a version never shrinks");
            partition.version = version;
        }
    }

    /// True if this design is as a site that receives a part of the log should know it: all of `whole` but
    /// versions and numbers that do not concern the site.
    #[cfg(test)]
    pub(crate) fn is_as_known_at(&self, whole: &Self, site: Site) -> bool {
        let is_alike = |(one, of): (&Partition, &Partition)| {
            let version = if of.is_at(site) { of.version } else { one.version };
            Partition { version, ..of.clone() } == *one && one.version <= of.version
        };
        let epoch_of = |design: &Self, site| (design.epoch(site), design.is_fenced(site));
        self.partitions.len() == whole.partitions.len()
            && self.partitions().zip(whole.partitions()).all(is_alike)
            && whole.epochs.keys().all(|site| epoch_of(self, *site) == epoch_of(whole, *site))
    }

    fn follow_as(&mut self, entry: &LogEntry, is_whole: bool) -> Verdict {
        let author = entry.by;
        let epoch = self.epochs.entry(author.site).or_default();
        if let Body::Join = entry.body {
            if author.epoch <= epoch.epoch {
                return Verdict::Void;
            }
            *epoch = EpochState { epoch: author.epoch, number: author.number, is_fenced: false };
            return Verdict::Counts;
        }
        if author.epoch != epoch.epoch || epoch.is_fenced {
            return Verdict::Void;
        }
        // The author of a fence does not know how many log entries the epoch wrote.
        if entry.body != Body::Fence {
            let is_next = match is_whole {
                true => author.number == epoch.number + 1,
                false => author.number > epoch.number,
            };
            if !is_next {
                return Verdict::Void;
            }
            epoch.number = author.number;
        }
        match &entry.body {
            Body::Commit(writes) => {
                writes.iter().for_each(|write| self.write(author.site, write, is_whole));
            }
            Body::Change(change) => {
                let partition = self.partitions.get(&change.start);
                let master = partition.map(|partition| partition.master);
                assert_eq!(master, Some(author.site), "a partition is changed by its master");
                if let Err(impossible) = self.change(change) {
                    return Verdict::Refused(impossible);
                }
            }
            Body::Fence => {
                epoch.is_fenced = true;
                self.inherit(author.site);
            }
            Body::Join => unreachable!("handled above"),
        }
        Verdict::Counts
    }

    fn write(&mut self, by: Site, write: &Write, is_whole: bool) {
        let partition = self.partitions.get_mut(&write.start).expect("a partition begins there");
        assert_eq!(partition.master, by, "a partition is written by its master");
        let is_next = partition.version + 1 == write.version;
        let is_later = !is_whole && partition.version < write.version;
        assert!(is_next || is_later, "each commit is the next version");
        // A thread that follows the whole log meets mostly keys that lie in no cache of its own.
        debug_assert!(write.rows.iter().all(|(key, _)| partition.range.contains(key)));
        partition.version = write.version;
    }

    /// Checks that a change can be made (the preconditions of §3.1).
    ///
    /// # Errors
    /// The precondition that fails.
    pub fn check(&self, change: &Change) -> Result<(), Impossible> {
        let partition = self.partitions.get(&change.start).ok_or(Impossible::NoPartition)?;
        let holds = |condition, or| if condition { Ok(()) } else { Err(or) };
        match &change.operator {
            Operator::Split(at) => {
                holds(*at > change.start && partition.range.contains(at), Impossible::NotWithin)
            }
            Operator::Merge => {
                let end = partition.range.end.as_ref().ok_or(Impossible::NothingBehind)?;
                let behind = &self.partitions[end];
                let is_alike = partition.master == behind.master;
                holds(is_alike && partition.replicas == behind.replicas, Impossible::NotAlike)?;
                holds(partition.pin == behind.pin, Impossible::PinsDiffer)
            }
            Operator::AddReplica(site, epoch) => {
                let is_alive = self.epoch(*site) == *epoch && !self.is_fenced(*site);
                holds(is_alive, Impossible::Lost)?;
                holds(!partition.is_at(*site), Impossible::HasCopy)
            }
            Operator::RemoveReplica(site) => {
                holds(partition.replicas.contains(site), Impossible::NoReplica)
            }
            Operator::Remaster(site) => {
                if let Some(pin) = self.bound_to(partition).filter(|pin| pin != site) {
                    return Err(Impossible::Pinned(pin));
                }
                holds(partition.replicas.contains(site), Impossible::NoReplica)
            }
            Operator::Pin(site) => holds(partition.is_at(*site), Impossible::NoReplica),
            Operator::Unpin => holds(partition.pin.is_some(), Impossible::NotPinned),
        }
    }

    /// Changes the design, which is as it was where that is impossible.
    ///
    /// # Errors
    /// See [`Impossible`].
    pub fn change(&mut self, change: &Change) -> Result<(), Impossible> {
        self.check(change)?;
        let partition = self.partitions.get_mut(&change.start).expect("it was looked at");
        partition.version += 1;
        match &change.operator {
            Operator::Split(at) => {
                let mut behind = partition.clone();
                let at = at.apart();
                partition.range.end = Some(at.clone());
                behind.range.start = at.clone();
                self.partitions.insert(at, behind);
            }
            Operator::Merge => {
                let end = partition.range.end.clone().expect("it was looked at");
                let behind = self.partitions.remove(&end).expect("partitions leave no gap");
                let partition = self.partitions.get_mut(&change.start).expect("it was there");
                partition.version = partition.version.max(behind.version + 1);
                partition.range.end = behind.range.end;
            }
            Operator::AddReplica(site, _) => _ = partition.replicas.insert(*site),
            Operator::RemoveReplica(site) => _ = partition.replicas.remove(site),
            Operator::Remaster(to) => partition.hand_over(*to),
            Operator::Pin(to) => {
                partition.pin = Some(*to);
                if partition.master != *to {
                    partition.hand_over(*to);
                }
            }
            Operator::Unpin => partition.pin = None,
        }
        Ok(())
    }

    /// The partitions of a dead site go to the site with a replica that masters least; and the dead site
    /// has replicas of nothing. What has no other copy stays its own: it is written again when the
    /// site is back. What was pinned to it still is.
    fn inherit(&mut self, dead: Site) {
        let mut mastered: BTreeMap<Site, usize> = BTreeMap::new();
        for partition in self.partitions.values_mut() {
            partition.replicas.remove(&dead);
            *mastered.entry(partition.master).or_default() += 1;
        }
        for partition in self.partitions.values_mut().filter(|one| one.master == dead) {
            let load = |site: &Site| mastered.get(site).copied().unwrap_or(0);
            let Some(&heir) = partition.replicas.iter().min_by_key(|site| load(site)) else {
                continue;
            };
            *mastered.entry(heir).or_default() += 1;
            partition.replicas.remove(&heir);
            partition.master = heir;
            partition.version += 1;
        }
    }
}
