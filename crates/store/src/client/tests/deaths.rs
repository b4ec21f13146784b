//! The bank while sites die and come back from the log.

use super::bank::{Outcome, settle, work};
use super::*;
use crate::engine::LogOptions;
use crate::log::Sync;

const SITES: u16 = 3;
/// Deaths: so many at least, then until a transfer's outcome is unknown, at most `DEATHS_MAX`.
const DEATHS: u16 = 8;
const DEATHS_MAX: u16 = 200;

#[test]
fn what_was_acknowledged_outlives_deaths_and_what_is_unknown_is_found_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let sync = Sync::Every(Duration::from_millis(5));
    let log =
        LogOptions::Files { folder: folder.path().to_owned(), sync, segment_bytes: 1024 * 1024 };
    let options = StoreOptions { sites: SITES, log: Some(log) };
    let store = Store::start(&options).expect("a store with a log");
    let address = listen(&store, settings());
    let runtime = runtime();
    let day = work(address, 6, |so_far| {
        runtime.block_on(async {
            let is_met = || so_far(Outcome::FoundOut) > 0 && so_far(Outcome::Unknown) > 0;
            for n in (0..DEATHS_MAX).take_while(|n| *n < DEATHS || !is_met()) {
                let at = place(&ACCOUNTS, &u64::from(n % 6));
                _ = store.change(&at, Operator::Split(at.clone())).await;
                _ = store.add_replica(&at, Site(n % SITES)).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                let master = store.map().design.of(&at).master;
                store.crash(master).await.expect("it comes back");
            }
        });
    });
    settle(address, &day);
    let outcomes = [Outcome::Done, Outcome::FoundOut, Outcome::NotDone, Outcome::Unknown];
    let [done, found_out, not_done, unknown] = outcomes.map(|outcome| day.count(outcome));
    let told = format!("{done} done, {found_out} found out, {not_done} not, {unknown} unknown");
    assert!(done > 0 && found_out > 0 && unknown > 0, "{told}");
}
