//! Replies of servers, and errors in the form in which a server reports them.
//!
//! Invariant: a reply to a client contains no field that is internal to routers and shards, and an error always has
//! a code that drivers understand.

use bson::raw::{CStr, RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};

use super::message;

/// Error codes of MongoDB servers (their `error_codes.yml`) that the router raises or handles.
pub(super) mod code {
    pub(crate) const BAD_VALUE: i32 = 2;
    pub(crate) const HOST_UNREACHABLE: i32 = 6;
    pub(crate) const UNAUTHORIZED: i32 = 13;
    pub(crate) const AUTHENTICATION_FAILED: i32 = 18;
    pub(crate) const ILLEGAL_OPERATION: i32 = 20;
    pub(crate) const NAMESPACE_NOT_FOUND: i32 = 26;
    pub(crate) const CURSOR_NOT_FOUND: i32 = 43;
    pub(crate) const NAMESPACE_EXISTS: i32 = 48;
    pub(crate) const COMMAND_NOT_FOUND: i32 = 59;
    pub(crate) const SHARD_KEY_NOT_FOUND: i32 = 61;
    pub(crate) const SHARD_NOT_FOUND: i32 = 70;
    pub(crate) const INVALID_OPTIONS: i32 = 72;
    pub(crate) const COMMAND_NOT_SUPPORTED: i32 = 115;
    pub(crate) const NAMESPACE_NOT_SHARDED: i32 = 118;
    pub(crate) const NO_PRIMARY: i32 = 133;
    pub(crate) const NO_SUCH_TRANSACTION: i32 = 251;
    pub(crate) const STALE_DB_VERSION: i32 = 249;
    pub(crate) const NOT_IN_TRANSACTION: i32 = 263;
    pub(crate) const WOULD_CHANGE_OWNING_SHARD: i32 = 283;
    pub(crate) const MECHANISM_UNAVAILABLE: i32 = 334;
    pub(crate) const NOT_PRIMARY: i32 = 10107;
    pub(crate) const STALE_CONFIG: i32 = 13388;

    /// Returns the name (`codeName`) of an error code that the router itself raises; `UnknownError` for other codes.
    pub(super) fn name(code: i32) -> &'static str {
        match code {
            BAD_VALUE => "BadValue",
            HOST_UNREACHABLE => "HostUnreachable",
            UNAUTHORIZED => "Unauthorized",
            AUTHENTICATION_FAILED => "AuthenticationFailed",
            ILLEGAL_OPERATION => "IllegalOperation",
            NAMESPACE_NOT_FOUND => "NamespaceNotFound",
            CURSOR_NOT_FOUND => "CursorNotFound",
            NAMESPACE_EXISTS => "NamespaceExists",
            COMMAND_NOT_FOUND => "CommandNotFound",
            SHARD_KEY_NOT_FOUND => "ShardKeyNotFound",
            SHARD_NOT_FOUND => "ShardNotFound",
            INVALID_OPTIONS => "InvalidOptions",
            COMMAND_NOT_SUPPORTED => "CommandNotSupported",
            NAMESPACE_NOT_SHARDED => "NamespaceNotSharded",
            NO_PRIMARY => "FailedToSatisfyReadPreference",
            NO_SUCH_TRANSACTION => "NoSuchTransaction",
            NOT_IN_TRANSACTION => "OperationNotSupportedInTransaction",
            MECHANISM_UNAVAILABLE => "MechanismUnavailable",
            STALE_CONFIG => "StaleConfig",
            _ => "UnknownError",
        }
    }

    /// Returns true for an error code by which a shard reports that its routing data and the sender's differ; the
    /// command was not executed.
    pub(crate) fn is_stale(code: i32) -> bool {
        // StaleEpoch, StaleDbVersion, ShardCannotRefreshDueToLocksHeld, StaleConfig.
        matches!(code, 150 | STALE_DB_VERSION | 340 | STALE_CONFIG)
    }

    /// Returns true for an error code by which a node reports that it is not primary; the command was not executed.
    pub(crate) fn is_not_primary(code: i32) -> bool {
        // NotWritablePrimary, NotPrimaryNoSecondaryOk.
        matches!(code, NOT_PRIMARY | 13435)
    }

    /// Returns true for an error code after which a client may repeat the command, if the servers recognise a
    /// repetition: whether it was executed is unknown, or, as with [`is_not_primary`], it was not.
    pub(crate) fn is_retryable(code: i32) -> bool {
        // HostNotFound, NetworkTimeout, ShutdownInProgress, FailedToSatisfyReadPreference,
        // PrimarySteppedDown, ExceededTimeLimit, SocketException, InterruptedAtShutdown,
        // InterruptedDueToReplStateChange, NotPrimaryOrSecondary.
        is_not_primary(code)
            || matches!(
                code,
                HOST_UNREACHABLE
                    | 7
                    | 89
                    | 91
                    | NO_PRIMARY
                    | 189
                    | 262
                    | 9001
                    | 11600
                    | 11602
                    | 13436
            )
    }
}

