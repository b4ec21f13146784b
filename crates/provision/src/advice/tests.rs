//! The advice on traces of messages: what is counted, and what is said of it.

use imago_plan::provision::Cost;

use super::*;
use crate::trace::Read;
use crate::trace::{Ending, Header, Key, PhasesBy, Span};

/// Phases of reads; a key from 1,000,000 on has no document.
fn trace(phases: &[&[i64]]) -> Trace {
    let read = |key: &i64| Read {
        key: Key::from(*key),
        document_bytes: (*key < 1_000_000).then_some(100),
    };
    let header = Header {
        source: "messages".into(),
        namespace: "shop.messages".into(),
        when: String::new(),
        phases_by: PhasesBy::Job,
    };
    Trace {
        header,
        phases: phases.iter().map(|phase| phase.iter().map(read).collect()).collect(),
        spans: vec![Span::default(); phases.len()],
        other_reads: 0,
        ending: Ending::Complete,
    }
}

fn origin(is_own: bool) -> Origin {
    let cost = Cost { request_s: 1e-4, key_s: 1e-5 };
    let costs = Costs {
        client: cost,
        client_find: cost,
        cache_get: cost,
        cache_set: cost,
        router: cost,
        shard: cost,
        entry_bytes: 100.0,
        document_bytes: 64.0,
        documents: 10,
        ..Costs::default()
    };
    Origin {
        costs,
        errors: Errors::default(),
        from: "a machine of two processors".into(),
        is_own,
        borrowed: Vec::new(),
    }
}

fn settings() -> Settings {
    Settings {
        deadline_s: 60.0,
        prices: None,
        shards: vec![1, 2],
        replicas: vec![1],
        cache_bytes: None,
        reads: vec![Reads::Primary],
        cache_at: vec![CacheAt::Worker],
        shares: Shares::even(),
        machine: Machine {
            client_cores: 1.0,
            cache_cores: 1.0,
            router_cores: 1.0,
            shard_cores: 1.0,
        },
        job: Job { workers: 4, batch: 512, variation: 0.0 },
        start: Start::Cold,
        documents: None,
    }
}

#[test]
fn a_key_without_a_document_is_read_again_each_time() {
    let trace = trace(&[&[1, 2, 3, 1_000_000], &[1, 2, 1_000_000, 1_000_000]]);
    let settings = Settings { cache_bytes: Some(vec![0, 1 << 20]), ..settings() };
    let advice = advise(&trace, &origin(true), &settings).unwrap();
    let with = advice.shapes.iter().find(|report| report.shape.cache_bytes > 0).unwrap();
    assert_eq!(with.hit_ratio, 2.0 / 8.0);
    // Three entries of 100 bytes, each with 100 of its own.
    assert_eq!(with.cache_held_bytes, 600);
    assert_eq!(advice.phases.iter().map(|phase| phase.keys).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn a_warm_cache_answers_the_first_phase_too() {
    // The last of them has no document, which no cache can hold.
    let trace = trace(&[&[1, 2, 3, 1_000_000]]);
    let of = |start| {
        let settings = Settings { cache_bytes: Some(vec![1 << 20]), start, ..settings() };
        advise(&trace, &origin(true), &settings).unwrap().advised.hit_ratio
    };
    assert_eq!((of(Start::Cold), of(Start::Warm)), (0.0, 0.75));
}

#[test]
fn sizes_are_the_trace_s_own_where_the_costs_are_another_machine_s() {
    let trace = trace(&[&[1, 2, 3, 3, 1_000_000]]);
    let member = |is_own, documents| {
        let settings = Settings { documents, ..settings() };
        advise(&trace, &origin(is_own), &settings).unwrap().advised.member_bytes[0]
    };
    // Ten documents of 64 bytes by the probe; three of 100 by the trace.
    assert_eq!((member(true, None), member(false, None)), (640.0, 300.0));
    assert_eq!(member(false, Some(1_000)), 100_000.0);
}

#[test]
fn it_is_said_what_the_advice_rests_on() {
    let mut trace = trace(&[&[1, 2, 3]]);
    trace.ending = Ending::Incomplete("the job was killed".into());
    trace.other_reads = 1;
    let advice = advise(&trace, &origin(false), &settings()).unwrap();
    let notes = advice.notes.join("\n");
    for part in [
        "another machine (a machine of two processors)",
        "the job was killed",
        "25.0 %",
        "no prices",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let prices = Some(Prices { core: 0.04, gb: 0.005 });
    let advice = advise(&trace, &origin(true), &Settings { prices, ..settings() }).unwrap();
    assert!(!advice.notes.join("\n").contains("no prices"), "{:?}", advice.notes);
    let borrowed = Origin { borrowed: vec!["cache", "proxy"], ..origin(true) };
    let advice = advise(&trace, &borrowed, &settings()).unwrap();
    assert!(advice.notes.join("\n").contains("no cache and no proxy"), "{:?}", advice.notes);
}

#[test]
fn intervals_are_there_where_errors_are_known() {
    let trace = trace(&[&[1, 2, 3]]);
    let advice = advise(&trace, &origin(true), &settings()).unwrap();
    assert_eq!(advice.advised.interval_s, None);
    let errors = Errors { shard: 0.1, ..Errors::default() };
    let advice = advise(&trace, &Origin { errors, ..origin(true) }, &settings()).unwrap();
    let [low_s, high_s] = advice.advised.interval_s.unwrap();
    assert!(low_s < advice.advised.time_s && advice.advised.time_s < high_s);
}

#[test]
fn what_leaves_nothing_to_advise_is_an_error() {
    let of =
        |trace: &Trace, settings: Settings| advise(trace, &origin(true), &settings).unwrap_err();
    let reads = trace(&[&[1]]);
    assert!(matches!(of(&trace(&[&[]]), settings()), Error::Empty));
    assert!(matches!(of(&reads, Settings { deadline_s: 0.0, ..settings() }), Error::Deadline(_)));
    let prices = Some(Prices { core: f64::NAN, gb: 0.0 });
    assert!(matches!(of(&reads, Settings { prices, ..settings() }), Error::Price(_)));
    assert!(matches!(of(&reads, Settings { shards: vec![], ..settings() }), Error::Grid(0)));
    let many = (1..=25_000).collect();
    assert!(matches!(of(&reads, Settings { shards: many, ..settings() }), Error::Grid(_)));
}
