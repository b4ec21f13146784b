//! The store's design: the partitions' bounds, their masters, their replicas and their pins.
//!
//! The design is a function of the log alone. Two readers of the same prefix of the log know the same design, and the
//! position of a log entry alone decides whether the entry takes effect. So sites need to agree only on the order of
//! the log: a change in the log has happened, whichever process dies at whichever message, and a change that is not
//! in the log has not. No partition is ever without a master: a remaster is one log entry that takes the partition
//! from the old master and gives it to the new one (§4.4.3).
//!
//! Invariants (§3.1):
//! 1. Partitions cover the space of keys without a gap and without an overlap.
//! 2. A partition's master is not among its replicas.
//! 3. A log entry counts only in its author's last epoch, and only as the next entry of that epoch: after a
//!    missing entry no entry counts, and none counts twice. The author of an entry that counts masters the
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

/// The store's design: the bounds, master, replicas and pin of each partition, by the partition's first key; and the
/// state of each site's epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Design {
    partitions: BTreeMap<Key, Partition>,
    epochs: HashMap<Site, EpochState>,
}

/// A partition of the key space: its range of keys, its version, its master, its replicas and its pin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// The keys that belong to the partition.
    pub range: KeyRange,
    /// The partition's version: each commit that writes to the partition, and each change of its bounds, master,
    /// replicas or pin, increases it by at least 1.
    pub version: u64,
    /// The site that executes all writes to the partition.
    pub master: Site,
    /// The sites that have replicas of the partition; the master is not among them.
    pub replicas: BTreeSet<Site>,
    /// The site that must master the partition unless that site is declared dead; `None` if any site may be the
    /// master.
    pub pin: Option<Site>,
}

/// The present epoch of one site, as the log shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct EpochState {
    /// The site's latest epoch.
    epoch: Epoch,
    /// The number of the epoch's last log entry that was in order.
    number: u64,
    /// True if the log has declared this epoch dead.
    is_fenced: bool,
}

/// The effect of a log entry on the design, as decided at the entry's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The log entry takes effect.
    Counts,
    /// The log entry has no effect: its author's epoch was over, or the entry is not the next of that epoch.
    Void,
    /// The log entry is a change of the design that was impossible at its position: the design stays as it was.
    Refused(Impossible),
    /// The log entry is the commit of a distributed transaction, and one of its participants' epochs is over: nothing
    /// is written.
    Aborted,
}

/// The entries that the follower of a log does not receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Omitted {
    /// The follower receives the complete log.
    Nothing,
    /// The follower receives all entries of the author, and not all commits of others.
    OfOthers,
    /// The follower receives some of the author's commits only.
    Commits,
}

/// The reason why a change of the design is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Impossible {
    /// No partition begins at [`Change::start`].
    #[error("no partition begins there")]
    NoPartition,
    /// The key at which to split is the partition's first key, or is outside the partition.
    #[error("a partition is split at a key within it, not at its first")]
    NotWithin,
    /// The partition to merge is the last one of the key space: none follows.
    #[error("there is no partition behind it")]
    NothingBehind,
    /// The two partitions to merge have different masters or replicas.
    #[error("partitions are merged when they have the same master and the same replicas")]
    NotAlike,
    /// The two partitions to merge have different pins.
    #[error("partitions are merged when they are pinned to the same site, or neither of them is")]
    PinsDiffer,
    /// The partition is pinned to this live site, so no other site can become the master.
    #[error("the partition is pinned to {0}: unpin it, or pin it to another site")]
    Pinned(Site),
    /// The partition to unpin is not pinned.
    #[error("the partition is not pinned")]
    NotPinned,
    /// The site that is to get a replica has a copy of the partition already, or is installing one.
    #[error("the site has a copy already")]
    HasCopy,
    /// The site has no replica of the partition to remove or to promote; for a pin, it has no copy at all.
    #[error("the site has no replica")]
    NoReplica,
    /// The epoch in which the site installed its replica is over, so the site no longer has the rows.
    #[error("the site has lost its copy")]
    Lost,
}

impl Partition {
    /// Returns true if the site has a copy of the partition, as its master or as a replica.
    #[must_use]
    pub fn is_at(&self, site: Site) -> bool {
        self.master == site || self.replicas.contains(&site)
    }

