//! Operations of clients, as a shard key sees them: from the commands that clients send, and from the entries of a server's
//! profiler or log, which repeat those commands.

use bson::raw::{RawBsonRef, RawDocument};

use super::predicate::{Bound, Datum, Ignored, Predicate, is_small, plain};
use crate::bson::order::Id;
use imago_plan::shard_key::Kind;

/// Largest number of fields of an inserted document that are read, and of fields that an update changes.
const FIELDS_MAX: usize = 256;
/// Largest depth of documents in an inserted one.
const DEPTH_MAX: usize = 16;
/// Largest number of inserts of one entry of a profiler that count.
const INSERTED_MAX: u32 = 100_000;

/// An operation of a client.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operation {
    /// Kind of the operation.
    pub(super) kind: Kind,
    /// Conditions, by the path of their field. Of an insert, the fields of the document.
    pub(super) bounds: Vec<(String, Bound)>,
    /// Paths of the fields that the operation changes.
    pub(super) sets: Vec<String>,
    /// Number of documents that were returned or written, if the source tells.
    pub(super) documents: u32,
    /// The transaction that the operation belongs to, as a number.
    pub(super) transaction: Option<u64>,
    /// Kinds of conditions that bound no shards.
    pub(super) ignored: Vec<Ignored>,
    /// True if the operation inserts a document when nothing matches.
    pub(super) is_upsert: bool,
    /// True if no conditions are known by which a router could choose shards: under a collation of the operation's own, or
    /// of a command that the source shortened.
    pub(super) is_unknown: bool,
    /// True if the source does not show the inserted document.
    pub(super) is_unseen_insert: bool,
}

impl Operation {
    fn new(kind: Kind, predicate: Predicate) -> Self {
        Self {
            kind,
            bounds: predicate.bounds,
            sets: Vec::new(),
            documents: 1,
            transaction: None,
            ignored: predicate.ignored,
            is_upsert: false,
            is_unknown: false,
            is_unseen_insert: false,
        }
    }

    /// Returns the insert of `document`.
    pub(super) fn insert(document: &RawDocument) -> Self {
        let mut bounds = Vec::new();
        let is_whole = read_fields(document, "", 0, &mut bounds);
        if !is_whole {
            // A field of the key may be among those that were not read.
            let unseen =
                Self { is_unseen_insert: true, ..Self::new(Kind::Insert, Predicate::default()) };
            return unseen;
        }
        Self::new(Kind::Insert, Predicate { bounds, ignored: Vec::new() })
    }

    /// Returns a read with these conditions; `options` may have a collation.
    pub(super) fn read(predicate: Predicate, options: &RawDocument) -> Self {
        let mut read = Self::new(Kind::Read, predicate);
        read.set_collated(has_collation(options));
        read
    }

    /// Notes a collation of the operation's own.
    fn set_collated(&mut self, is_collated: bool) {
        if is_collated {
            self.is_unknown = true;
            self.ignored.push(Ignored::Collation);
        }
    }

    /// Returns `count` inserts of documents that the source does not show.
    fn unseen_inserts(count: usize) -> Vec<Self> {
        let one = Self { is_unseen_insert: true, ..Self::new(Kind::Insert, Predicate::default()) };
        vec![one; count]
    }
}

/// Adds the fields of `document`, and of the documents in it, whose paths begin with `prefix`. Returns false if there are more
/// than are read.
fn read_fields(
    document: &RawDocument,
    prefix: &str,
    depth: usize,
    bounds: &mut Vec<(String, Bound)>,
) -> bool {
    for (name, value) in document.iter().flatten() {
        if bounds.len() >= FIELDS_MAX || depth > DEPTH_MAX {
            return false;
        }
        let path = format!("{prefix}{}", name.as_str());
        if let RawBsonRef::Document(inner) = value
            && !read_fields(inner, &format!("{path}."), depth + 1, bounds)
        {
            return false;
        }
        if !matches!(value, RawBsonRef::Array(_)) && is_small(value) {
            bounds.push((path, Bound::Equal(plain(value))));
        }
    }
    true
}

