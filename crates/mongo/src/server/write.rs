//! Bulk writes as commands over raw bytes, and the server's result for each statement.
//!
//! Documents are written as the bytes that the source sent and are never parsed into values, so they arrive byte for
//! byte. Every write waits for a majority.

use bson::raw::{RawArrayBuf, RawBsonRef, cstr};
use bson::{Document, RawArray, RawDocument, RawDocumentBuf, rawdoc};

use crate::error::{Error, Result, TRANSIENT, redact_documents};
use crate::server::collection::{Handle, number};
use crate::server::timing::WRITE_TIME_MAX;

/// The error of one statement of a bulk write, as the server reported it.
#[derive(Clone, Debug)]
pub struct WriteError {
    /// The position of the statement in the bulk write, from 0.
    pub index: usize,
    /// The server's error code.
    pub code: i32,
    /// The server's error message, without the contents of documents.
    pub message: String,
    /// For duplicate keys: the key pattern of the unique index; `None` for other errors.
    pub key_pattern: Option<Document>,
    /// For duplicate keys: the value that another document already has; `None` for other errors.
    pub key_value: Option<Document>,
}

/// Server error code `DuplicateKey`: a document with the same value in a unique index exists.
pub const DUPLICATE_KEY: i32 = 11000;
/// Server error code `ImmutableField`: the stored `_id` is equal to the new one, but has different bytes.
pub const IMMUTABLE_FIELD: i32 = 66;

impl WriteError {
    /// Returns true if the error is a duplicate `_id`, not a duplicate value in another unique index.
    #[must_use]
    pub fn is_duplicate_id(&self) -> bool {
        self.code == DUPLICATE_KEY
            && self.key_pattern.as_ref().is_none_or(|keys| keys.keys().eq(["_id"]))
    }
}

/// The result of a bulk write, which may have been sent as several commands.
#[derive(Debug, Default)]
pub struct Written {
    /// Number of documents that were inserted, matched by an update, or deleted.
    pub count: u64,
    /// The errors of the statements that failed, in the order of the statements.
    pub errors: Vec<WriteError>,
}

/// Maximum size of the statements of one command, in bytes. The command's own fields add less than 16 KiB.
const COMMAND_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Size of the collected statements, in bytes, at which they are sent as one command: small enough to bound memory,
/// large enough that the round trip costs little.
const COMMAND_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of statements in one command.
const STATEMENTS_MAX: usize = 2_000;

/// Inserts documents into the collection `to`. The errors in the result include documents that exist already.
///
/// # Errors
/// Fails if a command as a whole fails; some documents may then be inserted and others not.
#[crate::boxed]
pub async fn insert(to: &Handle, documents: &[&RawDocument]) -> Result<Written> {
    let len = documents.len();
    let documents = documents.iter().map(|document| RawBsonRef::Document(document));
    check_all_reported(to, len, bulk(to, "insert", "documents", documents).await?)
}

/// Inserts a batch of documents, exactly as a server sent it, into the collection `to` by one command.
///
/// # Errors
/// Fails if the command as a whole fails; some documents may then be inserted and others not.
pub async fn insert_batch(to: &Handle, documents: &RawArray) -> Result<Written> {
    let mut command = with_room(header(to, "insert"), documents.as_bytes().len());
    command.append(cstr!("documents"), RawBsonRef::Array(documents));
    check_all_reported(to, documents.into_iter().count(), send(to, "insert", command).await?)
}

/// Returns `written`, or an error unless the unordered insert of `documents` documents reports a result for each of
/// them: inserted, or refused.
fn check_all_reported(to: &Handle, documents: usize, written: Written) -> Result<Written> {
    if written.count + written.errors.len() as u64 == documents as u64 {
        return Ok(written);
    }
    let cause = format!(
        "of {documents} documents {} were inserted and {} refused",
        written.count,
        written.errors.len()
    );
    Err(Error::Transient { doing: format!("insert on {}", to.ns), cause })
}

/// Runs update statements (`{q, u, upsert}`) on the collection `to`.
///
/// # Errors
/// Fails if a command as a whole fails; some statements may then be executed and others not.
#[crate::boxed]
pub async fn update(to: &Handle, statements: &[RawDocumentBuf]) -> Result<Written> {
    bulk(to, "update", "updates", statements.iter().map(|s| RawBsonRef::Document(s))).await
}

