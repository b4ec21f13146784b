//! The redo log in Kafka: one topic with one partition, which is one order of groups for all sites.
//!
//! A record contains one group of log entries, in the format in which [`crate::log`] writes it to a file. Kafka
//! numbers records and not log entries, so *readers count*: the position of a log entry is the number of log entries
//! before it in the topic, plus one. All readers read the same records in the same order, and so agree. A writer
//! learns the positions of its own entries by reading too; the broker's reply only says that they are in the topic.
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
//!
//! Kafka's messages are those of the crate `kafka_protocol`, generated from Kafka's definitions. A whole client
//! library is not used: the log needs exactly these requests, one at a time, on its own thread and under its own
//! bounds, and among them the settings of a topic (DescribeConfigs), which `rskafka` does not have; `rdkafka` has
//! all, at the price of a C library and OpenSSL at each build.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{FetchRequest, MetadataRequest, ProduceRequest, TopicName};
use kafka_protocol::protocol::StrBytes;

use crate::log::redo::{checksum, group, ungroup};
use crate::log::{LogError, RedoLog, Result};
use crate::record::{LogEntry, Position};

mod address;
mod batch;
mod client_config;
mod connection;
mod fault;
mod landmark;
mod setting;
#[cfg(test)]
mod tests;
mod watch;

pub use address::NotTopic;
pub use client_config::{ClientConfig, ClientConfigError};
pub use landmark::Landmark;
pub use watch::Watch;

use connection::Connection;
use fault::{Fault, check};

/// Maximum size of a group of log entries, which is one record, in bytes: the largest transaction fits, and a broker
/// by default accepts requests of 100 MB.
const RECORD_BYTES_MAX: usize = 80 * 1024 * 1024;
/// Maximum size of the records in the reply to one fetch, in bytes; a single larger record is sent all the same.
const FETCH_BYTES_MAX: i32 = 16 * 1024 * 1024;
/// Delay before an operation is repeated after its first failure; each further delay is twice as long.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum delay before a failed operation is repeated.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Maximum time for which one read or write on a broker's connection may wait; [`KafkaSpec::patience`] may shorten
/// it.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Maximum time that a request gives a broker for its work; [`KafkaSpec::patience`] may shorten it.
const WORK_MAX: Duration = Duration::from_secs(8);

/// The location of a log in Kafka, and how to connect to it.
#[derive(Clone, Debug)]
pub struct KafkaSpec {
    /// Brokers to connect to first, each as `host:port`; they name the topic's leader.
    pub brokers: Vec<String>,
    /// Name of the topic that contains the log; it is created if it does not exist.
    pub topic: String,
    /// Number of replicas of the topic if it is created. A majority of them must be in sync for a write.
    pub replicas: i16,
    /// Time for which an operation with transient failures is repeated before it is an error; an election takes some
    /// seconds.
    pub patience: Duration,
    /// TLS, authentication and compression of the connections to brokers.
    pub client: ClientConfig,
}

impl KafkaSpec {
    /// Returns the time for which a read or write on a broker's connection may wait. Then another attempt is made,
    /// because another broker may lead by then.
    fn silence(&self) -> Duration {
        (self.patience / 3).min(SILENCE_MAX)
    }

    /// Returns the time that a request gives a broker for its work. It is shorter than [`Self::silence`], so that the
    /// broker can still reply that it did not finish.
    fn work(&self) -> Duration {
        (self.patience / 4).min(WORK_MAX)
    }
}

/// A log in Kafka, as used by one thread: a process that appends and reads at the same time has two of them.
#[derive(Debug)]
pub struct KafkaLog {
    /// The location of the log and the connection's settings.
    spec: KafkaSpec,
    /// The connection to the partition's leader; `None` before the first use and after a failure.
    connection: Option<Connection>,
    /// Offset in the topic of the record that is read next.
    offset: i64,
    /// Position of the first log entry in the record that is read next.
    next: Position,
    /// The location of the last record that was read; `None` before the first.
    last: Option<Landmark>,
    /// Total size of the record values that were read, in bytes.
    read_bytes: u64,
    /// The state of the log that other threads may read.
    watch: Arc<Watch>,
}

impl KafkaLog {
    /// Opens a log for writing and reading from its first record on, and creates its topic if it does not exist.
    ///
    /// # Errors
    /// Returns an error if no broker is reached, or if the topic's settings do not suit a log or would lose entries.
    pub fn open(spec: KafkaSpec) -> Result<Self> {
        let mut log = Self::reader(spec);
        log.make_topic()?;
        log.check_topic()?;
        Ok(log)
    }

    /// Returns a log whose topic is known to exist and be suited, without connecting to it; reading begins at the
    /// first record.
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

    /// Returns a new handle of the same log for another thread, which reads from the first record on.
    #[must_use]
    pub fn another(&self) -> Self {
        Self::reader(self.spec.clone())
    }

    /// Returns the state that other threads may read and change while this log is in use.
    #[must_use]
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// Returns the total size of the record values that were read so far, in bytes.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Repeats the operation `attempt` until it succeeds, fails permanently, or has failed for the log's patience.
    /// `doing` is a verb for the error, such as `read`.
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

    /// Returns a description of the log's topic and brokers for error messages.
    fn name(&self) -> String {
        self.spec.to_string()
    }

