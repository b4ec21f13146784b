//! The cost of the engine itself: sites that are driven in this process, without sockets or request queues.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use imago_store::design::Design;
use imago_store::engine::{LogOptions, Options, Store};
use imago_store::key::Key;
use imago_store::log::{Log, Sync};
use imago_store::record::{Change, Epoch, LogEntry, Operator, Position, Site};
use imago_store::sequencer::{Follower, Sequencer};
use imago_store::site::{Core, Input, Output};
use imago_store::transaction::{Transaction, View};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::time::{ClockId, clock_gettime};

use super::{Size, key};
use crate::error::{Error, Result, process};

const SEED: u64 = 4;
const VALUE_BYTES: usize = 100;
/// Number of transactions whose log entries are submitted to the sequencer together, as with the pipeline of a
/// connection.
const BATCH: usize = 64;
/// Maximum number of transactions that are generated at a time, before the clock runs.
const MADE: u64 = 16_384;
/// Number of log entries by which a site may be ahead of the log before it waits for the log.
const AHEAD_MAX: u64 = 4_096;
const ANSWER_WAIT: Duration = Duration::from_secs(60);
const SEGMENT_BYTES: u64 = 256 * 1024 * 1024;

pub(super) struct Alone {
    pub per_core_s: f64,
    pub bytes_per_raw_byte: f64,
}

pub(super) struct Logged {
    pub per_core_s: f64,
    pub recovery_s: f64,
}

struct Inbox(Sender<(Position, Arc<[LogEntry]>)>);

impl Follower for Inbox {
    fn follow(&mut self, first: Position, entries: &Arc<[LogEntry]>) -> bool {
        self.0.send((first, Arc::clone(entries))).is_ok()
    }

    fn stall(&mut self, _: bool) {}

    fn mark(&mut self) {}

    fn end(&mut self, _: &str) {}
}

/// A site, the sequencer, and the log entries that pass between them.
struct Runner {
    core: Core,
    sequencer: Sequencer,
    inbox: Receiver<(Position, Arc<[LogEntry]>)>,
    leaving: Vec<LogEntry>,
    ahead: u64,
    answered: u64,
}

/// Returns the CPU time of this process so far, in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn resident_bytes() -> Result<f64> {
    let read = std::fs::read_to_string("/proc/self/statm");
    let statm = read.map_err(process("read /proc/self/statm"))?;
    let pages: f64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0.0);
    Ok(pages * rustix::param::page_size() as f64)
}

impl Runner {
    fn new(site: Site, sequencer: &Sequencer, design: &Design) -> Self {
        let (sender, inbox) = channel();
        _ = sequencer.join(Box::new(Inbox(sender)));
        let core = Core::new(site, Epoch(1), design.clone());
        Self {
            core,
            sequencer: sequencer.clone(),
            inbox,
            leaving: Vec::new(),
            ahead: 0,
            answered: 0,
        }
    }

    fn apply_input(&mut self, input: Input) -> Result<()> {
        for output in self.core.on(input) {
            match output {
                Output::Write(entry) => self.leaving.push(entry),
                Output::Answer(_, _, Ok(_)) => self.answered += 1,
                Output::Answer(_, _, Err(abort)) => return Err(Error::Wrong(abort.to_string())),
                Output::Reroute(..) => return Err(Error::Wrong("a transaction came back".into())),
                Output::Say(..) | Output::Subscribe(_) => {}
            }
        }
        Ok(())
    }

    /// Submits the log entries that the site wrote, and takes those that the sequencer has. Waits if the site is too
    /// far ahead of the log.
    fn flush(&mut self) -> Result<()> {
        self.ahead += self.leaving.len() as u64;
        self.sequencer.submit(std::mem::take(&mut self.leaving));
        loop {
            let (first, entries) = match self.inbox.try_recv() {
                Ok(logged) => logged,
                Err(_) if self.ahead < AHEAD_MAX => return Ok(()),
                Err(_) => self.await_entries()?,
            };
            self.receive_entries(first, entries)?;
        }
    }

    fn await_entries(&self) -> Result<(Position, Arc<[LogEntry]>)> {
        let bound_s = ANSWER_WAIT.as_secs();
        let late = |_| Error::TimedOut { what: "the log's next group".into(), bound_s };
        self.inbox.recv_timeout(ANSWER_WAIT).map_err(late)
    }

