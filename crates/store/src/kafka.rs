//! The redo log in Kafka: one topic with one partition, which is one order of groups for all sites.
//!
//! A record holds one group, as [`crate::log`] writes it to a file. Kafka numbers records and not log
//! entries, so *readers count*: the position of a log entry is the number of log entries before it in the
//! topic, plus one. All readers read the same records in the same order, and so agree. A writer learns the
//! positions of its own entries by reading too; the broker's reply only says that they are in the topic.
//!
//! A lost reply is therefore harmless. The writer appends again, and the topic may contain its group twice,
//! the second even behind later groups: those log entries are void to every reader ([`crate::log::RedoLog`]),
//! and count as positions for every reader.
//!
//! Log entries are acknowledged once all in-sync replicas have them (`acks=all`), and are delivered only
//! then. Against machines that stop all at once that is as good as the topic's replicas: Kafka leaves it to
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

/// A group that is longer does not become a record: the largest transaction fits, and a broker takes
/// requests of 100 MB unless it is told otherwise.
const RECORD_BYTES_MAX: usize = 80 * 1024 * 1024;
/// Bound on the bytes of a fetch, except for a single longer record.
const FETCH_BYTES_MAX: i32 = 16 * 1024 * 1024;
/// Pauses after failures: the first, and the longest; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Longest silence of a broker, and its longest time for an operation.
const SILENCE_MAX: Duration = Duration::from_secs(10);
const WORK_MAX: Duration = Duration::from_secs(8);

/// The place of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaSpec {
    /// Brokers to begin with, each as `host:port`.
    pub brokers: Vec<String>,
    /// The topic: it is made if there is none.
    pub topic: String,
    /// Replicas of a topic that is made; of three, two must be in step.
    pub replicas: i16,
    /// Time for which an operation is tried before it is an error; an election takes some seconds.
    pub patience: Duration,
}

impl KafkaSpec {
    /// Silence of a broker after which another attempt is made: another one may lead by then.
    fn silence(&self) -> Duration {
        (self.patience / 3).min(SILENCE_MAX)
    }

    /// A broker's time for an operation: shorter, so that it can still answer that it did not finish.
    fn work(&self) -> Duration {
        (self.patience / 4).min(WORK_MAX)
    }
}

/// The log, for one thread: a process that appends while entries are delivered has two of them.
#[derive(Debug)]
pub struct KafkaLog {
    spec: KafkaSpec,
    /// To the leader; none after a failure.
    connection: Option<Connection>,
    /// The record that is read next, and the position of its first log entry.
    offset: i64,
    next: Position,
    /// The last record that was read, and how many bytes all had.
    last: Option<Landmark>,
    read_bytes: u64,
    watch: Arc<Watch>,
}

impl KafkaLog {
    /// Opens the log, and makes its topic if there is none.
    ///
    /// # Errors
    /// Returns an error if no broker is reached, or if the topic is not one for a log, or would lose some
    /// of it.
    pub fn open(spec: KafkaSpec) -> Result<Self> {
        let mut log = Self::reader(spec);
        log.make_topic()?;
        log.check_topic()?;
        Ok(log)
    }

    /// The log, of which it is known that it is there.
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

    /// The same log, for another thread, which has read nothing of it.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::reader(self.spec.clone())
    }

    /// The state that others may read meanwhile.
    #[must_use]
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Bytes of the records that were read so far.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Does something until it succeeds, fails for good, or has failed for too long.
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

    fn name(&self) -> String {
        self.spec.to_string()
    }

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

    /// The connection to the partition's leader.
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

    fn leader_address(&self) -> std::result::Result<String, Fault> {
        let mut body = Writer::default();
        // One topic, which is not to be made by asking for it.
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

    fn produce(&mut self, group: &[u8]) -> std::result::Result<(), Fault> {
        const ALL_IN_STEP: i16 = -1;
        let mut body = Writer::default();
        body.no_text().i16(ALL_IN_STEP).i32(millis(self.spec.work()));
        body.i32(1).text(&self.spec.topic).i32(1).i32(0).sized(&batch(group)?)?;
        let mut answer = self.leader()?.ask(PRODUCE, &body)?;
        only_partition(&mut answer)?;
        check(answer.i16()?)
    }

    /// Batches from the next record on, as the leader has them.
    fn fetch(&mut self, wait: Duration) -> std::result::Result<Reader, Fault> {
        const NO_REPLICA: i32 = -1;
        let mut body = Writer::default();
        // Something at least, or nothing once the time is over; no transactions to be told apart.
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

    /// Hands over what a record holds, from a position on.
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
    /// The position is never known: others may have written before.
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
            // Only counting shows the record that holds it.
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
            // Skipped records are no end: each turn gets further.
            if self.next > from || self.offset == offset {
                return Ok(self.next.max(from));
            }
        }
    }
}

/// Goes to the one partition of the one topic that an answer is about.
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

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
