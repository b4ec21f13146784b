//! The settings that a topic needs for a log: nothing of it is deleted, and every group fits.
//!
//! A topic that is made has them. An existing topic may be set to forget after a week: that is an
//! error before anything is written, not when it is missed.

use super::fault::TOPIC_EXISTS;
use super::protocol::{CREATE_TOPICS, DESCRIBE_CONFIGS, Reader};
use super::{Fault, KafkaLog, RECORD_BYTES_MAX, Result, Writer, check, millis};

/// A record's own bytes besides the group.
const RECORD_EXTRA: usize = 1024;
const CLEANUP: &str = "cleanup.policy";
const AGE: &str = "retention.ms";
const SIZE: &str = "retention.bytes";
const RECORD: &str = "max.message.bytes";

impl KafkaLog {
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
        // One topic; one partition, with so many replicas, wherever the brokers like.
        body.i32(1).text(&self.spec.topic).i32(1).i16(self.spec.replicas).i32(0);
        body.i32(settings.len() as i32);
        for (name, value) in &settings {
            body.text(name).text(value);
        }
        // Within this time, and not only as a rehearsal.
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

    /// Returns an error unless the topic keeps everything, and takes every group.
    pub(super) fn check_topic(&mut self) -> Result<()> {
        const TOPIC: i8 = 2;
        let asked = [CLEANUP, AGE, SIZE, RECORD];
        let mut body = Writer::default();
        body.i32(1).i8(TOPIC).text(&self.spec.topic).i32(asked.len() as i32);
        asked.iter().for_each(|name| _ = body.text(name));
        // Not where each comes from.
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
        "its {name} is {value}, and has to be {needed}, lest a log lose something: change it, or name \
         a topic that is not there yet"
    );
    Err(Fault::Lasting(why))
}
