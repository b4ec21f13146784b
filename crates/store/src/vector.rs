//! Which versions belong together: the timestamps of strong-session snapshot isolation.
//!
//! The idea (MorphoSys, §4.2): a partition counts its commits, and a version that was written together
//! with others *depends* on them: whoever reads it must not read anything older of those. Such
//! dependencies, a transaction's begin and commit timestamps and what a session has seen are all the
//! same thing, versions by partition.
//!
//! Here they are versions by key range. A split or a merge then needs no new names: at each key the
//! version only grows, whichever partition the key is in, because a split gives both halves a version
//! above the old one, and a merge one above both. So a requirement stays right, whatever became of
//! the partition that it was recorded for: every copy of any of its keys has to have its version.
//!
//! Invariants: pieces are ordered, none is empty, none overlaps another, and neighbours that touch
//! have different versions.

use crate::key::{Key, KeyRange};

#[cfg(test)]
mod tests;

/// A version for each key, 0 where nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vector(Vec<Piece>);

/// Keys of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The keys.
    pub range: KeyRange,
    /// Their version, from 1 on.
    pub version: u64,
}

impl Vector {
    /// One version for a range, and nothing elsewhere.
    #[must_use]
    pub fn of(range: KeyRange, version: u64) -> Self {
        let mut pieces = Vec::new();
        push(&mut pieces, Piece { range, version });
        Self(pieces)
    }

    /// Whether nothing is required.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is required, in the order of the keys.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// The version that a copy of these keys must have.
    #[must_use]
    pub fn required(&self, range: &KeyRange) -> u64 {
        let first = self.0.partition_point(|piece| {
            piece.range.end.as_ref().is_some_and(|end| *end <= range.start)
        });
        let overlapping = self.0[first..].iter().take_while(|piece| piece.range.overlaps(range));
        overlapping.map(|piece| piece.version).max().unwrap_or(0)
    }

    /// Takes the larger version for each key (Eq. 1).
    pub fn merge(&mut self, other: &Self) {
        if other.0.is_empty() {
            return;
        }
        if self.0.is_empty() {
            self.clone_from(other);
            return;
        }
        self.0 = zip(&self.0, &other.0, u64::max);
    }

    /// Forgets what holds everywhere: versions that are no larger than `everywhere`'s.
    pub fn collect(&mut self, everywhere: &Self) {
        if !self.0.is_empty() && !everywhere.0.is_empty() {
            self.0 = zip(&self.0, &everywhere.0, |own, all| if own > all { own } else { 0 });
        }
    }
}

/// Goes through the keys of both, and takes for each what `choose` makes of the two versions.
fn zip(one: &[Piece], other: &[Piece], choose: impl Fn(u64, u64) -> u64) -> Vec<Piece> {
    let mut chosen = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (Walk::new(one), Walk::new(other));
    // Where the keys begin that are still to be decided; both walks are there.
    let mut from = Some(Key::least());
    while let Some(start) = from {
        let (version, one_to) = one.at(&start);
        let (other_version, other_to) = other.at(&start);
        let end = match (one_to, other_to) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (end, None) | (None, end) => end,
        };
        let range = KeyRange { start, end: end.cloned() };
        push(&mut chosen, Piece { range, version: choose(version, other_version) });
        from = end.cloned();
    }
    chosen
}

/// Goes through pieces and the gaps between them.
struct Walk<'a>(&'a [Piece]);

impl<'a> Walk<'a> {
    fn new(pieces: &'a [Piece]) -> Self {
        Self(pieces)
    }

    /// The version at a key, and up to where it holds. Keys must not go back.
    fn at(&mut self, key: &Key) -> (u64, Option<&'a Key>) {
        while let [first, rest @ ..] = self.0
            && first.range.end.as_ref().is_some_and(|end| end <= key)
        {
            self.0 = rest;
        }
        match self.0.first() {
            None => (0, None),
            Some(first) if *key < first.range.start => (0, Some(&first.range.start)),
            Some(first) => (first.version, first.range.end.as_ref()),
        }
    }
}

fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    if piece.version == 0 || piece.range.is_empty() {
        return;
    }
    match pieces.last_mut() {
        Some(last)
            if last.version == piece.version
                && last.range.end.as_ref() == Some(&piece.range.start) =>
        {
            last.range.end = piece.range.end;
        }
        _ => pieces.push(piece),
    }
}
