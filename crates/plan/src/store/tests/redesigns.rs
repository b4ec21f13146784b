//! Plans that change all partitions at once.

use rand::seq::IndexedRandom as _;

use super::*;
use crate::store::redesign::{Masters, Redesign, Replicas};
use crate::store::site_set::SiteSet;
use crate::store::workload::Accesses;

/// Returns a design of this many partitions at four of the sites 0 to 5, with random masters, replicas and pins. Some
/// replicas are at site 6, which is not live.
fn random(partitions: u64, dice: &mut StdRng) -> Layout<String> {
    let sites = [0, 1, 3, 5];
    let mut partition = |n: u64| {
        let master = *sites.choose(dice).unwrap();
        let is_replica = |site: &Site| *site != master;
        let all = sites.into_iter().filter(is_replica).chain([6]);
        let replicas: SiteSet = all.filter(|_| dice.random_bool(0.4)).collect();
        let pin = dice.random_bool(0.1).then_some(master);
        let start = if n == 0 { String::new() } else { user(n * 1_000) };
        (start, Partition { master, replicas, rows: 1_000, bytes: 300_000, pin })
    };
    Layout::new((0..partitions).map(&mut partition).collect(), sites.into_iter().collect())
}

proptest! {
    #[test]
    fn a_redesign_keeps_limits_and_pins_and_leads_where_it_says(
        partitions in 1_u64..12, replicas_max in 0_usize..5, replicas_min in 0_usize..3,
        seed in any::<u64>(),
        keys in prop::collection::vec((0_u64..12_000, 0_u64..12_000, any::<bool>()), 0..80),
    ) {
        let replicas_min = replicas_min.min(replicas_max);
        let mut dice = StdRng::seed_from_u64(seed);
        let layout = random(partitions, &mut dice);
        let samples: Vec<_> = keys
            .iter()
            .map(|(one, two, reads)| (1.0, if *reads { scan(*one, 400) } else { writes([*one, *two]) }))
            .collect();
        let numbered = Numbered::new(&layout);
        let Accesses { statistics, .. } = Accesses::of(&numbered, &samples);
        let thresholds = Thresholds { replicas_max, replicas_min, ..Thresholds::default() };
        let all = Redesign::all(&numbered, &statistics);
        prop_assert_eq!(all.len(), Redesign::COUNT);
        for redesign in all {
            let operators = redesign.operators(&numbered, &statistics, &thresholds);
            prop_assert!(thresholds.permits(&layout, &operators), "{redesign}: {operators:?}");
            prop_assert_eq!(&layout.possible(&operators), &operators);
            let mut after = layout.clone();
            operators.iter().for_each(|operator| after.apply(operator).unwrap());
            for (number, (start, one)) in after.partitions().enumerate() {
                let before = layout.at(start).expect("no bound moves");
                prop_assert_eq!((one.pin, one.rows), (before.pin, before.rows));
                prop_assert!(one.pin.is_none_or(|pin| pin == one.master));
                let is_read = statistics.reads(number) > statistics.writes(number);
                let replicas = match redesign.replicas {
                    Replicas::Everywhere => replicas_max,
                    Replicas::WhereRead if is_read => replicas_max,
                    _ => replicas_min.min(replicas_max),
                };
                // Copies at a site that is not live count, and stay.
                let elsewhere = usize::from(before.replicas.contains(6));
                prop_assert_eq!(one.replicas.contains(6), elsewhere == 1);
                let live = replicas.saturating_sub(elsewhere).min(layout.sites().len() - 1);
                prop_assert_eq!(one.replicas.len(), live + elsewhere);
                if let (Masters::One(site), None) = (redesign.masters, one.pin) {
                    let is_full = before.replicas.len() > replicas_max && !before.is_at(site);
                    prop_assert_eq!(one.master, if is_full { before.master } else { site });
                }
                if redesign.masters == Masters::Kept {
                    prop_assert_eq!(one.master, before.master);
                }
            }
            // It is where it leads to, but for partitions that were not moved because they had too many replicas.
            if layout.partitions().any(|(_, one)| one.replicas.len() > replicas_max) {
                continue;
            }
            let numbered = Numbered::new(&after);
            let again = redesign.operators(&numbered, &statistics, &thresholds);
            prop_assert_eq!(again, vec![], "{}", redesign);
        }
    }
}

/// Returns how a store of sixteen partitions, at random sites and without replicas, is changed for these samples, and
/// the redesign that was chosen first.
fn redesigned(samples: &[(f64, Sample<String>)]) -> (Option<Redesign>, Layout<String>) {
    let mut layout = users(&(0..16).map(|n: u16| (n * 7 % 4, &[][..])).collect::<Vec<_>>());
    let (cost, lag_entries) = (learned(), BTreeMap::new());
    let situation = Situation {
        samples,
        rate_s: 20_000.0,
        population: 60.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    };
    let decided = decide(
        &layout,
        &situation,
        &Parameters::default(),
        &|_, _| None,
        &[],
        &mut StdRng::seed_from_u64(5),
    );
    let first = decided.chosen().next().and_then(|plan| plan.redesign);
    decided.chosen().flat_map(|plan| &plan.operators).for_each(|operator| {
        layout.apply(operator).expect("it was chosen");
    });
    (first, layout)
}

