//! The turns of a live change that is judged: the configurations before and after it serve alternately, so that what changes
//! meanwhile for another reason is not taken for the change's effect; see [`imago_plan::tune::switchback`].
//!
//! The samples before the change are the first turn. The first block ends with the old configuration and the last one with the new
//! one, which stays if it is not worse.

use imago_plan::tune::judge::Window;
use imago_plan::tune::switchback::{BLOCKS_MIN, Block, Side};

/// Number of blocks of four turns.
const BLOCKS: usize = BLOCKS_MIN;
/// Number of samples after each change of the configuration that do not count.
const SETTLING: usize = 1;

/// The turns of both configurations while they are observed.
pub(super) struct Turns {
    /// Number of samples of a turn.
    length: usize,
    /// The configuration of each turn.
    order: Vec<Side>,
    /// Samples of the turns that are complete.
    complete: Vec<Vec<Window>>,
    /// Samples of the present turn so far.
    present: Vec<Window>,
    /// Number of samples that remain to be skipped.
    settling: usize,
}

impl Turns {
    /// Begins after a change, with the last samples from before it as the first turn; `middle` is the configuration with which
    /// the block in the middle begins. Each configuration gets `judged_by` samples or slightly more. Returns `None` if there
    /// are too few samples from before.
    pub(super) fn new(before: &[Window], judged_by: usize, middle: Side) -> Option<Self> {
        let length = judged_by.div_ceil(2 * BLOCKS).max(2);
        let first = before.get(before.len().checked_sub(length)?..)?.to_vec();
        let blocks = [Side::Old, middle, Side::New].map(Side::block);
        Some(Self {
            length,
            order: blocks.concat(),
            complete: vec![first],
            present: Vec::new(),
            settling: 0,
        })
    }

    /// Returns the configuration that the cluster should have now; `None` if all turns are complete.
    pub(super) fn side(&self) -> Option<Side> {
        self.order.get(self.complete.len()).copied()
    }

    /// Returns the number of complete turns, and that of all.
    pub(super) fn progress(&self) -> (usize, usize) {
        (self.complete.len(), self.order.len())
    }

    /// Skips the samples in which throughput settles after the configuration was changed.
    pub(super) fn changed(&mut self) {
        self.settling = SETTLING;
        self.present.clear();
    }

    /// Adds a sample of the present turn. Returns false if it does not count, since throughput settles.
    pub(super) fn add(&mut self, window: Window) -> bool {
        if self.settling > 0 {
            self.settling -= 1;
            return false;
        }
        if self.complete.len() < self.order.len() {
            self.present.push(window);
            if self.present.len() == self.length {
                self.complete.push(std::mem::take(&mut self.present));
            }
        }
        true
    }

    /// Returns the number of samples of a turn.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Returns the complete blocks.
    pub(super) fn blocks(&self) -> Vec<Block> {
        let blocks = self.complete.chunks_exact(4).zip(self.order.chunks_exact(4));
        blocks
            .map(|(turns, order)| Block {
                first: order[0],
                turns: turns.to_vec().try_into().expect("four turns"),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use imago_plan::tune::workload::Mix;

    use super::*;

    fn window(rate_s: f64) -> Window {
        let times = [Some(1.0), None, None, None];
        Window { mix: Mix::of_reads(1.0), rate_s, median: times, slowest: times, memory: None }
    }

    #[test]
    fn both_configurations_have_as_many_turns_and_the_new_one_is_the_last() {
        for middle in [Side::Old, Side::New] {
            let before: Vec<Window> = (0..24).map(|n| window(9_000.0 + f64::from(n))).collect();
            let mut turns = Turns::new(&before, 12, middle).unwrap();
            assert_eq!(turns.progress(), (1, 12));
            assert_eq!(turns.complete[0], before[22..], "the last ones before the change");
            let mut seen = vec![Side::Old];
            let mut present = Side::New;
            turns.changed();
            while let Some(side) = turns.side() {
                if side != present {
                    present = side;
                    turns.changed();
                    assert!(!turns.add(window(1.0)));
                } else if seen.len() == 1 {
                    assert!(!turns.add(window(1.0)));
                }
                let rate_s = if side == Side::Old { 9e3 } else { 1e4 };
                assert!(turns.add(window(rate_s)) && turns.add(window(rate_s)));
                seen.push(side);
            }
            let count = |side| seen.iter().filter(|one| **one == side).count();
            assert_eq!((count(Side::Old), count(Side::New)), (6, 6));
            assert_eq!(seen.last(), Some(&Side::New));
            let blocks = turns.blocks();
            assert_eq!((blocks.len(), blocks[1].first), (3, middle));
            let rates = |one: &Block| one.turns.clone().map(|turn| turn[0].rate_s);
            assert_eq!(rates(&blocks[2]), [1e4, 9e3, 9e3, 1e4], "settling does not count");
        }
    }

    #[test]
    fn too_few_samples_before_a_change_make_no_turn() {
        assert!(Turns::new(&[window(9e3)], 12, Side::Old).is_none());
        assert!(Turns::new(&[], 3, Side::Old).is_none());
        assert!(Turns::new(&[window(9e3); 2], 3, Side::Old).is_some());
    }
}
