//! Clients of a store in this process that run a benchmark's transactions, each one at a time. In a closed loop a client
//! begins its next transaction at once. In an open loop transactions are due at equal distances, and a latency counts
//! from the time at which the transaction was due.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use imago_load::store::transactions::{Benchmark, Check, Drawing, declared, in_process, key};
use imago_store::engine::{Session, Store};
use imago_store::key::{Key, KeyRange};
use imago_store::transaction::{Abort, View};
use imago_workload::procedures::{Answer, Kind, Next, Procedure, READS_MAX, Value};
use imago_workload::timeline::Latency;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;
use tokio::task::JoinHandle;

use super::designs::Remastering;
use crate::error::{Error, Result};

/// Largest latency that is recorded, in µs.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Maximum number of attempts of a transaction that did not happen, or whose keys moved.
const ATTEMPTS_MAX: u32 = 1_000;
/// The first unique number of a transaction; the rows of the start have lower ones.
const UNIQUE_FROM: u64 = 1 << 61;
/// Delay before a transaction that did not happen is tried again.
const AGAIN_WAIT: Duration = Duration::from_millis(2);

/// Latencies of the transactions of one type.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OfKind {
    /// Number of transactions.
    pub done: u64,
    /// Their latencies.
    pub latency: Latency,
}

/// Parameters of the clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    pub clients: u64,
    /// Transactions per second of all clients together; `None` for a closed loop.
    pub rate_s: Option<f64>,
    /// Time since the start after which transactions count.
    pub warm: Duration,
    pub seed: u64,
}

/// State shared by the clients.
pub(super) struct Tally {
    began: Instant,
    parameters: Parameters,
    is_over: AtomicBool,
    done: AtomicU64,
    retried: AtomicU64,
    check: Mutex<Check>,
    latencies: Mutex<BTreeMap<Kind, Histogram<u64>>>,
    policy: Option<Arc<Remastering>>,
}

/// Running clients.
pub(super) struct Clients {
    tally: Arc<Tally>,
    clients: Vec<JoinHandle<Result<()>>>,
}

impl Clients {
    /// Starts the clients of a benchmark. `policy` counts their writes, if there is one.
    pub fn start(
        store: &Arc<Store>,
        benchmark: &Benchmark,
        parameters: Parameters,
        policy: Option<Arc<Remastering>>,
    ) -> Self {
        let tally = Arc::new(Tally {
            began: Instant::now(),
            parameters,
            is_over: AtomicBool::new(false),
            done: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            check: Mutex::new(Check::of(benchmark)),
            latencies: Mutex::default(),
            policy,
        });
        let client = |number| {
            let (store, tally, drawing) =
                (Arc::clone(store), Arc::clone(&tally), Drawing::of(benchmark));
            tokio::spawn(async move { client(&store, drawing, number, &tally).await })
        };
        let clients = (0..parameters.clients).map(client).collect();
        Self { tally, clients }
    }

    /// Returns the number of transactions done so far.
    pub fn done(&self) -> u64 {
        self.tally.done.load(Ordering::Relaxed)
    }

    /// Returns the number of attempts that did not happen, so far.
    pub fn retried(&self) -> u64 {
        self.tally.retried.load(Ordering::Relaxed)
    }

    /// Returns the latencies of the transactions that counted so far.
    pub fn latencies(&self) -> BTreeMap<Kind, OfKind> {
        let latencies = self.tally.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |histogram: &Histogram<u64>| OfKind {
            done: histogram.len(),
            latency: Latency::of(histogram),
        };
        latencies.iter().map(|(kind, histogram)| (*kind, of(histogram))).collect()
    }

    /// Ends the clients, and returns the check of their acknowledged transactions.
    pub async fn finish(self) -> Result<Check> {
        self.tally.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.map_err(|_| Error::Wrong("a client panicked".into()))??;
        }
        let mut check = self.tally.check.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = Check::SmallBank(imago_workload::procedures::smallbank::Check::default());
        Ok(std::mem::replace(&mut *check, empty))
    }
}