/// Runs delete statements (`{q, limit}`) on the collection `to`.
///
/// # Errors
/// Fails if a command as a whole fails; some statements may then be executed and others not.
#[crate::boxed]
pub async fn delete(to: &Handle, statements: &[RawDocumentBuf]) -> Result<Written> {
    bulk(to, "delete", "deletes", statements.iter().map(|s| RawBsonRef::Document(s))).await
}

async fn bulk<'a>(
    to: &Handle,
    verb: &'static str,
    field: &'static str,
    statements: impl Iterator<Item = RawBsonRef<'a>>,
) -> Result<Written> {
    let mut written = Written::default();
    let (mut group, mut bytes, mut len, mut start) = (RawArrayBuf::new(), 0, 0, 0);
    let field: &bson::raw::CStr = field.try_into().expect("no NUL in a field's name");
    for statement in statements {
        let size = statement.as_document().map_or(0, |document| document.as_bytes().len());
        if len > 0 && (bytes + size > COMMAND_BYTES || len == STATEMENTS_MAX) {
            let mut command = header(to, verb);
            command.append(field, std::mem::take(&mut group));
            join(&mut written, send(to, verb, command).await?, start);
            start += len;
            (bytes, len) = (0, 0);
        }
        group.push(statement);
        bytes += size;
        len += 1;
    }
    if len > 0 {
        let mut command = header(to, verb);
        command.append(field, group);
        join(&mut written, send(to, verb, command).await?, start);
    }
    Ok(written)
}

fn join(all: &mut Written, part: Written, start: usize) {
    all.count += part.count;
    all.errors.extend(
        part.errors.into_iter().map(|error| WriteError { index: error.index + start, ..error }),
    );
}

fn header(to: &Handle, verb: &'static str) -> RawDocumentBuf {
    let name: &bson::raw::CStr = verb.try_into().expect("no NUL in a command's name");
    let mut command = RawDocumentBuf::new();
    command.append(name, to.ns.coll.as_str());
    command.append(cstr!("ordered"), false);
    command.append(cstr!("writeConcern"), rawdoc! {"w": "majority"});
    // A write of a former owner must have ended before the next owner's first write.
    command.append(cstr!("maxTimeMS"), i64::try_from(WRITE_TIME_MAX.as_millis()).expect("small"));
    if to.bypass_validation && verb != "delete" {
        command.append(cstr!("bypassDocumentValidation"), true);
    }
    command
}

/// Returns `command` with capacity for a field of `len` bytes and for the driver's own fields, so that megabytes are
/// copied into the command once.
fn with_room(command: RawDocumentBuf, len: usize) -> RawDocumentBuf {
    let mut bytes = Vec::with_capacity(command.as_bytes().len() + len + 1_024);
    bytes.extend_from_slice(command.as_bytes());
    RawDocumentBuf::from_bytes(bytes).expect("a document is one")
}

async fn send(to: &Handle, verb: &'static str, command: RawDocumentBuf) -> Result<Written> {
    assert!(
        command.as_bytes().len() <= COMMAND_BYTES_MAX + 16 * 1024,
        "a command outgrew what a server takes"
    );
    let doing = || format!("{verb} on {}", to.ns);
    to.check_owner(verb)?;
    let reply = to.endpoint.run_raw(&to.ns.db, verb, command).await?;
    if let Ok(concern) = reply.get_document("writeConcernError") {
        // The write is applied at the primary, but perhaps not durable. Every write here can be repeated.
        let why = redact_documents(concern.get_str("errmsg").unwrap_or("no reason was given"));
        let cause = format!("not confirmed by a majority: {why}");
        return Err(Error::Transient { doing: doing(), cause });
    }
    let mut written = Written { count: number(&reply, "n"), errors: Vec::new() };
    for error in reply.get_array("writeErrors").into_iter().flatten() {
        let error = error.as_document().ok_or_else(|| Error::malformed(doing(), "writeErrors"))?;
        let parsed = WriteError {
            index: usize::try_from(number(error, "index")).unwrap_or(usize::MAX),
            code: i32::try_from(number(error, "code")).unwrap_or(0),
            message: redact_documents(error.get_str("errmsg").unwrap_or_default()),
            key_pattern: error.get_document("keyPattern").ok().cloned(),
            key_value: error.get_document("keyValue").ok().cloned(),
        };
        if TRANSIENT.contains(&parsed.code) {
            return Err(Error::Transient { doing: doing(), cause: parsed.message });
        }
        written.errors.push(parsed);
    }
    Ok(written)
}