    fn receive_entries(&mut self, first: Position, entries: Arc<[LogEntry]>) -> Result<()> {
        let (site, epoch) = (self.core.site(), self.core.epoch());
        let is_own = |entry: &&LogEntry| (entry.by.site, entry.by.epoch) == (site, epoch);
        self.ahead -= entries.iter().filter(is_own).count() as u64;
        self.apply_input(Input::Logged(first, entries))
    }

    /// Begins the epoch of the site, and waits until the site is live.
    fn begin(&mut self) -> Result<()> {
        self.apply_input(Input::Tick(0))?;
        self.flush()?;
        while !self.core.is_live() {
            let (first, entries) = self.await_entries()?;
            self.receive_entries(first, entries)?;
        }
        Ok(())
    }

    /// Runs transactions. Submits their log entries in batches, and waits only if the site is too far ahead of the
    /// log.
    fn run(&mut self, transactions: Vec<Transaction>) -> Result<()> {
        for (n, transaction) in transactions.into_iter().enumerate() {
            self.apply_input(Input::Transact(0, transaction, 1))?;
            if n % BATCH == BATCH - 1 {
                self.flush()?;
            }
        }
        self.flush()
    }

    fn catch_up(&mut self) -> Result<()> {
        while self.ahead > 0 {
            let (first, entries) = self.await_entries()?;
            self.receive_entries(first, entries)?;
        }
        Ok(())
    }

    fn load(&mut self, rows: std::ops::Range<u64>) -> Result<()> {
        // Keys are loaded out of order, as clients would load them.
        let count = rows.end - rows.start;
        let stride = (count / 2 + 1..).find(|stride| gcd(*stride, count) == 1).unwrap_or(1);
        let mut transactions = Vec::new();
        let mut at = 0;
        for n in 0..count {
            if n % 100 == 0 {
                transactions.push(Vec::new());
            }
            at = (at + stride) % count;
            transactions.last_mut().expect("one was pushed").push(key(rows.start + at));
            if transactions.len() > 100 {
                self.run(transactions.drain(..100).map(filling).collect())?;
            }
        }
        self.run(transactions.into_iter().map(filling).collect())?;
        self.catch_up()
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn filling(keys: Vec<Key>) -> Transaction {
    let writes = keys.clone();
    let procedure = move |view: &mut View<'_>| {
        for key in &keys {
            view.put(key, [7; VALUE_BYTES].into())?;
        }
        Ok(Vec::new())
    };
    let (reads, client) = (Vec::new(), None);
    let (at_masters, procedure) = (false, Box::new(procedure));
    Transaction {
        reads,
        writes,
        session: Position::START,
        client,
        at_masters,
        is_distributed: false,
        output: None,
        procedure,
    }
}

/// Returns a transaction that reads three random rows, changes them and writes them.
fn rmw3(dice: &mut StdRng, rows: &std::ops::Range<u64>) -> Transaction {
    let keys = [(); 3].map(|()| key(dice.random_range(rows.clone())));
    let writes = keys.to_vec();
    let procedure = move |view: &mut View<'_>| {
        for (key, seen) in keys.iter().zip(view.get_each(&keys)?) {
            let mut value = [0; VALUE_BYTES];
            if let Some(seen) = seen {
                value.copy_from_slice(&seen.value);
            }
            value[0] = value[0].wrapping_add(1);
            view.put(key, value.into())?;
        }
        Ok(Vec::new())
    };
    let (reads, client) = (Vec::new(), None);
    let (at_masters, procedure) = (false, Box::new(procedure));
    Transaction {
        reads,
        writes,
        session: Position::START,
        client,
        at_masters,
        is_distributed: false,
        output: None,
        procedure,
    }
}

/// Runs the transactions of the benchmark. Returns the CPU time of this process in seconds, without that of
/// generating the transactions.
fn timed(runner: &mut Runner, size: Size) -> Result<f64> {
    let mut dice = StdRng::seed_from_u64(SEED);
    let rows = 0..size.rows;
    let (mut left, mut took_s) = (size.transactions, 0.0);
    let before = runner.answered;
    while left > 0 {
        let many = left.min(MADE);
        let made: Vec<Transaction> = (0..many).map(|_| rmw3(&mut dice, &rows)).collect();
        let begin = cpu_s();
        runner.run(made)?;
        runner.catch_up()?;
        took_s += cpu_s() - begin;
        left -= many;
    }
    match runner.answered - before {
        answered if answered == size.transactions => Ok(took_s),
        answered => Err(Error::Wrong(format!("{answered} of {} answered", size.transactions))),
    }
}

