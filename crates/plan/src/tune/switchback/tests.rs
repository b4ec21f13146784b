//! Switchback experiments under a simulated load whose throughput drifts, with noise that lasts: how often they tell apart what
//! is alike, and what is not.

use proptest::prelude::*;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;

/// A load whose throughput drifts, with noise that lasts for several windows, and sometimes a compaction.
struct Simulated {
    rng: StdRng,
    gain: f64,
    /// Standard deviation of the noise, and how much of it is left in the next window.
    noise: (f64, f64),
    /// Drift from window to window, as a share.
    drift: f64,
    /// Standard deviation of what a change of the configuration adds, until the next one.
    switching: f64,
    switched: (Side, f64),
    level: f64,
    now: f64,
}

impl Simulated {
    fn new(seed: u64, gain: f64, noise: (f64, f64), drift: f64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let switched = (Side::Old, 0.0);
        Self { rng, gain, noise, drift, switching: 0.0, switched, level: 0.0, now: 0.0 }
    }

    fn window(&mut self, side: Side) -> Window {
        let (deviation, left) = self.noise;
        // The sum of twelve uniform numbers is nearly normal.
        let mut normal = || (0..12).map(|_| self.rng.random_range(-0.5..0.5)).sum::<f64>();
        if side != self.switched.0 {
            self.switched = (side, self.switching * normal());
        }
        let normal = normal();
        self.now = left * self.now + (1.0 - left * left).sqrt() * deviation * normal;
        self.level += self.drift;
        let gain = if side == Side::New { self.gain.ln_1p() } else { 0.0 };
        let rate_s = 21_400.0 * (self.level + self.now + self.switched.1 + gain).exp();
        let times = |us: f64| [Some(us), None, None, None];
        let (median, slowest) = (times(64e6 / rate_s), times(400e6 / rate_s));
        Window { mix: Mix::of_reads(1.0), rate_s, median, slowest, memory: None }
    }

    fn block(&mut self, windows: usize) -> Block {
        let first = Side::drawn(&mut self.rng);
        let turns = first.block().map(|side| (0..windows).map(|_| self.window(side)).collect());
        Block { first, turns }
    }

    fn blocks(&mut self, count: usize, windows: usize) -> Vec<Block> {
        (0..count).map(|_| self.block(windows)).collect()
    }
}

fn compared(blocks: &[Block]) -> Comparison {
    compare(blocks, &|_| 1.0).expect("two blocks at least")
}

/// Returns the verdict after at most so many blocks, and the number of blocks that it took.
fn told(mut load: Simulated, blocks_max: usize) -> (Verdict, usize) {
    let mut blocks = Vec::new();
    while blocks.len() < blocks_max {
        blocks.push(load.block(3));
        if blocks.len() < BLOCKS_MIN {
            continue;
        }
        let verdict = compared(&blocks).verdict(blocks_max, 0.02);
        if verdict != Verdict::Undecided {
            return (verdict, blocks.len());
        }
    }
    (Verdict::Undecided, blocks_max)
}

#[test]
fn both_configurations_have_two_turns_in_each_block_and_the_same_mean_place() {
    for first in [Side::Old, Side::New] {
        let block = first.block();
        let place = |side| (0..4).filter(|turn| block[*turn] == side).sum::<usize>();
        assert_eq!((place(Side::Old), place(Side::New)), (3, 3), "{block:?}");
    }
    let mut rng = StdRng::seed_from_u64(2_019);
    let drawn: Vec<Side> = (0..100).map(|_| Side::drawn(&mut rng)).collect();
    assert!((30..70).contains(&drawn.iter().filter(|side| **side == Side::New).count()));
}

#[test]
fn an_even_drift_is_no_gain() {
    // Throughput doubles within five blocks.
    let mut load = Simulated::new(7, 0.15, (0.0, 0.0), 2.0_f64.ln() / 60.0);
    let found = compared(&load.blocks(5, 3)).throughput;
    assert!((found.change - 0.15).abs() < 1e-9, "{found:?}");
    let mut placebo = Simulated::new(7, 0.0, (0.0, 0.0), 2.0_f64.ln() / 60.0);
    let found = compared(&placebo.blocks(5, 3)).throughput;
    assert!(found.change.abs() < 1e-9, "{found:?}");
}

