//! Messages between sites and routers, damaged in every way: they are refused, and cost no more memory
//! than the bytes that came.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;

use crate::design::Design;
use crate::engine::remote::wire::{self, Asked, ToRouter, ToSite};
use crate::key::{Key, KeyRange, Table};
use crate::record::{Author, Body, Epoch, LogEntry, Position, Site, StoredValue};
use crate::sampler::report::{REPORT_EVERY, Reporter, SampleReport};
use crate::sampler::{Cause, Sampled, Sampler, WaitTime};
use crate::subscription::{Delivery, Request};
use crate::transaction::{Abort, Done};

fn key(n: u8) -> Key {
    Key::new(Table(0), &[n])
}

fn written(message: &impl serde::Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::write(&mut bytes, message).expect("memory takes it");
    bytes
}

/// A report of a sampled transaction.
fn report() -> SampleReport {
    let sampler = Arc::new(Sampler::of_process(1, None));
    sampler.set_every(1);
    let mut reporter = Reporter::new(Arc::clone(&sampler), Site(0));
    let now = Instant::now() + REPORT_EVERY;
    assert!(reporter.report(now).is_none(), "a span begins");
    sampler.put(Sampled {
        began: now,
        every: 1,
        site: Site(0),
        reads: vec![KeyRange::only(&key(1))],
        writes: vec![key(2)],
        rows: Some((3, 300)),
        log_lag_entries: 300,
        waited: Some(WaitTime { cause: Cause::Partition, us: 900.0 }),
        service_us: 500.0,
        run_us: 6.0,
        commit_us: Some(7_000.0),
        met_conflict: true,
    });
    reporter.report(now + REPORT_EVERY).expect("it is due")
}

/// One of each kind that has something in it.
fn messages() -> Vec<Vec<u8>> {
    let rows = || vec![(key(1), 1, StoredValue((*b"one").into()))];
    let by = Author { site: Site(1), epoch: Epoch(2), number: 3 };
    let entries = vec![LogEntry { by, body: Body::Join }];
    let asked = || Asked {
        number: 1,
        reads: vec![KeyRange::only(&key(1))],
        writes: vec![key(2)],
        session: Position(3),
        client: Some(4),
        at_masters: true,
        procedure: vec![1, 2, 3],
        left_us: 5,
    };
    let done = Done { answer: vec![1; 300].into(), committed: Some(Position(7)) };
    let hello =
        ToRouter::Hello { protocol: 1, version: "1".into(), site: Site(2), secret: "s".into() };
    vec![
        written(&ToSite::<Vec<Delivery<'_>>>::Welcome {
            run: 7,
            epoch: Epoch(1),
            sites: 2,
            silence_ms: 3,
            known: Position(4),
            design: Design::new(Site(0)),
        }),
        written(&<ToSite>::Rows(rows())),
        written(&ToSite::Logged(
            Position(9),
            vec![
                Delivery::Passed(300),
                Delivery::Entry(Cow::Borrowed(&entries[0])),
                Delivery::Begins { start: key(1), version: 7, installation: 2 },
            ],
        )),
        written(&<ToSite>::Transact(vec![asked(), asked()], 65_536)),
        written(&<ToSite>::Said(Site(1), vec![0; 40])),
        written(&<ToSite>::Sample(300)),
        written(&<ToSite>::Bye("why".into(), true)),
        written(&hello),
        written(&ToRouter::Subscribe(Request::Begin(key(2), 3))),
        written(&ToRouter::Write(entries.clone())),
        written(&ToRouter::Ended(1, Position(2), Ok(done))),
        written(&ToRouter::Ended(1, Position(2), Err(Abort::Late))),
        written(&ToRouter::Back(asked())),
        written(&ToRouter::Sampled(report())),
    ]
}

#[test]
fn what_is_written_is_read_and_a_part_of_it_is_not() {
    for (n, bytes) in messages().into_iter().enumerate() {
        let is_to_site = n < 7;
        let read = |mut bytes: &[u8]| {
            if is_to_site {
                wire::read::<ToSite>(&mut bytes).map(|message| written(&message))
            } else {
                wire::read::<ToRouter>(&mut bytes).map(|message| written(&message))
            }
        };
        assert_eq!(read(&bytes).expect("it was written"), bytes);
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "message {n} cut at {len}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn damaged_messages_are_refused_or_others(
        which in 0_usize..14,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        tail in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = messages().swap_remove(which);
        bytes.extend(tail);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        _ = wire::read::<ToSite>(&mut &*bytes);
        _ = wire::read::<ToRouter>(&mut &*bytes);
        _ = wire::read_hello(&mut &*bytes);
    }
}