    /// Returns the sites that have copies of the partition, the master first, and then the site that the partition is
    /// pinned to. A site can occur twice.
    pub(crate) fn known_sites(&self) -> impl Iterator<Item = Site> {
        self.sites().chain(self.pin)
    }

    /// Makes `to` the master and the former master a replica.
    fn hand_over(&mut self, to: Site) {
        self.replicas.remove(&to);
        self.replicas.insert(self.master);
        self.master = to;
    }

    /// Returns the sites that have copies of the partition, the master first.
    pub fn sites(&self) -> impl Iterator<Item = Site> {
        std::iter::once(self.master).chain(self.replicas.iter().copied())
    }
}

impl Design {
    /// Returns a design with one partition of all keys, mastered by `master`, without replicas.
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

    /// Returns a copy of the design whose keys share no memory with those of this design: see [`Key::unshared`].
    #[must_use]
    pub fn unshared(&self) -> Self {
        let apart = |(start, partition): (&Key, &Partition)| {
            let range = partition.range.unshared();
            (start.unshared(), Partition { range, ..partition.clone() })
        };
        Self {
            partitions: self.partitions.iter().map(apart).collect(),
            epochs: self.epochs.clone(),
        }
    }

    /// Returns true if the design satisfies invariants 1 and 2 of this module, which must be checked after the design
    /// was read from a file.
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

    /// Returns all partitions, in key order.
    pub fn partitions(&self) -> impl DoubleEndedIterator<Item = &Partition> {
        self.partitions.values()
    }

    /// Returns the partition whose range contains the key.
    #[must_use]
    pub fn of(&self, key: &Key) -> &Partition {
        let before = self.partitions.range(..=key).next_back();
        before.expect("partitions cover all keys").1
    }

    /// Returns the partition whose first key is `start`, or `None` if no partition begins there.
    #[must_use]
    pub fn beginning_at(&self, start: &Key) -> Option<&Partition> {
        self.partitions.get(start)
    }

    /// Returns the partitions whose ranges overlap the given range, in key order.
    pub fn within(&self, range: &KeyRange) -> impl Iterator<Item = &Partition> {
        let first = self.of(&range.start).range.start.clone();
        let rest = self.partitions.range(first..).map(|(_, partition)| partition);
        rest.take_while(|partition| partition.range.overlaps(range))
    }

    /// Returns the only site that may master the partition, or `None` if any site may. A pin does not bind while its
    /// site is dead: otherwise partitions that other sites inherited could not be brought together.
    #[must_use]
    pub fn bound_to(&self, partition: &Partition) -> Option<Site> {
        partition.pin.filter(|pin| !self.is_fenced(*pin))
    }

    /// Returns the latest epoch of the site in the log, also if it was fenced; 0 if the site never began one.
    #[must_use]
    pub fn epoch(&self, site: Site) -> Epoch {
        self.epochs.get(&site).map_or(Epoch(0), |epoch| epoch.epoch)
    }

    /// Returns true if the log has declared the site dead, and the site has not begun a new epoch since.
    #[must_use]
    pub fn is_fenced(&self, site: Site) -> bool {
        self.epochs.get(&site).is_some_and(|epoch| epoch.is_fenced)
    }

    /// Returns the sites that have begun an epoch and are not fenced, in any order.
    pub fn live_sites(&self) -> impl Iterator<Item = Site> {
        let live = |(_, state): &(&Site, &EpochState)| state.epoch > Epoch(0) && !state.is_fenced;
        self.epochs.iter().filter(live).map(|(site, _)| *site)
    }

    /// Returns true if the site is in this epoch, which has not ended.
    #[must_use]
    pub fn is_in_epoch(&self, site: Site, epoch: Epoch) -> bool {
        self.epoch(site) == epoch && !self.is_fenced(site)
    }

    /// Applies the next entry of the complete log, and returns its verdict.
    ///
    /// # Panics
    /// Panics at a log entry that counts but cannot be valid, for example because its author does not master the
    /// partition.
    pub fn follow(&mut self, entry: &LogEntry) -> Verdict {
        self.follow_as(entry, Omitted::Nothing)
    }