#[test]
fn another_mix_is_no_gain() {
    let mut load = Simulated::new(11, 0.1, (0.01, 0.0), 0.0);
    let mut blocks = load.blocks(4, 3);
    for (turn, windows) in blocks.iter_mut().flat_map(|block| &mut block.turns).enumerate() {
        for window in windows {
            let reads = if turn % 3 == 0 { 0.2 } else { 1.0 };
            window.mix = Mix::of_reads(reads);
            window.rate_s *= reads;
        }
    }
    let expected = |mix: Mix| 1_000.0 * mix.shares()[0];
    let found = compare(&blocks, &expected).unwrap().throughput;
    assert!((found.change - 0.1).abs() < 0.03, "{found:?}");
}

#[test]
fn a_closed_load_waits_less_where_more_is_served() {
    let mut load = Simulated::new(3, 0.25, (0.02, 0.0), 0.0);
    let found = compared(&load.blocks(6, 4));
    for times in [found.median.unwrap(), found.slowest.unwrap()] {
        assert!((times.change + 0.2).abs() < 0.03, "{times:?}");
    }
}

#[test]
fn what_latency_owes_to_the_clients_own_rate_is_removed() {
    // Clients send as much as they like; the new configuration answers within four fifths of the time.
    let mut rng = StdRng::seed_from_u64(5);
    let mut window = |side: Side| {
        let rate_s: f64 = rng.random_range(2_000.0..9_000.0);
        let us = (rate_s / 1_000.0).powi(2) * if side == Side::New { 80.0 } else { 100.0 };
        let times = [Some(us), None, None, None];
        let mix = Mix::of_reads(1.0);
        Window { mix, rate_s, median: times, slowest: times, memory: None }
    };
    let blocks: Vec<Block> = (0..8)
        .map(|_| Block {
            first: Side::Old,
            turns: Side::Old.block().map(|side| (0..4).map(|_| window(side)).collect()),
        })
        .collect();
    let found = compared(&blocks);
    let median = found.median.unwrap();
    assert!((median.change + 0.2).abs() < 0.02, "{median:?}");
    assert_eq!(found.verdict(8, 0.02), Verdict::Undecided, "they serve what they are asked for");
}

#[test]
fn a_kind_that_a_turn_lacks_is_not_compared() {
    let mut load = Simulated::new(13, 0.0, (0.01, 0.0), 0.0);
    let mut blocks = load.blocks(3, 2);
    blocks[1].turns[2].iter_mut().for_each(|window| window.median = [None; KINDS]);
    let found = compared(&blocks);
    assert_eq!(found.median, None);
    assert!(found.slowest.is_some());
    assert_eq!(compare(&blocks[..1], &|_| 1.0), None, "one block tells no noise");
}

#[test]
fn configurations_that_are_alike_are_seldom_told_apart() {
    // Noise that lasts, a drift, both, and noise of the changes themselves: of 400 experiments with up to ten looks each, of
    // which eight are meant to be wrong.
    for (noise, drift, switching) in [
        ((0.03, 0.0), 0.0, 0.0),
        ((0.05, 0.7), 0.0, 0.0),
        ((0.05, 0.9), 0.003, 0.0),
        ((0.05, 0.0), 0.0, 0.03),
        ((0.05, 0.0), 0.0, 0.06),
    ] {
        let wrong = (0..400)
            .filter(|seed| {
                let load = Simulated { switching, ..Simulated::new(*seed, 0.0, noise, drift) };
                matches!(told(load, 12).0, Verdict::More | Verdict::Less)
            })
            .count();
        assert!(wrong <= 13, "{wrong} of 400 with {noise:?} {drift} {switching}");
    }
}

