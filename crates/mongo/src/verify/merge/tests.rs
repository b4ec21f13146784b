//! The merge of two sorted sides against an oracle that holds both in maps.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, RawDocumentBuf, doc};
use proptest::prelude::*;

use super::*;
use crate::bson::order::Id;
use crate::verify::feed::id_of;

impl Block for Vec<Vec<u8>> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn document(&self, index: usize) -> &[u8] {
        &self[index]
    }
}

fn document(id: impl Into<Bson>, value: i32) -> Vec<u8> {
    RawDocumentBuf::try_from(&doc! {"_id": id.into(), "v": value}).unwrap().into_bytes()
}

/// Cuts `documents` into blocks of `size`.
fn blocks(documents: &[Vec<u8>], size: usize) -> std::vec::IntoIter<Vec<Vec<u8>>> {
    let cut: Vec<Vec<Vec<u8>>> = documents.chunks(size).map(<[_]>::to_vec).collect();
    cut.into_iter()
}

fn merged(
    source: &[Vec<u8>],
    destination: &[Vec<u8>],
    (left, right, suspects_max): (usize, usize, usize),
) -> Result<(MergeCounts, BTreeSet<Id>), Misaligned> {
    let (mut left, mut right) = (blocks(source, left), blocks(destination, right));
    let mut merge = Merge::new();
    let mut suspects = BTreeSet::new();
    loop {
        let need = merge.run(suspects_max, |document| {
            suspects.insert(id_of(document).unwrap());
        })?;
        match need {
            None => {}
            Some(Need::Source) => merge.feed_source(left.next()),
            Some(Need::Destination) => merge.feed_destination(right.next()),
            Some(Need::Nothing) => return Ok((merge.seen(), suspects)),
        }
    }
}

/// The documents that each side holds under one `_id`.
type Both<'a> = (Vec<&'a [u8]>, Vec<&'a [u8]>);

/// The brute force: all documents by `_id`, compared as sets.
fn oracle(source: &[Vec<u8>], destination: &[Vec<u8>]) -> (u64, BTreeSet<Id>) {
    let mut all: BTreeMap<Id, Both<'_>> = BTreeMap::new();
    for document in source {
        all.entry(id_of(document).unwrap()).or_default().0.push(document);
    }
    for document in destination {
        all.entry(id_of(document).unwrap()).or_default().1.push(document);
    }
    let differs = |(left, right): &Both<'_>| left.len() != 1 || left != right;
    let compared = all.len() as u64;
    (compared, all.into_iter().filter(|(_, both)| differs(both)).map(|(id, _)| id).collect())
}

/// `_id`s of several types, among them equal ones of different types.
fn side() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let id = prop_oneof![
        (0..12_i32).prop_map(Bson::Int32),
        (0..12_i64).prop_map(Bson::Int64),
        (0..4_i32).prop_map(|n| Bson::Double(f64::from(n) + 0.5)),
        "[ab]{0,2}".prop_map(Bson::String),
        Just(Bson::Null),
        Just(Bson::MaxKey),
    ];
    prop::collection::vec((id, 0..3_i32), 0..25).prop_map(|documents| {
        let mut documents: Vec<Vec<u8>> =
            documents.into_iter().map(|(id, value)| document(id, value)).collect();
        documents.sort_by_key(|document| id_of(document).unwrap());
        documents
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn suspects_are_exactly_what_differs(
        source in side(), destination in side(),
        sizes in (1..6_usize, 1..6_usize, 1..6_usize)
    ) {
        let (seen, suspects) = merged(&source, &destination, sizes).unwrap();
        let (compared, expected) = oracle(&source, &destination);
        prop_assert_eq!(suspects, expected);
        prop_assert_eq!(seen.compared, compared);
    }

    #[test]
    fn a_side_out_of_order_is_noticed(source in side(), at: prop::sample::Index) {
        let mut shuffled = source.clone();
        shuffled.dedup_by_key(|document| id_of(document).unwrap());
        prop_assume!(shuffled.len() >= 2);
        let at = at.index(shuffled.len() - 1);
        shuffled.swap(at, at + 1);
        prop_assert_eq!(merged(&shuffled, &source, (3, 3, 9)), Err(Misaligned));
        prop_assert_eq!(merged(&source, &shuffled, (3, 3, 9)), Err(Misaligned));
    }
}

#[test]
fn one_id_in_two_types_is_different_bytes() {
    let (_, suspects) = merged(&[document(1_i32, 0)], &[document(1_i64, 0)], (1, 1, 9)).unwrap();
    assert_eq!(suspects.len(), 1);
}

#[test]
fn a_document_without_an_id_cannot_be_aligned() {
    let nameless = RawDocumentBuf::try_from(&doc! {"v": 1}).unwrap().into_bytes();
    assert_eq!(merged(&[nameless], &[document(1, 0)], (1, 1, 9)), Err(Misaligned));
}
