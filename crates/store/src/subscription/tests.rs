//! Deliveries against the invariants, over random logs: an oracle takes each entry by itself and asks the whole log's
//! design.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::record::{Author, Change, Operator, Update};

const SITES: u16 = 4;
const SUBSCRIBER: Site = Site(1);
const EPOCH: Epoch = Epoch(3);

fn key(n: u8) -> Key {
    if n == 0 { Key::least() } else { Key::from_bytes(&[n]) }
}

/// A log as it could be, the subscription to it, and the design that the subscriber makes of what it receives.
struct World {
    dice: StdRng,
    whole: Design,
    numbers: [u64; SITES as usize],
    known: Position,
    subscription: Subscription,
    requested: BTreeMap<Key, u64>,
    told: Design,
    told_known: Position,
    /// Deliveries: entries whole, entries cut, passed, corrections.
    seen: [usize; 4],
}

impl World {
    fn new(seed: u64) -> Self {
        let design = Design::new(Site(0));
        let mut world = Self {
            dice: StdRng::seed_from_u64(seed),
            whole: design.clone(),
            numbers: [0; SITES as usize],
            known: Position(0),
            subscription: Subscription::new(SUBSCRIBER, EPOCH, Position(0), design.clone()),
            requested: BTreeMap::new(),
            told: design,
            told_known: Position(0),
            seen: [0; 4],
        };
        for site in (0..SITES).filter(|site| Site(*site) != SUBSCRIBER) {
            world.append(vec![world.join(site, 1)]);
        }
        world
    }

    fn join(&self, site: u16, epoch: u64) -> LogEntry {
        let by = Author { site: Site(site), epoch: Epoch(epoch), number: 1 };
        LogEntry { by, body: Body::Join }
    }

    /// An entry that its author could write now.
    fn entry(&mut self) -> LogEntry {
        let site = self.dice.random_range(0..SITES);
        let at = usize::from(site);
        let epoch = self.whole.epoch(Site(site));
        if self.whole.is_fenced(Site(site)) || !epoch.has_begun() {
            let next = if Site(site) == SUBSCRIBER { EPOCH.0 } else { epoch.0 + 1 };
            return self.join(site, next);
        }
        let mut by = Author { site: Site(site), epoch, number: self.numbers[at] + 1 };
        let own: Vec<_> = self.whole.partitions().filter(|one| one.master == Site(site)).collect();
        if own.is_empty() {
            return self.entry();
        }
        if self.dice.random_range(0..60) == 0 && Site(site) != SUBSCRIBER {
            by.number = 0;
            return LogEntry { by, body: Body::Fence };
        }
        let one = own[self.dice.random_range(0..own.len())];
        if self.dice.random_range(0..4) > 0 {
            let many = own.iter().filter(|_| self.dice.random_range(0..3) == 0);
            let write = |partition: &&crate::design::Partition| Write {
                start: partition.range.start.clone(),
                version: partition.version + 1,
                rows: vec![(partition.range.start.clone(), Update::Delete)],
            };
            let mut writes: Vec<Write> = many.map(write).collect();
            if writes.is_empty() {
                writes.push(write(&one));
            }
            return LogEntry { by, body: Body::Commit(writes) };
        }
        let to = Site(self.dice.random_range(0..SITES));
        let start = one.range.start.clone();
        let operator = match self.dice.random_range(0..6) {
            0 => Operator::Split(key(self.dice.random_range(0..8))),
            1 | 2 => Operator::Merge,
            // A site confirms a replica only of what it has requested.
            3 if to != SUBSCRIBER || self.requested.contains_key(&start) => {
                Operator::AddReplica(to, self.whole.epoch(to))
            }
            3 | 4 => Operator::RemoveReplica(to),
            _ => Operator::Remaster(to),
        };
        LogEntry { by, body: Body::Change(Change { start, operator }) }
    }

    /// Returns the part of an entry that has to be delivered, by its verdict; none if it only passes.
    fn expected(&self, entry: &LogEntry, verdict: Verdict, joined: bool) -> Option<LogEntry> {
        if (entry.by.site, entry.by.epoch) == (SUBSCRIBER, EPOCH) {
            return Some(entry.clone());
        }
        let holds = |write: &&Write| {
            let partition = self.whole.beginning_at(&write.start).expect("it counts");
            partition.master == SUBSCRIBER
                || partition.replicas.contains(&SUBSCRIBER)
                || self.requested.contains_key(&write.start)
        };
        match &entry.body {
            _ if verdict == Verdict::Void => None,
            Body::Commit(writes) if joined => {
                let writes: Vec<Write> = writes.iter().filter(holds).cloned().collect();
                let body = Body::Commit(writes.clone());
                (!writes.is_empty()).then_some(LogEntry { by: entry.by, body })
            }
            _ => Some(entry.clone()),
        }
    }

