//! Clients of a store in this process, each with one transaction in progress at a time. In a closed loop, a client
//! begins its next transaction as soon as the last one ends. In an open loop, transactions are due at a fixed rate,
//! and their latency is measured from the time at which they are due. Every reply is checked when it is received. At
//! the end, the rows are checked against the acknowledged increments.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use imago_store::engine::{Session, Store};
use imago_store::transaction::{Abort, Done, View};
use imago_workload::timeline::Latency;
use serde::Serialize;
use tokio::task::JoinHandle;

use super::workload::{self, Kind, Workload, answered};
use crate::error::{Error, Result};

/// Maximum number of users whose last count a client remembers. A client that reaches it forgets all of them.
const REMEMBERED_MAX: usize = 1_000;
/// Largest latency that is recorded, in µs. Longer latencies are recorded as this value.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Maximum number of attempts of a transaction that the store rejects as late or busy.
const ATTEMPTS_MAX: u32 = 100;

/// Results of the checks of a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Checked {
    /// Number of acknowledged transactions.
    pub acknowledged: u64,
    /// Number of acknowledged transactions whose procedure ran at one site only. Repeated runs at the same site count
    /// as one site.
    pub single_site: u64,
    /// Number of acknowledged increments that are missing from the rows at the end.
    pub lost: u64,
    /// Number of anomalies, which no snapshot could contain: rows of one user with different counts, and counts lower
    /// than one that the same client has already seen.
    pub anomalies: u64,
}

/// Parameters of the clients of a load.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// Number of clients.
    pub many: u64,
    /// Arrival rate of all clients together, in transactions per second (open loop). `None` if each client begins its
    /// next transaction at once (closed loop).
    pub open_rate_s: Option<f64>,
    /// Time since the start of the load after which latencies are recorded. Latencies are recorded only in an open
    /// loop.
    pub warm: Duration,
    /// Seed of the first client's random generator. Each further client adds its number.
    pub seed: u64,
}

/// State shared by the clients of one load.
struct Tally {
    began: Instant,
    clients: Clients,
    latency: Mutex<Histogram<u64>>,
    /// Number of transactions that ended in each tenth of a second.
    tenths: Vec<AtomicU64>,
    /// Number of acknowledged increments of each user.
    counted: Vec<AtomicU64>,
    single_site: AtomicU64,
    anomalies: AtomicU64,
    is_over: AtomicBool,
}

/// A load in progress.
pub struct Load {
    tally: Arc<Tally>,
    clients: Vec<JoinHandle<Result<()>>>,
    store: Arc<Store>,
    users: u64,
}

/// Number of tenths of a second that are counted separately. Later transactions count in the last one.
const TENTHS_MAX: usize = 36_000;

