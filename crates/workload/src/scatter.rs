//! Deterministic scattering: a 64-bit mixing function, and a permutation of `0..n`.
//!
//! The permutation spreads the hot keys of a skewed distribution over the whole key space without merging any
//! two of them, as hashing modulo `n` would. It is a four-round Feistel network over the next power of four,
//! applied repeatedly until the value is in the range ("cycle walking"). So it needs no table, and at most
//! four steps are expected for each `n`.

/// Returns a mixture of the 64 bits of `value`, in which each input bit changes about half of the output bits. The
/// function is a bijection (the finaliser of SplitMix64).
#[must_use]
pub fn mix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the value from which [`mix64`] makes `mixed`: the inverse function.
#[must_use]
pub fn unmix64(mixed: u64) -> u64 {
    // The steps are undone in reverse order; the factors are the inverses modulo 2^64.
    let z = mixed ^ (mixed >> 31) ^ (mixed >> 62);
    let z = z.wrapping_mul(0x3196_42b2_d24d_8ec3);
    let z = z ^ (z >> 27) ^ (z >> 54);
    let z = z.wrapping_mul(0x96de_1b17_3f11_9089);
    let z = z ^ (z >> 30) ^ (z >> 60);
    z.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

/// Returns a mixture of two values; their order matters.
#[must_use]
pub fn mix_pair(first: u64, second: u64) -> u64 {
    mix64(mix64(first) ^ second)
}

/// Converts the highest 53 of the given bits to a value in `0.0..1.0`.
#[must_use]
pub fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A cheap deterministic stream of 64-bit values, from which documents are generated.
#[derive(Debug, Clone)]
pub struct Stream {
    state: u64,
}

impl Stream {
    /// Returns the stream that the numbers `first` and `second` determine.
    #[must_use]
    pub fn new(first: u64, second: u64) -> Self {
        Self { state: mix_pair(first, second) }
    }

    /// Returns the next value of the stream.
    pub fn next_bits(&mut self) -> u64 {
        let value = mix64(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        value
    }

    /// Returns a number below `bound` (which must not be 0) made of the next value, biased by less than `bound /
    /// 2^64`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a value below zero was asked for");
        ((u128::from(self.next_bits()) * u128::from(bound)) >> 64) as u64
    }
}

/// A fixed pseudo-random permutation of `0..len`.
#[derive(Debug, Clone)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    seed: u64,
}

const ROUNDS: u64 = 4;

impl Permutation {
    /// Returns the permutation of `0..len` that `seed` determines.
    #[must_use]
    pub fn new(len: u64, seed: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        Self { len, half_bits: bits.div_ceil(2).max(1), seed }
    }

    /// Returns the number of permuted values, `len` of [`Permutation::new`].
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the permutation has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value to which the permutation maps `index`.
    ///
    /// # Panics
    /// Panics if `index` is not below `len`, which is a bug of the caller.
    #[must_use]
    pub fn at(&self, index: u64) -> u64 {
        assert!(index < self.len, "index {index} outside a permutation of {}", self.len);
        // The cycle of a permutation through a value in the range returns to the range.
        let mut value = self.step(index);
        while value >= self.len {
            value = self.step(value);
        }
        value
    }

    fn step(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for round in 0..ROUNDS {
            let mixed = mix_pair(self.seed.wrapping_add(round), right) & mask;
            (left, right) = (right, left ^ mixed);
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_permutation_reaches_every_value_once(len in 1u64..3000, seed: u64) {
            let permutation = Permutation::new(len, seed);
            let mut reached = vec![false; len as usize];
            for index in 0..len {
                let value = permutation.at(index) as usize;
                prop_assert!(!reached[value]);
                reached[value] = true;
            }
        }
    }

    #[test]
    fn neighbours_are_scattered() {
        let permutation = Permutation::new(100_000, 7);
        let near = (0..1000)
            .filter(|&index| permutation.at(index).abs_diff(permutation.at(index + 1)) < 1000)
            .count();
        assert!(near < 60, "{near} of 1000 neighbours stayed within 1% of each other");
    }

    #[test]
    fn values_below_a_bound_use_the_whole_range() {
        let mut stream = Stream::new(1, 2);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[stream.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
    }
}