    fn append(&mut self, entries: Vec<LogEntry>) {
        let mut expected = Vec::new();
        for entry in &entries {
            let joined = self.whole.epoch(SUBSCRIBER) == EPOCH;
            let verdict = self.whole.follow(entry);
            if verdict != Verdict::Void && entry.body != Body::Fence {
                self.numbers[usize::from(entry.by.site.0)] = entry.by.number;
            }
            expected.push(self.expected(entry, verdict, joined));
        }
        let first = self.known + 1;
        self.known += entries.len() as u64;
        let (from, deliveries) = self.subscription.deliver(first, &entries);
        assert_eq!(from, first);
        let mut got = Vec::new();
        for delivery in deliveries {
            match delivery {
                Delivery::Passed(many) => {
                    assert!(many > 0 && got.last() != Some(&None), "a run is one number");
                    got.extend((0..many).map(|_| None));
                    self.told_known += many;
                    self.seen[2] += 1;
                }
                Delivery::Entry(entry) => {
                    let is_own = (entry.by.site, entry.by.epoch) == (SUBSCRIBER, EPOCH);
                    _ = if is_own {
                        self.told.follow(&entry)
                    } else {
                        self.told.follow_part(&entry)
                    };
                    self.told_known += 1;
                    self.seen[usize::from(matches!(entry, Cow::Owned(_)))] += 1;
                    got.push(Some(entry.into_owned()));
                }
                begins @ Delivery::Begins { .. } => self.correct(begins),
            }
        }
        assert_eq!(got, expected);
        self.check();
    }

    fn correct(&mut self, begins: Delivery<'_>) {
        let Delivery::Begins { start, version, installation } = begins else { panic!("no such") };
        assert_eq!(self.requested.get(&start), Some(&installation));
        self.seen[3] += 1;
        self.told.correct_version(&start, version);
    }

    fn request(&mut self) {
        let start = key(self.dice.random_range(0..8));
        let number = self.dice.random_range(0..1_000);
        let request = match self.dice.random_range(0..2) {
            0 => Request::End(start.clone()),
            _ => Request::Begin(start.clone(), number),
        };
        let is_there = self.whole.beginning_at(&start).is_some();
        match request {
            Request::Begin(..) => _ = self.requested.insert(start, number),
            Request::End(_) => _ = self.requested.remove(&start),
        }
        let begins = self.subscription.execute(request.clone());
        assert_eq!(begins.is_some(), is_there && matches!(request, Request::Begin(..)));
        if let Some(begins) = begins {
            self.correct(begins);
        }
        self.check();
    }

    /// Invariant 5.
    fn check(&self) {
        assert_eq!((self.told_known, self.subscription.known()), (self.known, self.known));
        assert_eq!(*self.subscription.design(), self.whole);
        assert!(self.told.matches_as_known_at(&self.whole, SUBSCRIBER), "{:?}", self.told);
        for partition in self.requested.keys().filter_map(|start| self.whole.beginning_at(start)) {
            assert_eq!(self.told.beginning_at(&partition.range.start), Some(partition));
        }
    }

    /// Entries that come late, twice, or behind one that was lost.
    fn spoil(&mut self, entry: &LogEntry) -> LogEntry {
        let mut void = entry.clone();
        match self.dice.random_range(0..3) {
            0 => void.by.number += 1,
            1 => void.by.number = void.by.number.saturating_sub(1),
            _ => void.by.epoch.0 -= 1,
        }
        void
    }
}

#[test]
fn a_subscriber_receives_what_it_holds_and_knows_its_partitions_as_the_log_does() {
    let mut seen = [0; 4];
    for seed in 0..300 {
        let mut world = World::new(seed);
        for _ in 0..150 {
            if world.dice.random_range(0..6) == 0 {
                world.request();
            }
            let entry = world.entry();
            let is_join = entry.body == Body::Join;
            let entries = match world.dice.random_range(0..8) {
                0 if !is_join => vec![world.spoil(&entry)],
                1 if !is_join => vec![entry.clone(), entry],
                _ => vec![entry],
            };
            world.append(entries);
        }
        seen.iter_mut().zip(world.seen).for_each(|(all, one)| *all += one);
    }
    eprintln!("whole, cut, passed, corrected: {seen:?}");
    assert!(seen.iter().all(|many| *many > 300), "{seen:?}");
}

#[test]
fn entries_that_were_delivered_are_skipped_and_a_run_is_one_number() {
    let by = |number| Author { site: Site(0), epoch: Epoch(1), number };
    let commit = |number: u64| {
        let write = Write { start: Key::least(), version: number - 1, rows: Vec::new() };
        LogEntry { by: by(number), body: Body::Commit(vec![write]) }
    };
    let join = |site, number| {
        let by = Author { site: Site(site), epoch: Epoch(1), number };
        LogEntry { by, body: Body::Join }
    };
    let log: Vec<_> = [join(0, 1), join(1, 1)].into_iter().chain((2..7).map(commit)).collect();
    let mut subscription = Subscription::new(Site(1), Epoch(1), Position(0), Design::new(Site(0)));
    let (from, first) = subscription.deliver(Position(1), &log[..4]);
    assert_eq!((from, first.len(), &first[2]), (Position(1), 3, &Delivery::Passed(2)));
    let (from, rest) = subscription.deliver(Position(1), &log);
    assert_eq!((from, rest), (Position(5), vec![Delivery::Passed(3)]));
    assert_eq!(subscription.deliver(Position(1), &log), (Position(8), Vec::new()));
}
