//! The exact curve beside libCacheSim's LRU, at every point, on a hundred traces.
//!
//! The hits of libCacheSim are in `data/lru_reference.txt`; `data/lru_reference.py` says how they were made, and draws
//! the same traces.

use imago_plan::provision::reuse::{Reference, Start, exact};

const HITS: &str = include_str!("data/lru_reference.txt");

/// Numbers by the linear congruential generator of Knuth's MMIX.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Keys of one of four kinds: uniform, skewed, in loops of growing length, and in changing regions.
fn trace(seed: u64) -> Vec<u64> {
    let mut draw = Draw(seed);
    let references = 300 + draw.below(2_200);
    let keys = 10 + draw.below(300);
    let mut at = 0;
    let key = |n| match seed % 4 {
        0 => draw.below(keys),
        1 => draw.below(keys).min(draw.below(keys)).min(draw.below(keys)),
        2 => {
            at = if draw.below(40) == 0 { 0 } else { at + 1 };
            at % keys
        }
        _ => (n / 200 * 37 + draw.below(1 + keys / 5)) % keys,
    };
    (0..references).map(key).collect()
}

#[test]
fn the_exact_curve_is_that_of_libcachesim_at_every_point() {
    let lines: Vec<&str> = HITS.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(lines.len(), 100);
    let mut points = 0;
    for line in lines {
        let mut numbers = line.split(' ').map(|number| number.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        let (seed, references, distinct) = (next(), next(), next());
        // Entries of 100 bytes, in two phases.
        let keys: Vec<Reference> =
            trace(seed).into_iter().map(|key| Reference { key, bytes: 100 }).collect();
        let (first, second) = keys.split_at(keys.len() / 3);
        let curve = exact(&[first.to_vec(), second.to_vec()], Start::Cold);
        assert_eq!(curve.references(0) + curve.references(1), references);
        assert_eq!(curve.distinct_bytes(), 100 * distinct);
        let added: Vec<u64> = numbers.collect();
        assert_eq!(added.len() as u64, distinct + 1, "a line ends where nothing more is added");
        let mut hits = 0;
        for (entries, added) in (1u64..).zip(added) {
            hits += added;
            // Half an entry more makes no difference.
            for capacity in [100 * entries, 100 * entries + 50] {
                let told = curve.hits(0, capacity) + curve.hits(1, capacity);
                assert_eq!(told, hits as f64, "trace {seed} at {entries} entries");
            }
            points += 1;
        }
    }
    assert!(points > 5_000, "{points} points");
}