/// Returns the operations of a command on the collection `coll`; nothing for a command that is none, or on another
/// collection. `documents` are those that the command has outside of its body (an `insert`'s documents, an `update`'s
/// statements).
pub(super) fn of_command(
    command: &RawDocument,
    coll: &str,
    documents: &[&RawDocument],
) -> Vec<Operation> {
    let Some(Ok((name, value))) = command.iter().next() else { return Vec::new() };
    if value.as_str() != Some(coll) {
        return Vec::new();
    }
    let query = |field: &str| command.get_document(field).ok();
    let of_query = |field: &str| query(field).map(Predicate::of).unwrap_or_default();
    let name = name.as_str();
    let mut operations = match name {
        "find" => vec![Operation::new(Kind::Read, of_query("filter"))],
        "count" | "distinct" => vec![Operation::new(Kind::Read, of_query("query"))],
        "aggregate" => vec![Operation::new(Kind::Read, first_match(command))],
        "findAndModify" | "findandmodify" => vec![find_and_modify(command)],
        "insert" => {
            let inserted = statements(command, "documents", documents);
            if inserted.is_empty() {
                Operation::unseen_inserts(1)
            } else {
                inserted.into_iter().map(Operation::insert).collect()
            }
        }
        "update" => statements(command, "updates", documents).into_iter().map(update).collect(),
        "delete" => statements(command, "deletes", documents).into_iter().map(delete).collect(),
        _ => Vec::new(),
    };
    let is_collated = has_collation(command);
    let transaction = transaction(command);
    for operation in &mut operations {
        operation.set_collated(is_collated);
        operation.transaction = transaction;
    }
    operations
}

/// Returns the operation of an entry of `system.profile`, or of a log line's attributes, on the collection `coll`. There, a
/// write is one statement and not a command of several.
pub(super) fn of_profile(entry: &RawDocument, coll: &str) -> Vec<Operation> {
    let Ok(command) = entry.get_document("command") else { return Vec::new() };
    let kind = entry.get_str("op").or_else(|_| entry.get_str("type")).unwrap_or("");
    let inserted = number(entry, "ninserted");
    if kind == "insert" || inserted > 0 {
        return Operation::unseen_inserts(inserted.clamp(1, INSERTED_MAX) as usize);
    }
    let mut operations = match kind {
        "update" => vec![update(command)],
        "remove" => vec![delete(command)],
        "query" | "command" => of_command(command, coll, &[]),
        // Further batches of a read that has an entry of its own.
        _ => Vec::new(),
    };
    let is_shortened = command.get("$truncated").is_ok_and(|text| text.is_some());
    if is_shortened && operations.is_empty() && kind == "query" {
        operations.push(Operation::new(Kind::Read, Predicate::default()));
    }
    let transaction = transaction(command);
    let statements = u32::try_from(operations.len()).unwrap_or(u32::MAX).max(1);
    for operation in &mut operations {
        let written = number(entry, "nModified") + number(entry, "ndeleted");
        operation.documents = match operation.kind {
            Kind::Read => number(entry, "nreturned"),
            _ => written.div_ceil(statements),
        };
        operation.transaction = operation.transaction.or(transaction);
        if is_shortened || operation.bounds.iter().any(|(_, bound)| is_redacted(bound)) {
            operation.bounds.clear();
            operation.is_unknown = true;
            operation.ignored.push(Ignored::Shortened);
        }
    }
    operations
}

/// Returns true for a value that a server wrote in place of the real one (`--redactClientLogData`).
fn is_redacted(bound: &Bound) -> bool {
    let is_mark = |datum: &Datum| match datum {
        Datum::Plain(id) => id.as_raw().as_str() == Some("###"),
        Datum::Hidden { .. } => false,
    };
    match bound {
        Bound::Equal(value) => is_mark(value),
        Bound::In(values) => values.iter().any(is_mark),
        Bound::Between(low, high) => low.iter().chain(high).any(is_mark),
    }
}

