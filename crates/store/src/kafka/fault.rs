//! The errors of operations on Kafka, divided into transient and permanent ones.

use std::io;

/// Kafka's error code for a topic that is to be created but exists already.
pub(super) const TOPIC_EXISTS: i16 = 36;

/// The failure of an operation on Kafka, with its description.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// A transient failure: the operation may succeed when it is repeated.
    #[error("{0}")]
    Passing(String),
    /// A permanent failure: repeating the operation does not help.
    #[error("{0}")]
    Lasting(String),
}

impl Fault {
    /// Returns the same fault with the broker's address in front of its description.
    pub(super) fn about(self, broker: &str) -> Self {
        match self {
            Self::Passing(why) => Self::Passing(format!("{broker}: {why}")),
            Self::Lasting(why) => Self::Lasting(format!("{broker}: {why}")),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Lasting(error.to_string()),
            // A listener with TLS or SASL answers an ordinary client so, too.
            io::ErrorKind::UnexpectedEof => Self::Passing(
                "it closed the connection, as a broker does that demands TLS or SASL (--log-config)".into(),
            ),
            _ => Self::Passing(error.to_string()),
        }
    }
}

/// Returns the fault that an error code of Kafka in a reply stands for; `Ok` for code 0.
pub(super) fn check(code: i16) -> Result<(), Fault> {
    let (is_passing, what) = match code {
        0 => return Ok(()),
        -1 => (true, "the broker failed, and does not say why"),
        1 => (false, "acknowledged records are missing, or the beginning of the topic was deleted"),
        // A new topic is not known to all brokers at once.
        3 => (true, "the broker knows no such topic"),
        5 => (true, "the topic has no leader now"),
        6 => (true, "the broker is not the topic's leader any more"),
        7 => (true, "the replicas did not confirm the record in time"),
        8 | 9 | 13 => (true, "a broker is not reachable from the others"),
        10 => (false, "the record is larger than the topic's max.message.bytes"),
        19 | 20 => (true, "fewer replicas are in sync than min.insync.replicas requires"),
        29..=31 => (false, "the broker does not permit it"),
        35 => (false, "the broker does not have this version of the protocol"),
        34 => (false, "the broker demands SASL authentication, or another one"),
        38 => (false, "there are fewer brokers than replicas"),
        41 => (true, "the cluster is electing a controller"),
        56 => (true, "the broker failed to write to its disk"),
        74..=76 | 78 => (true, "the topic's leader is changing"),
        _ => (false, "the broker refused it"),
    };
    let what = format!("{what} (Kafka's error {code})");
    Err(if is_passing { Fault::Passing(what) } else { Fault::Lasting(what) })
}
