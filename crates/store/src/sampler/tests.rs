//! What sites apart report, and what a router takes of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::report::{REPORT_EVERY, Reporter};
use super::{Sampled, Sampler, ThreadTime};
use crate::key::{Key, KeyRange, Table};
use crate::record::Site;

fn key(bytes: &[u8]) -> Key {
    Key::new(Table(0), bytes)
}

fn sampled(write: Key, began: Instant) -> Sampled {
    Sampled {
        began,
        every: 3,
        site: Site(1),
        reads: vec![KeyRange::only(&key(b"read"))],
        writes: vec![write],
        rows: Some((2, 1)),
        log_lag_entries: 0,
        waited: None,
        service_us: 40.0,
        run_us: 1.5,
        commit_us: Some(700.0),
        met_conflict: false,
    }
}

/// The sampler of a site's process, which samples, and its reporter, whose first span has begun.
fn site(now: Instant) -> (Arc<Sampler>, Reporter) {
    let sampler = Arc::new(Sampler::of_process(2, Some(0.2)));
    sampler.set_every(3);
    let mut reporter = Reporter::new(Arc::clone(&sampler), Site(1));
    assert!(reporter.report(now).is_none(), "a first span begins");
    (sampler, reporter)
}

#[test]
fn a_router_has_what_a_site_reports_together_with_the_time_that_it_is_of() {
    let mut now = Instant::now() + Duration::from_secs(1);
    let (of_site, mut reporter) = site(now);
    let time = ThreadTime::default();
    while of_site.work(Site(1)).0 < Duration::from_millis(2) {
        time.report(&of_site, Site(1), [5, 6, 7, 4]);
    }
    now += REPORT_EVERY;
    let began = now - Duration::from_millis(30);
    of_site.put(sampled(key(b"a"), began));
    of_site.put_returned(sampled(key(b"b"), began));
    let report = reporter.report(now).expect("it is due");
    assert!(reporter.report(now).is_none(), "the next one is not");
    let router = Sampler::remote(2);
    assert_eq!((router.share(), router.share_of(Site(1))), (None, 1.0));
    router.take(Site(1), report);
    assert_eq!(router.span(Site(1)), Duration::ZERO, "it counts from the next fetch on");
    let come = Instant::now();
    let fetched = router.fetch();
    let [one] = &fetched[..] else { panic!("{fetched:?}") };
    assert_eq!((one.every, one.site, one.rows), (3, Site(1), Some((2, 1))));
    assert_eq!((one.service_us, one.run_us, one.commit_us), (40.0, 1.5, Some(700.0)));
    assert!(come.duration_since(one.began) >= Duration::from_millis(29), "it has its age");
    let returned = router.fetch_returned();
    assert!(returned[0].met_conflict && returned[0].writes == [key(b"b")], "{returned:?}");
    assert_eq!(router.span(Site(1)), REPORT_EVERY);
    let (cpu, counts) = router.work(Site(1));
    assert!(cpu >= Duration::from_millis(1) && cpu <= REPORT_EVERY, "{cpu:?}");
    assert_eq!((counts, router.work(Site(0)).1), ([5, 6, 7, 4], [0; 4]));
    assert_eq!((router.share(), router.share_of(Site(1))), (Some(0.2), 0.2));
}

#[test]
fn a_report_is_bounded_and_counts_what_it_leaves_out() {
    let mut now = Instant::now() + Duration::from_secs(1);
    let (of_site, mut reporter) = site(now);
    for n in 0..300_u32 {
        of_site.put(sampled(key(&n.to_be_bytes()), now));
    }
    now += REPORT_EVERY;
    let report = reporter.report(now).expect("it is due");
    assert_eq!((report.samples.len(), report.dropped), (256, 44));
    of_site.put(sampled(key(&vec![1; 300 * 1024]), now));
    of_site.put(sampled(key(b"short"), now));
    now += REPORT_EVERY;
    let report = reporter.report(now).expect("it is due");
    assert_eq!((report.samples.len(), report.dropped), (1, 1));
    let router = Sampler::remote(2);
    router.take(Site(1), report);
    assert_eq!((router.fetch().len(), router.dropped()), (1, 1));
}

#[test]
fn reports_that_nothing_fetches_are_bounded() {
    let mut now = Instant::now() + Duration::from_secs(1);
    let (of_site, mut reporter) = site(now);
    let router = Sampler::remote(2);
    for _ in 0..400 {
        of_site.put(sampled(key(b"a"), now));
        now += REPORT_EVERY;
        router.take(Site(1), reporter.report(now).expect("it is due"));
    }
    assert_eq!((router.fetch().len(), router.dropped()), (256, 144));
}

#[test]
fn a_site_that_is_not_asked_for_samples_reports_nothing() {
    let mut now = Instant::now() + Duration::from_secs(1);
    let (of_site, mut reporter) = site(now);
    of_site.set_every(0);
    of_site.put(sampled(key(b"late"), now));
    for _ in 0..3 {
        now += REPORT_EVERY;
        let report = reporter.report(now);
        assert!(report.is_none(), "{report:?}");
    }
    of_site.set_every(1);
    now += REPORT_EVERY;
    assert!(reporter.report(now).is_none(), "another span begins");
    now += REPORT_EVERY;
    let report = reporter.report(now).expect("it is due");
    assert_eq!((report.span_ns, report.samples.len()), (200_000_000, 0));
}

#[test]
fn a_report_that_makes_no_sense_does_no_harm() {
    let now = Instant::now() + Duration::from_secs(1);
    let (of_site, mut reporter) = site(now);
    let absurd = Sampled {
        every: 0,
        service_us: f64::MAX,
        run_us: f64::NAN,
        commit_us: Some(f64::INFINITY),
        ..sampled(key(b"a"), now)
    };
    of_site.put(absurd);
    let mut report = reporter.report(now + REPORT_EVERY).expect("it is due");
    (report.cpu_ns, report.share) = (u64::MAX, f64::NAN);
    let router = Sampler::remote(2);
    router.take(Site(1), report);
    let fetched = router.fetch();
    let minute_us = 60e6;
    assert_eq!((fetched[0].every, fetched[0].run_us), (1, 0.0));
    assert_eq!((fetched[0].service_us, fetched[0].commit_us), (minute_us, Some(minute_us)));
    assert_eq!((router.work(Site(1)).0, router.share()), (REPORT_EVERY, None));
}
