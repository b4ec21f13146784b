//! The redo log in Kafka: one topic with one partition, which is one order of groups for all sites.
//!
//! A record contains one group, in the format in which [`crate::log`] writes it to a file. Kafka numbers records and
//! not log entries, so *readers count*: the position of a log entry is the number of log entries before it in the
//! topic, plus one. All readers read the same records in the same order, and so agree. A writer learns the positions
//! of its own entries by reading too; the broker's reply only says that they are in the topic.
//!
//! A lost reply is therefore harmless. The writer appends again, and the topic may contain its group twice,
//! the second one even after later groups: the log entries of the second are void to every reader
//! ([`crate::log::RedoLog`]), and count as positions for every reader.
//!
//! Log entries are acknowledged once all in-sync replicas have them (`acks=all`), and are delivered only
//! then. If all machines stop at once, durability depends on the topic's replicas: Kafka leaves it to
//! the operating system when a file is written out.
//!
//! Invariant: the topic begins with its first record ever. It is created without retention limits, an
//! existing topic with limits is refused, and a missing beginning is an error, because positions could not be
//! counted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::log::redo::{checksum, group, ungroup};
use crate::log::{LogError, RedoLog, Result};
use crate::record::{LogEntry, Position};
use protocol::{Connection, FETCH, METADATA, PRODUCE, Reader, Writer, batch, invalid, read_batch};

mod address;
mod fault;
mod landmark;
mod protocol;
mod setting;
#[cfg(test)]
mod tests;
mod watch;

pub use address::NotTopic;
pub use landmark::Landmark;
pub use watch::Watch;

use fault::{Fault, check};

/// Maximum size of a group in bytes: the largest transaction fits, and a broker by default accepts requests of
/// 100 MB.
const RECORD_BYTES_MAX: usize = 80 * 1024 * 1024;
/// Maximum size of the records in one fetch in bytes, except for a single larger record.
const FETCH_BYTES_MAX: i32 = 16 * 1024 * 1024;
/// Delay after the first failure; each further delay is twice as long.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum delay after a failure.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Maximum time to wait for a broker's reply.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum time that a broker is given for an operation.
const WORK_MAX: Duration = Duration::from_secs(8);

/// The location of a log in Kafka.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaSpec {
    /// Brokers to connect to first, each as `host:port`.
    pub brokers: Vec<String>,
    /// Name of the topic, which is created if it does not exist.
    pub topic: String,
    /// Number of replicas of a created topic. A majority of them must be in sync for a write.
    pub replicas: i16,
    /// Time for which a failing operation is repeated before it is an error; an election takes some seconds.
    pub patience: Duration,
}

impl KafkaSpec {
    /// Returns the time to wait for a broker's reply. Then another attempt is made, because another broker may lead
    /// by then.
    fn silence(&self) -> Duration {
        (self.patience / 3).min(SILENCE_MAX)
    }

    /// Returns the time that a broker is given for an operation. It is shorter, so that the broker can still reply
    /// that it did not finish.
    fn work(&self) -> Duration {
        (self.patience / 4).min(WORK_MAX)
    }
}

/// A log in Kafka, as used by one thread: a process that appends and reads at the same time has two of them.
#[derive(Debug)]
pub struct KafkaLog {
    /// The location of the log.
    spec: KafkaSpec,
    /// The connection to the partition's leader; `None` before the first use and after a failure.
    connection: Option<Connection>,
    /// Offset of the record that is read next.
    offset: i64,
    /// Position of the first log entry in that record.
    next: Position,
    /// The last record that was read.
    last: Option<Landmark>,
    /// Size of all records that were read, in bytes.
    read_bytes: u64,
    /// State that other threads may read.
    watch: Arc<Watch>,
}

impl KafkaLog {
    /// Opens a log, and creates its topic if it does not exist.
    ///
    /// # Errors
    /// Returns an error if no broker is reached, or if the topic is not suited for a log or would lose
    /// entries.
    pub fn open(spec: KafkaSpec) -> Result<Self> {
        let mut log = Self::reader(spec);
        log.make_topic()?;
        log.check_topic()?;
        Ok(log)
    }

