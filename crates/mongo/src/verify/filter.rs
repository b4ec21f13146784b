//! Asking the server whether it understands a filter, before anything depends on it.

use bson::raw::RawBsonRef;
use bson::{Document, rawdoc};
use mongodb::error::ErrorKind;

use super::feed::encoded;
use crate::error::{Error, Result, TRANSIENT, code};
use crate::server::collection::Handle;

/// Has `side` parse the filter and read next to nothing: before null lies `MinKey` alone.
///
/// # Errors
/// Usage, with the server's message, if the server does not understand the filter.
pub async fn check(side: &Handle, filter: &Document) -> Result<()> {
    let command = rawdoc! {
        "find": side.ns.coll.as_str(),
        "filter": encoded(filter)?,
        "hint": {"_id": 1},
        "max": {"_id": RawBsonRef::Null},
        "singleBatch": true,
    };
    match side.endpoint.run_raw(&side.ns.db, "find", command).await {
        Err(Error::Server { cause, .. }) if is_refusal(&cause) => Err(Error::usage(
            format!("the filter is not understood by the server: {}", told(&cause)),
            "write it like the filter of a find, as extended JSON",
        )),
        other => other.map(|_| ()),
    }
}

fn told(error: &mongodb::error::Error) -> String {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => command.message.clone(),
        kind => kind.to_string(),
    }
}

/// `BadValue`, `FailedToParse`, `TypeMismatch`, or one of the numbered parse errors.
fn is_refusal(error: &mongodb::error::Error) -> bool {
    let is_parse_error = |code| matches!(code, 2 | 9 | 14) || code > 10_000;
    code(error).is_some_and(|code| is_parse_error(code) && !TRANSIENT.contains(&code))
}
