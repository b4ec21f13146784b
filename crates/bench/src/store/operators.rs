//! Changes of one partition's design, under clients of this partition and of another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use imago_plan::statistics::percentile;
use imago_store::engine::{Options, Session, Store};
use imago_store::key::Key;
use imago_store::record::{Operator, Site};
use imago_store::transaction::{Abort, View};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Size;
use super::key;
use crate::error::{Error, Result, process};
use crate::statistics::Figure;

/// Number of rows of the partition that changes.
const PARTITION_ROWS: u64 = 5_000;
/// Number of rows of the other partition.
const OTHER_ROWS: u64 = 50_000;
/// Delay between two transactions of a client.
const PAUSE: Duration = Duration::from_millis(1);
/// Delay between two changes, in µs. It is random, because clients wake at whole milliseconds, and a thread that
/// wakes at the same times would always meet them.
const CHANGE_EVERY_US: std::ops::Range<u64> = 3_000..7_000;

pub(super) struct Operators {
    pub split_ms: f64,
    pub merge_ms: f64,
    pub remaster_ms: f64,
    pub p99_ms_before: f64,
    pub p99_ms_during: f64,
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    runtime.map_err(process("start threads"))
}

/// Returns the number of rows of all masters of a store.
pub(super) fn rows(store: &Store) -> Result<u64> {
    let usage = runtime()?.block_on(store.usage());
    let copies = usage.iter().flat_map(|(_, copies)| copies);
    Ok(copies.filter(|copy| copy.is_master).map(|copy| copy.size.rows).sum())
}

fn wrong(abort: &Abort) -> Error {
    Error::Wrong(abort.to_string())
}

async fn put(session: &mut Session, keys: Vec<Key>) -> Result<()> {
    let writes = keys.clone();
    let procedure = move |view: &mut View<'_>| {
        for key in &keys {
            view.put(key, [1; 100].into())?;
        }
        Ok(Vec::new())
    };
    let done = session.run(Vec::new(), writes, Box::new(procedure)).await;
    done.map(|_| ()).map_err(|abort| wrong(&abort))
}

/// Runs a client that writes one row at a time, with pauses. Returns the start and the duration in ms of each write.
async fn client(
    mut session: Session,
    rows: std::ops::Range<u64>,
    seed: u64,
    ends: Arc<AtomicBool>,
) -> Result<Vec<(Instant, f64)>> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut took = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let begin = Instant::now();
        put(&mut session, vec![key(dice.random_range(rows.clone()))]).await?;
        took.push((begin, begin.elapsed().as_secs_f64() * 1e3));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(took)
}

pub(super) fn run(size: Size) -> Result<Operators> {
    let store = Store::start(&Options { sites: 2, log: None });
    let store = store.map_err(|error| Error::Wrong(error.to_string()))?;
    let phase = Duration::from_secs(size.operators_s);
    runtime()?.block_on(async {
        let mut session = store.session();
        for first in (0..PARTITION_ROWS + OTHER_ROWS).step_by(100) {
            put(&mut session, (first..first + 100).map(key).collect()).await?;
        }
        let change = async |at: &Key, operator: Operator| {
            let begin = Instant::now();
            store.change(at, operator).await.map_err(|abort| wrong(&abort))?;
            Ok::<f64, Error>(begin.elapsed().as_secs_f64() * 1e3)
        };
        let (own, others) = (key(0), key(PARTITION_ROWS));
        change(&own, Operator::Split(others.clone())).await?;
        store.add_replica(&own, Site(1)).await.map_err(|abort| wrong(&abort))?;
        let ends = Arc::new(AtomicBool::new(false));
        let clients = [
            (0..PARTITION_ROWS, 1),
            (PARTITION_ROWS..PARTITION_ROWS + OTHER_ROWS, 2),
            (PARTITION_ROWS..PARTITION_ROWS + OTHER_ROWS, 3),
        ]
        .map(|(rows, seed)| tokio::spawn(client(store.session(), rows, seed, Arc::clone(&ends))));
        // The first second is the warm-up.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let calm = Instant::now();
        tokio::time::sleep(phase).await;
        let busy = Instant::now();
        let (mut split, mut merge, mut remaster) = (Vec::new(), Vec::new(), Vec::new());
        let middle = key(PARTITION_ROWS / 2);
        let mut dice = StdRng::seed_from_u64(4);
        // This blocks a thread that has no other task: the clients have a thread of their own.
        let mut wait = || {
            std::thread::sleep(Duration::from_micros(dice.random_range(CHANGE_EVERY_US)));
        };
        let mut master = 0;
        while busy.elapsed() < phase {
            split.push(change(&own, Operator::Split(middle.clone())).await?);
            wait();
            merge.push(change(&own, Operator::Merge).await?);
            wait();
            master = 1 - master;
            remaster.push(change(&own, Operator::Remaster(Site(master))).await?);
            wait();
        }
        let done = Instant::now();
        ends.store(true, Ordering::Relaxed);
        let (mut before, mut during) = (Vec::new(), Vec::new());
        for (n, client) in clients.into_iter().enumerate() {
            let took = client.await.map_err(|_| Error::Wrong("a client panicked".into()))??;
            // The first client writes to the partition that changes. Only the others are measured.
            for (at, ms) in took.into_iter().filter(|_| n > 0) {
                match at {
                    at if at >= busy && at < done => during.push(ms),
                    at if at >= calm && at < busy => before.push(ms),
                    _ => {}
                }
            }
        }
        let p99 = |values: Vec<f64>| {
            percentile(values, 99).ok_or_else(|| Error::Wrong("no client did anything".into()))
        };
        Ok(Operators {
            split_ms: Figure::of(split).median,
            merge_ms: Figure::of(merge).median,
            remaster_ms: Figure::of(remaster).median,
            p99_ms_before: p99(before)?,
            p99_ms_during: p99(during)?,
        })
    })
}
