//! The static tuner on clusters whose throughput is known.

use std::fmt::Write as _;

use rand::RngExt as _;

use super::*;
use crate::cassandra::Cassandra;
use crate::configurations::{self, parse};
use crate::design::{Request, design};
use crate::redis::Redis;

const MIXES: [(f64, f64); 5] =
    [(100.0, 0.0), (75.0, 25.0), (50.0, 50.0), (25.0, 75.0), (0.0, 100.0)];

/// A cluster: what it serves of reads and of updates, by readers, memory in MiB, and compaction.
type Serves = fn(f64, f64, bool) -> (f64, f64);

/// Readers help reads up to 40 of them; compaction helps one kind or the other; memory does nothing.
fn known(readers: f64, _: f64, for_reads: bool) -> (f64, f64) {
    let reads =
        2_000.0 * (1.4 - ((readers - 40.0) / 40.0).powi(2)) * if for_reads { 1.3 } else { 1.0 };
    (reads, if for_reads { 2_400.0 } else { 3_000.0 })
}

/// The files of a design of twelve, and of two rounds of measuring it with this error.
fn files(serves: Serves, error: f64, seed: u64) -> (String, String) {
    let mut dice = StdRng::seed_from_u64(seed);
    let compaction = |for_reads: bool| {
        let scaling = if for_reads { "L10" } else { "T8" };
        format!(
            "compaction = {{ class = \"UnifiedCompactionStrategy\", scaling_parameters = \"{scaling}\" }}\n"
        )
    };
    let mut all = vec![("default".to_owned(), 32.0, None, false)];
    let (mut readers, mut memory): (Vec<f64>, Vec<f64>) =
        ((0..12).map(|n| 16.0 + 4.0 * f64::from(n)).collect(), vec![32.0, 48.0, 64.0]);
    memory = memory.repeat(4);
    rand::seq::SliceRandom::shuffle(&mut readers[..], &mut dice);
    for (n, (readers, memory)) in readers.into_iter().zip(memory).enumerate() {
        all.push((format!("run-{n:02}"), readers, Some(memory), n % 2 == 1));
    }
    let mut configurations = String::new();
    let mut measured = String::from("configuration,operations_s,reads,updates,round\n");
    for (name, readers, memory, for_reads) in &all {
        _ = writeln!(configurations, "[[configuration]]\nname = \"{name}\"");
        if let Some(memory) = memory {
            _ = writeln!(
                configurations,
                "settings = {{ concurrent_reads = {readers}, memtable_heap_space = \"{memory}MiB\" }}"
            );
        }
        configurations += &compaction(*for_reads);
        for round in 0..2 {
            for (reads, updates) in MIXES {
                let (of_reads, of_updates) = serves(*readers, memory.unwrap_or(48.0), *for_reads);
                let rate_s = 100.0 / (reads / of_reads + updates / of_updates);
                let noisy = rate_s * (1.0 + dice.random_range(-error..error));
                _ = writeln!(measured, "{name},{noisy},{reads},{updates},{round}");
            }
        }
    }
    (configurations, measured)
}

fn asked(files: &(String, String), knobs_max: usize, mixes: &[Mix]) -> Result<Answer> {
    let configurations = parse::<Cassandra>(&files.0).unwrap();
    let measurements = Measurements::read("here.csv", files.1.as_bytes()).unwrap();
    answer::<Cassandra>(Question {
        configurations: &configurations,
        measurements: &measurements,
        knobs_max,
        asked: mixes,
        seed: 1,
    })
}

#[test]
fn the_settings_that_matter_are_found_and_the_best_of_them_is_near_to_the_real_one() {
    let files = files(known, 0.04, 7);
    let answer = asked(&files, 9, &[Mix::of_reads(0.96), Mix::of_reads(0.6)]).unwrap();
    assert_eq!(answer.left_out, ["default"], "its memory follows the heap");
    let names: Vec<&str> = answer.ranking.knobs.iter().map(|one| &*one.name).collect();
    assert_eq!(answer.ranking.kept, 2, "{:?}", answer.ranking);
    assert_eq!(names[2], "memtable_heap_space");
    assert_eq!(answer.ranking.knobs[2].class, "restart");
    let belief = answer.surrogate.as_ref().unwrap();
    assert!(belief.error_at_mixes.unwrap() <= 0.075, "{belief:?}");
    assert!(belief.error_at_configurations < belief.error_without_settings, "{belief:?}");

    let reads = &answer.optima[0];
    assert_eq!(reads.mix, "read=100");
    assert!(reads.configuration.compaction.as_ref().unwrap().to_string().contains("L10"));
    let readers: f64 = reads.settings["concurrent_reads"].parse().unwrap();
    let (most, found) = (known(40.0, 0.0, true).0, known(readers, 0.0, true).0);
    assert!(found > 0.95 * most, "{reads:?}");
    assert!((reads.predicted_s / found - 1.0).abs() < reads.error, "{reads:?}");
    let real_gain = found / known(32.0, 0.0, false).0 - 1.0;
    assert!((reads.gain_over_default.unwrap() - real_gain).abs() < 0.15, "{reads:?}");
    assert!(reads.is_exhaustive && reads.is_beside_measured);
    let updates = &answer.optima[4];
    assert!(updates.configuration.compaction.as_ref().unwrap().to_string().contains("T8"));
    assert!(
        updates.verdict.contains("within the error") || updates.verdict.contains("best of all")
    );

    // Near a mix with an optimum that is the answer, else one is searched for.
    let [near, far] = &answer.asked[..] else { panic!("{answer:?}") };
    assert!(near.is_near && near.nearest == "read=100", "{near:?}");
    assert_eq!(near.optimum.settings, reads.settings);
    assert!(
        !far.is_near
            && far.nearest == "read=50,update=50"
            && far.distance > SHARED_OPTIMUM_DISTANCE,
        "{far:?}"
    );
    assert!(!far.optimum.is_beside_measured && far.optimum.mix == "read=60,update=40", "{far:?}");

    // What is to be measured next is a file that can be, with the default first.
    let default = &parse::<Cassandra>(&files.0).unwrap()[0];
    let (all, remarks) = answer.to_measure(default, "operations/s");
    let text = configurations::write("Predicted.", &all, &remarks);
    assert_eq!(parse::<Cassandra>(&text).unwrap(), all, "{text}");
    assert_eq!((&*all[0].name, all.len(), remarks.len()), ("default", all.len(), all.len()));
    assert!(all.len() > 1 && text.contains("# For read=100: "), "{text}");
}

