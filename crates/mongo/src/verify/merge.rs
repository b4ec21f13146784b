//! Merge of two sorted sequences of documents: the part of a full verification without I/O.
//!
//! The caller supplies blocks of documents; the merge returns the side of which it needs the next block, and never
//! reads by itself. The caller decides how far each side is read ahead.
//!
//! Invariant: each `_id` that either side has is counted once, and reported as a suspect unless both sides have it
//! exactly once with the same bytes. This requires that both sides ascend, which is checked ([`Misaligned`]) rather
//! than assumed.

use std::cmp::Ordering;

use crate::bson::order::{Element, id_element};

/// A sequence of documents of one side, in `_id` order.
pub(super) trait Block {
    fn len(&self) -> usize;
    fn document(&self, index: usize) -> &[u8];
}

/// The input that the merge needs to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The next block of the source, or its end.
    Source,
    /// The next block of the destination, or its end.
    Destination,
    /// No input: both sides have ended.
    Nothing,
}

/// The error that a side is not in the expected order of `_id`s, so that a merge cannot align both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Misaligned;

/// Counts of the documents that a merge has compared so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MergeCounts {
    /// Number of distinct `_id`s that were compared, where a repeated `_id` counts once.
    pub compared: u64,
    /// Size of the source's documents that were compared, in bytes.
    pub source_bytes: u64,
}

/// The state of a merge of a source and a destination.
#[derive(Debug)]
pub(super) struct Merge<B> {
    source: Side<B>,
    destination: Side<B>,
    seen: MergeCounts,
}

#[derive(Debug)]
struct Side<B> {
    block: Option<B>,
    /// Index in `block` of the first document that is not consumed yet.
    at: usize,
    /// True if the document at `at` was found to sort after the consumed ones.
    is_checked: bool,
    /// The `_id` of the last consumed document; `None` before the first.
    last: Option<LastId>,
    ended: bool,
}

/// The bytes of an `_id`, in a buffer that is reused for the next one.
#[derive(Debug, Default)]
struct LastId {
    kind: u8,
    payload: Vec<u8>,
}

impl LastId {
    fn element(&self) -> Element<'_> {
        Element { kind: self.kind, name: b"", payload: &self.payload }
    }
}

impl<B: Block> Side<B> {
    fn new() -> Self {
        Self { block: None, at: 0, is_checked: false, last: None, ended: false }
    }

    fn feed(&mut self, block: Option<B>) {
        assert!(self.head().is_none(), "a block is fed when the one before is consumed");
        self.ended = block.is_none();
        self.block = block;
        self.at = 0;
    }

    fn head(&self) -> Option<&[u8]> {
        let block = self.block.as_ref()?;
        (self.at < block.len()).then(|| block.document(self.at))
    }

    fn consume(&mut self) {
        let Some(block) = self.block.as_ref() else { return };
        if let Some(id) = id_element(block.document(self.at)) {
            let last = self.last.get_or_insert_default();
            last.kind = id.kind;
            last.payload.clear();
            last.payload.extend_from_slice(id.payload);
        }
        self.at += 1;
        self.is_checked = false;
    }

    /// Checks that the next document sorts after the consumed documents. Documents that repeat the last `_id` are
    /// consumed and passed to `repeated`.
    fn check(&mut self, mut repeated: impl FnMut(&[u8])) -> Result<(), Misaligned> {
        while !self.is_checked {
            let Some(head) = self.head() else { return Ok(()) };
            let id = id_element(head).ok_or(Misaligned)?;
            let order = self.last.as_ref().map(|last| last.element().cmp_value(&id));
            match order {
                None | Some(Ordering::Less) => self.is_checked = true,
                Some(Ordering::Equal) => {
                    repeated(head);
                    self.consume();
                }
                Some(Ordering::Greater) => return Err(Misaligned),
            }
        }
        Ok(())
    }
}

impl<B: Block> Merge<B> {
    pub(super) fn new() -> Self {
        Self { source: Side::new(), destination: Side::new(), seen: MergeCounts::default() }
    }

    pub(super) fn feed_source(&mut self, block: Option<B>) {
        self.source.feed(block);
    }

    pub(super) fn feed_destination(&mut self, block: Option<B>) {
        self.destination.feed(block);
    }

    pub(super) fn seen(&self) -> MergeCounts {
        self.seen
    }

    /// Merges until a side needs input, or until `suspects_max` documents differed. Each document that differs is
    /// passed to `suspect`, possibly more than once. Returns the needed input, or `None` after `suspects_max`
    /// documents.
    pub(super) fn run(
        &mut self,
        suspects_max: usize,
        mut suspect: impl FnMut(&[u8]),
    ) -> Result<Option<Need>, Misaligned> {
        let mut suspected = 0;
        let mut suspect = |document: &[u8]| {
            suspected += 1;
            suspect(document);
            suspected >= suspects_max
        };
        loop {
            let mut is_enough = false;
            self.source.check(|document| is_enough |= suspect(document))?;
            self.destination.check(|document| is_enough |= suspect(document))?;
            let order = match (self.source.head(), self.destination.head()) {
                (None, _) if !self.source.ended => return Ok(Some(Need::Source)),
                (_, None) if !self.destination.ended => return Ok(Some(Need::Destination)),
                (None, None) => return Ok(Some(Need::Nothing)),
                (None, Some(right)) => {
                    is_enough |= suspect(right);
                    Ordering::Greater
                }
                (Some(left), None) => {
                    is_enough |= suspect(left);
                    Ordering::Less
                }
                (Some(left), Some(right)) if left == right => Ordering::Equal,
                (Some(left), Some(right)) => {
                    let order = cmp_ids(left, right)?;
                    is_enough |= suspect(if order.is_gt() { right } else { left });
                    order
                }
            };
            self.advance(order);
            if is_enough {
                return Ok(None);
            }
        }
    }

    fn advance(&mut self, order: Ordering) {
        self.seen.compared += 1;
        if order.is_le() {
            self.seen.source_bytes += self.source.head().map_or(0, |head| head.len() as u64);
            self.source.consume();
        }
        if order.is_ge() {
            self.destination.consume();
        }
    }
}

fn cmp_ids(left: &[u8], right: &[u8]) -> Result<Ordering, Misaligned> {
    let (left, right) = (id_element(left), id_element(right));
    Ok(left.ok_or(Misaligned)?.cmp_value(&right.ok_or(Misaligned)?))
}

#[cfg(test)]
mod tests;