impl Load {
    /// Starts the clients on the current Tokio runtime.
    pub fn start(store: &Arc<Store>, workload: Workload, clients: Clients) -> Self {
        let zeros = |many: usize| (0..many).map(|_| AtomicU64::new(0)).collect();
        let histogram = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
        let tally = Arc::new(Tally {
            began: Instant::now(),
            clients,
            latency: Mutex::new(histogram.expect("the bounds are constants in order")),
            tenths: zeros(TENTHS_MAX),
            counted: zeros(workload.users as usize),
            single_site: AtomicU64::new(0),
            anomalies: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let client = |n| {
            let (session, tally) = (store.session(), Arc::clone(&tally));
            tokio::spawn(client(session, workload, n, tally))
        };
        let clients = (0..clients.many).map(client).collect();
        Self { tally, clients, store: Arc::clone(store), users: workload.users }
    }

    /// Returns the start of the load.
    pub fn began(&self) -> Instant {
        self.tally.began
    }

    /// Returns the throughput between two times, in transactions per second. Both times are in tenths of a second
    /// since the load began.
    pub fn rate_s(&self, from: usize, to: usize) -> f64 {
        let tenths = &self.tally.tenths[from.min(TENTHS_MAX)..to.min(TENTHS_MAX)];
        let done: u64 = tenths.iter().map(|tenth| tenth.load(Ordering::Relaxed)).sum();
        done as f64 * 10.0 / tenths.len().max(1) as f64
    }

    /// Returns the latencies that were recorded so far.
    pub fn latency(&self) -> Latency {
        Latency::of(&self.tally.latency.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the load, waits for the clients, and checks the rows of all users.
    #[crate::boxed]
    pub async fn finish(self) -> Result<Checked> {
        self.tally.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.map_err(|_| Error::Wrong("a client panicked".into()))??;
        }
        let mut checked = Checked {
            acknowledged: self.tally.tenths.iter().map(|one| one.load(Ordering::Relaxed)).sum(),
            single_site: self.tally.single_site.load(Ordering::Relaxed),
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

/// Sites at which a procedure has run. A site is identified by its thread, because each site has exactly one.
#[derive(Default)]
struct SitesOf(Vec<ThreadId>);

impl SitesOf {
    /// Records that the procedure runs at the site of the current thread. Returns the number of sites so far.
    fn run_here(&mut self) -> u64 {
        let here = thread::current().id();
        if !self.0.contains(&here) {
            self.0.push(here);
        }
        self.0.len() as u64
    }
}

/// Wraps a procedure so that its reply ends with the number of sites at which it has run.
fn noting_sites(
    mut procedure: impl FnMut(&mut View<'_>) -> Result<Vec<u8>, Abort> + Send,
) -> impl FnMut(&mut View<'_>) -> Result<Vec<u8>, Abort> + Send {
    let mut sites = SitesOf::default();
    move |view| {
        let sites = sites.run_here();
        let mut answer = procedure(view)?;
        answer.extend(sites.to_be_bytes());
        Ok(answer)
    }
}

/// True if a procedure that [`noting_sites`] wraps ran at one site only.
fn ran_at_one_site(done: &Done) -> bool {
    done.answer.to_bytes().last_chunk() == Some(&1_u64.to_be_bytes())
}

async fn client(
    mut session: Session,
    workload: Workload,
    number: u64,
    tally: Arc<Tally>,
) -> Result<()> {
    let mut drawing = workload.drawing(tally.clients.seed + number);
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let mut due = Due { clients: tally.clients, next: number };
    loop {
        let from = due.wait(tally.began).await;
        if tally.is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let kind = drawing.next(tally.began.elapsed());
        let done = run(&mut session, kind).await?;
        let (first, torn) = numbers(Ok(&done))?;
        let mut anomalies = torn;
        if let Kind::Count(user) = kind {
            // The count includes this client's last increment and those of other clients in between, so it never
            // decreases.
            anomalies += u64::from(seen.get(&user).is_some_and(|seen| first < *seen));
            if seen.len() >= REMEMBERED_MAX {
                seen.clear();
            }
            seen.insert(user, first + 1);
            tally.counted[user as usize].fetch_add(1, Ordering::Relaxed);
        }
        tally.anomalies.fetch_add(anomalies, Ordering::Relaxed);
        tally.single_site.fetch_add(u64::from(ran_at_one_site(&done)), Ordering::Relaxed);
        let tenth = (tally.began.elapsed().as_millis() / 100) as usize;
        tally.tenths[tenth.min(TENTHS_MAX - 1)].fetch_add(1, Ordering::Relaxed);
        if tally.clients.open_rate_s.is_some() && tally.began.elapsed() >= tally.clients.warm {
            let us = u64::try_from(from.elapsed().as_micros()).unwrap_or(u64::MAX);
            tally
                .latency
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .saturating_record(us.max(1));
        }
    }
}

/// Due times of the transactions of one client.
struct Due {
    clients: Clients,
    next: u64,
}

impl Due {
    /// Waits until the next transaction is due. Returns the time from which its latency counts, which is the time at
    /// which it is due. A transaction that is already overdue, because the client was late, is returned at once, and
    /// its latency counts from its due time as well. In a closed loop, returns the current time at once.
    async fn wait(&mut self, began: Instant) -> Instant {
        let Some(rate_s) = self.clients.open_rate_s else { return Instant::now() };
        let at = began + Duration::from_secs_f64(self.next as f64 / rate_s);
        self.next += self.clients.many;
        tokio::time::sleep_until(at.into()).await;
        at
    }
}

/// Runs a transaction. Retries it if the store rejects it as late or busy.
async fn run(session: &mut Session, kind: Kind) -> Result<Done> {
    for _ in 0..ATTEMPTS_MAX {
        let done = match kind {
            Kind::Count(user) => {
                let procedure = Box::new(noting_sites(workload::count_up(user)));
                session.run(Vec::new(), workload::rows(user), procedure).await
            }
            Kind::Scan(user, users) => {
                let procedure = Box::new(noting_sites(workload::scan(user, users)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_client_counts_from_when_its_transaction_was_due() {
        let clients =
            Clients { many: 2, open_rate_s: Some(1_000.0), warm: Duration::ZERO, seed: 1 };
        let began = Instant::now().checked_sub(Duration::from_millis(50)).unwrap();
        let mut due = Due { clients, next: 1 };
        let ms = Duration::from_millis;
        assert_eq!(due.wait(began).await, began + ms(1));
        assert_eq!(due.wait(began).await, began + ms(3), "the other client has the second one");
        assert!(began.elapsed() < ms(1_000));
        due.next = 101;
        assert_eq!(due.wait(began).await, began + ms(101));
        assert!(began.elapsed() >= ms(101));
        let mut closed = Due { clients: Clients { open_rate_s: None, ..clients }, next: 0 };
        assert!(closed.wait(began).await > began + ms(100));
    }

    #[test]
    fn a_second_site_is_counted_and_the_same_one_is_not() {
        let mut sites = SitesOf::default();
        assert_eq!((sites.run_here(), sites.run_here()), (1, 1));
        assert_eq!(thread::spawn(move || sites.run_here()).join().unwrap(), 2);
    }
}