async fn client(store: &Store, drawing: Drawing, number: u64, tally: &Tally) -> Result<()> {
    let mut session = store.session();
    let Parameters { clients, rate_s, warm, seed, .. } = tally.parameters;
    let mut rng = StdRng::seed_from_u64(seed.wrapping_add(1 + number));
    for count in 0_u64.. {
        let due = match rate_s {
            None => Instant::now(),
            Some(rate_s) => {
                let due = Duration::from_secs_f64((count * clients + number) as f64 / rate_s);
                let due = tally.began + due;
                tokio::time::sleep_until(due.into()).await;
                due
            }
        };
        if tally.is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let unique = UNIQUE_FROM + (number << 40) + count;
        let mut procedure = drawing.draw(&mut rng, unique);
        let Some(answer) = transact(store, &mut session, &mut procedure, tally).await? else {
            continue;
        };
        match answer {
            Answer::Done(done) => {
                let mut check = tally.check.lock().unwrap_or_else(PoisonError::into_inner);
                check.acknowledged(&procedure, done);
            }
            Answer::RolledBack => {}
            Answer::Moved | Answer::Contradiction(_) => {
                return Err(Error::Wrong(format!("{:?}: {answer:?}", procedure.kind())));
            }
        }
        tally.done.fetch_add(1, Ordering::Relaxed);
        if tally.began.elapsed() >= warm {
            let mut latencies = tally.latencies.lock().unwrap_or_else(PoisonError::into_inner);
            let histogram = latencies.entry(procedure.kind()).or_insert_with(|| {
                Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("the bounds are constants")
            });
            histogram.saturating_record(due.elapsed().as_micros() as u64);
        }
    }
    Ok(())
}

/// Runs a transaction until it has happened; `None` if there is nothing to do or the load is over.
async fn transact(
    store: &Store,
    session: &mut Session,
    procedure: &mut Procedure,
    tally: &Tally,
) -> Result<Option<Answer>> {
    for _ in 0..ATTEMPTS_MAX {
        let done = match declare(session, procedure).await {
            Ok(None) => return Ok(None),
            Ok(Some((reads, writes))) => {
                if let Some(policy) = &tally.policy {
                    policy.observe(&store.map().design, &writes);
                }
                session.run(reads, writes, in_process(procedure.clone())).await
            }
            Err(abort) => Err(abort),
        };
        let answer = match done {
            Ok(done) => Answer::from_bytes(&done.answer.to_bytes()),
            Err(Abort::Late | Abort::Busy) => {
                tally.retried.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(AGAIN_WAIT).await;
                None
            }
            Err(abort) => return Err(Error::Wrong(format!("{:?}: {abort}", procedure.kind()))),
        };
        match answer {
            Some(Answer::Moved) => _ = tally.retried.fetch_add(1, Ordering::Relaxed),
            Some(answer) => return Ok(Some(answer)),
            None => {}
        }
        if tally.is_over.load(Ordering::Relaxed) {
            return Ok(None);
        }
    }
    Err(Error::Wrong(format!("{:?} did not happen in {ATTEMPTS_MAX} attempts", procedure.kind())))
}

/// Returns the ranges that a transaction reads and the keys that it writes, after reading the rows that determine them;
/// `None` if there is nothing to do.
pub(super) async fn declare(
    session: &mut Session,
    procedure: &mut Procedure,
) -> std::result::Result<Option<(Vec<KeyRange>, Vec<Key>)>, Abort> {
    let mut found: Vec<Vec<Value>> = Vec::new();
    loop {
        match procedure.next(&found) {
            Next::Nothing => return Ok(None),
            Next::Run(keys) => return Ok(Some(declared(&keys))),
            Next::Read(keys) => {
                assert!(found.len() < READS_MAX, "a procedure declares its keys");
                found.push(read(session, &keys).await?);
            }
        }
    }
}

/// Reads rows in one transaction.
async fn read(session: &mut Session, names: &[String]) -> std::result::Result<Vec<Value>, Abort> {
    let keys: Vec<Key> = names.iter().map(|name| key(name)).collect();
    let reads = keys.iter().map(KeyRange::only).collect();
    let (sent, received) = std::sync::mpsc::channel();
    let procedure = move |view: &mut View<'_>| {
        let rows = view.get_each(&keys)?;
        let rows: Vec<Value> =
            rows.into_iter().map(|seen| seen.map(|seen| seen.value.to_vec())).collect();
        _ = sent.send(rows);
        Ok(Vec::new())
    };
    session.run(reads, Vec::new(), Box::new(procedure)).await?;
    Ok(received.recv().expect("a transaction that is answered has run"))
}
