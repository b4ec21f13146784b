//! Every order of steps, within small bounds.

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::books::Books;
use crate::bug::Bug;
use crate::protocol::{Action, Layout, Protocol, State};

const EQUAL: &str = "drained means equal";
const CHECKPOINT: &str = "the checkpoint passes nothing that is not applied";
const DISJOINT: &str = "a key is in one round at a time";
const REST: &str = "what rests is complete";

impl Model for Protocol {
    type State = State<Books>;
    type Action = Action;

    fn init_states(&self) -> Vec<Self::State> {
        let keys = self.layout.keys();
        let mut sources = (0..1u32 << keys).map(|mask| (0..keys).map(move |k| mask >> k & 1 == 1));
        sources.by_ref().map(|initial| self.start(initial.collect())).collect()
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Self::Action>) {
        actions.extend(self.writes(state));
        actions.extend(self.crashes(state));
        actions.extend(self.progress(state));
    }

    fn next_state(&self, last: &Self::State, action: Self::Action) -> Option<Self::State> {
        let mut next = last.clone();
        self.act(&mut next, action);
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EQUAL, |_, state: &State<Books>| state.drained_is_equal()),
            Property::always(CHECKPOINT, |model: &Protocol, state: &State<Books>| {
                state.checkpoint_is_safe(model)
            }),
            Property::always(DISJOINT, |_, state: &State<Books>| state.rounds_are_disjoint()),
            Property::always(REST, |model: &Protocol, state: &State<Books>| {
                state.rest_is_complete(model)
            }),
            Property::sometimes(
                "complete after everything",
                |model: &Protocol, state: &State<Books>| state.is_complete_after_everything(model),
            ),
            Property::sometimes("the horizon drops", |model: &Protocol, state: &State<Books>| {
                state.has_dropped(model)
            }),
        ]
    }
}

/// One key, which one worker copies while the coordinator follows; no process is killed.
fn one_key() -> Protocol {
    Protocol {
        layout: Layout { slices: vec![1], lanes: 1 },
        workers: 1,
        writes_max: 3,
        coordinator_kills_max: 0,
        worker_kills_max: 0,
        batch_max: 1,
        keys_max: usize::MAX,
        leftovers: false,
        bug: None,
    }
}

fn two_slices() -> Protocol {
    Protocol { layout: Layout { slices: vec![1, 1], lanes: 1 }, writes_max: 2, ..one_key() }
}

fn two_keys(lanes: usize) -> Protocol {
    Protocol { layout: Layout { slices: vec![2], lanes }, writes_max: 2, ..one_key() }
}