#[test]
fn settings_of_redis_are_drawn_ranked_and_searched_too() {
    let knobs = ["hash-max-listpack-entries=8..512", "hz=10,100"].map(str::to_owned);
    let drawn = design::<Redis>(&Request { knobs: &knobs, compactions: &[], runs: 12, seed: 4 });
    let configurations = parse::<Redis>(&drawn.unwrap().text).unwrap();
    let mut dice = StdRng::seed_from_u64(9);
    let mut measured =
        String::from("configuration,operations_s,reads,updates,round,memory_bytes\n");
    for round in 0..2 {
        for one in &configurations {
            let entries = one.settings.get("hash-max-listpack-entries");
            let entries: f64 = entries.map_or(512.0, |text| text.parse().unwrap());
            // Long compact hashes are searched from their beginning.
            let serves = [40_000.0 - 20.0 * entries, 30_000.0];
            for (reads, rate_s) in [1, 0].into_iter().zip(serves) {
                let noisy = rate_s * (1.0 + dice.random_range(-0.02..0.02));
                let (name, updates) = (&one.name, 1 - reads);
                _ = writeln!(measured, "{name},{noisy},{reads},{updates},{round},50331648");
            }
        }
    }
    let measurements = Measurements::read("here.csv", measured.as_bytes()).unwrap();
    let question = Question {
        configurations: &configurations,
        measurements: &measurements,
        knobs_max: 9,
        asked: &[],
        seed: 1,
    };
    let answer = answer::<Redis>(question).unwrap();
    assert!(answer.left_out.is_empty(), "every setting has a default: {:?}", answer.left_out);
    let first = &answer.ranking.knobs[0];
    assert_eq!(
        (&*first.name, first.class, answer.ranking.kept),
        ("hash-max-listpack-entries", "live", 1)
    );
    let reads = answer.optima.iter().find(|one| one.mix == "read=100").unwrap();
    let entries: f64 = reads.settings["hash-max-listpack-entries"].parse().unwrap();
    assert!(entries < 64.0 && reads.gain_over_default.unwrap() > 0.2, "{reads:?}");
    let (all, remarks) = answer.to_measure(&configurations[0], "operations/s");
    assert_eq!(parse::<Redis>(&configurations::write("", &all, &remarks)).unwrap(), all);
}

#[test]
fn what_is_noise_is_called_noise_and_nothing_is_searched_for() {
    let nothing: Serves = |_, _, _| (2_000.0, 3_000.0);
    let answer = asked(&files(nothing, 0.2, 3), 9, &[Mix::of_reads(1.0)]).unwrap();
    assert_eq!((answer.ranking.kept, answer.ranking.cut), (0, None), "{:?}", answer.ranking);
    assert!(answer.surrogate.is_none() && answer.optima.is_empty() && answer.asked.is_empty());
    assert!(answer.ranking.within_rolls > 0.05, "{:?}", answer.ranking);
}

#[test]
fn no_more_settings_are_searched_over_than_asked_for() {
    let answer = asked(&files(known, 0.02, 5), 1, &[]).unwrap();
    assert_eq!(answer.ranking.kept, 1);
    assert!(answer.optima.iter().all(|one| one.settings.len() == 1), "{:?}", answer.optima);
}

#[test]
fn what_does_not_belong_together_is_said() {
    let good = files(known, 0.02, 5);
    // As many readers as the compaction has, without memory.
    let mut together = String::new();
    for line in good.0.lines().filter(|line| !line.starts_with("settings")) {
        let readers = if line.contains("L10") { 64 } else { 16 };
        if line.starts_with("compaction") {
            _ = writeln!(
                together,
                "settings = {{ concurrent_reads = {readers}, key_cache_size = \"{}MiB\" }}",
                together.len()
            );
        }
        _ = writeln!(together, "{line}");
    }
    let is_once = |line: &&str| {
        line.ends_with("round")
            || line.ends_with(",0") && (line.starts_with("default") || line.starts_with("run-00"))
    };
    let two_once: Vec<&str> = good.1.lines().filter(is_once).collect();
    for (files, said) in [
        ((good.0.replace("run-03", "other"), good.1.clone()), "the measurements are of run-03 too"),
        (
            (good.0.clone(), good.1.clone() + "run-01,0,1,0,1\n"),
            "run-01 served nothing of read=100",
        ),
        (
            (good.0.clone(), two_once.join("\n")),
            "2 configurations leave nothing to tell an error by",
        ),
    ] {
        let error = asked(&files, 9, &[]).unwrap_err().to_string();
        assert!(error.contains(said), "{said}: {error}");
    }
}

#[test]
fn mixes_are_told_as_they_are_asked_for() {
    assert_eq!(format_mix(Mix::of([95.0, 5.0, 0.0, 0.0]).unwrap()), "read=95,update=5");
    assert_eq!(format_mix(Mix::of([1.0, 0.0, 1.0, 6.0]).unwrap()), "read=12.5,insert=12.5,scan=75");
}
