//! Adaptation in the simulation: a planner changes the design while transactions run, sites die and messages are late.
//! The histories stay what they have to be, the limits hold at every prefix of the log, and every transaction comes to
//! its end.

use imago_plan::store::plans::Thresholds;

use super::driver::{CHANGES_S_MAX, Driver, THRESHOLDS};
use super::simulation::Simulation;
use super::*;
use crate::record::Operator;

/// How long a transaction may take, in simulated time: it is tried again until it has an outcome; where nothing dies,
/// and where sites do.
const WAITED_MS_MAX: [u64; 2] = [2_500, 4_000];
const STEPS: usize = 7_000;
/// How long transactions may take once there are no more faults.
const ENDING_STEPS: usize = 8_000;

/// What the log shows of a planner's work.
#[derive(Debug, Default)]
pub(super) struct Limited {
    /// When each of its changes came into the log.
    pub changes_ms: Vec<u64>,
    splits: usize,
    moves: usize,
    /// Partitions, by a key, with copies that a router asked for, which does not know the planner's limits.
    disturbed: BTreeSet<Key>,
    /// All changes, and whether they were planned.
    changes: Vec<(u64, bool, Change)>,
}

impl Limited {
    /// The limits, at an entry of the log.
    pub(super) fn note(
        &mut self,
        now_ms: u64,
        before: &Design,
        after: &Design,
        change: &Change,
        by: &Driver,
    ) {
        let is_planned = by.underway.iter().any(|underway| underway.change == *change);
        let partition = after.of(&change.start);
        self.changes.push((now_ms, is_planned, change.clone()));
        match &change.operator {
            _ if is_planned => {
                self.changes_ms.push(now_ms);
                self.splits += usize::from(matches!(change.operator, Operator::Split(_)));
                self.moves += usize::from(matches!(change.operator, Operator::Remaster(_)));
            }
            Operator::AddReplica(..) => {
                self.disturbed.extend(keys_of(partition));
            }
            _ => {}
        }
        let (is, was) = (after.partitions().count(), before.partitions().count());
        assert!(is <= THRESHOLDS.partitions_max, "{is} partitions, {was} before {change:?}");
        for partition in after.partitions() {
            let replicas = partition.replicas.len();
            let keys = || keys_of(partition);
            if replicas <= THRESHOLDS.replicas_max {
                if by.touches(&partition.range) {
                    // A copy that came while a plan is under way is one that the plan does not know.
                    continue;
                }
                keys().for_each(|key| _ = self.disturbed.remove(&key));
            } else if !keys().any(|key| self.disturbed.contains(&key)) && !by.owes(&partition.range)
            {
                // What is owed is not known to have come, or waits for its site to answer.
                let more = usize::from(by.moves());
                let last = &self.changes[self.changes.len().saturating_sub(20)..];
                assert!(replicas <= THRESHOLDS.replicas_max + more, "{partition:?} by {last:?}");
            }
        }
    }
}

fn keys_of(partition: &Partition) -> impl Iterator<Item = Key> {
    (0..super::simulation::KEYS)
        .map(super::simulation::key)
        .filter(|key| partition.range.contains(key))
}

/// Changes within any second are bounded: what may be done at once, twice, since a plan that was decided may be under
/// way for a while, and the rate.
fn is_slow_enough(changes_ms: &[u64]) -> bool {
    let at_once = 2.0 * CHANGES_S_MAX;
    (0..changes_ms.len()).all(|from| {
        (from..changes_ms.len()).all(|upto| {
            let passed_s = (changes_ms[upto] - changes_ms[from]) as f64 / 1e3;
            ((upto - from + 1) as f64) <= at_once + passed_s * CHANGES_S_MAX
        })
    })
}

fn adapt(seed: u64, thresholds: Thresholds) -> (Tally, Limited, u64, u64) {
    let mut simulation = Simulation::new(seed, None);
    simulation.planner = Some(Driver::new(seed, thresholds));
    for _ in 0..STEPS {
        simulation.step();
    }
    let most_ms = WAITED_MS_MAX[usize::from(!seed.is_multiple_of(2))];
    let waited_ms_max = simulation.waited_ms_max;
    let now_ms = simulation.now_ms;
    for wish in simulation.wishes.iter().flatten() {
        assert!(now_ms - wish.since_ms <= most_ms, "a transaction does not end: {wish:?}");
    }
    assert!(waited_ms_max <= most_ms, "a transaction took {waited_ms_max} ms");
    // Without further faults and changes the transactions under way come to their ends.
    simulation.is_ending = true;
    for _ in 0..ENDING_STEPS {
        if simulation.wishes.iter().all(Option::is_none) {
            break;
        }
        simulation.step();
    }
    let open: Vec<_> = simulation.wishes.iter().flatten().collect();
    assert!(open.is_empty(), "transactions do not end: {open:?}");
    simulation.calm_down();
    assert!(is_slow_enough(&simulation.limited.changes_ms));
    let undone = simulation.planner.as_ref().map_or(0, Driver::undone);
    (simulation.check(), std::mem::take(&mut simulation.limited), waited_ms_max, undone)
}

#[test]
fn adaptation_keeps_histories_limits_and_the_progress_of_transactions() {
    let mut all = Tally::default();
    let seeds = seeds(50);
    let runs = usize::try_from(seeds.end - seeds.start).unwrap();
    let (mut changed, mut moved, mut split, mut changes, mut undone) = (0, 0, 0, 0, 0);
    let mut waited = [0; 2];
    for seed in seeds {
        let run = std::panic::catch_unwind(|| adapt(seed, THRESHOLDS));
        let (tally, limited, waited_ms, undone_here) =
            run.unwrap_or_else(|_| panic!("IMAGO_SEED={seed} repeats it"));
        all.done += tally.done;
        all.committed += tally.committed;
        all.subscribers += tally.subscribers;
        changed += usize::from(limited.changes_ms.len() > 3);
        moved += usize::from(limited.moves > 0);
        split += usize::from(limited.splits > 0);
        changes += limited.changes_ms.len();
        undone += undone_here;
        let most = &mut waited[usize::from(!seed.is_multiple_of(2))];
        *most = waited_ms.max(*most);
    }
    eprintln!(
        "{runs} seeds: {} transactions, {changes} changes by the planner, {undone} plans undone; in {changed} seeds \
         more than three changes, in {split} a split, in {moved} a remaster; the longest transactions, \
         without deaths and with them, {waited:?} ms",
        all.done
    );
    // A single seed, which is repeated, may be a calm one.
    let is_busy = all.done > 200 * runs && all.committed > 50 * runs && all.subscribers > runs;
    assert!(runs == 1 || is_busy);
    assert!(runs == 1 || changed > runs / 2 && moved > runs / 2 && split > runs / 2);
}

#[test]
fn a_planner_that_does_not_keep_to_its_limits_is_noticed() {
    let says = |thresholds: Thresholds, what: &str| {
        (0..40).any(|seed| {
            let run = std::panic::catch_unwind(|| adapt(seed, thresholds));
            let Err(panic) = run else { return false };
            panic.downcast_ref::<String>().is_some_and(|text| text.contains(what))
        })
    };
    let partitions = says(Thresholds { partitions_max: 12, ..THRESHOLDS }, "partitions, ");
    let replicas = says(Thresholds { replicas_max: 3, ..THRESHOLDS }, "replicas: {");
    assert!(partitions && replicas, "partitions {partitions}, replicas {replicas}");
}
