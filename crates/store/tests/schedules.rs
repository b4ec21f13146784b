//! The store's threads by drawn schedules (shuttle): whole stores, each with its sites, its log, its
//! checkpointer, and clients. At each operation on what they share it is drawn which thread goes on,
//! by chance, or with few changes at places that are drawn (PCT, Burckhardt et al., ASPLOS 2010).
//!
//! No thread may wait for ever, in time that stands still; each answer has to be of one order; and what is
//! broken on purpose has to be noticed.

#![allow(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use imago_store::engine::{LogOptions, Options, Session, Store};
use imago_store::key::{Key, KeyRange, Table};
use imago_store::log::Sync;
use imago_store::record::{Operator, Site};
use imago_store::sync::fault::{self, Fault};
use imago_store::transaction::{Abort, View};
use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::Mutex;
use shuttle::{Config, MaxSteps, Runner, thread};

/// Number of places at which PCT changes threads.
const DEPTH: usize = 3;
/// More steps than any of the stories takes.
const STEPS_MAX: usize = 200_000;
const STACK_BYTES: usize = 1024 * 1024;
/// Schedules of a store in memory, and of one with files: as many as take seconds.
const MANY: usize = 4_000;
const SOME: usize = 300;
const LONG: usize = 10;
const IN_MAP: &str = "the map is published before the reply is sent";

trait Story: Fn() + Send + std::marker::Sync + Copy + 'static {}
impl<S: Fn() + Send + std::marker::Sync + Copy + 'static> Story for S {}

/// Runs a story by so many schedules, or by more where there is time.
fn by_schedules(many: usize, story: impl Story) {
    let many = if std::env::var_os("IMAGO_LONG").is_some() { LONG * many } else { many };
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    let by_chance = RandomScheduler::new(many / 2);
    Runner::new(by_chance, config.clone()).run(story);
    Runner::new(PctScheduler::new(DEPTH, many / 2), config).run(story);
}

/// With a fault, some schedule of a story ends in an error that says this.
fn is_noticed(fault: Fault, story: impl Story, error: &str) {
    fault::set(Some(fault));
    let ended = catch_unwind(AssertUnwindSafe(|| by_schedules(SOME, story)));
    fault::set(None);
    let panic = ended.expect_err("what is broken is noticed");
    let said = panic.downcast_ref::<String>().cloned();
    let said = said.or_else(|| panic.downcast_ref::<&str>().map(|said| (*said).to_owned()));
    assert!(said.as_ref().is_some_and(|said| said.contains(error)), "{fault:?}: {said:?}");
}

fn start(sites: u16, folder: Option<&Path>) -> Store {
    let folder = folder.map(Path::to_owned);
    // Each group is worth a checkpoint.
    let log =
        folder.map(|folder| LogOptions::Files { folder, sync: Sync::Never, segment_bytes: 1 });
    Store::start(&Options { sites, log }).unwrap()
}

fn key(n: u8) -> Key {
    Key::new(Table(0), &[n])
}

/// Adds one to each of some numbers, and says what they are then.
fn add_to<const N: usize>(session: &mut Session, keys: [u8; N]) -> Result<[u8; N], Abort> {
    let procedure = move |view: &mut View<'_>| {
        let mut new = Vec::new();
        for n in keys {
            new.push(view.get(&key(n))?.map_or(0, |seen| seen.value[0]) + 1);
            view.put(&key(n), new[new.len() - 1..].into())?;
        }
        Ok(new)
    };
    let done = block_on(session.run(Vec::new(), keys.map(key).to_vec(), Box::new(procedure)))?;
    Ok(done.answer.into_bytes().try_into().unwrap())
}

fn add(session: &mut Session, n: u8) -> Result<u8, Abort> {
    add_to(session, [n]).map(|[is]| is)
}

