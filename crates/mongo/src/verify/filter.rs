//! Checks that the server accepts a filter, before any other step uses it.

use bson::raw::RawBsonRef;
use bson::{Document, rawdoc};
use mongodb::error::ErrorKind;

use super::feed::encoded;
use crate::error::{Error, Result, TRANSIENT, code};
use crate::server::collection::Handle;

/// Checks that the server of the collection `side` can parse `filter`. The check reads next to nothing: only
/// documents whose `_id` sorts before null, such as `MinKey`.
///
/// # Errors
/// Returns a usage error with the server's message, if the server rejects the filter.
#[crate::boxed]
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
            format!("the filter is not understood by the server: {}", server_message(&cause)),
            "write it like the filter of a find, as extended JSON",
        )),
        other => other.map(|_| ()),
    }
}

fn server_message(error: &mongodb::error::Error) -> String {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => command.message.clone(),
        kind => kind.to_string(),
    }
}

/// Returns true if the server rejected the filter: for `BadValue`, `FailedToParse`, `TypeMismatch` and the numbered
/// parse errors.
fn is_refusal(error: &mongodb::error::Error) -> bool {
    let is_parse_error = |code| matches!(code, 2 | 9 | 14) || code > 10_000;
    code(error).is_some_and(|code| is_parse_error(code) && !TRANSIENT.contains(&code))
}
