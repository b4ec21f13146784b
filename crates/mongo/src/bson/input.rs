//! Parsing of documents that users type.

use bson::{Document, RawDocumentBuf};

use super::ext_json;
use crate::error::{Error, Result};

/// Parses a filter that a user typed, in extended JSON.
///
/// # Errors
/// Returns a usage error if `text` is not a document in extended JSON.
pub fn parse_filter(text: &str) -> Result<Document> {
    parse_document(text, "the filter")
}

/// Parses a document that a user typed, in extended JSON. `what` names the document in the error, such as "the
/// filter".
///
/// # Errors
/// Returns a usage error if `text` is not a document in extended JSON.
pub fn parse_document(text: &str, what: &str) -> Result<Document> {
    let bad = |cause: String| {
        Error::usage(
            format!("{what} {text} cannot be read: {cause}"),
            r#"write it as extended JSON, such as {"price": {"$gt": 10}}"#,
        )
    };
    let raw: RawDocumentBuf = ext_json::parse_document(text).map_err(|e| bad(e.to_string()))?;
    Document::try_from(raw).map_err(|e| bad(e.to_string()))
}
