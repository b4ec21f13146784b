//! Recordings that are written and read back, cut and damaged.

use bson::RawBsonRef;
use proptest::prelude::*;

use super::form::{IGNORED, KINDS};
use super::*;
use crate::bson::order::Id;

fn datum() -> impl Strategy<Value = Datum> {
    prop_oneof![
        "[a-z]{0,20}@example.org".prop_map(|text| Id::from_raw(RawBsonRef::String(&text))),
        any::<i64>().prop_map(|number| Id::from_raw(RawBsonRef::Int64(number))),
        Just(Id::from_raw(RawBsonRef::Null)),
    ]
    .prop_map(Datum::Plain)
}

fn bound() -> impl Strategy<Value = Bound> {
    prop_oneof![
        datum().prop_map(Bound::Equal),
        prop::collection::vec(datum(), 0..5).prop_map(Bound::In),
        (prop::option::of(datum()), prop::option::of(datum()))
            .prop_map(|(low, high)| Bound::Between(low, high)),
    ]
}

prop_compose! {
    fn operation()(
        kind in prop::sample::select(KINDS.map(|(kind, _)| kind).to_vec()),
        bounds in prop::collection::vec(("[a-z]{1,3}(\\.[a-z]{1,3})?", bound()), 0..4),
        sets in prop::collection::vec("[a-z]{1,6}", 0..3),
        ignored in prop::option::of(prop::sample::select(IGNORED.map(|(kind, _)| kind).to_vec())),
        documents in any::<u32>(), transaction in prop::option::of(any::<u64>()),
        is_upsert in any::<bool>(), is_unknown in any::<bool>(), is_unseen_insert in any::<bool>(),
    ) -> Operation {
        Operation {
            kind, bounds, sets, documents, transaction, is_upsert, is_unknown, is_unseen_insert,
            ignored: ignored.into_iter().collect(),
        }
    }
}

fn ns() -> Namespace {
    Namespace::new("shop", "reviews")
}

fn read(path: &Path) -> Result<(Vec<Operation>, Vec<String>)> {
    let mut recording = Recording::open(path, &ns())?;
    let mut operations = Vec::new();
    recording.read(&mut |observed| {
        operations.push(observed.operation.clone());
        Ok(())
    })?;
    let notes = recording.facts().notes;
    Ok((operations, notes))
}

fn written(operations: &[Operation], positions: Option<Positions>) -> Vec<u8> {
    let path = fresh();
    let mut writer = Writer::create(&path, &ns(), positions).unwrap();
    for operation in operations {
        writer.write(operation).unwrap();
    }
    writer.flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

/// A path of a file that does not exist.
fn fresh() -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("imago-recording-{}-{number}", std::process::id()))
}

fn of_bytes(bytes: &[u8]) -> Result<(Vec<Operation>, Vec<String>)> {
    let path = fresh();
    std::fs::write(&path, bytes).unwrap();
    let read = read(&path);
    std::fs::remove_file(&path).unwrap();
    read
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn operations_are_read_as_they_were_written(
        operations in prop::collection::vec(operation(), 0..20),
    ) {
        let (read, _) = of_bytes(&written(&operations, None)).unwrap();
        prop_assert_eq!(read, operations);
    }

    #[test]
    fn hidden_values_keep_their_form_and_their_hash(
        operations in prop::collection::vec(operation(), 0..20),
    ) {
        let bytes = written(&operations, Some(Positions::default()));
        prop_assert!(!bytes.windows(11).any(|part| part == b"example.org"));
        let (read, notes) = of_bytes(&bytes).unwrap();
        prop_assert_eq!(notes.len(), 1);
        prop_assert_eq!(read.len(), operations.len());
        for (read, operation) in read.iter().zip(&operations) {
            prop_assert_eq!(form_of(read), form_of(operation));
            for ((_, read), (_, written)) in read.bounds.iter().zip(&operation.bounds) {
                if let (Bound::Equal(Datum::Hidden { hash, .. }), Bound::Equal(Datum::Plain(id))) =
                    (read, written)
                {
                    prop_assert_eq!(*hash, hash_of(id));
                }
            }
        }
    }

    #[test]
    fn a_file_that_is_cut_is_read_up_to_there_and_damage_is_no_panic(
        operations in prop::collection::vec(operation(), 1..10),
        cut in any::<prop::sample::Index>(), flipped in any::<prop::sample::Index>(),
    ) {
        let bytes = written(&operations, None);
        if let Ok((read, _)) = of_bytes(&bytes[..cut.index(bytes.len())]) {
            prop_assert_eq!(&operations[..read.len()], &read[..]);
        }
        let mut damaged = bytes.clone();
        let at = flipped.index(damaged.len());
        damaged[at] ^= 0x55;
        let _ = of_bytes(&damaged);
    }
}

#[test]
fn a_recording_of_another_collection_is_refused() {
    let path = fresh();
    Writer::create(&path, &Namespace::new("shop", "orders"), None).unwrap().flush().unwrap();
    let refused = read(&path).unwrap_err().to_string();
    assert!(refused.contains("is of shop.orders, not of shop.reviews"), "{refused}");
    assert!(Writer::create(&path, &ns(), None).is_err(), "a file that exists is not replaced");
    std::fs::remove_file(&path).unwrap();
}
