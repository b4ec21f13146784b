//! Heat from samples: counts, processor time, marks, and clocks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use imago_plan::store::layout::{Layout, Operator, Partition};
use imago_plan::store::site_set::SiteSet;

use super::{HeatRecorder, HeatReport};
use crate::key::{Key, KeyRange, Table};
use crate::record::Site;
use crate::sampler::{Sampled, Sampler, ThreadTime};

fn key(row: &str) -> Key {
    Key::new(Table(0), row.as_bytes())
}

fn layout() -> Layout<Key> {
    let all = Partition { master: 0, replicas: SiteSet::default(), rows: 0, bytes: 0, pin: None };
    Layout::new(BTreeMap::from([(Key::least(), all)]), (0..2).collect())
}

/// One of ten transactions, which reads a key and writes another.
fn sampled(site: u16) -> Sampled {
    Sampled {
        began: Instant::now(),
        every: 10,
        site: Site(site),
        reads: vec![KeyRange::only(&key("a"))],
        writes: vec![key("b")],
        rows: Some((2, 1)),
        log_lag_entries: 0,
        waited: None,
        service_us: 5.0,
        run_us: 20.0,
        commit_us: None,
        met_conflict: false,
    }
}

fn sum(report: &HeatReport, of: fn(&super::HeatRange) -> &Vec<f64>) -> f64 {
    report.ranges.iter().flat_map(of).sum()
}

fn wall(s: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(s)
}

/// Has this thread use its processor, and tells of it as the site's.
fn work(time: &ThreadTime, sampler: &Sampler, site: Site) {
    let before = sampler.work(site).0;
    while sampler.work(site).0 < before + Duration::from_millis(5) {
        time.report(sampler, site, [0; 4]);
    }
}

#[test]
fn a_sample_stands_for_many_and_the_sites_time_is_divided_among_them() {
    let (sampler, time, mut recorder) =
        (Sampler::new(2, None), ThreadTime::default(), HeatRecorder::new());
    work(&time, &sampler, Site(0));
    recorder.record(0, &sampler, &[], &layout());
    let before = sampler.work(Site(0)).0;
    work(&time, &sampler, Site(0));
    let used_ms = (sampler.work(Site(0)).0 - before).as_secs_f64() * 1_000.0;
    sampler.put_returned(sampled(1));
    let samples = [sampled(0), Sampled { met_conflict: true, ..sampled(0) }];
    recorder.record(500, &sampler, &samples, &layout());
    let report = recorder.report(500, wall(3_600));
    let (reads, writes) = (sum(&report, |range| &range.reads), sum(&report, |range| &range.writes));
    assert_eq!((reads, writes), (20.0, 20.0));
    // Two accesses each of one that met a conflict, and of one that was returned and is not counted otherwise.
    assert_eq!(sum(&report, |range| &range.conflicts), 40.0);
    assert!((sum(&report, |range| &range.cpu_ms) - used_ms).abs() < 0.2, "{report:?}");
    assert_eq!(report.cpu_unattributed_ms, 0.0);
    assert_eq!((&report.begins_ms[..], &report.seconds[..]), (&[3_599_500][..], &[0.5][..]));
}

#[test]
fn of_many_keys_a_part_of_the_samples_is_recorded_and_stands_for_all() {
    let (sampler, time, mut recorder) =
        (Sampler::new(2, None), ThreadTime::default(), HeatRecorder::new());
    recorder.record(0, &sampler, &[], &layout());
    let before = sampler.work(Site(0)).0;
    work(&time, &sampler, Site(0));
    let used_ms = (sampler.work(Site(0)).0 - before).as_secs_f64() * 1_000.0;
    let user = |n: usize| key(&format!("user:{n:08}"));
    let scan = |_| Sampled {
        reads: (0..300).map(|n| KeyRange::only(&user(n))).collect(),
        writes: Vec::new(),
        ..sampled(0)
    };
    // 60,000 keys: one of twelve samples is recorded.
    let samples: Vec<Sampled> = (0..200).map(scan).collect();
    recorder.record(500, &sampler, &samples, &layout());
    let report = recorder.report(500, wall(3_600));
    let reads = sum(&report, |range| &range.reads);
    assert!((reads / 600_000.0 - 1.0).abs() < 0.05, "{reads}");
    assert!((sum(&report, |range| &range.cpu_ms) - used_ms).abs() < 0.2, "{report:?}");
}

#[test]
fn time_without_samples_belongs_to_no_range() {
    let (sampler, time, mut recorder) =
        (Sampler::new(1, None), ThreadTime::default(), HeatRecorder::new());
    recorder.record(0, &sampler, &[], &layout());
    work(&time, &sampler, Site(0));
    recorder.record(500, &sampler, &[], &layout());
    let report = recorder.report(500, wall(1));
    assert_eq!(sum(&report, |range| &range.cpu_ms), 0.0);
    assert!(report.cpu_unattributed_ms >= 5.0, "{report:?}");
}

#[test]
fn a_wall_clock_that_jumps_moves_the_labels_and_nothing_else() {
    let (sampler, mut recorder, mut design) =
        (Sampler::new(1, None), HeatRecorder::new(), layout());
    recorder.record(0, &sampler, &[sampled(0)], &design);
    design.apply(&Operator::Split(key("b"))).unwrap();
    recorder.record(12_000, &sampler, &[sampled(0)], &design);
    let (before, after) =
        (recorder.report(15_000, wall(7_200)), recorder.report(15_000, wall(3_600)));
    assert_eq!(before.begins_ms, [7_185_000, 7_195_000]);
    assert_eq!(after.begins_ms, [3_585_000, 3_595_000]);
    assert_eq!((before.marks[0].at_ms, after.marks[0].at_ms), (7_197_000, 3_597_000));
    assert_eq!((&before.marks[0].operator[..], &before.marks[0].key[..]), ("split", "0:b"));
    assert_eq!(sum(&before, |range| &range.reads), 20.0);
    assert_eq!(before.seconds, after.seconds);
    // Also a clock that stands before 1970.
    assert_eq!(recorder.report(15_000, UNIX_EPOCH - Duration::from_secs(9)).begins_ms, [0, 0]);
}

#[test]
fn columns_are_as_long_as_they_are_wanted() {
    let (sampler, mut recorder) = (Sampler::new(2, None), HeatRecorder::with_columns(2_000));
    for now_ms in [500, 1_900, 2_100, 4_500] {
        recorder.record(now_ms, &sampler, &[sampled(0)], &layout());
    }
    let report = recorder.report(4_500, wall(100));
    assert_eq!(report.begins_ms, [95_500, 97_500, 99_500]);
    assert_eq!(report.seconds, [1.5, 2.0, 0.5]);
    assert!((sum(&report, |range| &range.reads) - 40.0).abs() < 1e-9);
}
