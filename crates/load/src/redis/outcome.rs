//! The meaning of a failed request to Redis: whether no master could serve it, and whether it was perhaps applied.
//!
//! An error reply means that the node did not run the command. If an open connection gave no reply, the command was
//! perhaps run, or will be: a node that hangs reads its pending input later.

use imago_workload::target::Outcome;
use redis::RedisError;

/// Codes of the errors by which a node reports that it cannot serve a request now: either another node can, or no
/// node can.
const UNAVAILABLE_CODES: [&str; 7] =
    ["CLUSTERDOWN", "MASTERDOWN", "LOADING", "TRYAGAIN", "READONLY", "NOREPLICAS", MOVED];

/// Code of the error by which a node reports that another node has the slot of the request.
const MOVED: &str = "MOVED";

/// The reason why a request to Redis failed, and what is known of its effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// Message for people, without the details that change from one failure to the next.
    pub(super) message: String,
    /// True if no node could serve the request at that time, or if too few replicas acknowledged it.
    pub(super) is_unavailable: bool,
    /// True if the request was sent, and may have been applied.
    pub(super) perhaps_applied: bool,
}

impl Failure {
    /// Makes the failure of a request that was not sent to any node; `message` is the reason.
    pub(super) fn not_sent(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_unavailable: true, perhaps_applied: false }
    }

    /// Makes the failure of a request that was sent and got no reply; `error` is that of the connection.
    pub(super) fn unanswered(error: &RedisError) -> Self {
        Self { message: cause_text(error), is_unavailable: true, perhaps_applied: true }
    }

    /// Returns true if the node replied that another node has the slot of the request (MOVED).
    pub(super) fn has_moved(&self) -> bool {
        self.message == MOVED
    }

    /// Makes the failure of a request that a node refused by the reply `error`, and did not run.
    pub(super) fn refused(error: &RedisError) -> Self {
        let is_unavailable = error.code().is_some_and(|code| UNAVAILABLE_CODES.contains(&code));
        Self { message: cause_text(error), is_unavailable, perhaps_applied: false }
    }

    /// Makes the failure of a write that only `acknowledged` of `wanted` replicas acknowledged in time. The master
    /// has applied the write.
    pub(super) fn few_replicas(acknowledged: i64, wanted: u32) -> Self {
        let message = format!("acknowledged by {acknowledged} of {wanted} replicas");
        Self { message, is_unavailable: true, perhaps_applied: true }
    }

    /// Converts the failure into the outcome of a write.
    pub(super) fn of_write(self) -> Outcome {
        let Self { message, is_unavailable, perhaps_applied } = self;
        match (is_unavailable, perhaps_applied) {
            (true, perhaps_applied) => Outcome::Unavailable { message, perhaps_applied },
            (false, true) => Outcome::Unknown(message),
            (false, false) => Outcome::Refused(message),
        }
    }

    /// Converts the failure into the outcome of a read or scan.
    pub(super) fn of_read(self) -> Outcome {
        match self.is_unavailable {
            true => Outcome::Unavailable { message: self.message, perhaps_applied: false },
            false => Outcome::Refused(self.message),
        }
    }
}

/// Returns the cause of an error without the details that change from one failure to the next, so that equal failures
/// are counted as one.
pub(super) fn cause_text(error: &RedisError) -> String {
    match error.code() {
        Some(code @ (MOVED | "ASK")) => code.to_owned(),
        Some(_) => error.to_string().chars().take(120).collect(),
        None if error.is_connection_refusal() => "connection refused".into(),
        None if error.is_timeout() => "no answer in time".into(),
        None if error.is_connection_dropped() || error.is_io_error() => {
            "the connection broke".into()
        }
        None => error.to_string().chars().take(120).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::{Value, parse_redis_value};

    fn of(answer: &str) -> RedisError {
        let value: Value = parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap();
        value.extract_error().unwrap_err()
    }

    #[test]
    fn want_of_a_master_is_told_from_other_refusals() {
        for away in ["CLUSTERDOWN The cluster is down", "LOADING Redis is loading", "MOVED 1 a:2"] {
            let failure = Failure::refused(&of(away));
            assert!(failure.is_unavailable && !failure.perhaps_applied, "{away}");
            assert_eq!(failure.has_moved(), away.starts_with("MOVED"));
            let Outcome::Unavailable { perhaps_applied: false, .. } = failure.of_write() else {
                panic!("{away}")
            };
        }
        let full = Failure::refused(&of("OOM command not allowed when used memory > 'maxmemory'."));
        assert!(matches!(full.clone().of_write(), Outcome::Refused(why) if why.contains("OOM")));
        assert!(matches!(full.of_read(), Outcome::Refused(_)));
    }

    #[test]
    fn what_was_sent_and_not_answered_is_perhaps_applied() {
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let failure = Failure::unanswered(&broken.into());
        assert_eq!(failure.message, "the connection broke");
        let Outcome::Unavailable { perhaps_applied: true, .. } = failure.clone().of_write() else {
            panic!("{failure:?}")
        };
        let Outcome::Unavailable { perhaps_applied: false, .. } = failure.of_read() else {
            panic!()
        };
        let few = Failure::few_replicas(0, 1);
        assert_eq!(few.message, "acknowledged by 0 of 1 replicas");
        assert!(few.perhaps_applied);
    }
}