    /// Returns a log whose topic is known to exist, without connecting to it.
    #[must_use]
    pub fn reader(spec: KafkaSpec) -> Self {
        let watch = Arc::default();
        Self {
            spec,
            connection: None,
            offset: 0,
            next: Position::FIRST,
            last: None,
            read_bytes: 0,
            watch,
        }
    }

    /// Returns the same log for another thread, with nothing read.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::reader(self.spec.clone())
    }

    /// Returns the state that other threads may read while this log is in use.
    #[must_use]
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Returns the size of the records that were read so far, in bytes.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Repeats an operation until it succeeds, fails for good, or has failed for the log's patience.
    fn retry<T>(
        &mut self,
        doing: &'static str,
        mut attempt: impl FnMut(&mut Self) -> std::result::Result<T, Fault>,
    ) -> Result<T> {
        let started = Instant::now();
        let mut pause = PAUSE;
        loop {
            let fault = match attempt(self) {
                Ok(done) => {
                    self.watch.set(None);
                    return Ok(done);
                }
                Err(fault) => fault,
            };
            self.connection = None;
            let is_over = started.elapsed() + pause > self.spec.patience;
            let is_over = is_over || self.watch.is_ending();
            let why = match fault {
                Fault::Lasting(why) => why,
                Fault::Passing(why) if is_over => {
                    format!("{why}; tried for {} s", started.elapsed().as_secs())
                }
                Fault::Passing(why) => {
                    self.watch.set(Some(format!("cannot {doing} {}: {why}", self.name())));
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(PAUSE_MAX);
                    continue;
                }
            };
            return Err(LogError::Remote { doing, log: self.name(), why });
        }
    }

    /// Returns the description of the log for error messages.
    fn name(&self) -> String {
        self.spec.to_string()
    }

    /// Connects to the first broker that answers.
    fn any_broker(&self) -> std::result::Result<Connection, Fault> {
        let mut last = Fault::Lasting("no broker is named".into());
        for broker in &self.spec.brokers {
            match Connection::open(broker, self.spec.silence()) {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Fault::Passing(format!("{broker}: {error}")),
            }
        }
        Err(last)
    }

    /// Returns the connection to the partition's leader.
    fn leader(&mut self) -> std::result::Result<&mut Connection, Fault> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let address = self.leader_address()?;
                let opened = Connection::open(&address, self.spec.silence());
                opened.map_err(|error| Fault::Passing(format!("{address}: {error}")))?
            }
        };
        Ok(self.connection.insert(connection))
    }

    /// Returns the address of the partition's leader as `host:port`.
    fn leader_address(&self) -> std::result::Result<String, Fault> {
        let mut body = Writer::default();
        // One topic, which must not be created by this request.
        body.i32(1).text(&self.spec.topic).i8(0);
        let mut answer = self.any_broker()?.ask(METADATA, &body)?;
        let _throttled = answer.i32()?;
        let mut brokers = Vec::new();
        for _ in 0..answer.count()? {
            let (id, host, port) = (answer.i32()?, answer.text()?, answer.i32()?);
            let _rack = answer.text()?;
            brokers.push((id, format!("{host}:{port}")));
        }
        let (_cluster, _controller) = (answer.text()?, answer.i32()?);
        if answer.count()? != 1 {
            return Err(invalid("an answer about other topics than the one asked for").into());
        }
        check(answer.i16()?)?;
        let (_name, _is_internal) = (answer.text()?, answer.i8()?);
        match answer.count()? {
            1 => {}
            many => {
                let why = format!("it has {many} partitions; a log is a topic with one");
                return Err(Fault::Lasting(why));
            }
        }
        check(answer.i16()?)?;
        let (_partition, leader) = (answer.i32()?, answer.i32()?);
        let known = brokers.into_iter().find(|(id, _)| *id == leader);
        known.map(|(_, address)| address).ok_or(Fault::Passing("it has no leader now".into()))
    }

    /// Appends a group to the topic as one record.
    fn produce(&mut self, group: &[u8]) -> std::result::Result<(), Fault> {
        const ALL_IN_STEP: i16 = -1;
        let mut body = Writer::default();
        body.no_text().i16(ALL_IN_STEP).i32(millis(self.spec.work()));
        body.i32(1).text(&self.spec.topic).i32(1).i32(0).sized(&batch(group)?)?;
        let mut answer = self.leader()?.ask(PRODUCE, &body)?;
        only_partition(&mut answer)?;
        check(answer.i16()?)
    }

    /// Fetches batches from the next record on. The leader waits up to `wait` for the first.
    fn fetch(&mut self, wait: Duration) -> std::result::Result<Reader, Fault> {
        const NO_REPLICA: i32 = -1;
        let mut body = Writer::default();
        // At least one byte, or none when the time is over; aborted transactions are not filtered.
        body.i32(NO_REPLICA).i32(millis(wait)).i32(1).i32(FETCH_BYTES_MAX).i8(0);
        body.i32(1).text(&self.spec.topic);
        body.i32(1).i32(0).i64(self.offset).i32(FETCH_BYTES_MAX);
        let mut answer = self.leader()?.ask(FETCH, &body)?;
        let _throttled = answer.i32()?;
        only_partition(&mut answer)?;
        check(answer.i16()?)?;
        let (_high_watermark, _last_stable) = (answer.i64()?, answer.i64()?);
        for _ in 0..answer.count()? {
            let _aborted = (answer.i64()?, answer.i64()?);
        }
        let length = answer.count()?;
        Ok(Reader::of(answer.take(length)?))
    }

    /// Passes the log entries of a record from position `from` on to `see`, and advances to the next record.
    fn read_record(
        &mut self,
        offset: i64,
        value: &[u8],
        from: Position,
        see: &mut dyn FnMut(Position, LogEntry),
    ) -> Result<()> {
        let entries = ungroup(value).map_err(|what| LogError::Remote {
            doing: "read",
            log: self.name(),
            why: format!("record {offset} is no group of log entries: {what}"),
        })?;
        self.read_bytes += value.len() as u64;
        self.last = Some(Landmark { offset, first: self.next, checksum: checksum(value) });
        for entry in entries {
            if self.next >= from {
                see(self.next, entry);
            }
            self.next += 1;
        }
        self.offset = offset + 1;
        Ok(())
    }
}

