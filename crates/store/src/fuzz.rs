//! A fuzzer of parsers: it damages valid bytes as disks, networks and other programs damage them. A parser of
//! them must not panic, must not allocate memory for a length that is only announced, and must not accept
//! them as valid.
//!
//! The fuzzer runs with the other tests, on the stable compiler. It knows the positions of a format's parts
//! and of its length fields, and derives all choices from a seed. The seed of a failure is printed;
//! `IMAGO_SEED` repeats that case. `IMAGO_LONG` runs fifty times as many cases.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub(crate) mod allocation;

/// Factor by which a long run (`IMAGO_LONG`) has more cases.
const LONG: u64 = 50;
/// Wrong lengths, besides those near the true one.
const WRONG_LENGTHS: [u32; 8] =
    [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX, 1 << 28, 1 << 20, 0x0d0a_0d0a];

/// Runs `check` for this number of seeds, or only for the seed in `IMAGO_SEED`.
#[track_caller]
pub(crate) fn many(cases: u64, check: impl Fn(&mut StdRng)) {
    let set = std::env::var("IMAGO_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let times = if std::env::var_os("IMAGO_LONG").is_some() { LONG } else { 1 };
    for seed in set.map_or(0..cases * times, |seed| seed..seed + 1) {
        let mut rng = StdRng::seed_from_u64(seed);
        let checked = catch_unwind(AssertUnwindSafe(|| check(&mut rng)));
        assert!(checked.is_ok(), "IMAGO_SEED={seed} repeats it");
    }
}

/// A valid byte string, with the structure of its format.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValidBytes {
    pub bytes: Vec<u8>,
    /// The positions at which parts begin.
    pub seams: Vec<usize>,
    /// The positions of length fields of four bytes, least significant byte first.
    pub lengths: Vec<usize>,
}

impl ValidBytes {
    /// Returns a random position in `bytes`; half of the time one at which a part begins.
    fn place(&self, rng: &mut StdRng, bytes: &[u8]) -> usize {
        let any = rng.random_range(0..=bytes.len());
        if self.seams.is_empty() || rng.random_bool(0.5) {
            return any;
        }
        self.seams[rng.random_range(0..self.seams.len())].min(bytes.len())
    }

    fn piece(&self, rng: &mut StdRng, bytes: &[u8]) -> std::ops::Range<usize> {
        let (one, other) = (self.place(rng, bytes), self.place(rng, bytes));
        one.min(other)..one.max(other)
    }

    /// Returns the bytes with one to three random damages; pieces may also come from `others`.
    pub fn damaged(&self, rng: &mut StdRng, others: &[ValidBytes]) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for _ in 0..rng.random_range(1..=3) {
            self.damage(rng, &mut bytes, others);
        }
        bytes
    }

    fn damage(&self, rng: &mut StdRng, bytes: &mut Vec<u8>, others: &[ValidBytes]) {
        let at = self.place(rng, bytes);
        match rng.random_range(0..9) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(self.piece(rng, bytes))),
            2 => {
                let piece = bytes[self.piece(rng, bytes)].to_vec();
                bytes.splice(at..at, piece);
            }
            3 if !others.is_empty() => {
                let other = &others[rng.random_range(0..others.len())];
                let piece = other.bytes[other.piece(rng, &other.bytes)].to_vec();
                let gone = self.piece(rng, bytes);
                bytes.splice(gone, piece);
            }
            4 => {
                // Two adjacent pieces change places.
                let (piece, middle) = (self.piece(rng, bytes), self.place(rng, bytes));
                let middle = middle.clamp(piece.start, piece.end) - piece.start;
                bytes[piece].rotate_left(middle);
            }
            5 if !self.lengths.is_empty() => {
                let at = self.lengths[rng.random_range(0..self.lengths.len())];
                if let Some(length) = bytes.get_mut(at..at + 4) {
                    let truth = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
                    let near = truth.wrapping_add(rng.random_range(0..9)).wrapping_sub(4);
                    let lie =
                        WRONG_LENGTHS.get(rng.random_range(0..2 * WRONG_LENGTHS.len())).copied();
                    length.copy_from_slice(&lie.unwrap_or(near).to_le_bytes());
                }
            }
            6 => {
                // A random word replaces a number in decimal digits; if there is no number, the word is
                // inserted.
                let words = ["-1", "0", "1", "9999999", "2147483648", "18446744073709551616", "-"];
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                let from = bytes[at..].iter().position(is_digit).map_or(at, |to| at + to);
                let many = bytes[from..].iter().take_while(|byte| is_digit(byte)).count();
                let word = words[rng.random_range(0..words.len())];
                bytes.splice(from..from + many, word.bytes());
            }
            7 => {
                let many = rng.random_range(1..20);
                let random: Vec<u8> = (0..many).map(|_| rng.random()).collect();
                bytes.splice(at..at, random);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.random_range(0..8);
                }
            }
        }
    }
}

#[test]
fn a_seed_repeats_its_draw_and_most_seeds_differ() {
    let right =
        ValidBytes { bytes: b"*1\r\n$4\r\nPING\r\n".repeat(3), seams: vec![14], lengths: vec![3] };
    let all: std::collections::BTreeSet<_> = (0..200)
        .map(|seed| {
            let draw =
                || right.damaged(&mut StdRng::seed_from_u64(seed), std::slice::from_ref(&right));
            assert_eq!(draw(), draw());
            draw()
        })
        .collect();
    assert!(all.len() > 150, "{}", all.len());
}
