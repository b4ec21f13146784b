//! The settings that a topic needs for a log: no records are deleted, and every group fits.
//!
//! A created topic has them. An existing topic may be set to delete records after a week: that is an
//! error at the start, before entries are written, not when entries are missing.

use super::fault::TOPIC_EXISTS;
use super::protocol::{CREATE_TOPICS, DESCRIBE_CONFIGS, Reader};
use super::{Fault, KafkaLog, RECORD_BYTES_MAX, Result, Writer, check, millis};

/// Allowance for a record's own bytes besides the group.
const RECORD_EXTRA: usize = 1024;
/// Setting: whether old records are deleted or compacted.
const CLEANUP: &str = "cleanup.policy";
/// Setting: maximum age of records in ms; -1 for no limit.
const AGE: &str = "retention.ms";
/// Setting: maximum size of a partition in bytes; -1 for no limit.
const SIZE: &str = "retention.bytes";
/// Setting: maximum size of a batch of records, in bytes.
const RECORD: &str = "max.message.bytes";

impl KafkaLog {
    /// Creates the topic if it does not exist.
    pub(super) fn make_topic(&mut self) -> Result<()> {
        let in_step = self.spec.replicas / 2 + 1;
        let settings = [
            (CLEANUP, "delete".to_owned()),
            (AGE, "-1".to_owned()),
            (SIZE, "-1".to_owned()),
            ("compression.type", "producer".to_owned()),
            ("message.timestamp.type", "LogAppendTime".to_owned()),
            (RECORD, (RECORD_BYTES_MAX + RECORD_EXTRA).to_string()),
            ("min.insync.replicas", in_step.to_string()),
            ("unclean.leader.election.enable", "false".to_owned()),
        ];
        let mut body = Writer::default();
        // One topic; one partition, with this number of replicas, on brokers that Kafka chooses.
        body.i32(1).text(&self.spec.topic).i32(1).i16(self.spec.replicas).i32(0);
        body.i32(settings.len() as i32);
        for (name, value) in &settings {
            body.text(name).text(value);
        }
        // The time limit; and the request is not only validated.
        body.i32(millis(self.spec.work())).i8(0);
        self.retry("make", |log| {
            let mut connection = log.any_broker()?;
            let mut answer = connection.ask(CREATE_TOPICS, &body)?;
            let _throttled = answer.i32()?;
            for _ in 0..answer.count()? {
                answer.text()?;
                match answer.i16()? {
                    TOPIC_EXISTS => {}
                    code => check(code)?,
                }
                answer.text()?;
            }
            Ok(())
        })
    }

    /// Returns an error unless the topic retains all records, and accepts every group.
    pub(super) fn check_topic(&mut self) -> Result<()> {
        const TOPIC: i8 = 2;
        let asked = [CLEANUP, AGE, SIZE, RECORD];
        let mut body = Writer::default();
        body.i32(1).i8(TOPIC).text(&self.spec.topic).i32(asked.len() as i32);
        asked.iter().for_each(|name| _ = body.text(name));
        // Without the sources of the settings.
        body.i8(0);
        self.retry("use", |log| {
            let mut answer = log.any_broker()?.ask(DESCRIBE_CONFIGS, &body)?;
            let _throttled = answer.i32()?;
            for _ in 0..answer.count()? {
                check(answer.i16()?)?;
                let (_why, _kind, _name) = (answer.text()?, answer.i8()?, answer.text()?);
                for _ in 0..answer.count()? {
                    check_setting(&mut answer)?;
                }
            }
            Ok(())
        })
    }
}

/// Reads one setting, and returns an error if its value does not suit a log.
fn check_setting(answer: &mut Reader) -> std::result::Result<(), Fault> {
    let (name, value) = (answer.text()?, answer.text()?);
    let (_is_fixed, _source, _is_secret) = (answer.i8()?, answer.i8()?, answer.i8()?);
    for _ in 0..answer.count()? {
        let _synonym = (answer.text()?, answer.text()?, answer.i8()?);
    }
    let least = RECORD_BYTES_MAX + RECORD_EXTRA;
    let needed = match name.as_str() {
        CLEANUP if value != "delete" => "delete".to_owned(),
        AGE | SIZE if value != "-1" => "-1".to_owned(),
        RECORD if value.parse().is_ok_and(|bytes: usize| bytes < least) => {
            format!("{least} at least")
        }
        _ => return Ok(()),
    };
    let why = format!(
        "its {name} is {value}, but must be {needed} so that no log entry is lost: change it, or \
         name a topic that does not exist yet"
    );
    Err(Fault::Lasting(why))
}
