//! The handshake, in which the router identifies itself to drivers as a `mongos`.

use bson::{Bson, DateTime, Document, doc};

use super::scram;

/// Wire protocol version of a MongoDB 6.0 server.
const WIRE_VERSION: i32 = 17;

/// Composes the reply to `hello`, or to the older `isMaster`, on connection `number`. If `mechanisms` is true, a
/// client that asks for the login mechanisms receives them.
pub(super) fn answer(request: &Document, number: usize, mechanisms: bool) -> Document {
    let modern = request.keys().next().is_some_and(|name| name == "hello");
    let writable = if modern { "isWritablePrimary" } else { "ismaster" };
    let mut hello = doc! {
        writable: true,
        "msg": "isdbgrid",
        "helloOk": true,
        "maxBsonObjectSize": 16 * 1024 * 1024,
        "maxMessageSizeBytes": 48_000_000,
        "maxWriteBatchSize": 100_000,
        "localTime": DateTime::now(),
        "logicalSessionTimeoutMinutes": 30,
        "connectionId": i32::try_from(number).unwrap_or(i32::MAX),
        "minWireVersion": 0,
        "maxWireVersion": WIRE_VERSION,
    };
    if mechanisms && matches!(request.get("saslSupportedMechs"), Some(Bson::String(_))) {
        hello.insert("saslSupportedMechs", vec![scram::MECHANISM]);
    }
    hello.insert("ok", 1.0);
    hello
}

/// Returns true if `name` is the name of the handshake command, `hello` or `isMaster`.
pub(super) fn is_hello(name: &str) -> bool {
    matches!(name, "hello" | "isMaster" | "ismaster")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_question_are_answered_in_kind() {
        let modern = answer(&doc! { "hello": 1 }, 1, false);
        let legacy = answer(&doc! { "ismaster": 1 }, 1, false);
        assert_eq!(modern.get_bool("isWritablePrimary").ok(), Some(true));
        assert_eq!(legacy.get_bool("ismaster").ok(), Some(true));
        assert_eq!(modern.get_str("msg").ok(), Some("isdbgrid"));
    }

    #[test]
    fn mechanisms_are_told_only_to_who_asks_and_can_log_in() {
        let asks = doc! { "hello": 1, "saslSupportedMechs": "admin.app" };
        assert!(answer(&asks, 1, true).contains_key("saslSupportedMechs"));
        assert!(!answer(&asks, 1, false).contains_key("saslSupportedMechs"));
        assert!(!answer(&doc! { "hello": 1 }, 1, true).contains_key("saslSupportedMechs"));
    }
}