/// Returns the statements of a write: those in the command's body, or those outside of it.
fn statements<'a>(
    command: &'a RawDocument,
    field: &str,
    outside: &[&'a RawDocument],
) -> Vec<&'a RawDocument> {
    if !outside.is_empty() {
        return outside.to_vec();
    }
    let array = command.get_array(field).into_iter().flatten().flatten();
    array.filter_map(RawBsonRef::as_document).collect()
}

fn update(statement: &RawDocument) -> Operation {
    let is_multi = statement.get_bool("multi").unwrap_or(false);
    let kind = if is_multi { Kind::WriteMany } else { Kind::UpdateOne };
    let query = statement.get_document("q").map(Predicate::of).unwrap_or_default();
    let mut operation = Operation::new(kind, query);
    operation.set_collated(has_collation(statement));
    operation.is_upsert = statement.get_bool("upsert").unwrap_or(false);
    operation.sets = changed(statement, "u");
    operation
}

fn delete(statement: &RawDocument) -> Operation {
    let is_multi = number(statement, "limit") == 0;
    let kind = if is_multi { Kind::WriteMany } else { Kind::DeleteOne };
    let query = statement.get_document("q").map(Predicate::of).unwrap_or_default();
    let mut operation = Operation::new(kind, query);
    operation.set_collated(has_collation(statement));
    operation
}

fn find_and_modify(command: &RawDocument) -> Operation {
    let query = command.get_document("query").map(Predicate::of).unwrap_or_default();
    let mut operation = Operation::new(Kind::FindAndModify, query);
    operation.is_upsert = command.get_bool("upsert").unwrap_or(false);
    operation.sets = changed(command, "update");
    operation
}

/// Returns the paths of the fields that an update by operators changes; those of a replacement are not known without the
/// document that it replaces.
fn changed(statement: &RawDocument, field: &str) -> Vec<String> {
    let Ok(update) = statement.get_document(field) else { return Vec::new() };
    let operators = update
        .iter()
        .flatten()
        .filter(|(name, _)| name.as_str().starts_with('$') && name.as_str() != "$setOnInsert");
    let fields = operators.filter_map(|(_, fields)| fields.as_document());
    let names = fields.flat_map(|fields| fields.iter().flatten().map(|(name, _)| name));
    names.map(|name| name.as_str().to_owned()).take(FIELDS_MAX).collect()
}

/// Returns the conditions of an aggregation's first stage, if it is a `$match`: a router chooses shards by it.
fn first_match(command: &RawDocument) -> Predicate {
    let stages = command.get_array("pipeline").into_iter().flatten().flatten();
    let first = stages.filter_map(RawBsonRef::as_document).next();
    let query = first.and_then(|stage| stage.get_document("$match").ok());
    query.map(Predicate::of).unwrap_or_default()
}

/// Returns true if strings are compared by other rules than byte by byte.
fn has_collation(document: &RawDocument) -> bool {
    let locale = document.get_document("collation").and_then(|of| of.get_str("locale"));
    locale.is_ok_and(|locale| locale != "simple")
}

