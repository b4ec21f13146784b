//! Damage at every place of a small file: reading says so, and never returns fewer or other reads.

use bson::Bson;

use super::tests::header;
use super::*;

fn small() -> Trace {
    let read = |key: Bson, document_bytes| Read { key: Key::from(&key), document_bytes };
    Trace {
        header: header(),
        phases: vec![
            vec![read(Bson::Int64(17), Some(120)), read(Bson::String("order-1042".into()), None)],
            vec![read(Bson::Int32(17), Some(120))],
            vec![],
        ],
        spans: vec![
            Span {
                began_us: 0,
                ended_us: 900,
                requests: Some(Requests { count: 2, waited_us: 640, at_once: 1 }),
            },
            Span { began_us: 1_700, ended_us: 2_600, requests: None },
            Span::default(),
        ],
        other_reads: 4,
        ending: Ending::Incomplete("the job ended with exit code 3".into()),
    }
}

/// The file of the small trace.
fn file() -> (Vec<u8>, Reader) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.imt");
    small().write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    (bytes, Reader(folder))
}

/// Reads damaged versions of a file, from a folder of its own.
struct Reader(tempfile::TempDir);

impl Reader {
    fn read(&self, bytes: &[u8], torn: Torn) -> Result<Trace, Error> {
        let path = self.0.path().join("damaged");
        std::fs::write(&path, bytes).unwrap();
        Trace::read_with(&path, Options { torn, gap: None })
    }
}

/// With the whole phases alone: a beginning of the phases, and said to be so.
fn is_a_beginning(outcome: Result<Trace, Error>) -> bool {
    outcome.map_or(true, |trace| {
        small().phases.starts_with(&trace.phases)
            && matches!(trace.ending, Ending::Incomplete(why) if why.starts_with("torn"))
    })
}

#[test]
fn a_file_that_ends_early_is_refused_wherever_it_ends() {
    let (bytes, reader) = file();
    for length in 0..bytes.len() {
        let outcome = reader.read(&bytes[..length], Torn::Refuse);
        assert!(outcome.is_err(), "{length} of {} bytes", bytes.len());
        assert!(is_a_beginning(reader.read(&bytes[..length], Torn::UseWholePhases)), "{length}");
    }
    assert_eq!(reader.read(&bytes, Torn::Refuse).unwrap(), small());
}

#[test]
fn a_bit_that_is_flipped_is_noticed_wherever_it_is() {
    let (bytes, reader) = file();
    for place in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1 << bit;
            assert!(reader.read(&damaged, Torn::Refuse).is_err(), "bit {bit} of byte {place}");
            assert!(
                is_a_beginning(reader.read(&damaged, Torn::UseWholePhases)),
                "{bit} of {place}"
            );
        }
    }
}

#[test]
fn bytes_that_are_lost_or_added_are_noticed_wherever_they_are() {
    let (bytes, reader) = file();
    for place in 0..=bytes.len() {
        let mut longer = bytes.clone();
        longer.insert(place, b'\n');
        assert!(reader.read(&longer, Torn::Refuse).is_err(), "a byte added at {place}");
        if place < bytes.len() {
            let mut shorter = bytes.clone();
            shorter.remove(place);
            assert!(reader.read(&shorter, Torn::Refuse).is_err(), "a byte lost at {place}");
        }
    }
}

#[test]
fn the_error_of_a_torn_file_says_how_much_of_it_is_whole() {
    let (bytes, reader) = file();
    let error = reader.read(&bytes[..bytes.len() - 1], Torn::Refuse).unwrap_err().to_string();
    assert!(error.contains("3 phases with 3 reads are whole"), "{error}");
}