/// Two numbers, of one state.
fn both(session: &mut Session) -> Result<[u8; 2], Abort> {
    let reads = [1, 2].map(|n| KeyRange::only(&key(n))).to_vec();
    let procedure = |view: &mut View<'_>| {
        let of = |n| Ok(view.get(&key(n))?.map_or(0, |seen| seen.value[0]));
        Ok(vec![of(1)?, of(2)?])
    };
    let done = block_on(session.run(reads, Vec::new(), Box::new(procedure)))?;
    let answer = done.answer.into_bytes();
    Ok([answer[0], answer[1]])
}

/// Two partitions, mastered by two sites that have replicas of each other's.
fn apart(store: &Store) {
    let change = |n, operator| block_on(store.change(&key(n), operator)).unwrap();
    change(2, Operator::Split(key(2)));
    for n in [1, 2] {
        block_on(store.add_replica(&key(n), Site(1))).unwrap();
    }
    change(2, Operator::Remaster(Site(1)));
}

/// Two clients write one number each, and two read both.
fn readers_see_one_order() {
    let store = Arc::new(start(2, None));
    apart(&store);
    let writers = [1, 2].map(|n| {
        let mut session = store.session();
        thread::spawn(move || (1..=2).for_each(|is| assert_eq!(add(&mut session, n), Ok(is))))
    });
    let readers = [(); 2].map(|()| {
        let mut session = store.session();
        thread::spawn(move || [(); 2].map(|()| both(&mut session).unwrap()))
    });
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let seen = readers.map(|reader| reader.join().unwrap());
    for [before, after] in &seen {
        assert!(before[0] <= after[0] && before[1] <= after[1], "a session goes on: {seen:?}");
    }
    let mut seen = seen.concat();
    seen.sort_unstable();
    assert!(seen.is_sorted_by_key(|both| both[1]), "two readers saw two orders: {seen:?}");
    assert_eq!(both(&mut store.session()), Ok([2, 2]));
}

/// One changes the design, while two write.
fn changes_lose_nothing() {
    let store = Arc::new(start(2, None));
    let clients = [1, 2].map(|n| {
        let mut session = store.session();
        thread::spawn(move || [(); 3].map(|()| add(&mut session, n)))
    });
    let change = |operator| block_on(store.change(&key(2), operator)).unwrap();
    let of = |n| store.map().design.of(&key(n)).clone();
    change(Operator::Split(key(2)));
    assert!(of(1) != of(2), "{IN_MAP}");
    block_on(store.add_replica(&key(2), Site(1))).unwrap();
    assert!(of(2).is_at(Site(1)), "{IN_MAP}");
    change(Operator::Remaster(Site(1)));
    assert!(of(2).master == Site(1), "{IN_MAP}");
    for client in clients {
        assert_eq!(client.join().unwrap(), [Ok(1), Ok(2), Ok(3)]);
    }
    assert_eq!(both(&mut store.session()), Ok([3, 3]));
}

/// Clients write two partitions in one transaction, while one of them is handed to and fro.
fn locks_are_passed_on() {
    let store = Arc::new(start(2, None));
    apart(&store);
    let clients = [(); 2].map(|()| {
        let mut session = store.session();
        thread::spawn(move || {
            [(); 2].map(|()| {
                let [one, other] = add_to(&mut session, [1, 2]).unwrap();
                assert_eq!(one, other, "they are written together");
                one
            })
        })
    });
    let mut reader = store.session();
    for site in [Site(0), Site(1)] {
        // A client's write may have moved it meanwhile.
        match block_on(store.change(&key(2), Operator::Remaster(site))) {
            Ok(()) | Err(Abort::Refused(_) | Abort::Elsewhere) => {}
            Err(abort) => panic!("{abort}"),
        }
        let [one, other] = both(&mut reader).unwrap();
        assert_eq!(one, other, "they are read together");
    }
    let mut told = clients.map(|client| client.join().unwrap()).concat();
    told.sort_unstable();
    assert_eq!(told, [1, 2, 3, 4], "no two began with the same");
}

