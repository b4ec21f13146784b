//! The properties that a history must have, with and without faults of the store.

use std::net::SocketAddr;

use imago_load::store::Load;
use imago_workload::lists::{CrossCheck, History, Verdict, check, cross_check};

/// The seed of a test: the one that is set, or any. It is printed.
pub fn seed() -> u64 {
    let set = std::env::var("IMAGO_SEED").ok().map(|seed| seed.parse().unwrap());
    let seed = set.unwrap_or_else(|| u64::from(std::process::id()));
    println!("the same draws again: IMAGO_SEED={seed}");
    seed
}

/// True if the test shall take its time.
pub fn is_long() -> bool {
    std::env::var_os("IMAGO_LONG").is_some()
}

/// Ends a load, and has both checkers look at its history and what the store has.
pub fn prove(load: Load, address: SocketAddr) -> Verdict {
    let (transactions, lists) = load.finish();
    let history = History { transactions, last: lists.read(address).unwrap() };
    let verdict = check(&history);
    let told: Vec<String> = verdict.named.iter().map(|one| one.describe(&history)).collect();
    assert!(verdict.holds(), "{:?}\n{}", verdict.counts, told.join("\n"));
    assert_eq!(cross_check(&history), CrossCheck::Sound);
    println!(
        "{} transactions: {} done, {} not, {} unknown, of which {} happened; {} appends",
        verdict.transactions,
        verdict.done,
        verdict.not_done,
        verdict.unknown,
        verdict.unknown_but_done,
        verdict.appends
    );
    verdict
}
