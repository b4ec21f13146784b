//! A model of one document whose place at the destination follows from its own fields, as in a
//! change of the shard key: what may be written without looking where an older state of it lies?
//!
//! Protocol. The bulk reads a state and inserts it where no copy is on that shard, perhaps several
//! times, each from a later state. Then rounds take the changes that were read so far as one
//! ([`Change`]), read a state that includes them or a later one, and apply it. A round of
//! [`Change::Any`] looks up all copies first; others write by the place that the state they read
//! has. After a kill, changes are repeated from an earlier one on.
//!
//! Claim. When all changes are applied, there is one copy, and it is the source's; or none, where
//! the source has none. In between there may be two: where a state was read whose own change, of
//! the fields that place it, is yet to come.

use imago_plan::copy::pending_changes::Change;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

type Key = u8;
/// A key, and what else there is of the document.
type State = Option<(Key, u16)>;

const SHARDS: u8 = 2;
const KEYS: u8 = 4;

/// All states of the document at the source: the change `n` led from state `n` to the next.
struct Source(Vec<State>);

impl Source {
    fn change(&self, n: usize) -> Change {
        match (self.0[n], self.0[n + 1]) {
            (None, Some(_)) => Change::Inserted,
            (Some((from, _)), Some((to, _))) if from == to => Change::Kept,
            _ => Change::Any,
        }
    }
}

/// The copies of the document, at most one for each key, and for each shard.
#[derive(Default)]
struct Destination(Vec<(Key, u16)>);

impl Destination {
    fn on_shard_of(&self, key: Key) -> Option<usize> {
        self.0.iter().position(|(held, _)| held % SHARDS == key % SHARDS)
    }

    /// An insert at the shard of the key, as a server executes it. Returns false if a copy is
    /// there.
    fn insert(&mut self, (key, content): (Key, u16)) -> bool {
        let is_free = self.on_shard_of(key).is_none();
        if is_free {
            self.0.push((key, content));
        }
        is_free
    }

    /// An upsert by `_id` and key: where a copy of another key is on the shard, all copies are
    /// removed first.
    fn upsert(&mut self, (key, content): (Key, u16)) {
        match self.on_shard_of(key) {
            Some(at) if self.0[at].0 == key => self.0[at].1 = content,
            Some(_) => self.0 = vec![(key, content)],
            None => self.0.push((key, content)),
        }
    }

    fn apply(&mut self, state: State, change: Change) {
        let Some(document) = state else { return self.0.clear() };
        match change {
            Change::Inserted => {
                if !self.insert(document) {
                    self.upsert(document);
                }
            }
            Change::Kept => self.upsert(document),
            Change::Any => {
                if !matches!(self.0[..], [(key, _)] if key == document.0) {
                    self.0.clear();
                }
                self.upsert(document);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Story {
    states: Vec<State>,
    /// The state from which on the bulk reads, each time.
    bulk: Vec<usize>,
    /// For each round: the number of changes that it takes, the number of states by which its read
    /// is later, and the number of changes that are repeated after it.
    rounds: Vec<(usize, usize, usize)>,
}

fn story() -> impl Strategy<Value = Story> {
    let state = prop_oneof![
        1 => Just(None),
        4 => (0..KEYS).prop_map(Some)
    ];
    let states = prop::collection::vec(state, 1..9);
    let bulk = prop::collection::vec(0..9_usize, 0..4);
    let rounds = prop::collection::vec((1..4_usize, 0..4_usize, 0..4_usize), 0..12);
    (states, bulk, rounds).prop_map(|(keys, mut bulk, rounds)| {
        let mut states: Vec<State> = (0..).zip(keys).map(|(n, key)| Some((key?, n))).collect();
        states.dedup_by(|one, other| one.is_none() && other.is_none());
        bulk.sort_unstable();
        Story { states, bulk, rounds }
    })
}

/// The destination's contents at the end, where `tell` gives the kind of each change.
fn played(story: &Story, tell: impl Fn(&Source, usize) -> Change) -> Vec<(Key, u16)> {
    let source = Source(story.states.clone());
    let last = story.states.len() - 1;
    let mut destination = Destination::default();
    for at in &story.bulk {
        if let Some(document) = source.0[last.min(*at)] {
            destination.insert(document);
        }
    }
    // A document that no bulk reads comes as a change; one that was there before the first change
    // does not.
    let first = story.bulk.first().map_or(0, |at| last.min(*at));
    if let (true, Some(document)) = (story.bulk.is_empty(), source.0[0]) {
        destination.insert(document);
    }
    let mut applied = first;
    // The last round takes all that is left, and nothing is repeated after it.
    for (take, later, back) in story.rounds.iter().copied().chain([(last + 1, 0, 0)]) {
        let to = last.min(applied + take);
        let Some(change) = (applied..to).map(|n| tell(&source, n)).max() else { continue };
        destination.apply(source.0[last.min(to + later)], change);
        applied = to.saturating_sub(back).max(first);
    }
    destination.0
}

fn expected(story: &Story) -> Vec<(Key, u16)> {
    story.states.last().copied().flatten().into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn one_copy_is_left_and_it_is_the_sources(story in story()) {
        prop_assert_eq!(played(&story, Source::change), expected(&story));
    }
}

/// True if the claim fails when `tell` reports one kind of change wrongly.
fn is_found(tell: impl Fn(&Source, usize) -> Change) -> bool {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    (0..20_000).any(|_| {
        let story = story().new_tree(&mut runner).expect("a story").current();
        played(&story, &tell) != expected(&story)
    })
}

#[test]
fn a_change_of_the_key_that_is_told_as_another_is_found() {
    let is_move = |source: &Source, n: usize| matches!((source.0[n], source.0[n + 1]), (Some((from, _)), Some((to, _))) if from != to);
    assert!(is_found(|source, n| if is_move(source, n) { Change::Kept } else { source.change(n) }));
}

#[test]
fn a_deletion_that_is_told_as_a_change_in_place_is_found() {
    let is_deletion = |source: &Source, n: usize| source.0[n + 1].is_none();
    assert!(is_found(|source, n| {
        if is_deletion(source, n) { Change::Kept } else { source.change(n) }
    }));
}

#[test]
fn to_look_always_is_right_too() {
    assert!(!is_found(|_, _| Change::Any));
}