/// Returns a number for the transaction that a command belongs to: one for each session and transaction number. A retryable
/// write has a transaction number too, but is no transaction: that has `autocommit`.
fn transaction(command: &RawDocument) -> Option<u64> {
    command.get("autocommit").ok()??;
    let session = command.get_document("lsid").ok()?;
    let session = Id::from_raw(RawBsonRef::Document(session)).stable_hash();
    let number = command.get_i64("txnNumber").ok()?;
    Some(session ^ number.unsigned_abs().wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

fn number(document: &RawDocument, field: &str) -> u32 {
    let value = match document.get(field) {
        Ok(Some(RawBsonRef::Int32(value))) => i64::from(value),
        Ok(Some(RawBsonRef::Int64(value))) => value,
        #[expect(clippy::cast_possible_truncation, reason = "a cast of a double saturates")]
        Ok(Some(RawBsonRef::Double(value))) => value as i64,
        _ => 0,
    };
    u32::try_from(value.max(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, RawDocumentBuf, doc};

    use super::*;

    fn raw(document: &Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(document).unwrap()
    }

    fn of(command: Document) -> Vec<Operation> {
        of_command(&raw(&command), "reviews", &[])
    }

    fn paths(operation: &Operation) -> Vec<&str> {
        operation.bounds.iter().map(|(path, _)| path.as_str()).collect()
    }

    #[test]
    fn reads_have_the_conditions_of_their_query() {
        for command in [
            doc! {"find": "reviews", "filter": {"product": "B00813GRG4"}, "limit": 20},
            doc! {"count": "reviews", "query": {"product": "B00813GRG4"}},
            doc! {"distinct": "reviews", "key": "user", "query": {"product": "B00813GRG4"}},
            doc! {"aggregate": "reviews", "cursor": {}, "pipeline": [
                {"$match": {"product": "B00813GRG4"}}, {"$group": {"_id": "$stars"}},
            ]},
        ] {
            let operations = of(command);
            assert_eq!(operations.len(), 1);
            assert_eq!((operations[0].kind, paths(&operations[0])), (Kind::Read, vec!["product"]));
        }
        // A match behind a group does not select documents of the collection.
        let later = doc! {"aggregate": "reviews", "cursor": {}, "pipeline": [
            {"$group": {"_id": "$stars"}}, {"$match": {"product": "B00813GRG4"}},
        ]};
        assert!(of(later)[0].bounds.is_empty());
        assert!(of(doc! {"find": "orders", "filter": {"a": 1}}).is_empty(), "another collection");
        assert!(of(doc! {"createIndexes": "reviews"}).is_empty());
    }

    #[test]
    fn writes_are_single_statements() {
        let operations = of(doc! {"update": "reviews", "updates": [
            {"q": {"_id": 7_i64}, "u": {"$set": {"stars": 4}, "$inc": {"edits.count": 1}}},
            {"q": {"user": "ada"}, "u": {"$set": {"name": "Ada"}}, "multi": true},
        ]});
        assert_eq!(
            operations.iter().map(|of| of.kind).collect::<Vec<_>>(),
            [Kind::UpdateOne, Kind::WriteMany]
        );
        assert_eq!(operations[0].sets, ["stars", "edits.count"]);
        let deletes = of(doc! {"delete": "reviews", "deletes": [
            {"q": {"user": "ada"}, "limit": 0}, {"q": {"_id": 7_i64}, "limit": 1},
        ]});
        assert_eq!(
            deletes.iter().map(|of| of.kind).collect::<Vec<_>>(),
            [Kind::WriteMany, Kind::DeleteOne]
        );
        let found = of(doc! {"findAndModify": "reviews", "query": {"user": "ada"},
        "update": {"$set": {"seen": true}}});
        assert_eq!((found[0].kind, paths(&found[0])), (Kind::FindAndModify, vec!["user"]));
    }

    #[test]
    fn an_insert_has_the_fields_of_its_document() {
        let document = doc! {"_id": {"shop": 1, "n": 2}, "user": "ada", "tags": ["a"],
        "address": {"city": "Urbana", "zip": 61801}};
        let operations =
            of_command(&raw(&doc! {"insert": "reviews"}), "reviews", &[&raw(&document)]);
        assert_eq!(
            paths(&operations[0]),
            ["_id.shop", "_id.n", "_id", "user", "address.city", "address.zip", "address",]
        );
        assert_eq!(operations[0].kind, Kind::Insert);
    }

    #[test]
    fn entries_of_the_profiler_are_operations() {
        let entry = |entry: Document| of_profile(&raw(&entry), "reviews");
        let read = entry(doc! {"op": "query", "nreturned": 12,
        "command": {"find": "reviews", "filter": {"user": "ada"}}});
        assert_eq!((read[0].kind, read[0].documents), (Kind::Read, 12));
        let update = entry(doc! {"op": "update", "nModified": 1_i64,
        "command": {"q": {"_id": 3}, "u": {"$set": {"stars": 1}}, "multi": false}});
        assert_eq!((update[0].kind, update[0].documents), (Kind::UpdateOne, 1));
        let remove = entry(
            doc! {"op": "remove", "ndeleted": 3, "command": {"q": {"user": "ada"}, "limit": 0}},
        );
        assert_eq!((remove[0].kind, remove[0].documents), (Kind::WriteMany, 3));
        let inserts =
            entry(doc! {"op": "insert", "ninserted": 5, "command": {"insert": "reviews"}});
        assert_eq!((inserts.len(), inserts[0].is_unseen_insert), (5, true));
        assert!(
            entry(doc! {"op": "getmore", "command": {"getMore": 1_i64, "collection": "reviews"}})
                .is_empty()
        );
        assert!(entry(doc! {"op": "command", "command": Bson::Null}).is_empty());
    }

    #[test]
    fn what_a_source_shortened_or_redacted_is_unknown() {
        let entry = |entry: Document| of_profile(&raw(&entry), "reviews");
        let update = entry(doc! {"op": "update", "command": {"$truncated": "{ q: { user: ..."}});
        assert!(update[0].is_unknown && update[0].ignored == [Ignored::Shortened]);
        let find = doc! {"find": "reviews", "filter": {"user": "###"}};
        let find = entry(doc! {"op": "query", "nreturned": 1, "command": find});
        assert!(find[0].is_unknown && find[0].bounds.is_empty());
    }

    #[test]
    fn a_document_of_any_depth_is_read_within_bounds() {
        let mut nested = doc! {"a": 1};
        for _ in 0..60 {
            nested = doc! {"a": nested};
        }
        assert!(Operation::insert(&raw(&nested)).is_unseen_insert);
        let wide: Document = (0..400).map(|n| (format!("field{n}"), Bson::Int32(n))).collect();
        assert!(Operation::insert(&raw(&wide)).is_unseen_insert);
        let upsert = doc! {"q": {"_id": 7_i64}, "u": {"$set": {"a": 1}}, "upsert": true};
        let upsert = of(doc! {"update": "reviews", "updates": [upsert]});
        assert!(upsert[0].is_upsert);
    }

    #[test]
    fn operations_of_a_transaction_have_its_number_and_retryable_writes_none() {
        let session = doc! {"id": Bson::Binary(bson::Binary {
            subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16],
        })};
        let find = |number: i64, more: Document| {
            let mut find = doc! {"find": "reviews", "filter": {}, "lsid": session.clone(),
            "txnNumber": number};
            find.extend(more);
            of(find)[0].transaction
        };
        let in_transaction = doc! {"autocommit": false};
        assert!(find(4, in_transaction.clone()).is_some());
        assert_ne!(find(4, in_transaction.clone()), find(5, in_transaction));
        assert_eq!(find(4, doc! {}), None);
    }

    #[test]
    fn a_collation_is_noticed_where_it_stands() {
        let collation = doc! {"locale": "de", "strength": 2};
        let find =
            of(doc! {"find": "reviews", "filter": {"user": "ada"}, "collation": collation.clone()});
        assert!(find[0].is_unknown);
        let update = of(doc! {"update": "reviews", "updates": [
            {"q": {"user": "ada"}, "u": {"$set": {"a": 1}}, "collation": collation},
        ]});
        assert!(update[0].is_unknown);
        let simple = of(doc! {"find": "reviews", "filter": {}, "collation": {"locale": "simple"}});
        assert!(!simple[0].is_unknown);
    }
}