pub(super) fn alone(size: Size) -> Result<Alone> {
    let before = resident_bytes()?;
    let mut runner = Runner::new(Site(0), &Sequencer::in_memory(), &Design::new(Site(0)));
    runner.begin()?;
    runner.load(0..size.rows)?;
    let raw = size.rows as f64 * (key(0).as_bytes().len() - 4 + VALUE_BYTES) as f64;
    let bytes_per_raw_byte = (resident_bytes()? - before) / raw;
    let per_core_s = size.transactions as f64 / timed(&mut runner, size)?;
    Ok(Alone { per_core_s, bytes_per_raw_byte })
}

pub(super) fn logged(size: Size) -> Result<Logged> {
    let folder = tempfile::tempdir().map_err(process("make a folder for the log"))?;
    let wrong = |error: &dyn std::error::Error| Error::Wrong(error.to_string());
    let log = Log::open(folder.path(), Sync::Always, SEGMENT_BYTES, |_, _| {});
    let mark_every = Arc::new(u64::MAX.into());
    let (order, thread) = Sequencer::of(log.map_err(|error| wrong(&error))?, mark_every)
        .map_err(process("start the log's thread"))?;
    let mut runner = Runner::new(Site(0), &order, &Design::new(Site(0)));
    runner.begin()?;
    runner.load(0..size.rows)?;
    let took_s = timed(&mut runner, Size { transactions: size.transactions, ..size })?;
    order.end();
    _ = thread.join();
    drop(runner);
    let log = LogOptions::Files {
        folder: folder.path().to_owned(),
        sync: Sync::Always,
        segment_bytes: SEGMENT_BYTES,
    };
    let begin = Instant::now();
    let store =
        Store::start(&Options { sites: 1, log: Some(log) }).map_err(|error| wrong(&error))?;
    let recovery_s = begin.elapsed().as_secs_f64();
    let rows = super::operators::rows(&store)?;
    if rows != size.rows {
        return Err(Error::Wrong(format!("{rows} of {} rows came back", size.rows)));
    }
    Ok(Logged { per_core_s: size.transactions as f64 / took_s, recovery_s })
}

/// Returns the throughput of one thread with one site, in transactions per second.
pub(super) fn one_site(size: Size) -> Result<f64> {
    side_by_side(size, 1)
}

/// Returns the throughput of two threads with one site each, in transactions per second. Each site masters one half
/// of the rows.
pub(super) fn two_sites(size: Size) -> Result<f64> {
    side_by_side(size, 2)
}

fn side_by_side(size: Size, sites: u64) -> Result<f64> {
    let mut design = Design::new(Site(0));
    let half = size.rows / 2;
    if sites == 2 {
        let at = key(half);
        let operators = [
            Operator::Split(at.clone()),
            Operator::AddReplica(Site(1), Epoch(0)),
            Operator::Remaster(Site(1)),
            Operator::RemoveReplica(Site(0)),
        ];
        for operator in operators {
            let start = match operator {
                Operator::Split(_) => Key::least(),
                _ => at.clone(),
            };
            let changed = design.change(&Change { start, operator });
            changed.map_err(|error| Error::Wrong(error.to_string()))?;
        }
    }
    let order = Sequencer::in_memory();
    let barrier = Arc::new(Barrier::new(usize::try_from(sites).expect("few")));
    // All sites follow the log before any of them writes.
    let runners: Vec<_> = (0..sites)
        .map(|n| Runner::new(Site(u16::try_from(n).expect("few")), &order, &design))
        .collect();
    let threads = (0..).zip(runners).map(|(n, mut runner): (u64, _)| {
        let barrier = Arc::clone(&barrier);
        let rows = n * half..if sites == 1 { size.rows } else { (n + 1) * half };
        thread::spawn(move || {
            let mut dice = StdRng::seed_from_u64(SEED + n);
            let prepared = runner.begin().and_then(|()| runner.load(rows.clone()));
            let made: Vec<_> = (0..size.transactions / 2).map(|_| rmw3(&mut dice, &rows)).collect();
            barrier.wait();
            prepared?;
            let begin = Instant::now();
            runner.run(made)?;
            runner.catch_up()?;
            Ok::<f64, Error>(begin.elapsed().as_secs_f64())
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut took_s: f64 = 0.0;
    for thread in threads {
        let took = thread.join().map_err(|_| Error::Wrong("a site's thread panicked".into()))?;
        took_s = took_s.max(took?);
    }
    Ok((sites * (size.transactions / 2)) as f64 / took_s)
}
