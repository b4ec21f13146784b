//! Clients of a store in this process: a closed loop, in which each has one transaction under way. What they
//! were told is checked, as it comes and at the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use imago_store::engine::{Session, Store};
use imago_store::transaction::{Abort, Done};
use serde::Serialize;
use tokio::task::JoinHandle;

use super::workload::{self, Kind, Workload, answered};
use crate::error::{Error, Result};

/// Numbers that a client remembers of users.
const REMEMBERED_MAX: usize = 1_000;
/// Attempts of a transaction that the store put off.
const ATTEMPTS_MAX: u32 = 100;

/// The outcome of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Checked {
    /// Transactions that were acknowledged.
    pub acknowledged: u64,
    /// Increments that were acknowledged and are not there.
    pub lost: u64,
    /// Answers that no snapshot could give: rows of one user that differ, and numbers that went back.
    pub anomalies: u64,
}

/// State shared by the clients of one load.
struct Tally {
    began: Instant,
    /// Transactions that ended in each tenth of a second.
    tenths: Vec<AtomicU64>,
    /// Acknowledged increments of each user.
    counted: Vec<AtomicU64>,
    anomalies: AtomicU64,
    is_over: AtomicBool,
}

/// A closed-loop load under way.
pub struct Load {
    tally: Arc<Tally>,
    clients: Vec<JoinHandle<Result<()>>>,
    store: Arc<Store>,
    users: u64,
}

/// Tenths of a second that a load can be as long as.
const TENTHS_MAX: usize = 36_000;

impl Load {
    /// Starts so many clients on the present runtime.
    pub fn start(store: &Arc<Store>, workload: Workload, clients: u64, seed: u64) -> Self {
        let zeros = |many: usize| (0..many).map(|_| AtomicU64::new(0)).collect();
        let tally = Arc::new(Tally {
            began: Instant::now(),
            tenths: zeros(TENTHS_MAX),
            counted: zeros(workload.users as usize),
            anomalies: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let client = |n| {
            let (session, tally) = (store.session(), Arc::clone(&tally));
            tokio::spawn(client(session, workload, seed + n, tally))
        };
        let clients = (0..clients).map(client).collect();
        Self { tally, clients, store: Arc::clone(store), users: workload.users }
    }

    /// Returns the start of the load.
    pub fn began(&self) -> Instant {
        self.tally.began
    }

    /// Transactions a second between two times, since the load began, in tenths of a second.
    pub fn rate_s(&self, from: usize, to: usize) -> f64 {
        let tenths = &self.tally.tenths[from.min(TENTHS_MAX)..to.min(TENTHS_MAX)];
        let done: u64 = tenths.iter().map(|tenth| tenth.load(Ordering::Relaxed)).sum();
        done as f64 * 10.0 / tenths.len().max(1) as f64
    }

    /// Ends it, and checks the whole.
    pub async fn finish(self) -> Result<Checked> {
        self.tally.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.map_err(|_| Error::Wrong("a client panicked".into()))??;
        }
        let mut checked = Checked {
            acknowledged: self.tally.tenths.iter().map(|one| one.load(Ordering::Relaxed)).sum(),
            lost: 0,
            anomalies: self.tally.anomalies.load(Ordering::Relaxed),
        };
        let mut session = self.store.session();
        for user in 0..self.users {
            let counted = self.tally.counted[user as usize].load(Ordering::Relaxed);
            if counted == 0 {
                continue;
            }
            let reads = vec![workload::scanned(user, 1)];
            let looked = session.run(reads, Vec::new(), Box::new(workload::look(user))).await;
            let (count, torn) = numbers(looked.as_ref().map_err(Clone::clone))?;
            checked.anomalies += torn;
            checked.lost += counted.saturating_sub(count);
        }
        Ok(checked)
    }
}

fn numbers(done: std::result::Result<&Done, Abort>) -> Result<(u64, u64)> {
    let done = done.map_err(|abort| Error::Wrong(abort.to_string()))?;
    let bytes = done.answer.to_bytes();
    answered(&bytes).ok_or_else(|| Error::Wrong("an answer is too short".into()))
}

async fn client(
    mut session: Session,
    workload: Workload,
    seed: u64,
    tally: Arc<Tally>,
) -> Result<()> {
    let mut drawing = workload.drawing(seed);
    let mut seen: HashMap<u64, u64> = HashMap::new();
    while !tally.is_over.load(Ordering::Relaxed) {
        let kind = drawing.next(tally.began.elapsed());
        let done = run(&mut session, kind).await?;
        let (first, torn) = numbers(Ok(&done))?;
        let mut anomalies = torn;
        if let Kind::Count(user) = kind {
            // The first of its own increments, and what others did between them, are behind it.
            anomalies += u64::from(seen.get(&user).is_some_and(|seen| first < *seen));
            if seen.len() >= REMEMBERED_MAX {
                seen.clear();
            }
            seen.insert(user, first + 1);
            tally.counted[user as usize].fetch_add(1, Ordering::Relaxed);
        }
        tally.anomalies.fetch_add(anomalies, Ordering::Relaxed);
        let tenth = (tally.began.elapsed().as_millis() / 100) as usize;
        tally.tenths[tenth.min(TENTHS_MAX - 1)].fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Runs a transaction, again where the store put it off.
async fn run(session: &mut Session, kind: Kind) -> Result<Done> {
    for _ in 0..ATTEMPTS_MAX {
        let done = match kind {
            Kind::Count(user) => {
                let procedure = Box::new(workload::count_up(user));
                session.run(Vec::new(), workload::rows(user), procedure).await
            }
            Kind::Scan(user, users) => {
                let procedure = Box::new(workload::scan(user, users));
                session.run(vec![workload::scanned(user, users)], Vec::new(), procedure).await
            }
        };
        match done {
            Ok(done) => return Ok(done),
            Err(Abort::Late | Abort::Busy) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(abort) => return Err(Error::Wrong(abort.to_string())),
        }
    }
    Err(Error::Wrong(format!("{kind:?} was put off {ATTEMPTS_MAX} times")))
}
