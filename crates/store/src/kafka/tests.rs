//! Tests on a real broker: a topic that is no log is refused. (`tests/kafka.rs` tests the use of a
//! log.)

use imago_testbed::{Single, SingleSpec, find_kafka, require};

use super::protocol::CREATE_TOPICS;
use super::*;
use crate::record::{Author, Body, Epoch, Site};

fn spec(kafka: &Single, topic: &str) -> KafkaSpec {
    let patience = Duration::from_secs(60);
    KafkaSpec { brokers: vec![kafka.uri()], topic: topic.into(), replicas: 1, patience }
}

fn refused(log: &mut KafkaLog) -> String {
    log.deliver(Position(1), Duration::ZERO, &mut |_, _| {}).unwrap_err().to_string()
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
    let mut two_partitions = Writer::default();
    two_partitions.i32(1).text("wide").i32(2).i16(1).i32(0).i32(0).i32(10_000).i8(0);
    wide.any_broker().unwrap().ask(CREATE_TOPICS, &two_partitions).unwrap();
    let why = refused(&mut wide);
    assert!(why.contains("it has 2 partitions"), "{why}");

    let mut forgetful = Writer::default();
    forgetful.i32(1).text("forgetful").i32(1).i16(1).i32(0).i32(0).i32(10_000).i8(0);
    wide.any_broker().unwrap().ask(CREATE_TOPICS, &forgetful).unwrap();
    let why = KafkaLog::open(spec(&kafka, "forgetful")).unwrap_err().to_string();
    assert!(why.contains("cannot use the topic forgetful") && why.contains("but must be"), "{why}");

    let many = KafkaSpec { replicas: 3, ..spec(&kafka, "many") };
    let why = KafkaLog::open(many).unwrap_err().to_string();
    assert!(
        why.contains("cannot make the topic many of Kafka") && why.contains("replicas"),
        "{why}"
    );
}
