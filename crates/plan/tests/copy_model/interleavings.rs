//! Random orders of steps at sizes that cannot be tried exhaustively: forty keys, six slices,
//! three workers, four lanes, crashes. Every failure shrinks to a short list of steps.

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};

use crate::bug::Bug;
use crate::live::Live;
use crate::protocol::{Action, Layout, Protocol, State};

const FACTS: [&str; 2] = ["drained, yet not equal", "the checkpoint passed a change"];

/// The draw for one step: the kind of actor, and the choice among its possible steps.
#[derive(Clone, Copy, Debug)]
enum Draw {
    Write(u16),
    Crash(u16),
    Progress(u16),
}

fn draw() -> impl Strategy<Value = Draw> {
    prop_oneof![
        30 => any::<u16>().prop_map(Draw::Write),
        2 => any::<u16>().prop_map(Draw::Crash),
        68 => any::<u16>().prop_map(Draw::Progress),
    ]
}

fn protocol(slices: Vec<usize>, keys_max: usize) -> Protocol {
    Protocol {
        layout: Layout { slices, lanes: 4 },
        workers: 3,
        writes_max: 200,
        coordinator_kills_max: 5,
        worker_kills_max: 10,
        batch_max: 4,
        keys_max,
        leftovers: false,
        bug: None,
    }
}

type Run = (Vec<bool>, Vec<Draw>);

fn run() -> impl Strategy<Value = Run> {
    (prop::collection::vec(any::<bool>(), 40), prop::collection::vec(draw(), 0..500))
}

/// Plays a run, and fails at the first fact that it breaks.
fn play(protocol: &Protocol, (initial, draws): &Run) -> Result<(), TestCaseError> {
    let mut state: State<Live> = protocol.start(initial.clone());
    for draw in draws {
        let (choices, pick) = match *draw {
            Draw::Write(pick) => (protocol.writes(&state), pick),
            Draw::Crash(pick) => (protocol.crashes(&state), pick),
            Draw::Progress(pick) => (protocol.progress(&state), pick),
        };
        step(protocol, &mut state, &choices, pick.into())?;
    }
    settle(protocol, &mut state)
}

fn step(
    protocol: &Protocol,
    state: &mut State<Live>,
    choices: &[Action],
    pick: usize,
) -> Result<(), TestCaseError> {
    let Some(action) = choices.get(pick % choices.len().max(1)) else { return Ok(()) };
    protocol.act(state, *action);
    prop_assert!(state.drained_is_equal(), "{}", FACTS[0]);
    prop_assert!(state.checkpoint_is_safe(protocol), "{}", FACTS[1]);
    prop_assert!(state.rounds_are_disjoint(), "a key is in two rounds");
    Ok(())
}

/// Writes and crashes are over: the copy must complete by itself, within a bound.
fn settle(protocol: &Protocol, state: &mut State<Live>) -> Result<(), TestCaseError> {
    for turn in 0..5_000 {
        let choices = protocol.progress(state);
        if choices.is_empty() {
            prop_assert!(state.rest_is_complete(protocol), "it rests, yet is not complete");
            return Ok(());
        }
        step(protocol, state, &choices, turn * 7)?;
    }
    prop_assert!(false, "the copy does not come to rest");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    #[test]
    fn six_slices_of_forty_keys(run in run(), keys_max in 1usize..6) {
        play(&protocol(vec![10, 1, 9, 8, 7, 5], keys_max), &run)?;
    }

    #[test]
    fn one_slice_among_empty_ones(run in run()) {
        play(&protocol(vec![0, 0, 40, 0, 0, 0], 100), &run)?;
    }
}

/// The runs are rich enough to find mistakes, not only to pass.
fn is_found(bug: Bug) {
    let broken = Protocol { bug: Some(bug), ..protocol(vec![10, 1, 9, 8, 7, 5], 3) };
    let config = ProptestConfig {
        cases: 500,
        failure_persistence: None,
        max_shrink_iters: 0,
        ..Default::default()
    };
    let mut runner =
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    match runner.run(&run(), |run| play(&broken, &run)) {
        Err(TestError::Fail(reason, _)) => {
            eprintln!("{bug:?}: {reason}");
            let is_fact = FACTS.iter().any(|fact| reason.message().starts_with(fact));
            assert!(is_fact, "{bug:?} broke something else: {reason}");
        }
        found => panic!("{bug:?} went unnoticed: {found:?}"),
    }
}

#[test]
fn a_lost_touch_is_found() {
    is_found(Bug::BusyKeyForgotten);
}

#[test]
fn an_unsafe_checkpoint_is_found() {
    is_found(Bug::CheckpointIgnoresAside);
}

#[test]
fn an_early_touch_is_found() {
    is_found(Bug::LeasedAppliedAtOnce);
}

#[test]
fn a_horizon_read_too_early_is_found() {
    is_found(Bug::HorizonReadBeforeLease);
}
