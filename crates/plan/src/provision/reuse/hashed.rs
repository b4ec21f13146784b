//! Hash maps with keys that are hashes already.
//!
//! The standard library's hash function costs as much as the rest of a reference. A multiplication distributes keys
//! well enough, even small integers. It does not resist keys that an adversary chose to collide; collisions cost time,
//! not correctness.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash map from keys that are hashes already.
pub(super) type KeyMap<V> = HashMap<u64, V, BuildHasherDefault<Folded>>;

/// A hasher that folds the 128-bit product of the key and a constant into 64 bits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Folded(u64);

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, key: u64) {
        let product = u128::from(self.0 ^ key) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

/// Returns a pseudorandom number for a key: a different one for each key, and for the same key with another seed (the
/// finaliser of SplitMix64; Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014).
pub(super) fn scattered(key: u64, seed: u64) -> u64 {
    let mut mixed = key ^ seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
