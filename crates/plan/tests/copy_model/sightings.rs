//! The real table of pending changes beside the naive one on operations that no well-ordered coordinator would send:
//! sightings of slices that arrive late, dirty keys recorded out of order.

use imago_plan::copy::pending_changes::{Change, DirtyKey, SliceState};
use proptest::prelude::*;

use crate::desk::Desk;
use crate::live::Live;
use crate::source::Key;

const SLICES: usize = 3;
const LANES: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Operation {
    /// So many positions after the checkpoint.
    DirtyKey(Key, u64, Change),
    Read(u64),
    See(usize, SliceState),
    Horizon(u64, [bool; SLICES]),
    Take(usize, usize),
    Finish(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![Just(Change::Inserted), Just(Change::Kept), Just(Change::Any)]
}

fn operation() -> impl Strategy<Value = Operation> {
    let state = prop_oneof![
        Just(SliceState::Untouched),
        Just(SliceState::Leased),
        Just(SliceState::Copied)
    ];
    prop_oneof![
        6 => (0..9u8, 1..6u64, change()).prop_map(|(k, p, c)| Operation::DirtyKey(k, p, c)),
        2 => (0..4u64).prop_map(Operation::Read),
        1 => (0..SLICES, state).prop_map(|(slice, state)| Operation::See(slice, state)),
        2 => (0..4u64, any::<[bool; SLICES]>()).prop_map(|(p, s)| Operation::Horizon(p, s)),
        2 => (0..LANES, 1..4usize).prop_map(|(lane, max)| Operation::Take(lane, max)),
        2 => (0..LANES).prop_map(Operation::Finish),
    ]
}

fn lane_of(key: Key) -> usize {
    usize::from(key) % LANES
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..Default::default() })]

    #[test]
    fn late_sightings_and_changes_change_nothing(
        operations in prop::collection::vec(operation(), 0..80)
    ) {
        let mut live = Live::new(SLICES, LANES);
        let mut read = 0;
        let mut in_progress = [false; LANES];
        for operation in operations {
            match operation {
                Operation::DirtyKey(key, after, change) => {
                    let dirty_key = DirtyKey::at(live.checkpoint() + after, change);
                    live.mark_dirty(key, usize::from(key) % SLICES, lane_of(key), dirty_key);
                }
                Operation::Read(more) => {
                    read += more;
                    live.read_to(read);
                }
                Operation::See(slice, state) => live.see(slice, state, &lane_of),
                Operation::Horizon(back, named) => {
                    let untouched: Vec<_> = (0..SLICES).filter(|slice| named[*slice]).collect();
                    live.horizon(read.saturating_sub(back), &untouched);
                }
                Operation::Take(lane, keys_max) if live.has_ready(lane) => {
                    live.take(lane, keys_max);
                    in_progress[lane] = true;
                }
                Operation::Finish(lane) if in_progress[lane] => {
                    live.finish(lane);
                    in_progress[lane] = false;
                }
                Operation::Take(..) | Operation::Finish(_) => {}
            }
        }
    }
}
