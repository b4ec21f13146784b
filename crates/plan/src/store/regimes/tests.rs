//! Regimes of workloads that alternate, wander, mix, and end.

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

/// Counts at a place, 200 samples a second.
fn load(regimes: &mut Regimes<u64>, place: u64, (from_ms, to_ms): (u64, u64), dice: &mut StdRng) {
    for at_ms in (from_ms..to_ms).step_by(5) {
        let user = place + (1_000_f64.powf(dice.random()) as u64);
        let writes = vec![user];
        let sample = Sample { reads: Vec::new(), writes, rows_read: 3, rows_written: 3 };
        let (every, latency_us, chance) = (10, 500.0 + place as f64, dice.random());
        regimes.offer(ObservedTransaction { at_ms, every, latency_us, chance, sample });
        if at_ms % 250 == 0 {
            regimes.pass(at_ms);
            regimes.under_way(8.0 + place as f64 / 10_000.0);
        }
    }
    regimes.pass(to_ms);
}

/// Two places in turn, each for so long, at any phase of slices.
fn in_turn(each_ms: u64, visits: u64) -> Regimes<u64> {
    let (mut regimes, mut dice) = (Regimes::new(Settings::default()), StdRng::seed_from_u64(4));
    for visit in 0..visits {
        let span_ms = (130 + visit * each_ms, 130 + (visit + 1) * each_ms);
        load(&mut regimes, visit % 2 * 20_000, span_ms, &mut dice);
    }
    regimes
}

#[test]
fn a_workload_that_stays_is_one_regime_and_expected_to_stay() {
    let regimes = in_turn(30_000, 1);
    assert_eq!((regimes.known(), regimes.id()), (1, Some(0)));
    assert!((regimes.rate_s() - 2_000.0).abs() < 50.0, "{}", regimes.rate_s());
    assert_eq!(regimes.expected(), (f64::INFINITY, Vec::new()));
}

#[test]
fn two_workloads_in_turn_are_two_regimes_and_expected_to_return() {
    for each_ms in [2_000, 5_000, 10_000, 60_000] {
        let visits = 12;
        let regimes = in_turn(each_ms, visits);
        assert_eq!(regimes.known(), 2, "{each_ms} ms");
        assert!(regimes.samples().all(|sample| sample.writes[0] >= 20_000), "{each_ms} ms");
        let (lasts_s, others) = regimes.expected();
        let [other] = &others[..] else { panic!("{others:?}") };
        assert!(other.samples.iter().all(|(_, sample)| sample.writes[0] <= 1_000), "{each_ms} ms");
        assert!(lasts_s > 5.0 && other.weight > 0.5, "{each_ms} ms: {lasts_s} {}", other.weight);
        let latency = |id| regimes.latencies().last(id, 1_000).unwrap().mean_us;
        assert_eq!((latency(0), latency(1)), (500.0, 20_500.0));
    }
}

#[test]
fn a_workload_that_wanders_is_credited_with_little() {
    let (mut regimes, mut dice) = (Regimes::new(Settings::default()), StdRng::seed_from_u64(4));
    for visit in 0..20 {
        let span_ms = (visit * 2_000, (visit + 1) * 2_000);
        load(&mut regimes, visit * 2_000, span_ms, &mut dice);
    }
    let (lasts_s, others) = regimes.expected();
    assert!(lasts_s <= 2.0 && others.is_empty(), "{lasts_s} {others:?}");
    assert!(regimes.known() <= REGIMES_MAX);
    // It stays at the last place: with time that is believed.
    load(&mut regimes, 38_000, (40_000, 70_000), &mut dice);
    assert!(regimes.expected().0 > 10.0, "{:?}", regimes.expected());
}

#[test]
fn a_workload_of_which_each_slice_is_new_is_followed() {
    // Rows that are inserted in the order of their keys.
    let (mut regimes, mut dice) = (Regimes::new(Settings::default()), StdRng::seed_from_u64(4));
    for visit in 0..40 {
        let span_ms = (visit * 500, (visit + 1) * 500);
        load(&mut regimes, visit * 2_000, span_ms, &mut dice);
    }
    let newest = regimes.samples().map(|sample| sample.writes[0]).max().unwrap();
    assert!(newest > 36 * 2_000, "{newest}");
}

#[test]
fn a_workload_that_is_over_is_none() {
    let mut regimes = in_turn(10_000, 1);
    regimes.pass(15_000);
    assert!(regimes.id().is_some());
    regimes.pass(16_000);
    assert_eq!((regimes.id(), regimes.rate_s(), regimes.samples().count()), (None, 0.0, 0));
    load(&mut regimes, 0, (60_000, 62_000), &mut StdRng::seed_from_u64(1));
    assert_eq!(regimes.id(), Some(0), "the same one as before");
}
