//! Sites, a log and clients in one seeded simulation: messages are late, lost, doubled and out of
//! order, sites die with what they had not written yet, come back, or are given up for dead while
//! they live. All replies together have to be one history under strong-session snapshot isolation.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::*;
use crate::design::Verdict;
use crate::key::{KeyRange, Value};
use crate::record::{DistributedCommit, Write};
use crate::rows::Row;

mod adaptation;
mod behind;
mod bug;
mod driver;
mod simulation;
mod stream;
mod transactions;

pub(super) use bug::{Broken, Bug};
use simulation::{Outcome, Simulation};

impl Simulation {
    fn check(&self) -> Tally {
        let mut seen = Tally::default();
        // What the log says of each key, and the prefix at which it says so.
        let mut design = Design::new(Site(0));
        let mut history: BTreeMap<Key, Vec<(Position, Option<Value>)>> = BTreeMap::new();
        let mut commits: HashMap<Position, &[Write]> = HashMap::new();
        let mut rows: HashMap<&Key, Row> = HashMap::new();
        let mut written: BTreeSet<Value> = BTreeSet::new();
        for (position, entry) in (1..).zip(&self.log) {
            let before = design.clone();
            let verdict = design.follow(entry);
            seen.pins += stays_pinned(&before, &design, entry);
            let writes = match &entry.body {
                Body::Commit(writes) => Some(writes),
                Body::DistributedCommit(DistributedCommit { writes, .. }) => {
                    seen.distributed += usize::from(verdict == Verdict::Counts);
                    seen.aborted += usize::from(verdict == Verdict::Aborted);
                    Some(writes)
                }
                _ => None,
            };
            if let (Verdict::Counts, Some(writes)) = (verdict, writes) {
                commits.insert(Position(position), writes);
                for write in writes {
                    for (key, update) in &write.rows {
                        seen.parts += usize::from(update.is_part());
                        let value = update.value(rows.get(key));
                        let row = value.clone().map(|value| Row { version: write.version, value });
                        match row {
                            Some(row) => _ = rows.insert(key, row),
                            None => _ = rows.remove(key),
                        }
                        written.extend(value.clone());
                        history.entry(key.clone()).or_default().push((Position(position), value));
                    }
                }
            }
        }
        let end = Position(self.log.len() as u64);
        let at = |key: &Key, prefix: Position| {
            let writes = history.get(key)?;
            let before = writes.partition_point(|(position, _)| *position <= prefix);
            writes[..before].last().and_then(|(_, value)| value.clone())
        };
        for (ticket, known) in &self.transactions {
            if let Outcome::Nothing | Outcome::Deposed = known.outcome {
                assert!(!written.contains(ticket.to_be_bytes().as_slice()), "{ticket} did nothing");
            }
            let Outcome::Done(done, upto) = &known.outcome else { continue };
            seen.done += 1;
            let reads = parse(&done.answer.to_bytes());
            let last = done.committed.map_or(end, |committed| committed - 1);
            let is_state = |prefix: Position| {
                reads.iter().all(|(range, rows)| {
                    let keys = history.keys().filter(|key| range.contains(key));
                    let state: Vec<_> = keys
                        .filter_map(|key| at(key, prefix).map(|value| (key.clone(), value)))
                        .collect();
                    state == *rows
                }) && known.writes.iter().all(|key| {
                    let writes = history.get(key).map_or(&[][..], Vec::as_slice);
                    let between = |(position, _): &(Position, _)| {
                        *position > prefix && done.committed.is_some_and(|at| *position < at)
                    };
                    !writes.iter().any(between)
                })
            };
            let snapshot =
                (known.since.0..=last.min(*upto).0).rev().find(|at| is_state(Position(*at)));
            assert!(
                snapshot.is_some(),
                "transaction {ticket} saw no state of the database: {reads:?}, \
                since {}, {:?}, session {}",
                known.since,
                done.committed,
                upto
            );
            assert_eq!(done.committed.is_some(), !known.writes.is_empty());
            if let Some(committed) = done.committed {
                seen.committed += 1;
                let rows = commits.get(&committed).expect("what was acknowledged is in the log");
                let written: Vec<&Key> =
                    rows.iter().flat_map(|write| &write.rows).map(|(key, _)| key).collect();
                assert_eq!(written, known.writes.iter().collect::<Vec<_>>());
            }
        }
        let live = self.hosts.iter().filter_map(|host| Some((host, host.core.as_ref()?)));
        let (newest, given_up): (Vec<_>, Vec<_>) =
            live.partition(|(host, core)| core.epoch == design.epoch(host.site));
        assert!(given_up.iter().all(|(_, core)| core.is_over()), "there is one epoch of a site");
        assert_eq!(newest.len(), usize::from(simulation::SITES), "all are back");
        for (host, core) in newest {
            let site = host.site;
            assert!(core.is_live() && core.known == end);
            match host.stream.is_subscribed() {
                true => assert!(core.design.matches_as_known_at(&design, site)),
                false => assert_eq!(core.design, design),
            }
            seen.subscribers += usize::from(host.stream.is_subscribed());
            let idle = [core.waiting.len(), core.answers.len(), core.changing.len()];
            let idle = (idle, core.installations.len(), core.rows_requests.len());
            assert_eq!(idle, ([0; 3], 0, 0), "nothing waits any more");
            assert_eq!(core.two_phase.under_way(), 0, "no lock is left");
            let here = || design.partitions().filter(|partition| partition.is_at(site));
            assert!(core.copies.keys().eq(here().map(|partition| &partition.range.start)));
            for partition in here() {
                let copy = &core.copies[&partition.range.start];
                assert_eq!(copy.version, partition.version);
                let keys = history.keys().filter(|key| partition.range.contains(key));
                let state = keys.filter_map(|key| at(key, end).map(|value| (key.clone(), value)));
                let rows =
                    copy.rows.iter().map(|(key, row)| (key.clone(), Value::clone(&row.value)));
                assert!(rows.eq(state));
            }
            seen.replicas += core.copies.len();
        }
        seen.changes = self.changes;
        (seen.by_replicas, seen.in_stall) = (self.by_replicas, self.in_stall);
        (seen.images, seen.from_images) = (self.images, self.from_images);
        seen.from_kept = self.from_kept;
        seen.partitions = design.partitions().count();
        seen
    }
}