/// Returns true for fields of a reply that are internal to routers and shards.
fn is_internal(key: &CStr) -> bool {
    matches!(
        key.as_str(),
        "$clusterTime"
            | "operationTime"
            | "$configServerState"
            | "$configTime"
            | "$topologyTime"
            | "$gleStats"
            | "lastCommittedOpTime"
            | "electionId"
            | "opTime"
            | "readOnly"
    )
}

/// A reply with `ok: 1`, from a server or composed by the router.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    raw: RawDocumentBuf,
    /// Cluster time of the operation (`operationTime`): a causally consistent read at this time sees its effect.
    /// `None` if the server reports no time.
    pub(super) operation_time: Option<Timestamp>,
    /// Cluster time (`$clusterTime`) of the replying node; `None` if the server reports none.
    pub(super) cluster_time: Option<Timestamp>,
}

impl Answer {
    /// Parses the reply `raw` of a server; a reply without `ok: 1` becomes a [`Failure`].
    pub(super) fn of_server(raw: RawDocumentBuf) -> Result<Self, Failure> {
        let operation_time = raw.get_timestamp("operationTime").ok();
        let cluster_time = raw
            .get_document("$clusterTime")
            .ok()
            .and_then(|time| time.get_timestamp("clusterTime").ok());
        if number(&raw, "ok") == Some(1) {
            return Ok(Self { raw, operation_time, cluster_time });
        }
        Err(Failure::of_server(&raw))
    }

    /// Returns the whole reply as the server sent it, internal fields included.
    pub(super) fn raw(&self) -> &RawDocument {
        &self.raw
    }

    /// Returns the reply decoded, without the fields that are internal to routers and shards.
    pub(super) fn document(&self) -> Result<Document, Failure> {
        Document::try_from(&*message::without(&self.raw, is_internal)).map_err(Failure::malformed)
    }

    /// Returns the reply to be sent to the client, without internal fields and times.
    pub(super) fn for_client(&self) -> RawDocumentBuf {
        message::without(&self.raw, is_internal)
    }

    /// Returns the value of the field `key` of the reply as an integer; see [`number`].
    pub(super) fn number(&self, key: &str) -> Option<i64> {
        number(&self.raw, key)
    }

    /// Returns the same reply with the node's cluster time as its operation time, if that is later. A reply to a
    /// command that a shard routes does not contain the operation times of the other shards involved, and its cluster
    /// time is not before them.
    pub(super) fn routed(mut self) -> Self {
        self.operation_time = self.cluster_time.max(self.operation_time);
        self
    }

    /// Returns a reply that has the times of this one and the content of `document`.
    pub(super) fn with(&self, document: &Document) -> Result<Self, Failure> {
        let raw = RawDocumentBuf::try_from(document).map_err(Failure::malformed)?;
        Ok(Self { raw, ..*self })
    }

    /// Returns the same reply with the field `key` appended, whose value is `value`.
    pub(super) fn appended(mut self, key: &str, value: &Document) -> Result<Self, Failure> {
        let key = bson::raw::CString::try_from(key).map_err(Failure::malformed)?;
        let value = RawDocumentBuf::try_from(value).map_err(Failure::malformed)?;
        self.raw.append(key, value);
        Ok(self)
    }

    /// Returns the same reply, each of its two times replaced by that of `other` if that is later.
    pub(super) fn not_before(mut self, other: &Self) -> Self {
        self.operation_time = self.operation_time.max(other.operation_time);
        self.cluster_time = self.cluster_time.max(other.cluster_time);
        self
    }
}

/// Makes a reply of a document that the router composed; `document` must contain `ok`.
impl TryFrom<Document> for Answer {
    type Error = Failure;

    fn try_from(document: Document) -> Result<Self, Failure> {
        let raw = RawDocumentBuf::try_from(&document).map_err(Failure::malformed)?;
        Ok(Self { raw, operation_time: None, cluster_time: None })
    }
}

/// Returns the field `key` of a raw document as an integer: a number of any type, truncated, or a boolean as 0 or 1;
/// `None` for a missing field or another type.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn number(document: &RawDocument, key: &str) -> Option<i64> {
    match document.get(key).ok().flatten()? {
        RawBsonRef::Int32(value) => Some(i64::from(value)),
        RawBsonRef::Int64(value) => Some(value),
        RawBsonRef::Double(value) => Some(value as i64),
        RawBsonRef::Boolean(value) => Some(i64::from(value)),
        _ => None,
    }
}

/// Returns the field `key` of a decoded document as an integer: a number of any type, truncated; `None` for a missing
/// field or another type, booleans included.
#[allow(clippy::cast_possible_truncation)]
pub(super) fn integer(document: &Document, key: &str) -> Option<i64> {
    match document.get(key)? {
        Bson::Int32(value) => Some(i64::from(*value)),
        Bson::Int64(value) => Some(*value),
        Bson::Double(value) => Some(*value as i64),
        _ => None,
    }
}

