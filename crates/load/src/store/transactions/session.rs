//! A session of a load: draws transactions, runs them one after the other, and measures them.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use imago_workload::procedures::{Answer, Next, Procedure, READS_MAX, Value};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::report::SessionReport;
use super::rows::{Connection, Failed};
use super::{Drawing, Shared};

/// Delay before a connection that failed is opened again, and before a transaction is retried that did not happen.
const AGAIN_WAIT: Duration = Duration::from_millis(5);
/// Maximum number of attempts of a transaction whose keys moved or that did not happen. At 5 ms each that is longer than
/// the change of a site takes.
const ATTEMPTS_MAX: u32 = 10_000;

/// The end of a transaction.
enum End {
    Answer(Answer),
    /// There was nothing to do, or the load ended before the transaction happened.
    Nothing,
    Unknown,
    /// The maximum number of attempts was reached, and nothing happened.
    GaveUp,
}

/// A session of a load.
pub(super) struct Session<'a> {
    number: u32,
    drawing: Drawing,
    rng: StdRng,
    shared: &'a Shared<'a>,
    connection: Option<Connection>,
    report: SessionReport,
}

impl<'a> Session<'a> {
    pub fn new(number: u32, drawing: Drawing, shared: &'a Shared<'a>) -> Self {
        let rng = StdRng::seed_from_u64(shared.options.seed.wrapping_add(1 + u64::from(number)));
        Self { number, drawing, rng, shared, connection: None, report: SessionReport::default() }
    }

    /// Runs transactions until the load is over, and returns what was measured.
    pub fn run(&mut self) -> SessionReport {
        for count in 0_u64.. {
            let Some(due) = self.wait(count) else { break };
            let unique = self.unique(count);
            let mut procedure = self.drawing.draw(&mut self.rng, unique);
            let end = self.transact(&mut procedure);
            self.record(&procedure, end, due.elapsed());
        }
        std::mem::take(&mut self.report)
    }

    /// Returns the unique number of the session's transaction with this number. A session has room for 2⁴⁰ of them
    /// before the numbers of the next session.
    fn unique(&self, count: u64) -> u64 {
        self.shared
            .unique_base
            .wrapping_add(u64::from(self.number) << 40)
            .wrapping_add(count)
            .max(1)
    }

    fn is_over(&self) -> bool {
        let shared = self.shared;
        shared.is_over.load(Ordering::Relaxed) || shared.cancel.load(Ordering::Relaxed)
    }

    /// Waits until the session's next transaction is due, and returns that time; `None` once the load is over.
    fn wait(&self, count: u64) -> Option<Instant> {
        let options = &self.shared.options;
        let Some(rate_s) = options.rate_s else {
            return (!self.is_over()).then(Instant::now);
        };
        let number = count * u64::from(options.sessions) + u64::from(self.number);
        let due = self.shared.began + Duration::from_secs_f64(number as f64 / rate_s);
        while Instant::now() < due {
            if self.is_over() {
                return None;
            }
            let left = due.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_millis(100)));
        }
        (!self.is_over()).then_some(due)
    }

    /// Runs a transaction until it has happened, or its outcome is unknown.
    fn transact(&mut self, procedure: &mut Procedure) -> End {
        for _ in 0..ATTEMPTS_MAX {
            match self.attempt(procedure) {
                Ok(Some(Answer::Moved)) => self.report.moved += 1,
                Ok(Some(answer)) => return End::Answer(answer),
                Ok(None) => return End::Nothing,
                Err(Failed::NotDone) => {
                    self.report.retried += 1;
                    if self.is_over() {
                        return End::Nothing;
                    }
                    thread::sleep(AGAIN_WAIT);
                }
                Err(Failed::Unknown(error)) => {
                    self.report.last_error = Some(error.to_string());
                    self.connection = None;
                    return End::Unknown;
                }
            }
        }
        End::GaveUp
    }

    /// Declares the keys of a transaction, and runs it once. `None` if there is nothing to do.
    fn attempt(&mut self, procedure: &mut Procedure) -> Result<Option<Answer>, Failed> {
        let mut found: Vec<Vec<Value>> = Vec::new();
        loop {
            let next = procedure.next(&found);
            let connection = self.connected()?;
            match next {
                Next::Nothing => return Ok(None),
                Next::Run(declared) => return connection.call(procedure, &declared).map(Some),
                Next::Read(keys) => {
                    assert!(found.len() < READS_MAX, "a procedure declares its keys");
                    match connection.get_many(&keys) {
                        Ok(rows) => found.push(rows),
                        // A read has no effect, so the transaction has not happened.
                        Err(_) => {
                            self.connection = None;
                            return Err(Failed::NotDone);
                        }
                    }
                }
            }
        }
    }

    fn connected(&mut self) -> Result<&mut Connection, Failed> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(self.shared.options).map_err(|_| Failed::NotDone)?,
        };
        Ok(self.connection.insert(connection))
    }

    fn record(&mut self, procedure: &Procedure, end: End, latency: Duration) {
        let of_kind = self.report.kinds.entry(procedure.kind()).or_default();
        match end {
            End::Nothing => {}
            End::GaveUp => of_kind.gave_up += 1,
            End::Unknown => {
                of_kind.unknown += 1;
                self.shared.check.lock().unwrap_or_else(PoisonError::into_inner).unknown(procedure);
            }
            End::Answer(Answer::Contradiction(row)) => {
                let what = format!("{:?} found the row {row} missing or damaged", procedure.kind());
                self.report.contradictions.push(what);
            }
            End::Answer(answer) => {
                of_kind.latency.saturating_record(latency.as_micros() as u64);
                self.shared.done.fetch_add(1, Ordering::Relaxed);
                match answer {
                    Answer::Done(done) => {
                        of_kind.done += 1;
                        let check = &self.shared.check;
                        let mut check = check.lock().unwrap_or_else(PoisonError::into_inner);
                        check.acknowledged(procedure, done);
                    }
                    _ => of_kind.rolled_back += 1,
                }
            }
        }
    }
}
