//! The advice on traces of messages: what is counted, and what is said of it.

use imago_plan::provision::{Cost, PageCost};

use super::*;
use crate::trace::Read;
use crate::trace::{Ending, Header, Key, PhasesBy, Requests, Span};

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
        shards: is_own.then_some(1),
        storage_bytes: None,
        page_bytes: 32_768.0,
        has_pages: true,
        borrowed: Vec::new(),
    }
}

fn settings() -> Settings {
    Settings {
        deadline_s: 60.0,
        prices: None,
        shards: vec![1, 2],
        replicas: vec![1],
        storage_bytes: None,
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
        policy: CachePolicy::default(),
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
fn policies_are_compared_at_the_advised_cache() {
    // Two rounds over 1,000 keys, of which the cache holds four fifths: exact LRU has always just evicted what comes next.
    let keys: Vec<i64> = (0..1_000).collect();
    let trace = trace(&[&keys, &keys]);
    let cache_bytes = Some(vec![160_000]);
    let of = |policy| {
        let settings = Settings { cache_bytes: cache_bytes.clone(), policy, ..settings() };
        advise(&trace, &origin(true), &settings).unwrap()
    };
    let advice = of(CachePolicy::Noeviction);
    let hits = |policy: CachePolicy| {
        let all = advice.policies.iter();
        all.clone().find(|one| one.policy == policy).unwrap().hit_ratio
    };
    assert_eq!((hits(CachePolicy::Lru), hits(CachePolicy::Noeviction)), (0.0, 0.4));
    assert!((0.05..0.35).contains(&hits(CachePolicy::AllkeysLru)), "{:?}", advice.policies);
    assert_eq!(advice.advised.hit_ratio, 0.4);
    assert_eq!(of(CachePolicy::Lru).advised.hit_ratio, 0.0);
    let first = &advice.policies[0];
    assert_eq!(first.hit_ratio, 0.4);
    let settings: Vec<_> = advice.policies.iter().filter_map(|one| one.setting.clone()).collect();
    assert!(settings.contains(&"maxmemory-policy noeviction".to_owned()), "{settings:?}");
    // Without a cache there is nothing to compare.
    let none = Settings { cache_bytes: Some(vec![0]), ..self::settings() };
    assert_eq!(advise(&trace, &origin(true), &none).unwrap().policies, []);
}

#[test]
fn a_recorded_job_is_predicted_with_its_own_requests_and_pauses() {
    let mut trace = trace(&[&[1, 2, 3, 4], &[5, 6]]);
    // Four single reads of 0.5 ms each with 2 ms between them; after 1.6 s two more in one request.
    let requests = |count, waited_us| Some(Requests { count, waited_us, at_once: 1 });
    trace.spans = vec![
        Span { began_us: 0, ended_us: 8_000, requests: requests(4, 2_000) },
        Span { began_us: 1_608_000, ended_us: 1_609_000, requests: requests(1, 1_000) },
    ];
    let advice = advise(&trace, &origin(true), &settings()).unwrap();
    let job = advice.as_recorded.unwrap();
    assert!((job.took_s - 1.609).abs() < 1e-9 && (job.own_s - 1.606).abs() < 1e-9, "{job:?}");
    assert_eq!((job.requests, job.keys_per_request, job.at_once), (5, 1.2, 1));
    assert_eq!(job.shapes.len(), 2, "one and two shards: {job:?}");
    for shape in &job.shapes {
        assert!((1.606..1.62).contains(&shape.time_s), "{shape:?}");
        assert!(shape.interval_s[0] >= 1.606 && shape.interval_s[1] < 1.62, "{shape:?}");
    }
    assert!(job.in_batches.time_s < 0.01, "{job:?}");
    // By the costs of another machine the interval is wider, and nothing is calibrated.
    let other = advise(&trace, &origin(false), &settings()).unwrap().as_recorded.unwrap();
    assert_eq!(other.cost_factor, None);
    let without = super::Trace { spans: vec![Span::default(); 2], ..trace };
    assert_eq!(advise(&without, &origin(true), &settings()).unwrap().as_recorded, None);
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
fn intervals_are_wider_by_the_costs_of_another_machine_and_a_near_deadline_is_named() {
    let trace = trace(&[&[1, 2, 3]]);
    let own = advise(&trace, &origin(true), &settings()).unwrap();
    let [low_s, high_s] = own.advised.interval_s.unwrap();
    assert!(low_s < own.advised.time_s && own.advised.time_s < high_s, "{:?}", own.advised);
    assert!(!own.notes.join("\n").contains("within the interval"), "{:?}", own.notes);
    let errors = Errors { all: 0.5, ..Errors::default() };
    let other = advise(&trace, &Origin { errors, ..origin(false) }, &settings()).unwrap();
    let [low_other_s, high_other_s] = other.advised.interval_s.unwrap();
    assert!(high_other_s / low_other_s > 2.0 * high_s / low_s, "{:?}", other.advised);
    let near = Settings { deadline_s: 1.02 * own.advised.time_s, ..settings() };
    let near = advise(&trace, &origin(true), &near).unwrap();
    assert!(near.notes.join("\n").contains("within the interval"), "{:?}", near.notes);
    // Three keys in one batch take as long on two shards, within the error.
    let two = near.neighbours.iter().find(|one| one.shape.shards == 2).unwrap();
    assert!(!two.is_told_apart, "{two:?}");
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

#[test]
fn a_collection_beyond_the_storage_caches_is_read_from_disk() {
    // Two phases that each read 20,000 orders of a collection of 4 GB, half of them twice.
    let phase = |from: i64| -> Vec<i64> { (0..20_000).map(|n| (from + n * 7) % 40_000).collect() };
    let (one, two) = (phase(0), phase(3));
    let trace = trace(&[&one, &two]);
    let mut origin = Origin { storage_bytes: Some(1 << 30), ..origin(true) };
    origin.costs.document_bytes = 1_000.0;
    origin.costs.page = PageCost { processor_s: 50e-6, wait_s: 300e-6 };
    let settings = Settings {
        documents: Some(4_000_000),
        cache_bytes: Some(vec![0]),
        shards: vec![1, 2, 4],
        ..settings()
    };
    let advice = advise(&trace, &origin, &settings).unwrap();
    let of = |shards: u32, gib: u64| {
        let its = |report: &&Report| {
            report.shape.shards == shards && report.shape.storage_bytes == Some(gib << 30)
        };
        advice.shapes.iter().find(its).unwrap_or_else(|| panic!("{shards}, {gib}"))
    };
    // The storage cache of the probe, twice and four times as much are compared.
    assert_eq!(advice.shapes.len(), 9);
    assert!(of(1, 1).time_s > 1.5 * of(1, 4).time_s, "{} {}", of(1, 1).time_s, of(1, 4).time_s);
    assert_eq!(of(4, 4).time_s, of(4, 2).time_s, "it is all in memory");
    // Memory is what a shape provisions.
    let member = of(2, 2).member_bytes[0];
    assert_eq!(member, (2_u64 << 30) as f64 + origin.costs.server_bytes);
    // Without a probe of the user's own nothing is known of storage caches.
    let other =
        advise(&trace, &Origin { storage_bytes: None, ..origin.clone() }, &settings).unwrap();
    assert!(other.shapes.iter().all(|report| report.shape.storage_bytes.is_none()));
    // Sizes that are given are compared instead; 0 is enough for all.
    let given = Settings { storage_bytes: Some(vec![0, 1 << 28]), ..settings.clone() };
    let advice = advise(&trace, &origin, &given).unwrap();
    let sizes: Vec<Option<u64>> = advice.shapes.iter().map(|one| one.shape.storage_bytes).collect();
    assert_eq!(sizes, [None, Some(1 << 28)].repeat(3));
    let pages: f64 = advice.phases.iter().map(|phase| phase.pages).sum();
    assert_eq!(pages > 0.0, advice.advised.shape.storage_bytes.is_some());
}