/// Error reply to a command, in the form in which a server sends it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{} (code {code})", body.get_str("errmsg").unwrap_or("no message"))]
pub(super) struct Failure {
    code: i32,
    body: Document,
    /// True if the node did not reply: whether the command was executed is unknown.
    pub(super) unanswered: bool,
}

impl Failure {
    /// Creates an error that the router itself raises, with a code of [`code`] and a message.
    pub(super) fn new(code: i32, message: impl Into<String>) -> Self {
        let body = doc! {
            "ok": 0.0, "errmsg": message.into(), "code": code, "codeName": code::name(code),
        };
        Self { code, body, unanswered: false }
    }

    /// Creates the error for `node`, which did not reply to `command`; the node may have executed the command.
    pub(super) fn unanswered(node: &str, command: &str, error: &std::io::Error) -> Self {
        let message = format!("no answer from {node} to `{command}`: {error}");
        Self { unanswered: true, ..Self::new(code::HOST_UNREACHABLE, message) }
    }

    fn of_server(raw: &RawDocument) -> Self {
        let code = number(raw, "code").and_then(|code| i32::try_from(code).ok()).unwrap_or(8);
        let kept = message::without(raw, is_internal);
        let body = Document::try_from(&*kept)
            .unwrap_or_else(|_| doc! { "ok": 0.0, "errmsg": "undecodable refusal", "code": code });
        Self { code, body, unanswered: false }
    }

    /// Creates the error for a document that violates the protocol.
    pub(super) fn malformed(error: impl std::fmt::Display) -> Self {
        Self::new(code::BAD_VALUE, format!("malformed document: {error}"))
    }

    /// Returns the error code of the reply.
    pub(super) fn code(&self) -> i32 {
        self.code
    }

    /// Returns the whole error reply as the client receives it.
    pub(super) fn body(&self) -> &Document {
        &self.body
    }

    /// Returns the same error with `label` among its `errorLabels`, by which drivers decide whether to retry.
    pub(super) fn labelled(mut self, label: &str) -> Self {
        match self.body.get_array_mut("errorLabels") {
            Ok(labels) if labels.iter().any(|known| known.as_str() == Some(label)) => {}
            Ok(labels) => labels.push(label.into()),
            Err(_) => {
                self.body.insert("errorLabels", vec![label]);
            }
        }
        self
    }

    /// Returns the same error with `what`, the attempted operation, before its message.
    pub(super) fn context(mut self, what: &str) -> Self {
        let message = self.body.get_str("errmsg").unwrap_or("no message").to_owned();
        self.body.insert("errmsg", format!("{what} :: caused by :: {message}"));
        self
    }
}

/// Composes a reply with one batch of a cursor: `namespace` is `DATABASE.COLLECTION`, `batch_name` is `firstBatch` or
/// `nextBatch`, and `id` is the cursor's id, 0 if the cursor is exhausted.
pub(super) fn cursor_answer(
    id: i64,
    namespace: &str,
    batch_name: &str,
    batch: &[RawDocumentBuf],
) -> Result<Answer, Failure> {
    let name = |text: &str| bson::raw::CString::try_from(text).map_err(Failure::malformed);
    let mut cursor = RawDocumentBuf::new();
    let mut array = bson::raw::RawArrayBuf::new();
    for document in batch {
        array.push(document);
    }
    cursor.append(name("id")?, id);
    cursor.append(name("ns")?, namespace);
    cursor.append(name(batch_name)?, array);
    let mut answer = RawDocumentBuf::new();
    answer.append(name("cursor")?, RawBsonRef::Document(&cursor));
    answer.append(name("ok")?, 1.0);
    Answer::of_server(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_client_sees_no_field_that_servers_tell_each_other() {
        let answer =
            Answer::of_server(rawdoc! { "n": 1, "electionId": 1, "opTime": 1, "readOnly": false,
            "lastCommittedOpTime": Timestamp { time: 1, increment: 1 }, "ok": 1.0 });
        assert_eq!(answer.unwrap().document().unwrap(), doc! { "n": 1, "ok": 1.0 });
    }

    #[test]
    fn a_refusal_keeps_its_details_and_gains_each_label_once() {
        let refused = rawdoc! { "ok": 0.0, "code": 283, "errmsg": "x", "preImage": { "a": 1 } };
        let failure = Answer::of_server(refused).unwrap_err();
        let failure = failure.labelled("L").labelled("L");
        assert_eq!(failure.code(), 283);
        assert_eq!(failure.body().get_array("errorLabels").unwrap().len(), 1);
        assert_eq!(failure.body().get_document("preImage").unwrap(), &doc! { "a": 1 });
    }
}
