//! The settings that a topic needs for a log: no records are deleted, and every group fits.
//!
//! A topic that Imago creates has these settings. An existing topic may be set to delete records after a week: that
//! is an error at the start, before entries are written, not when entries are missing.

use kafka_protocol::messages::create_topics_request::{CreatableTopic, CreatableTopicConfig};
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::{CreateTopicsRequest, DescribeConfigsRequest};
use kafka_protocol::protocol::StrBytes;

use super::fault::TOPIC_EXISTS;
use super::{Fault, KafkaLog, RECORD_BYTES_MAX, Result, check, millis};

/// Number of bytes that a record may take in addition to its group of log entries.
const RECORD_EXTRA: usize = 1024;
/// Name of the topic setting that says whether old records are deleted or compacted.
const CLEANUP: &str = "cleanup.policy";
/// Name of the topic setting for the maximum age of records in ms; -1 sets no limit.
const AGE: &str = "retention.ms";
/// Name of the topic setting for the maximum size of a partition in bytes; -1 sets no limit.
const SIZE: &str = "retention.bytes";
/// Name of the topic setting for the maximum size of a batch of records, in bytes.
const RECORD: &str = "max.message.bytes";
/// Name of the topic setting for how brokers compress records; `producer` leaves them as they are.
const COMPRESSION: &str = "compression.type";

impl KafkaLog {
    /// Creates the log's topic with the needed settings, if it does not exist.
    pub(super) fn make_topic(&mut self) -> Result<()> {
        let in_step = self.spec.replicas / 2 + 1;
        let settings = [
            (CLEANUP, "delete".to_owned()),
            (AGE, "-1".to_owned()),
            (SIZE, "-1".to_owned()),
            (COMPRESSION, "producer".to_owned()),
            ("message.timestamp.type", "LogAppendTime".to_owned()),
            (RECORD, (RECORD_BYTES_MAX + RECORD_EXTRA).to_string()),
            ("min.insync.replicas", in_step.to_string()),
            ("unclean.leader.election.enable", "false".to_owned()),
        ];
        let settings = settings.map(|(name, value)| {
            CreatableTopicConfig::default()
                .with_name(StrBytes::from_static_str(name))
                .with_value(Some(StrBytes::from_string(value)))
        });
        // Kafka chooses the brokers.
        let topic = CreatableTopic::default()
            .with_name(self.topic_name())
            .with_num_partitions(1)
            .with_replication_factor(self.spec.replicas)
            .with_configs(settings.to_vec());
        let request = CreateTopicsRequest::default()
            .with_topics(vec![topic])
            .with_timeout_ms(millis(self.spec.work()));
        self.retry("make", |log| {
            let reply = log.any_broker()?.ask(&request)?;
            let codes = reply.topics.iter().map(|topic| topic.error_code);
            codes.filter(|code| *code != TOPIC_EXISTS).try_for_each(check)
        })
    }

    /// Returns an error unless the settings of the log's topic retain all records, and accept every group of log
    /// entries.
    pub(super) fn check_topic(&mut self) -> Result<()> {
        const TOPIC: i8 = 2;
        let requested = [CLEANUP, AGE, SIZE, RECORD, COMPRESSION].map(StrBytes::from_static_str);
        let topic = DescribeConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(StrBytes::from_string(self.spec.topic.clone()))
            .with_configuration_keys(Some(requested.to_vec()));
        let request = DescribeConfigsRequest::default().with_resources(vec![topic]);
        self.retry("use", |log| {
            let reply = log.any_broker()?.ask(&request)?;
            for topic in &reply.results {
                check(topic.error_code)?;
                topic.configs.iter().try_for_each(check_setting)?;
            }
            Ok(())
        })
    }
}

/// Returns an error if the value of a topic setting does not suit a log.
fn check_setting(setting: &DescribeConfigsResourceResult) -> std::result::Result<(), Fault> {
    let least = RECORD_BYTES_MAX + RECORD_EXTRA;
    let (name, value) =
        (setting.name.as_str(), setting.value.as_ref().map_or("", StrBytes::as_str));
    let needed = match name {
        CLEANUP if value != "delete" => "delete".to_owned(),
        AGE | SIZE if value != "-1" => "-1".to_owned(),
        RECORD if value.parse().is_ok_and(|bytes: usize| bytes < least) => {
            format!("{least} at least")
        }
        // There is no decoder of these here.
        COMPRESSION if matches!(value, "snappy" | "zstd") => "producer".to_owned(),
        _ => return Ok(()),
    };
    let why = format!(
        "its {name} is {value}, but must be {needed} so that no log entry is lost: change it, or \
         name a topic that does not exist yet"
    );
    Err(Fault::Lasting(why))
}