#[test]
fn fifteen_percent_are_told_within_eleven_blocks() {
    for (noise, drift) in [((0.05, 0.0), 0.0), ((0.06, 0.7), 0.002)] {
        let all: Vec<(Verdict, usize)> =
            (0..200).map(|seed| told(Simulated::new(seed, 0.15, noise, drift), 11)).collect();
        let found = all.iter().filter(|(verdict, _)| *verdict == Verdict::More).count();
        assert!(found >= 190, "{found} of 200 with {noise:?} {drift}");
        assert!(all.iter().all(|(verdict, _)| *verdict != Verdict::Less));
    }
    let (verdict, blocks) = told(Simulated::new(1, -0.3, (0.02, 0.5), 0.0), 11);
    assert_eq!((verdict, blocks), (Verdict::Less, BLOCKS_MIN));
    let (verdict, blocks) = told(Simulated::new(1, 0.0, (0.001, 0.0), 0.0), 11);
    assert_eq!((verdict, blocks), (Verdict::Alike, BLOCKS_MIN));
}

#[test]
fn a_change_is_judged_by_its_turns() {
    // By the measurements, the new configuration serves a quarter more reads.
    let rates = |_: Mix| vec![20_000.0, 25_000.0];
    let judge = |gain: f64| {
        let mut load = Simulated::new(17, gain, (0.01, 0.3), 0.004);
        judged(&load.blocks(3, 2), &rates, (0, 1), &Bounds::default(), true).unwrap()
    };
    let better = judge(0.2);
    assert!((better.predicted - 0.25).abs() < 1e-9, "{better:?}");
    assert!((better.realised.mean - 0.2).abs() < 0.03, "{better:?}");
    assert!(better.realised.noise < 0.05 && better.median < Some(0.9), "{better:?}");
    assert_eq!(better.undo_reason, None);
    assert_eq!(judge(-0.2).undo_reason, Some(judge::UndoReason::Throughput));
    assert_eq!(judge(-0.03).undo_reason, None, "less than the bound");
    let mut load = Simulated::new(17, 0.0, (0.01, 0.3), 0.0);
    let mut blocks = load.blocks(3, 2);
    for block in &mut blocks {
        for (side, windows) in block.first.block().into_iter().zip(&mut block.turns) {
            let memory = Some(if side == Side::New { 0.95 } else { 0.5 });
            windows.iter_mut().for_each(|window| window.memory = memory);
        }
    }
    let short = judged(&blocks, &rates, (0, 1), &Bounds::default(), true).unwrap();
    let without = judged(&blocks, &rates, (0, 1), &Bounds::default(), false).unwrap();
    assert_eq!((without.median, without.slowest), (None, None));
    assert_eq!(short.undo_reason, Some(judge::UndoReason::Memory));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Of independent noise a 90 % interval contains the true gain in nine of ten experiments.
    #[test]
    fn intervals_cover_what_they_say(
        seed in any::<u64>(), gain in -0.3..0.6_f64, deviation in 0.01..0.2_f64, count in 3..9_usize,
    ) {
        let all = 200;
        let covered = (0..all).filter(|number| {
            let mut load = Simulated::new(seed ^ number, gain, (deviation, 0.0), 0.0);
            contains(compared(&load.blocks(count, 3)).throughput.interval, gain)
        }).count();
        prop_assert!((163..=198).contains(&covered), "{} of {}", covered, all);
    }

    /// Both ways to begin a block tell the same gain.
    #[test]
    fn the_order_does_not_matter(seed in any::<u64>(), gain in -0.3..0.6_f64) {
        let mut load = Simulated::new(seed, gain, (0.03, 0.3), 0.0);
        let blocks = load.blocks(4, 2);
        let turned: Vec<Block> = blocks.iter().map(|block| {
            let [a, b, c, d] = block.turns.clone();
            Block { first: block.first.other(), turns: [b, a, d, c] }
        }).collect();
        let (one, other) = (compared(&blocks).throughput, compared(&turned).throughput);
        prop_assert!((one.change - other.change).abs() < 1e-9, "{:?} {:?}", one, other);
    }
}
