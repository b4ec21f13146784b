//! What is written is read, over random traces.

use bson::Bson;
use bson::oid::ObjectId;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn any_key() -> impl Strategy<Value = Key> {
    let values = prop_oneof![
        any::<i64>().prop_map(Bson::Int64),
        any::<i32>().prop_map(Bson::Int32),
        any::<f64>()
            .prop_filter("NaN is not equal to itself", |f| !f.is_nan())
            .prop_map(Bson::Double),
        "[a-z0-9-]{0,40}".prop_map(Bson::String),
        any::<[u8; 12]>().prop_map(|bytes| Bson::ObjectId(ObjectId::from_bytes(bytes))),
        any::<bool>().prop_map(Bson::Boolean),
        (any::<i64>(), "[a-z]{0,9}").prop_map(|(number, region)| {
            Bson::Document(bson::doc! { "region": region, "number": number })
        }),
    ];
    values.prop_map(|value| Key::from(&value))
}

pub(super) fn header() -> Header {
    Header {
        source: "recorded from mongodb://127.0.0.1:27017".into(),
        namespace: "shop.messages".into(),
        when: "2026-01-01T00:00:00Z".into(),
        phases_by: PhasesBy::CommentOrGap { gap_ms: 200 },
    }
}

fn any_trace() -> impl Strategy<Value = Trace> {
    let read = (any_key(), any::<Option<u32>>())
        .prop_map(|(key, document_bytes)| Read { key, document_bytes });
    let requests = (any::<u64>(), any::<u64>(), any::<u32>())
        .prop_map(|(count, waited_us, at_once)| Requests { count, waited_us, at_once });
    let span = (any::<u64>(), any::<u64>(), proptest::option::of(requests))
        .prop_map(|(began_us, ended_us, requests)| Span { began_us, ended_us, requests });
    let ending = prop_oneof![Just(Ending::Complete), "[a-z ]{1,20}".prop_map(Ending::Incomplete)];
    (vec((vec(read, 0..40), span), 0..6), any::<u32>(), ending).prop_map(
        |(phases, other_reads, ending)| {
            let (phases, spans) = phases.into_iter().unzip();
            Trace { header: header(), phases, spans, other_reads: other_reads.into(), ending }
        },
    )
}

proptest! {
    #[test]
    fn a_trace_is_read_as_it_was_written(trace in any_trace()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any name");
        trace.write(&path).unwrap();
        prop_assert_eq!(Trace::read(&path).unwrap(), trace);
    }

    #[test]
    fn a_writer_that_is_dropped_leaves_the_phases_that_had_ended(
        trace in any_trace(), after in vec(any_key(), 0..20), flushed: bool,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.imt");
        let mut writer = Writer::create(&path, &trace.header).unwrap();
        for (phase, span) in trace.phases.iter().zip(&trace.spans) {
            for read in phase {
                writer.read(&read.key, read.document_bytes).unwrap();
            }
            writer.end_phase(*span).unwrap();
        }
        for key in &after {
            writer.read(key, None).unwrap();
        }
        if flushed {
            writer.flush().unwrap();
        }
        drop(writer);
        let refused = Trace::read(&path).unwrap_err();
        let Error::Torn { whole_phases, whole_reads, .. } = refused else { panic!("{refused}") };
        prop_assert_eq!((whole_phases, whole_reads), (trace.phases.len() as u64, trace.reads()));
        let used = Trace::read_with(&path, Options { torn: Torn::UseWholePhases, gap: None });
        match used {
            Ok(used) => {
                prop_assert_eq!(&used.phases, &trace.phases);
                prop_assert!(matches!(used.ending, Ending::Incomplete(_)));
            }
            Err(error) => prop_assert!(trace.phases.is_empty(), "{}", error),
        }
    }

    #[test]
    fn any_bytes_are_a_trace_or_an_error(bytes: Vec<u8>, magic: bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.imt");
        let mut content = if magic { format::MAGIC.to_vec() } else { Vec::new() };
        content.extend(bytes);
        std::fs::write(&path, content).unwrap();
        prop_assert!(Trace::read(&path).is_err());
    }
}

#[test]
fn large_phases_are_several_blocks_and_long_keys_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.imt");
    let long = Key::from(&Bson::String("message ".repeat(100_000)));
    let mut reads: Vec<Read> = (0..50_000)
        .map(|number| Read { key: Key::from(number), document_bytes: Some(100) })
        .collect();
    reads.push(Read { key: long, document_bytes: Some(1_000_000) });
    let trace = Trace {
        header: header(),
        phases: vec![reads],
        spans: vec![Span::default()],
        other_reads: 0,
        ending: Ending::Complete,
    };
    trace.write(&path).unwrap();
    assert_eq!(Trace::read(&path).unwrap(), trace);
}

#[test]
fn a_file_that_exists_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.imt");
    std::fs::write(&path, "notes").unwrap();
    let error = Writer::create(&path, &header()).unwrap_err();
    assert!(matches!(error, Error::Io { doing: "create", .. }));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "notes");
}

#[test]
fn a_file_of_a_later_version_is_refused_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.imt");
    Writer::create(&path, &header()).unwrap().finish(&Ending::Complete).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 3;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(Trace::read(&path), Err(Error::Newer { found: 3, known: 2, .. })));
}

#[test]
fn a_file_of_the_first_version_is_read_without_requests() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.imt");
    let read =
        Read { key: Key::from(&Bson::String("order-1042".into())), document_bytes: Some(412) };
    let trace = Trace {
        header: header(),
        phases: vec![vec![read]],
        spans: vec![Span { began_us: 40, ended_us: 900, requests: None }],
        other_reads: 0,
        ending: Ending::Complete,
    };
    trace.write(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 1;
    let head = 14 + u32::from_le_bytes([bytes[10], bytes[11], bytes[12], bytes[13]]) as usize;
    let crc = crc32c::crc32c(&bytes[..head]).to_le_bytes();
    bytes[head..head + 4].copy_from_slice(&crc);
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(Trace::read(&path).unwrap(), trace);
}
