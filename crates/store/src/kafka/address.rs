//! The location of a log in Kafka as text: `kafka://HOST:PORT[,HOST:PORT]/TOPIC[?replicas=N]`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{ClientConfig, KafkaSpec};

/// Default of [`KafkaSpec::patience`]: an election takes some seconds, and the restart of a failed broker some more.
const PATIENCE: Duration = Duration::from_secs(120);
/// Default number of replicas of a created topic; the number of listed brokers if that is less.
const REPLICAS: usize = 3;
/// Maximum length of a topic's name, in bytes.
const TOPIC_BYTES_MAX: usize = 249;

/// The error for a text that is not the location of a log in Kafka; it contains the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; a log in Kafka is kafka://HOST:PORT[,HOST:PORT]/TOPIC[?replicas=N]")]
pub struct NotTopic(String);

impl FromStr for KafkaSpec {
    type Err = NotTopic;

    fn from_str(typed: &str) -> Result<Self, NotTopic> {
        let no = |why: String| Err(NotTopic(why));
        let Some(rest) = typed.strip_prefix("kafka://") else {
            return no(format!("{typed:?} does not begin with kafka://"));
        };
        let (place, asked) = rest.split_once('?').unwrap_or((rest, ""));
        let Some((brokers, topic)) = place.split_once('/') else {
            return no("no topic is named".into());
        };
        let brokers: Vec<String> = brokers.split(',').map(str::to_owned).collect();
        for broker in &brokers {
            let port = broker.rsplit_once(':').filter(|(host, _)| is_host(host));
            if port.and_then(|(_, port)| port.parse::<u16>().ok()).is_none_or(|port| port == 0) {
                return no(format!("{broker:?} is no HOST:PORT"));
            }
        }
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_topic = (1..=TOPIC_BYTES_MAX).contains(&topic.len()) && topic.bytes().all(is_plain);
        if !is_topic || [".", ".."].contains(&topic) {
            return no(format!("{topic:?} is no topic's name (letters, digits, '.', '_' and '-')"));
        }
        let mut replicas = i16::try_from(brokers.len().min(REPLICAS)).unwrap_or(1);
        for asked in asked.split('&').filter(|asked| !asked.is_empty()) {
            let number = asked.strip_prefix("replicas=");
            let Some(number) = number.and_then(|number| number.parse().ok()) else {
                return no(format!("{asked:?} is no replicas=N"));
            };
            if number < 1 {
                return no(format!("a topic cannot have {number} replicas"));
            }
            replicas = number;
        }
        let client = ClientConfig::default();
        Ok(Self { brokers, topic: topic.into(), replicas, patience: PATIENCE, client })
    }
}

/// Returns true if a text has the form of a host name or an address; an address with colons must be in brackets.
fn is_host(host: &str) -> bool {
    let within = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_one_of = |also: &str, host: &str| {
        !host.is_empty() && host.chars().all(|one| one.is_alphanumeric() || also.contains(one))
    };
    within.map_or_else(|| is_one_of(".-_", host), |address| is_one_of(":.%", address))
}

impl fmt::Display for KafkaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the topic {} of Kafka at {}", self.topic, self.brokers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn read(typed: &str) -> (Vec<String>, String, i16) {
        let spec: KafkaSpec = typed.parse().unwrap();
        (spec.brokers, spec.topic, spec.replicas)
    }

    #[test]
    fn brokers_topic_and_replicas_are_read() {
        let one = vec!["h:9092".to_owned()];
        assert_eq!(read("kafka://h:9092/t"), (one.clone(), "t".into(), 1));
        assert_eq!(read("kafka://h:9092/a.b_c-1?replicas=2"), (one, "a.b_c-1".into(), 2));
        let three = ["a.b-c:1", "10.0.0.1:65535", "[::1]:9092"].map(str::to_owned).to_vec();
        assert_eq!(read("kafka://a.b-c:1,10.0.0.1:65535,[::1]:9092/t"), (three, "t".into(), 3));
        assert_eq!(read("kafka://a:1,b:1,c:1,d:1/t").2, 3);
    }

    #[test]
    fn what_is_no_log_is_refused_with_what_is_wrong() {
        let refused = [
            ("", "does not begin with kafka://"),
            ("kafka:/h:1/t", "does not begin with kafka://"),
            ("http://h:1/t", "does not begin with kafka://"),
            ("kafka://h:1", "no topic is named"),
            ("kafka:///t", "\"\" is no HOST:PORT"),
            ("kafka://h/t", "\"h\" is no HOST:PORT"),
            ("kafka://h:0/t", "\"h:0\" is no HOST:PORT"),
            ("kafka://h:65536/t", "\"h:65536\" is no HOST:PORT"),
            ("kafka://:1/t", "\":1\" is no HOST:PORT"),
            ("kafka://h:1,/t", "\"\" is no HOST:PORT"),
            ("kafka://u:p@h:1/t", "is no HOST:PORT"),
            ("kafka://::1:9092/t", "is no HOST:PORT"),
            ("kafka://h:1/", "\"\" is no topic's name"),
            ("kafka://h:1/a/b", "\"a/b\" is no topic's name"),
            ("kafka://h:1/..", "\"..\" is no topic's name"),
            ("kafka://h:1/t?replicas=0", "0 replicas"),
            ("kafka://h:1/t?replicas=x", "\"replicas=x\" is no replicas=N"),
            ("kafka://h:1/t?replica=1", "\"replica=1\" is no replicas=N"),
        ];
        for (typed, why) in refused {
            let refused = typed.parse::<KafkaSpec>().unwrap_err().to_string();
            assert!(refused.contains(why), "{typed}: {refused}");
        }
    }
}