    /// Connects to the first of the configured brokers that accepts a connection.
    fn any_broker(&self) -> std::result::Result<Connection, Fault> {
        let mut last = Fault::Lasting("no broker is named".into());
        for broker in &self.spec.brokers {
            match self.open_connection(broker) {
                Ok(connection) => return Ok(connection),
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    /// Connects to the broker at `host:port`.
    fn open_connection(&self, address: &str) -> std::result::Result<Connection, Fault> {
        Connection::open(address, &self.spec.client, self.spec.silence())
    }

    /// Returns the connection to the leader of the topic's partition, which is opened if there is none.
    fn leader(&mut self) -> std::result::Result<&mut Connection, Fault> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let address = self.leader_address()?;
                self.open_connection(&address)?
            }
        };
        Ok(self.connection.insert(connection))
    }

    /// Returns the address `host:port` of the leader of the topic's partition, as a broker names it.
    fn leader_address(&self) -> std::result::Result<String, Fault> {
        let topic = MetadataRequestTopic::default().with_name(Some(self.topic_name()));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic]))
            .with_allow_auto_topic_creation(false);
        let reply = self.any_broker()?.ask(&request)?;
        let [topic] = reply.topics.as_slice() else { return Err(of_another_topic()) };
        check(topic.error_code)?;
        let [partition] = topic.partitions.as_slice() else {
            let many = topic.partitions.len();
            let why = format!("it has {many} partitions; a log is a topic with one");
            return Err(Fault::Lasting(why));
        };
        check(partition.error_code)?;
        let leader = reply.brokers.iter().find(|broker| broker.node_id == partition.leader_id);
        let address = leader.map(|broker| match broker.host.as_str() {
            host if host.contains(':') => format!("[{host}]:{}", broker.port),
            host => format!("{host}:{}", broker.port),
        });
        address.ok_or(Fault::Passing("it has no leader now".into()))
    }

    /// Returns the topic's name as the type that messages contain.
    fn topic_name(&self) -> TopicName {
        StrBytes::from_string(self.spec.topic.clone()).into()
    }

    /// Appends an encoded group of log entries to the topic as one record.
    fn produce(&mut self, group: &[u8]) -> std::result::Result<(), Fault> {
        const ALL_IN_SYNC: i16 = -1;
        let records = batch::encode(group, self.spec.client.compression)?;
        let partition = PartitionProduceData::default().with_index(0).with_records(Some(records));
        let topic = TopicProduceData::default()
            .with_name(self.topic_name())
            .with_partition_data(vec![partition]);
        let request = ProduceRequest::default()
            .with_acks(ALL_IN_SYNC)
            .with_timeout_ms(millis(self.spec.work()))
            .with_topic_data(vec![topic]);
        let reply = self.leader()?.ask(&request)?;
        match reply.responses.as_slice() {
            [topic] if topic.partition_responses.len() == 1 => {
                check(topic.partition_responses[0].error_code)
            }
            _ => Err(of_another_topic()),
        }
    }

    /// Fetches batches of records from the next unread record on. The leader waits up to `wait` for the first record.
    fn fetch(&mut self, wait: Duration) -> std::result::Result<Bytes, Fault> {
        let partition = FetchPartition::default()
            .with_partition(0)
            .with_fetch_offset(self.offset)
            .with_partition_max_bytes(FETCH_BYTES_MAX);
        let topic =
            FetchTopic::default().with_topic(self.topic_name()).with_partitions(vec![partition]);
        // The reply has at least one byte, or none when the time is over.
        let request = FetchRequest::default()
            .with_max_wait_ms(millis(wait))
            .with_min_bytes(1)
            .with_max_bytes(FETCH_BYTES_MAX)
            .with_topics(vec![topic]);
        let reply = self.leader()?.ask(&request)?;
        match reply.responses.as_slice() {
            [topic] if topic.partitions.len() == 1 => {
                let partition = &topic.partitions[0];
                check(partition.error_code)?;
                Ok(partition.records.clone().unwrap_or_default())
            }
            _ => Err(of_another_topic()),
        }
    }

    /// Passes the log entries from position `from` on in the record at `offset`, whose value is `value`, to `see`,
    /// and advances to the next record.
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
    /// Appends log entries as one record. The position is not returned: other processes may have written before.
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
            let cannot = |log: &Self, fault: Fault| LogError::Remote {
                doing: "read",
                log: log.name(),
                why: format!("after record {}: {fault}", log.offset),
            };
            while let Some(batch) =
                batch::decode(&mut fetched).map_err(|fault| cannot(self, fault))?
            {
                for record in batch {
                    // A batch may begin before the record that was asked for.
                    if record.offset < self.offset {
                        continue;
                    }
                    match record.value {
                        // Markers of Kafka itself.
                        _ if record.control => self.offset = record.offset + 1,
                        value => {
                            self.read_record(record.offset, &value.unwrap_or_default(), from, see)?
                        }
                    }
                }
            }
            // Skipped records are not the end: each round advances.
            if self.next > from || self.offset == offset {
                return Ok(self.next.max(from));
            }
        }
    }
}

/// Returns the permanent fault of a reply that is not about the log's one partition.
fn of_another_topic() -> Fault {
    Fault::Lasting("its reply is about another topic or partition".into())
}

/// Returns a duration in ms, at most the greatest `i32`.
fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}