impl RedoLog for KafkaLog {
    /// Appends entries as one record. The position is not known: other processes may have written before.
    fn append(&mut self, entries: &[LogEntry]) -> Result<Option<Position>> {
        if entries.is_empty() {
            return Ok(None);
        }
        let group = group(entries)?;
        if group.len() > RECORD_BYTES_MAX {
            let bytes = group.len();
            let why = format!("a group of {bytes} bytes is too large: at most {RECORD_BYTES_MAX}");
            return Err(LogError::Remote { doing: "write to", log: self.name(), why });
        }
        self.retry("write to", |log| log.produce(&group)).map(|()| None)
    }

    fn deliver(
        &mut self,
        from: Position,
        wait: Duration,
        see: &mut dyn FnMut(Position, LogEntry),
    ) -> Result<Position> {
        if from < self.next {
            // Only counting from the beginning finds the record with that position.
            (self.offset, self.next) = (0, Position::FIRST);
        }
        let wait = wait.min(self.spec.work());
        loop {
            let mut fetched = self.retry("read", |log| log.fetch(wait))?;
            let offset = self.offset;
            let cannot = |log: &Self, error: std::io::Error| LogError::Remote {
                doing: "read",
                log: log.name(),
                why: format!("behind record {}: {error}", log.offset),
            };
            while let Some(batch) = read_batch(&mut fetched).map_err(|error| cannot(self, error))? {
                for (at, value) in batch.records {
                    // A batch may begin before the record that was asked for.
                    if at >= self.offset {
                        self.read_record(at, &value, from, see)?;
                    }
                }
                self.offset = self.offset.max(batch.next);
            }
            // Skipped records are not the end: each round advances.
            if self.next > from || self.offset == offset {
                return Ok(self.next.max(from));
            }
        }
    }
}

/// Reads the header of a reply, which must be about the one partition of the one topic.
fn only_partition(answer: &mut Reader) -> std::result::Result<(), Fault> {
    let topics = answer.count()?;
    let _name = answer.text()?;
    let partitions = answer.count()?;
    let partition = answer.i32()?;
    match (topics, partitions, partition) {
        (1, 1, 0) => Ok(()),
        _ => Err(invalid("an answer about another partition than the one asked for").into()),
    }
}

/// Returns a duration in ms.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
