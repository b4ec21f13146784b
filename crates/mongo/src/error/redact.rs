//! Messages of server and driver errors, in a form that is fit for logs and users.
//!
//! The driver prints an error with its labels and the whole reply in hexadecimal, and servers quote documents: keys,
//! filters, values that do not belong in a log. The redacted message has the error's text and its code; for a missing
//! privilege it has the command and the database.

use mongodb::error::{Error, ErrorKind};

/// Server error code `Unauthorized`: the user lacks a privilege.
pub const UNAUTHORIZED: i32 = 13;

/// Returns the message of a driver's error without labels, replies and the contents of documents.
#[must_use]
pub fn redacted_message(error: &Error) -> String {
    match error.kind.as_ref() {
        ErrorKind::InvalidArgument { message, .. }
        | ErrorKind::Authentication { message, .. }
        | ErrorKind::ServerSelection { message, .. }
        | ErrorKind::DnsResolve { message, .. } => message.clone(),
        ErrorKind::Command(command) if command.code == UNAUTHORIZED => {
            unauthorized(&command.message)
        }
        ErrorKind::Command(command) => {
            let message = redact_documents(&command.message);
            match &*command.code_name {
                "" => format!("{message} (code {})", command.code),
                name => format!("{message} ({name}, code {})", command.code),
            }
        }
        kind => redact_documents(&kind.to_string()),
    }
}

/// Returns the message for a missing privilege, given the server's text "not authorized on shop to execute command {
/// insert: … }"; the name of the command stands for the privilege.
fn unauthorized(message: &str) -> String {
    let parts = message.split_once("not authorized on ").and_then(|(_, rest)| {
        let (db, command) = rest.split_once(" to execute command {")?;
        let name = command.trim_start().split(':').next()?;
        Some((db.trim(), name.trim_matches(['"', ' '])))
    });
    match parts {
        Some((db, command)) => format!("the user may not run {command} on the database {db}"),
        None => redact_documents(message),
    }
}

/// Returns `message` with each part in braces or brackets, which may quote a document, replaced by `{…}` or `[…]`.
#[must_use]
pub fn redact_documents(message: &str) -> String {
    let (mut kept, mut depth) = (String::with_capacity(message.len()), 0_usize);
    for letter in message.chars() {
        match letter {
            '{' | '[' => {
                if depth == 0 {
                    kept.push_str(if letter == '{' { "{…}" } else { "[…]" });
                }
                depth += 1;
            }
            '}' | ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => kept.push(letter),
            _ => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_documents_hold_is_not_told() {
        let duplicate = "E11000 duplicate key error collection: shop.users index: email_1 dup key: \
                         { email: \"anna@example.com\", more: { a: [ 1 ] } }";
        assert_eq!(
            redact_documents(duplicate),
            "E11000 duplicate key error collection: shop.users index: email_1 dup key: {…}"
        );
        assert_eq!(redact_documents("cut off { email: \"anna"), "cut off {…}");
        assert_eq!(redact_documents("no document"), "no document");
    }

    #[test]
    fn a_missing_privilege_is_named() {
        let message = "not authorized on shop to execute command { insert: \"orders\", ordered: true, \
                       documents: [ { _id: 1 } ] }";
        assert_eq!(unauthorized(message), "the user may not run insert on the database shop");
        assert_eq!(unauthorized("not allowed"), "not allowed");
    }
}
