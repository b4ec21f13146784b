//! Tests on a real broker: a topic that is no log is refused. (`tests/kafka.rs` tests the use of a
//! log.)

use imago_testbed::{Single, SingleSpec, find_kafka, require};

use kafka_protocol::messages::CreateTopicsRequest;
use kafka_protocol::messages::create_topics_request::CreatableTopic;

use super::*;
use crate::record::{Author, Body, Epoch, Site};

fn spec(kafka: &Single, topic: &str) -> KafkaSpec {
    let patience = Duration::from_secs(60);
    let (brokers, client) = (vec![kafka.uri()], ClientConfig::default());
    KafkaSpec { brokers, topic: topic.into(), replicas: 1, patience, client }
}

fn refused(log: &mut KafkaLog) -> String {
    log.deliver(Position(1), Duration::ZERO, &mut |_, _| {}).unwrap_err().to_string()
}

/// Creates a topic with the brokers' default settings.
fn create(log: &KafkaLog, topic: &str, partitions: i32) {
    let topic = CreatableTopic::default()
        .with_name(StrBytes::from_string(topic.to_owned()).into())
        .with_num_partitions(partitions)
        .with_replication_factor(1);
    let request = CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let reply = log.any_broker().unwrap().ask(&request).unwrap();
    assert!(reply.topics.iter().all(|topic| topic.error_code == 0), "{reply:?}");
}

#[tokio::test]
async fn a_topic_that_is_no_log_is_refused_with_what_is_wrong() {
    let Some(_) = require(find_kafka()) else { return };
    let kafka = Single::start(SingleSpec::kafka("refused")).await.unwrap();

    let mut foreign = KafkaLog::open(spec(&kafka, "foreign")).unwrap();
    let by = Author { site: Site(1), epoch: Epoch(1), number: 1 };
    foreign.append(&[LogEntry { by, body: Body::Join }]).unwrap();
    foreign.produce(b"another program's").unwrap();
    let why = refused(&mut foreign);
    assert!(why.contains("record 1 is no group of log entries"), "{why}");

    let mut wide = KafkaLog::reader(spec(&kafka, "wide"));
    create(&wide, "wide", 2);
    let why = refused(&mut wide);
    assert!(why.contains("it has 2 partitions"), "{why}");

    create(&wide, "forgetful", 1);
    let why = KafkaLog::open(spec(&kafka, "forgetful")).unwrap_err().to_string();
    assert!(why.contains("cannot use the topic forgetful") && why.contains("but must be"), "{why}");

    let many = KafkaSpec { replicas: 3, ..spec(&kafka, "many") };
    let why = KafkaLog::open(many).unwrap_err().to_string();
    assert!(
        why.contains("cannot make the topic many of Kafka") && why.contains("replicas"),
        "{why}"
    );
}
