//! Transfers of the Rust client against a router, while the processes of its sites are killed: money is
//! moved and never made, and what a client was told is so. `IMAGO_LONG` asks for many deaths.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use imago_store::client::{Client, ClientError, Options, Table};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use imago_testbed::wait;

use crate::store::processes::{Process, SITES, all_live, change, peers, router};
use crate::store::proof::{is_long, seed};
use crate::store::served::addresses;

const CLIENTS: u64 = 5;
/// Deaths: so many at least, then until a transfer's outcome is unknown, at most `DEATHS_MAX`.
const HANDFUL: u32 = 8;
const MANY: u32 = 60;
const DEATHS_MAX: u32 = 200;
/// Few, so that transfers meet each other, and at two sites.
const NAMES: [&str; 6] = ["ann", "bob", "cyd", "dan", "eve", "fay"];
const OPENING: i64 = 1_000;

const ACCOUNTS: Table<String, i64> = Table::new(1);
/// By client and its own number: from, to, and how much.
const TRANSFERS: Table<(u64, u64), (usize, usize, i64)> = Table::named(2, "transfers");

/// Ends the work of all clients, also after a panic.
struct Closes<'b>(&'b AtomicBool);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn connect(address: SocketAddr) -> Client {
    Client::connect(&address.to_string(), Options::default()).unwrap()
}

fn accounts() -> Vec<String> {
    NAMES.map(str::to_owned).to_vec()
}

fn transfer(client: &mut Client, by: (u64, u64)) -> Result<(), ClientError> {
    let [who, number] = [by.0, by.1].map(|part| usize::try_from(part).unwrap());
    let from = (who + number) % NAMES.len();
    let to = (from + 1 + number % (NAMES.len() - 1)) % NAMES.len();
    let (names, amount) = (accounts(), 1 + (number % 7) as i64);
    client.transaction(|tx| {
        let left = tx.get(&ACCOUNTS, &names[from])?.unwrap() - amount;
        let more = tx.get(&ACCOUNTS, &names[to])?.unwrap() + amount;
        tx.put(&ACCOUNTS, &names[from], &left)?;
        tx.put(&ACCOUNTS, &names[to], &more)?;
        tx.put(&TRANSFERS, &by, &(from, to, amount))
    })
}

/// The outcome of each of one client's transfers: done, not done, or unknown.
fn work(at: SocketAddr, who: u64, is_over: &AtomicBool, unknown: &AtomicU32) -> Vec<Option<bool>> {
    let (mut client, mut outcomes) = (connect(at), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        outcomes.push(match transfer(&mut client, (who, outcomes.len() as u64)) {
            Ok(()) => Some(true),
            Err(ClientError::Unknown(_)) => {
                unknown.fetch_add(1, Ordering::Relaxed);
                None
            }
            Err(ClientError::Exhausted { .. } | ClientError::Unreachable { .. }) => Some(false),
            Err(error) => panic!("{error}"),
        });
    }
    outcomes
}

/// Reads the sum of all accounts until the end, and returns the number of times that it could.
fn audit(at: SocketAddr, is_over: &AtomicBool) -> u32 {
    let (mut client, mut looks) = (connect(at), 0);
    while !is_over.load(Ordering::Relaxed) {
        let sum = client.transaction(|tx| {
            let (some, others) = NAMES.split_at(4);
            let mut sum = 0;
            for names in [some, others] {
                let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
                sum += tx.get_many(&ACCOUNTS, &names)?.into_iter().map(Option::unwrap).sum::<i64>();
            }
            Ok(sum)
        });
        match sum {
            Ok(sum) => assert_eq!(sum, OPENING * NAMES.len() as i64),
            Err(ClientError::Exhausted { .. } | ClientError::Unreachable { .. }) => continue,
            Err(error) => panic!("{error}"),
        }
        looks += 1;
    }
    looks
}

#[test]
fn money_is_moved_and_never_made_while_processes_of_sites_die() {
    let mut random = StdRng::seed_from_u64(seed());
    let folder = tempfile::tempdir().unwrap();
    let log = ["--data", folder.path().to_str().unwrap(), "--sync", "5"];
    let router = router(&log, addresses());
    let (at, peers) = (router.listen, peers(&router));
    let mut sites: Vec<_> = (0..SITES).map(|site| Process::start(site, peers)).collect();
    sites.iter().for_each(|site| _ = site.serves());
    let opening: Vec<_> = accounts().into_iter().map(|name| (name, OPENING)).collect();
    connect(at).put_many(&ACCOUNTS, &opening).unwrap();
    for (cut, site) in [("1:c", 1), ("1:e", 2)] {
        change(&router, "split", cut, 0);
        change(&router, "add-replica", cut, site);
        change(&router, "remaster", cut, site);
    }
    let (is_over, unknown) = (AtomicBool::new(false), AtomicU32::new(0));
    let (outcomes, looks) = thread::scope(|scope| {
        let (is_over, unknown) = (&is_over, &unknown);
        let closes = Closes(is_over);
        let clerk = |who| scope.spawn(move || work(at, who, is_over, unknown));
        let clerks: Vec<_> = (0..CLIENTS).map(clerk).collect();
        let auditor = scope.spawn(move || audit(at, is_over));
        let least = if is_long() { MANY } else { HANDFUL };
        for death in 0..DEATHS_MAX {
            if death >= least && unknown.load(Ordering::Relaxed) > 0 {
                break;
            }
            wait::lasts_blocking(Duration::from_millis(random.random_range(200..700)));
            let number = random.random_range(0..SITES);
            let site = &mut sites[usize::from(number)];
            site.kill();
            wait::lasts_blocking(Duration::from_millis(random.random_range(0..400)));
            *site = Process::start(number, peers);
        }
        all_live(&router);
        drop(closes);
        let outcomes: Vec<_> = clerks.into_iter().map(|clerk| clerk.join().unwrap()).collect();
        (outcomes, auditor.join().unwrap())
    });
    let mut client = connect(at);
    let moved: BTreeMap<_, _> =
        client.scan(&TRANSFERS, .., usize::MAX).unwrap().into_iter().collect();
    let mut expected = [OPENING; NAMES.len()];
    for (from, to, amount) in moved.values() {
        expected[*from] -= amount;
        expected[*to] += amount;
    }
    let balances = client.transaction(|tx| {
        // Written to, so that no older state of them is read.
        let balances = tx.get_many(&ACCOUNTS, &accounts())?;
        for (name, balance) in accounts().iter().zip(&balances) {
            tx.put(&ACCOUNTS, name, &balance.unwrap())?;
        }
        Ok::<_, ClientError>(balances)
    });
    assert_eq!(balances.unwrap(), expected.map(Some), "as the transfers that are there moved it");
    let (mut told, mut unknown) = (0, 0);
    for (who, outcomes) in (0..).zip(&outcomes) {
        for (number, outcome) in (0..).zip(outcomes) {
            match outcome {
                Some(done) => {
                    assert_eq!(moved.contains_key(&(who, number)), *done, "{who}'s {number}");
                    told += u32::from(*done);
                }
                None => unknown += 1,
            }
        }
    }
    println!("{told} done, {unknown} unknown; {looks} looks at the sum");
    assert!(told > 0 && unknown > 0 && looks > 0, "{told}, {unknown}, {looks}");
}