#[test]
fn what_is_read_everywhere_is_replicated_at_once() {
    let mut dice = StdRng::seed_from_u64(2);
    let mut user_of = || dice.random_range(0..16_000_u64);
    // Nine of ten transactions read twenty users all over the table, as a timeline does; the others write one.
    let mut sample = |n: u64| {
        if n.is_multiple_of(10) {
            return (1.0, writes([user_of()]));
        }
        let followed = (0..20).map(|_| user_of());
        let reads = followed.map(|one| (user(one), Some(user(one + 1)))).collect();
        (1.0, Sample { reads, writes: Vec::new(), rows_read: 20, rows_written: 0 })
    };
    let samples: Vec<_> = (0..600).map(&mut sample).collect();
    let (first, layout) = redesigned(&samples);
    assert_eq!(first.map(|one| one.replicas), Some(Replicas::Everywhere));
    assert!(layout.partitions().all(|(_, one)| one.replicas.len() == 3));
}

#[test]
fn a_workload_that_is_local_already_is_not_redesigned() {
    let samples: Vec<_> = (0..600_u64).map(|n| (1.0, writes([n * 101 % 16_000]))).collect();
    let (first, _) = redesigned(&samples);
    assert_eq!(first, None);
}

#[test]
fn what_would_be_changed_again_at_once_is_not_chosen() {
    // All is at one site, and one of five transactions writes two users anywhere: no distribution can last.
    let layout = users(&(0..16).map(|_| (2, &[][..])).collect::<Vec<_>>());
    let mut dice = StdRng::seed_from_u64(9);
    let mut any = || dice.random_range(0..16_000_u64);
    let mut sample = |n: u64| match n % 5 {
        0 => (1.0, writes([any(), any()])),
        _ => (1.0, writes([any()])),
    };
    let samples: Vec<_> = (0..600).map(&mut sample).collect();
    let (cost, lag_entries) = (learned(), BTreeMap::new());
    let situation = Situation {
        samples: &samples,
        rate_s: 60_000.0,
        population: 200.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    };
    let parameters = Parameters { triggers: 0, ..Parameters::default() };
    let decided =
        decide(&layout, &situation, &parameters, &|_, _| None, &[], &mut StdRng::seed_from_u64(5));
    assert!(decided.chosen().all(|plan| plan.redesign.is_none()), "{:?}", decided.considered);
    let mut all = decided.considered.iter();
    assert!(all.any(|plan| plan.rejected == Some(Rejected::Unstable)), "{:?}", decided.considered);
}

#[test]
fn replicas_that_each_save_little_are_added_together() {
    // As SmallBank on one busy site: most transactions write accounts anywhere, and 15 % read one. The replicas of one of
    // 32 partitions take over half a percent of the transactions.
    let layout = users(&(0..32).map(|_| (0, &[][..])).collect::<Vec<_>>());
    let mut dice = StdRng::seed_from_u64(6);
    let mut any = || dice.random_range(0..32_000_u64);
    let mut sample = |n: u64| match n % 20 {
        0..3 => (1.0, scan(any(), 1)),
        _ => (1.0, writes([any(), any()])),
    };
    let samples: Vec<_> = (0..1_200).map(&mut sample).collect();
    let mut cost = learned();
    cost.cpu = CostModel::default().cpu;
    for _ in 0..4_000 {
        let mut random = |max: f64| dice.random_range(0.0..max);
        let load = [random(50_000.0), random(50_000.0), random(50_000.0), random(25_000.0)];
        cost.cpu.observe(load, load[0] * 1e-6 + load[2] * 10e-6 + load[3] * 30e-6);
    }
    let situation = Situation {
        samples: &samples,
        rate_s: 30_000.0,
        population: 60.0,
        cost: &cost,
        lag_entries: &BTreeMap::new(),
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    };
    let parameters = Parameters::default();
    let decided =
        decide(&layout, &situation, &parameters, &|_, _| None, &[], &mut StdRng::seed_from_u64(5));
    let chosen = decided.chosen().next().expect("one pays");
    let kept = Redesign { masters: Masters::Kept, replicas: Replicas::Everywhere };
    assert_eq!(chosen.redesign, Some(kept), "{:?}", decided.considered);
    let saved = 1.0 - chosen.latency_us.1 / chosen.latency_us.0;
    assert!((0.03..0.15).contains(&saved), "{saved}");
}
