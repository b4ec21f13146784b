//! A bank: many clients move money between few accounts, and it is never more or less.
//!
//! Each transfer leaves a row under a number of its own, so that of one that may have happened it can be
//! found out whether it did.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Few, so that transfers meet each other.
const COUNT: u64 = 6;
const OPENING: i64 = 1_000;
/// By the client that made it and the client's number for it: from, to, and the amount.
const TRANSFERS: Table<(u64, u64), (u64, u64, i64)> = Table::new(2);
/// Limit on the transfers of a walk.
const ALL: usize = 1_000_000;

/// Outcomes of transfers, by the clients that made them and their numbers.
type Outcomes = BTreeMap<(u64, u64), Outcome>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// It was made again, and so is known to have happened once.
    FoundOut,
    NotDone,
    Unknown,
}

/// The result of a bank's day.
pub(super) struct Day {
    outcomes: Outcomes,
    pub conflicts: u64,
    /// Audits of the sum.
    pub sums: u64,
}

impl Day {
    pub fn count(&self, outcome: Outcome) -> usize {
        count(&self.outcomes, outcome)
    }
}

fn count(outcomes: &Outcomes, outcome: Outcome) -> usize {
    outcomes.values().filter(|it| **it == outcome).count()
}

/// Lets clients work until what is to be done meanwhile is done, which may ask how many transfers came to
/// what so far.
pub(super) fn work(
    address: SocketAddr,
    clients: u64,
    meanwhile: impl FnOnce(&dyn Fn(Outcome) -> usize),
) -> Day {
    let opening: Vec<_> = (0..COUNT).map(|account| (account, OPENING)).collect();
    connect(address).put_many(&ACCOUNTS, &opening).expect("it opens");
    let (is_over, outcomes) = (AtomicBool::new(false), Mutex::new(Outcomes::new()));
    let (conflicts, sums) = thread::scope(|scope| {
        let (is_over, outcomes) = (&is_over, &outcomes);
        let clerk = |who: u64| {
            let mut client = connect(address);
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let outcome = transfer(&mut client, (who, number));
                outcomes.lock().expect("no holder panics").insert((who, number), outcome);
            }
            client.counts().conflicts
        };
        let clerks: Vec<_> = (0..clients).map(|who| scope.spawn(move || clerk(who))).collect();
        let auditor = scope.spawn(move || {
            let (mut client, mut sums) = (connect(address), 0);
            while !is_over.load(Ordering::Relaxed) {
                sums += u64::from(audit(&mut client));
            }
            sums
        });
        // A panic in `meanwhile` must not leave the clients at work for ever.
        let so_far = |outcome| count(&outcomes.lock().expect("no holder panics"), outcome);
        let meanwhile = AssertUnwindSafe(|| meanwhile(&so_far));
        let meanwhile = std::panic::catch_unwind(meanwhile);
        is_over.store(true, Ordering::Relaxed);
        let conflicts = clerks.into_iter().map(|clerk| clerk.join().expect("it ends")).sum();
        let sums = auditor.join().expect("it ends");
        meanwhile.expect("it is done");
        (conflicts, sums)
    });
    Day { outcomes: outcomes.into_inner().expect("no holder panics"), conflicts, sums }
}

/// Every other one of which it is not known whether it happened is made again, and looks for itself.
fn transfer(client: &mut Client, (who, number): (u64, u64)) -> Outcome {
    match transfer_once(client, (who, number)) {
        Outcome::Unknown if number % 2 == 0 => match transfer_once(client, (who, number)) {
            Outcome::Done => Outcome::FoundOut,
            // Then the outcome of the first one is unknown.
            Outcome::NotDone => Outcome::Unknown,
            other => other,
        },
        outcome => outcome,
    }
}