    /// Applies the next entry of a subscription's stream, of which the site that follows is the author, and returns its
    /// verdict. The stream omits none of these; but it omits commits of others to partitions that a distributed commit
    /// writes.
    pub(crate) fn follow_own(&mut self, entry: &LogEntry) -> Verdict {
        self.follow_as(entry, Omitted::OfOthers)
    }

    /// Applies the next entry of a subscription's stream, and returns its verdict. The stream omits void entries, and
    /// some of the commits that count; so the entry's number may exceed the author's last one by more than 1. The
    /// version of a partition that an omitted commit wrote is lower than in the log from then on.
    pub(crate) fn follow_part(&mut self, entry: &LogEntry) -> Verdict {
        self.follow_as(entry, Omitted::Commits)
    }

    /// Raises the version of the partition that begins at `start`, after the stream omitted commits to that
    /// partition. Does nothing if no partition begins there.
    pub(crate) fn correct_version(&mut self, start: &Key, version: u64) {
        if let Some(partition) = self.partitions.get_mut(start) {
            assert!(partition.version <= version, "a version never shrinks");
            partition.version = version;
        }
    }

    /// Returns true if this design equals `whole` as far as a site that receives a part of the log knows it:
    /// in all but versions of partitions that the site has no copy of, and entry numbers.
    #[cfg(test)]
    pub(crate) fn matches_as_known_at(&self, whole: &Self, site: Site) -> bool {
        let is_alike = |(one, of): (&Partition, &Partition)| {
            let version = if of.is_at(site) { of.version } else { one.version };
            Partition { version, ..of.clone() } == *one && one.version <= of.version
        };
        let epoch_of = |design: &Self, site| (design.epoch(site), design.is_fenced(site));
        self.partitions.len() == whole.partitions.len()
            && self.partitions().zip(whole.partitions()).all(is_alike)
            && whole.epochs.keys().all(|site| epoch_of(self, *site) == epoch_of(whole, *site))
    }

    /// Applies a log entry. `omitted` says which entries before it may be missing.
    fn follow_as(&mut self, entry: &LogEntry, omitted: Omitted) -> Verdict {
        let is_whole = omitted != Omitted::Commits;
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
                writes.iter().for_each(|write| self.write(&[author.site], write, is_whole));
            }
            Body::DistributedCommit(commit) => {
                let is_over = |(site, epoch): &(Site, Epoch)| !self.is_in_epoch(*site, *epoch);
                if commit.participants.iter().any(is_over) {
                    return Verdict::Aborted;
                }
                let sites: Vec<Site> = commit.participants.iter().map(|(site, _)| *site).collect();
                let is_whole = omitted == Omitted::Nothing;
                commit.writes.iter().for_each(|write| self.write(&sites, write, is_whole));
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

    /// Advances the version of the partition that a commit writes, of which one of the sites `by` must be the master.
    fn write(&mut self, by: &[Site], write: &Write, is_whole: bool) {
        let partition = self.partitions.get_mut(&write.start).expect("a partition begins there");
        assert!(by.contains(&partition.master), "a partition is written by its master");
        let is_next = partition.version + 1 == write.version;
        let is_later = !is_whole && partition.version < write.version;
        assert!(is_next || is_later, "each commit is the next version");
        // Checked only in debug builds: a thread that follows the whole log mostly meets keys that are in
        // none of its CPU caches.
        debug_assert!(write.rows.iter().all(|(key, _)| partition.range.contains(key)));
        partition.version = write.version;
    }

    /// Checks that a change of the design is possible (the preconditions of §3.1), without applying it.
    ///
    /// # Errors
    /// Returns the precondition that does not hold.
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

    /// Applies a change to the design. If the change is impossible, the design stays as it was.
    ///
    /// # Errors
    /// Returns the precondition that does not hold: see [`Impossible`].
    pub fn change(&mut self, change: &Change) -> Result<(), Impossible> {
        self.check(change)?;
        let partition = self.partitions.get_mut(&change.start).expect("it was looked at");
        partition.version += 1;
        match &change.operator {
            Operator::Split(at) => {
                let mut behind = partition.clone();
                let at = at.unshared();
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

    /// Assigns each partition that the dead site masters to the site with a replica of it that masters the fewest
    /// partitions, and removes the dead site from all replicas. A partition without another copy stays with the dead
    /// site, and is writable again after that site returns. Pins to the dead site remain.
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
