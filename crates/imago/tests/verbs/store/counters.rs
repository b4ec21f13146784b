//! Transactions of the Rust client, while the store's process is killed and comes back: each of them
//! counts, and leaves a row that says so.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use imago_store::client::{Client, ClientError, Options, Table};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use imago_testbed::wait;

use crate::store::proof::seed;
use crate::store::served::{Served, anywhere};

const CLIENTS: u64 = 5;
const DEATHS: u32 = 4;
/// Few, so that transactions meet each other.
const COUNTERS: u64 = 3;

const COUNTS: Table<u64, u64> = Table::new(0);
/// The counted increments, by client and its own number.
const MARKS: Table<(u64, u64), u64> = Table::named(1, "marks");

fn count(client: &mut Client, mark: (u64, u64)) -> Result<(), ClientError> {
    let counter = (mark.0 + mark.1) % COUNTERS;
    client.transaction(|tx| {
        let count = tx.get(&COUNTS, &counter)?.unwrap_or(0);
        tx.put(&COUNTS, &counter, &(count + 1))?;
        tx.put(&MARKS, &mark, &counter)
    })
}

/// The outcome of each of one client's transactions: done, not done, or unknown.
fn work(
    address: SocketAddr,
    who: u64,
    is_over: &AtomicBool,
    told: &AtomicU64,
) -> Vec<Option<bool>> {
    let mut client = Client::connect(&address.to_string(), Options::default()).unwrap();
    let mut outcomes = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        outcomes.push(match count(&mut client, (who, outcomes.len() as u64)) {
            Ok(()) => Some(true),
            Err(ClientError::Unknown(_)) => None,
            Err(ClientError::Exhausted { .. } | ClientError::Unreachable { .. }) => Some(false),
            Err(error) => panic!("{error}"),
        });
        told.fetch_add(1, Ordering::Relaxed);
    }
    assert!(client.counts().connections > 1, "it connected again");
    outcomes
}

#[test]
fn what_clients_counted_is_there_whenever_the_process_dies() {
    let mut random = StdRng::seed_from_u64(seed());
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(folder.path(), 2, anywhere(), anywhere());
    let (address, is_over) = (served.listen, AtomicBool::new(false));
    let told: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
    let outcomes: Vec<Vec<Option<bool>>> = thread::scope(|scope| {
        let (is_over, told) = (&is_over, &told);
        let client = |who: u64| {
            let told = &told[usize::try_from(who).unwrap()];
            scope.spawn(move || work(address, who, is_over, told))
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        for _ in 0..DEATHS {
            wait::lasts_blocking(Duration::from_millis(random.random_range(300..900)));
            served.kill();
            served = Served::start(folder.path(), 2, address, served.admin);
        }
        let before: Vec<u64> = told.iter().map(|told| told.load(Ordering::Relaxed)).collect();
        wait::until_blocking("every client is answered by the last process", || {
            told.iter()
                .zip(&before)
                .all(|(told, before)| told.load(Ordering::Relaxed) > *before + 1)
        });
        is_over.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let mut client = Client::connect(&address.to_string(), Options::default()).unwrap();
    let marks: BTreeMap<_, _> = client.scan(&MARKS, .., usize::MAX).unwrap().into_iter().collect();
    let (mut done, mut unknown) = (0, 0);
    for (who, outcomes) in (0..).zip(&outcomes) {
        for (number, outcome) in (0..).zip(outcomes) {
            let is_there = marks.contains_key(&(who, number));
            match outcome {
                Some(told) => assert_eq!(is_there, *told, "{who}'s {number}"),
                None => unknown += 1,
            }
            done += usize::from(is_there);
        }
    }
    assert_eq!(done, marks.len(), "a client made each mark");
    for counter in 0..COUNTERS {
        let marked = marks.values().filter(|marked| **marked == counter).count() as u64;
        assert_eq!(client.get(&COUNTS, &counter).unwrap(), Some(marked), "counter {counter}");
    }
    println!("{done} done, {unknown} unknown");
    assert!(done > 0 && unknown > 0, "{done} done, {unknown} unknown");
}