/// A store ends while clients write: each is told something.
fn no_client_waits_beyond_the_end() {
    let store = start(2, None);
    apart(&store);
    let clients = [1, 2].map(|n| {
        let mut session = store.session();
        thread::spawn(move || while add(&mut session, n).is_ok_and(|is| is < 4) {})
    });
    let mut reader = store.session();
    let reader = thread::spawn(move || _ = [(); 4].map(|()| both(&mut reader)));
    drop(store);
    clients.into_iter().chain([reader]).for_each(|client| client.join().unwrap());
}

/// A store with a log ends while clients write, and begins again.
fn what_is_acknowledged_outlives_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let store = start(2, Some(folder.path()));
    let told = Arc::new(Mutex::new([0; 3]));
    let clients = [1, 2].map(|n| {
        let (mut session, told) = (store.session(), Arc::clone(&told));
        thread::spawn(move || {
            while let Ok(is) = add(&mut session, n)
                && is < 4
            {
                told.lock().unwrap()[usize::from(n)] = is;
            }
        })
    });
    block_on(store.change(&key(2), Operator::Split(key(2)))).unwrap();
    drop(store);
    clients.into_iter().for_each(|client| client.join().unwrap());
    let store = start(2, Some(folder.path()));
    let seen = both(&mut store.session()).unwrap();
    let told = *told.lock().unwrap();
    assert!(seen[0] >= told[1] && seen[1] >= told[2], "{told:?} were told, and there is {seen:?}");
}

/// A site dies, and comes back from the log while others write it, and checkpoints are made of it.
fn sites_die_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(start(2, Some(folder.path())));
    apart(&store);
    let clients = [1, 2].map(|n| {
        let mut session = store.session();
        thread::spawn(move || {
            let (mut least, mut most) = (0, 0);
            for _ in 0..3 {
                match add(&mut session, n) {
                    Ok(is) => {
                        assert!(least < is && is <= most + 1, "{least} to {most}, and then {is}");
                        (least, most) = (is, is);
                    }
                    Err(Abort::Deposed) => most += 1,
                    Err(abort) => panic!("{abort}"),
                }
            }
            (least, most)
        })
    });
    block_on(store.crash(Site(1))).unwrap();
    let told = clients.map(|client| client.join().unwrap());
    let seen = both(&mut store.session()).unwrap();
    for ((least, most), seen) in told.iter().zip(seen) {
        assert!((*least..=*most).contains(&seen), "{told:?} were told, and there is {seen:?}");
    }
}

#[test]
fn readers_see_one_order_by_every_schedule() {
    by_schedules(MANY, readers_see_one_order);
}

#[test]
fn changes_lose_nothing_by_any_schedule() {
    by_schedules(MANY, changes_lose_nothing);
}

#[test]
fn locks_are_passed_on_by_every_schedule() {
    by_schedules(MANY, locks_are_passed_on);
}

#[test]
fn no_client_waits_beyond_the_end_by_any_schedule() {
    by_schedules(MANY, no_client_waits_beyond_the_end);
}

#[test]
fn what_is_acknowledged_outlives_the_end_by_every_schedule() {
    by_schedules(SOME, what_is_acknowledged_outlives_the_end);
}

#[test]
fn sites_die_and_come_back_by_every_schedule() {
    by_schedules(SOME, sites_die_and_come_back);
}

#[test]
fn what_is_broken_on_purpose_is_noticed() {
    is_noticed(Fault::ToldBehindPlace, readers_see_one_order, "the log comes in its order");
    is_noticed(Fault::MapBehindAnswer, changes_lose_nothing, IN_MAP);
    is_noticed(Fault::WaitersForgotten, locks_are_passed_on, "deadlock");
    is_noticed(Fault::WaitBeforeSync, what_is_acknowledged_outlives_the_end, "deadlock");
}
