//! Replicas that cost little each, and much together.

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::*;
use crate::store::strategy::{MorphoSys, Strategy as _};

/// Returns a design of eighty partitions, twenty at each of four sites, each with a replica at another site.
fn replicated() -> Layout<String> {
    let parts: Vec<(Site, [Site; 1])> = (0..80).map(|n: u16| (n % 4, [(n + 1) % 4])).collect();
    let parts: Vec<(Site, &[Site])> =
        parts.iter().map(|(master, replicas)| (*master, &replicas[..])).collect();
    users(&parts)
}

fn removed(decided: &Decided<String>) -> BTreeSet<Operator<String>> {
    let removes = |operator: &Operator<String>| matches!(operator, Operator::RemoveReplica(..));
    chosen(decided).into_iter().filter(removes).collect()
}

#[test]
fn replicas_that_save_too_little_alone_are_removed_together() {
    let layout = replicated();
    let samples: Vec<_> = (0..800_u64).map(|n| (1.0, writes([n * 101 % 80_000]))).collect();
    let (cost, lag_entries) = (learned(), BTreeMap::new());
    let situation = Situation {
        samples: &samples,
        rate_s: 20_000.0,
        population: 8.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    };
    let parameters = Parameters { triggers: 0, ..Parameters::default() };
    let mut strategy = MorphoSys::default();
    let mut dice = StdRng::seed_from_u64(3);
    let first = strategy.decide(&layout, &situation, &parameters, &|_, _| None, &mut dice);
    let too_little = |one: &&Considered<String>| {
        one.operators.len() == 1 && one.rejected == Some(Rejected::TooLittle)
    };
    assert!(first.considered.iter().filter(too_little).count() > 60, "each alone saves too little");
    let many = removed(&first);
    assert!(many.len() >= 16, "{many:?}");
    // The next decision chooses the same, as long as the workload is the same.
    let second = strategy.decide(&layout, &situation, &parameters, &|_, _| None, &mut dice);
    assert_eq!(removed(&second), many);
    let mut after = layout.clone();
    many.iter().for_each(|operator| after.apply(operator).expect("it is there"));
    let third = strategy.decide(&after, &situation, &parameters, &|_, _| None, &mut dice);
    assert!(removed(&third).is_disjoint(&many), "the others follow");
}

#[test]
fn replicas_that_are_read_stay() {
    let layout = replicated();
    // Transactions write at one site and read what is mastered at the next, all over the table.
    let sample = |n: u64| {
        let (written, read) = (n % 80, (n + 3) % 80);
        let reads = vec![(user(read * 1_000 + 7), Some(user(read * 1_000 + 8)))];
        let writes = vec![user(written * 1_000 + 5)];
        (1.0, Sample { reads, writes, rows_read: 2, rows_written: 1 })
    };
    let samples: Vec<_> = (0..800).map(sample).collect();
    let (cost, lag_entries) = (learned(), BTreeMap::new());
    let situation = Situation {
        samples: &samples,
        rate_s: 20_000.0,
        population: 60.0,
        cost: &cost,
        lag_entries: &lag_entries,
        cpu_weight: CPU_WEIGHT,
        expected: Expected::default(),
    };
    let parameters = Parameters { triggers: 0, ..Parameters::default() };
    let mut dice = StdRng::seed_from_u64(3);
    let decided =
        MorphoSys::default().decide(&layout, &situation, &parameters, &|_, _| None, &mut dice);
    let read = |operator: &Operator<String>| {
        let Operator::RemoveReplica(key, site) = operator else { return false };
        let number: u64 = if key.is_empty() { 0 } else { key[5..].parse::<u64>().unwrap() / 1_000 };
        // It is read where the partition three before it is mastered.
        u64::from(*site) == (number + 77) % 80 % 4
    };
    assert!(!removed(&decided).iter().any(read), "{decided:?}");
}
