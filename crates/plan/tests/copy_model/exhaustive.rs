//! Every order of steps, within small bounds.

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
            Property::always(CHECKPOINT, |model: &Protocol, state: &State<Books>| state.checkpoint_is_safe(model)),
            Property::always(DISJOINT, |_, state: &State<Books>| state.rounds_are_disjoint()),
            Property::always(REST, |model: &Protocol, state: &State<Books>| state.rest_is_complete(model)),
            Property::sometimes("complete after everything", |model: &Protocol, state: &State<Books>| {
                state.is_complete_after_everything(model)
            }),
            Property::sometimes("the horizon drops", |model: &Protocol, state: &State<Books>| state.has_dropped(model)),
        ]
    }
}

/// One key in each of two slices.
fn two_slices() -> Protocol {
    Protocol {
        layout: Layout { slices: vec![1, 1], lanes: 1 },
        workers: 2,
        writes_max: 2,
        lead_kills_max: 1,
        worker_kills_max: 1,
        batch_max: 1,
        touches_max: usize::MAX,
        leftovers: false,
        bug: None,
    }
}

fn holds(name: &str, protocol: Protocol) {
    let start = std::time::Instant::now();
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} states, {} steps, depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        start.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}

#[test]
fn two_slices_of_one_key() {
    holds("two slices", two_slices());
}