fn transfer_once(client: &mut Client, (who, number): (u64, u64)) -> Outcome {
    let (from, steps) = ((who + number) % COUNT, 1 + number / COUNT % (COUNT - 1));
    let to = (from + steps) % COUNT;
    let amount = 1 + (number % 7) as i64;
    let done = client.transaction(|tx| {
        if tx.get(&TRANSFERS, &(who, number))?.is_some() {
            return Ok(());
        }
        let left = tx.get(&ACCOUNTS, &from)?.expect("it is open") - amount;
        let more = tx.get(&ACCOUNTS, &to)?.expect("it is open") + amount;
        tx.put(&ACCOUNTS, &from, &left)?;
        tx.put(&ACCOUNTS, &to, &more)?;
        assert_eq!(tx.get(&ACCOUNTS, &to)?, Some(more));
        tx.put(&TRANSFERS, &(who, number), &(from, to, amount))
    });
    match done {
        Ok(()) => Outcome::Done,
        Err(ClientError::Unknown(_)) => Outcome::Unknown,
        Err(ClientError::Exhausted { .. } | ClientError::Unreachable { .. }) => Outcome::NotDone,
        Err(error) => panic!("{error:?}"),
    }
}

/// Reads all accounts, one by one, and says whether it could.
fn audit(client: &mut Client) -> bool {
    let sum = client.transaction(|tx| {
        let mut sum = 0;
        for some in [0..2, 2..3, 3..COUNT] {
            let accounts = tx.get_many(&ACCOUNTS, &some.collect::<Vec<_>>())?;
            sum += accounts.into_iter().map(|it| it.expect("it is open")).sum::<i64>();
        }
        Ok(sum)
    });
    match sum {
        Ok(sum) => {
            assert_eq!(sum, OPENING * COUNT as i64);
            true
        }
        Err(ClientError::Exhausted { .. } | ClientError::Unreachable { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// Compares the store's rows with the answers that clients got. No client may be at work any more.
pub(super) fn settle(address: SocketAddr, day: &Day) {
    let mut client = connect(address);
    // Each account is locked, so that no older state of it is read.
    let balances = client.transaction(|tx| {
        tx.put(&ACCOUNTS, &COUNT, &0)?;
        tx.get_many(&ACCOUNTS, &(0..COUNT).collect::<Vec<_>>())
    });
    let transfers = client.scan(&TRANSFERS, .., ALL).expect("it answers");
    let mut expected = vec![OPENING; COUNT as usize];
    let mut there = Outcomes::new();
    for (by, (from, to, amount)) in transfers {
        expected[from as usize] -= amount;
        expected[to as usize] += amount;
        there.insert(by, Outcome::Done);
    }
    let balances: Vec<_> = balances.expect("it answers").into_iter().flatten().collect();
    assert_eq!(balances, expected, "the accounts have what the transfers that are there moved");
    for (by, outcome) in &day.outcomes {
        match outcome {
            Outcome::Done | Outcome::FoundOut => assert!(there.contains_key(by), "{by:?} is lost"),
            Outcome::NotDone => assert!(!there.contains_key(by), "{by:?} is done"),
            Outcome::Unknown => {}
        }
    }
    assert!(there.keys().all(|by| day.outcomes.contains_key(by)), "a client made each of them");
}

#[test]
fn money_is_moved_and_never_made_while_transfers_conflict_and_partitions_move() {
    let store = in_memory(3);
    let address = listen(&store, settings());
    let runtime = runtime();
    let day = work(address, 6, |_| {
        runtime.block_on(async {
            cut(&store, &place(&ACCOUNTS, &2), Site(1)).await;
            for n in 0..120 {
                let at = place(&ACCOUNTS, &(n % COUNT));
                let site = Site((n % 3) as u16);
                let operator = match n / 3 % 3 {
                    0 => Operator::Split(at.clone()),
                    1 => Operator::Remaster(site),
                    _ => Operator::Merge,
                };
                // Some cannot be done, as the design is then.
                _ = store.add_replica(&at, site).await;
                _ = store.change(&at, operator).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
    settle(address, &day);
    let done = day.count(Outcome::Done);
    assert!(done > 0 && day.sums > 0, "{done} done, {} sums", day.sums);
    assert!(day.conflicts > 0, "they never met");
    assert_eq!(day.count(Outcome::Unknown), 0);
}