/// What a run did, lest it did nothing.
#[derive(Debug, Default)]
struct Tally {
    done: usize,
    by_replicas: usize,
    in_stall: usize,
    parts: usize,
    committed: usize,
    distributed: usize,
    aborted: usize,
    changes: usize,
    partitions: usize,
    replicas: usize,
    images: usize,
    from_images: usize,
    from_kept: usize,
    pins: usize,
    subscribers: usize,
}

/// What is pinned leaves its site only where that dies, and comes back there. How many are pinned by
/// this log entry.
fn stays_pinned(before: &Design, after: &Design, entry: &LogEntry) -> usize {
    let partitions = after.partitions().filter(|_| entry.is_of_design());
    partitions
        .filter(|new| {
            let Some(pin) = new.pin else { return false };
            let old = before.of(&new.range.start);
            if old.pin != Some(pin) {
                assert_eq!(new.master, pin, "who is pinned is the master");
                return true;
            }
            let is_death = entry.body == Body::Fence && entry.by.site == old.master;
            let is_free = is_death || before.is_fenced(pin);
            assert!(new.master == pin || new.master == old.master || is_free, "{new:?} {old:?}");
            false
        })
        .count()
}

/// A range that was read, and what was in it.
type Read = (KeyRange, Vec<(Key, Value)>);

fn parse(mut answer: &[u8]) -> Vec<Read> {
    fn take<'a>(from: &mut &'a [u8], many: usize) -> &'a [u8] {
        let (taken, rest) = from.split_at(many);
        *from = rest;
        taken
    }
    fn take_key(from: &mut &[u8]) -> Key {
        let many = take(from, 1)[0];
        Key::from_bytes(take(from, many.into()))
    }
    let mut reads = Vec::new();
    while !answer.is_empty() {
        let (start, end) = (take_key(&mut answer), take_key(&mut answer));
        let many = take(&mut answer, 1)[0];
        let rows =
            (0..many).map(|_| (take_key(&mut answer), take(&mut answer, 8).into())).collect();
        reads.push((KeyRange { start, end: Some(end) }, rows));
    }
    reads
}

fn run(seed: u64, bug: Option<Bug>) -> Tally {
    let mut simulation = Simulation::new(seed, bug);
    for _ in 0..3_000 {
        simulation.step();
    }
    simulation.calm_down();
    simulation.check()
}

fn seeds(many: u64) -> std::ops::Range<u64> {
    let wanted = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    match wanted("IMAGO_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..wanted("IMAGO_SEEDS").unwrap_or(many),
    }
}

#[test]
fn every_history_is_one_under_snapshot_isolation() {
    let mut all = Tally::default();
    let seeds = seeds(200);
    let runs = usize::try_from(seeds.end - seeds.start).unwrap();
    for seed in seeds {
        let tally = std::panic::catch_unwind(|| run(seed, None));
        let tally = tally.unwrap_or_else(|_| panic!("IMAGO_SEED={seed} repeats it"));
        all.done += tally.done;
        all.by_replicas += tally.by_replicas;
        all.in_stall += tally.in_stall;
        all.parts += tally.parts;
        all.committed += tally.committed;
        all.distributed += tally.distributed;
        all.aborted += tally.aborted;
        all.changes += tally.changes;
        all.partitions += tally.partitions;
        all.replicas += tally.replicas;
        all.images += tally.images;
        all.from_images += tally.from_images;
        all.from_kept += tally.from_kept;
        all.pins += tally.pins;
        all.subscribers += tally.subscribers;
    }
    eprintln!("{all:?}");
    // A simulation in which nothing happens shows nothing.
    assert!(all.done > 50 * runs && all.committed > 20 * runs && all.changes > 5 * runs);
    assert!(runs == 1 || all.by_replicas > 2 * runs && all.replicas > all.partitions);
    // A third of the seeds have a log that stalls.
    assert!(runs == 1 || all.pins > runs && all.in_stall > runs / 3 && all.parts > runs);
    assert!(runs == 1 || all.distributed > runs && all.aborted > 0);
    assert!(runs == 1 || all.images > runs / 4 && all.from_images > runs / 8);
    assert!(runs == 1 || all.from_kept > runs / 8, "{} epochs began with kept rows", all.from_kept);
    assert!(runs == 1 || all.subscribers > 2 * runs && all.subscribers < 4 * runs);
}

#[test]
fn what_is_broken_on_purpose_is_noticed() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let noticed = Bug::ALL.map(|bug| {
        (0..1_000).find(|seed| std::panic::catch_unwind(|| run(*seed, Some(bug))).is_err())
    });
    std::panic::set_hook(hook);
    // Each with the first seed that shows it.
    let all: Vec<_> = Bug::ALL.iter().zip(noticed).collect();
    eprintln!("{all:?}");
    assert!(all.iter().all(|(_, seed)| seed.is_some()), "{all:?}");
}