fn holds(name: &str, protocol: Protocol) {
    let start = Instant::now();
    let checker = protocol.checker().spawn_bfs().join();
    eprintln!(
        "{name}: {} states, {} steps, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}

#[test]
fn a_key_whose_copy_is_disturbed_by_two_kills_of_each() {
    holds(
        "one key, 2 writes, 2 kills of each",
        Protocol {
            workers: 2,
            writes_max: 2,
            coordinator_kills_max: 2,
            worker_kills_max: 2,
            ..one_key()
        },
    );
}

#[test]
fn a_key_that_is_written_three_times() {
    holds(
        "one key, 3 writes, 1 kill of each",
        Protocol { workers: 2, coordinator_kills_max: 1, worker_kills_max: 1, ..one_key() },
    );
}

#[test]
fn a_stream_that_comes_in_batches() {
    holds(
        "one key, batches of 2, the coordinator is killed",
        Protocol { batch_max: 2, coordinator_kills_max: 1, ..one_key() },
    );
}

#[test]
fn two_slices_and_a_killed_lead() {
    holds(
        "two slices, the coordinator is killed",
        Protocol { coordinator_kills_max: 1, ..two_slices() },
    );
}

#[test]
fn two_slices_and_a_killed_worker() {
    holds("two slices, a worker is killed", Protocol { worker_kills_max: 1, ..two_slices() });
}

#[test]
fn two_keys_of_one_slice_in_two_lanes() {
    holds("two keys, two lanes", Protocol { coordinator_kills_max: 1, ..two_keys(2) });
}

#[test]
fn two_keys_of_one_slice_in_one_lane() {
    holds("two keys, one lane", Protocol { coordinator_kills_max: 1, ..two_keys(1) });
}

/// Lets the checker find how `bug` breaks `property` within the bounds of `protocol`, and checks
/// that without the bug the same bounds hold nothing against it.
fn caught(bug: Bug, property: &'static str, protocol: Protocol) {
    let sound = protocol.clone().checker().spawn_bfs().join();
    assert!(sound.discovery(property).is_none(), "the protocol itself is wrong");
    let broken = Protocol { bug: Some(bug), ..protocol };
    let found = HasDiscoveries::AllOf([property].into());
    let checker = broken.checker().finish_when(found).spawn_bfs().join();
    let path = checker.assert_any_discovery(property);
    eprintln!("{bug:?} after {} states: {:?}", checker.unique_state_count(), path.into_actions());
}

/// Little enough to see a counterexample at a glance.
fn tiny() -> Protocol {
    Protocol { writes_max: 1, ..one_key() }
}

fn tiny_with_killed_lead() -> Protocol {
    Protocol { coordinator_kills_max: 1, ..tiny() }
}

fn tiny_with_killed_worker() -> Protocol {
    Protocol { worker_kills_max: 1, ..tiny() }
}

macro_rules! bugs_are_caught {
    ($($name:ident: $bug:ident breaks $property:ident in $protocol:expr;)*) => {
        $(#[test]
        fn $name() {
            caught(Bug::$bug, $property, $protocol);
        })*
    };
}

bugs_are_caught! {
    a_change_during_its_keys_round_is_not_applied_by_it:
        BusyKeyForgotten breaks EQUAL in Protocol { writes_max: 2, ..one_key() };
    touches_of_a_leased_slice_must_wait:
        LeasedAppliedAtOnce breaks EQUAL in tiny();
    nothing_is_dropped_without_a_horizon:
        DroppedWithoutHorizon breaks EQUAL in tiny();
    nothing_is_dropped_beyond_the_horizon:
        DroppedBeyondHorizon breaks EQUAL in Protocol { writes_max: 2, ..one_key() };
    the_slices_are_looked_at_after_the_horizon:
        LookedBeforeHorizon breaks EQUAL in tiny();
    the_horizon_is_read_after_the_lease:
        HorizonReadBeforeLease breaks EQUAL in tiny();
    a_slice_offered_again_is_not_untouched:
        OfferedCountsAsUntouched breaks EQUAL in tiny_with_killed_worker();
    a_worker_reads_at_the_horizon_or_later:
        ReadBeforeHorizon breaks EQUAL in tiny();
    a_key_keeps_to_its_lane:
        LaneNotByKey breaks EQUAL in Protocol {
            layout: Layout { slices: vec![1], lanes: 2 },
            writes_max: 2,
            ..one_key()
        };
    a_key_is_in_one_round_at_a_time:
        LaneNotByKey breaks DISJOINT in Protocol {
            layout: Layout { slices: vec![1], lanes: 2 },
            writes_max: 2,
            ..one_key()
        };
    the_checkpoint_waits_for_what_is_set_aside:
        CheckpointIgnoresAside breaks EQUAL in tiny_with_killed_lead();
    the_checkpoint_waits_for_what_is_ready:
        CheckpointIgnoresReady breaks EQUAL in tiny_with_killed_lead();
    the_checkpoint_waits_for_rounds_in_progress:
        CheckpointIgnoresRounds breaks EQUAL in tiny_with_killed_lead();
    the_checkpoint_waits_for_the_end_of_a_batch:
        CheckpointInsideBatch breaks EQUAL in Protocol {
            writes_max: 2,
            batch_max: 2,
            coordinator_kills_max: 1,
            ..two_keys(1)
        };
    an_unsafe_checkpoint_is_seen_before_anybody_dies:
        CheckpointIgnoresAside breaks CHECKPOINT in tiny();
    a_touch_is_read_at_its_time_or_later:
        ReadOlderThanTouch breaks EQUAL in tiny();
    a_deleted_document_is_deleted:
        DeleteIgnored breaks EQUAL in tiny();
    a_bulk_write_replaces_what_was_there_before_the_copy:
        InsertKeepsOlder breaks EQUAL in Protocol { leftovers: true, ..tiny() };
    a_slice_is_copied_when_its_last_write_is_durable:
        CopiedBeforeLastWrite breaks EQUAL in tiny();
    a_lease_is_not_taken_from_the_living:
        LeaseTakenFromTheLiving breaks EQUAL in Protocol { workers: 2, ..tiny_with_killed_worker() };
    no_write_outlives_the_lead:
        WriteOutlivesLead breaks EQUAL in Protocol { writes_max: 2, ..tiny_with_killed_lead() };
}

/// A worker that takes a slice over may leave alone what its predecessor wrote: every change that
/// the predecessor did not read is held by the table of pending changes. This needs a destination that was empty.
#[test]
fn a_slice_taken_over_may_keep_its_documents() {
    holds(
        "inserts that keep what is there",
        Protocol {
            workers: 2,
            writes_max: 2,
            coordinator_kills_max: 1,
            worker_kills_max: 2,
            bug: Some(Bug::InsertKeepsOlder),
            ..one_key()
        },
    );
}
