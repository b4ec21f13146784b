//! The operations of a source as commands for a copy of a sample of the documents, with which advice is tried out.
//!
//! A command has the conditions that choose shards, and leaves out others; a write of many documents without any such condition is left out
//! as a whole, since it would write all. A value that is not in the sample is the sampled one at its position: of the documents that a
//! condition selects in the collection, a sample seldom has one. Inserts are sampled documents under new `_id`s, with the values that
//! the source shows; where it shows none, those with the greatest `_id`s. Updates set a field of their own, and deletes are updates of
//! the same kind: the documents stay, and those that one key's replay finds are there for the next one.

use std::collections::HashMap;

use bson::oid::ObjectId;
use bson::raw::RawBsonRef;
use bson::{Binary, Bson, DateTime, Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use imago_plan::shard_key::Kind;
use rand::RngExt as _;

use super::dictionary::hash_of;
use super::operation::Operation;
use super::predicate::{Bound, Datum};
use crate::bson::order::{Id, cmp_values};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::endpoint::{Endpoint, answer_within, prefer_secondary};
use crate::server::timing::SEARCH_MAX;

/// Number of documents that are copied.
const DOCUMENTS: i64 = 20_000;
/// Largest size of the documents that are copied, in bytes; of larger ones there are fewer.
const BYTES_MAX: usize = 256 << 20;
/// Largest number of operations that are replayed; of more, they are drawn at equal distances.
pub(super) const OPERATIONS_MAX: usize = 20_000;
/// Number of the documents with the greatest `_id`s that stand for inserted ones which the source does not show.
const NEWEST: usize = 20;
/// Field that updates of a replay set.
const REPLAYED: &str = "_imagoReplayed";

/// A sample of a collection, and the operations of a source as commands on it.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The documents.
    pub documents: Vec<Document>,
    /// The collection's indexes, without that of `_id`; none is unique.
    pub indexes: Vec<Document>,
    /// The commands, in the order of the operations.
    pub commands: Vec<Document>,
    /// Number of operations that are not replayed: writes of many documents without a condition that chooses shards.
    pub left_out: usize,
}

impl Replay {
    /// Samples the collection `ns` and turns `operations` into commands.
    ///
    /// # Errors
    /// Fails if the cluster does not reply.
    pub(super) async fn of(
        cluster: &Endpoint,
        ns: &Namespace,
        indexes: &[Document],
        operations: &[Operation],
    ) -> Result<Self> {
        let documents = sample(cluster, ns).await?;
        let indexes = { indexes.iter() }
            .filter(|index| !index.get_str("name").is_ok_and(|name| name == "_id_"))
            .map(|index| {
                let mut index = index.clone();
                // Documents under new `_id`s repeat values, and none is to expire.
                index.remove("unique");
                index.remove("expireAfterSeconds");
                index
            })
            .collect();
        let mut known = Known::new(&documents);
        let commands: Vec<Document> = { operations.iter().enumerate() }
            .filter_map(|(number, operation)| known.command(&ns.coll, operation, number))
            .collect();
        let left_out = operations.len() - commands.len();
        Ok(Self { documents, indexes, commands, left_out })
    }
}

/// Reads a random part of the collection.
async fn sample(cluster: &Endpoint, ns: &Namespace) -> Result<Vec<Document>> {
    let doing = format!("copying a sample of {ns}");
    let documents = cluster.client().database(&ns.db).collection::<RawDocumentBuf>(&ns.coll);
    let read = async {
        let drawn = documents.aggregate(vec![doc! {"$sample": {"size": DOCUMENTS}}]);
        let drawn = drawn.selection_criteria(prefer_secondary()).with_type::<RawDocumentBuf>();
        let mut drawn = drawn.await?;
        let (mut sampled, mut bytes) = (HashMap::new(), 0);
        while let Some(document) = drawn.try_next().await? {
            bytes += document.as_bytes().len();
            if let Ok(id) = Id::of_document(&document) {
                // A sample may have a document twice.
                sampled.insert(id, document);
            }
            if bytes > BYTES_MAX {
                break;
            }
        }
        Ok(sampled)
    };
    let sampled = answer_within(SEARCH_MAX, &doing, read).await?;
    let sampled = sampled.map_err(|cause| Error::server(doing, cause))?;
    let documents = sampled.into_values().map(|document| {
        Document::try_from(document).map_err(|cause| Error::malformed("a sampled document", cause))
    });
    documents.collect()
}

/// The sampled documents, and the values of those of their fields that hidden values were looked up in.
struct Known<'a> {
    documents: &'a [Document],
    values: HashMap<String, Values>,
    /// Indexes of the documents with the greatest `_id`s.
    newest: Vec<usize>,
}

/// The values of one field, in order, and their places by hash.
struct Values {
    ordered: Vec<(Id, Bson)>,
    by_hash: HashMap<i64, usize>,
}

impl<'a> Known<'a> {
    fn new(documents: &'a [Document]) -> Self {
        let mut ids: Vec<(Id, usize)> = { documents.iter().enumerate() }
            .filter_map(|(index, document)| Some((id_of(document.get("_id")?)?, index)))
            .collect();
        ids.sort_by(|a, b| cmp_values(b.0.as_raw(), a.0.as_raw()));
        let newest = ids.into_iter().take(NEWEST).map(|(_, index)| index).collect();
        Self { documents, values: HashMap::new(), newest }
    }

    /// Returns the command of an operation; `number` tells it from others. `None` for a write of all documents.
    fn command(&mut self, coll: &str, operation: &Operation, number: usize) -> Option<Document> {
        let filter = if operation.is_unknown {
            doc! {}
        } else {
            self.filter(&operation.bounds)
        };
        let change = doc! {"$set": {REPLAYED: number as i64}};
        if filter.is_empty() && operation.kind == Kind::WriteMany {
            return None;
        }
        Some(match operation.kind {
            Kind::Read => {
                let limit = i64::from(operation.documents.max(1));
                doc! {"find": coll, "filter": filter, "limit": limit, "singleBatch": true}
            }
            Kind::Insert => {
                let document = self.inserted(operation, number);
                doc! {"insert": coll, "documents": [document]}
            }
            Kind::UpdateOne | Kind::DeleteOne => {
                doc! {"update": coll, "updates": [{"q": filter, "u": change}]}
            }
            Kind::WriteMany => {
                doc! {"update": coll, "updates": [{"q": filter, "u": change, "multi": true}]}
            }
            Kind::FindAndModify => {
                doc! {"findAndModify": coll, "query": filter, "update": change}
            }
        })
    }

    fn filter(&mut self, bounds: &[(String, Bound)]) -> Document {
        let mut filter = Document::new();
        for (path, bound) in bounds {
            let condition = match bound {
                Bound::Equal(value) => {
                    self.value(path, value).map(|value| doc! {"$eq": value}).unwrap_or_default()
                }
                Bound::In(values) => {
                    let values = values.iter().filter_map(|value| self.value(path, value));
                    let values: Vec<Bson> = values.collect();
                    if values.is_empty() {
                        doc! {}
                    } else {
                        doc! {"$in": values}
                    }
                }
                Bound::Between(low, high) => {
                    let mut range = Document::new();
                    for (operator, bound) in [("$gte", low), ("$lte", high)] {
                        let shown = match bound {
                            Some(Datum::Plain(id)) => Bson::try_from(id.as_raw()).ok(),
                            Some(hidden) => self.value(path, hidden),
                            None => None,
                        };
                        if let Some(value) = shown {
                            range.insert(operator, value);
                        }
                    }
                    range
                }
            };
            if !condition.is_empty() {
                filter.insert(path, condition);
            }
        }
        filter
    }

    /// Returns a document for an insert that has the values that the source shows.
    fn inserted(&mut self, operation: &Operation, number: usize) -> Document {
        let like = number.wrapping_mul(7_919);
        let like = match &self.newest[..] {
            newest if operation.is_unseen_insert && !newest.is_empty() => {
                newest[like % newest.len()]
            }
            _ => like % self.documents.len().max(1),
        };
        let mut document = self.documents.get(like).cloned().unwrap_or_default();
        for (path, bound) in &operation.bounds {
            // Documents within documents have a value of their own.
            if let Bound::Equal(value) = bound
                && !path.contains('.')
            {
                let shown = match value {
                    Datum::Plain(id) => Bson::try_from(id.as_raw()).ok(),
                    hidden @ Datum::Hidden { .. } => self.value(path, hidden),
                };
                if let Some(value) = shown {
                    document.insert(path, value);
                }
            }
        }
        let id = document.get("_id").map_or(Bson::Null, |id| new_id(id, number));
        document.insert("_id", id);
        document
    }

    /// Returns the sampled value for a condition on the field at `path`: the same one, or else the one at its position; `None` if no sampled
    /// document has the field and the value is hidden.
    fn value(&mut self, path: &str, datum: &Datum) -> Option<Bson> {
        let documents = self.documents;
        let is_part = documents.len() as i64 >= DOCUMENTS;
        let values =
            self.values.entry(path.to_owned()).or_insert_with(|| Values::of(documents, path));
        let at = match datum {
            Datum::Plain(id) => {
                let by_id = |(known, _): &(Id, Bson)| cmp_values(known.as_raw(), id.as_raw());
                match values.ordered.binary_search_by(by_id) {
                    Ok(at) => at,
                    Err(at) if is_part && !values.ordered.is_empty() => {
                        at.min(values.ordered.len() - 1)
                    }
                    // The sample is the collection, or nothing is known of the field.
                    Err(_) => return Bson::try_from(id.as_raw()).ok(),
                }
            }
            Datum::Hidden { hash, below } => {
                let at = (u64::from(*below) * values.ordered.len() as u64) >> 32;
                values.by_hash.get(hash).copied().unwrap_or(at as usize)
            }
        };
        values.ordered.get(at).map(|(_, value)| value.clone())
    }
}

impl Values {
    fn of(documents: &[Document], path: &str) -> Self {
        let mut ordered: Vec<(Id, Bson)> = { documents.iter() }
            .filter_map(|document| value_at(document, path))
            .filter_map(|value| Some((id_of(value)?, value.clone())))
            .collect();
        ordered.sort_by(|a, b| cmp_values(a.0.as_raw(), b.0.as_raw()));
        let hashes = ordered.iter().enumerate().map(|(at, (id, _))| (hash_of(id), at));
        Self { by_hash: hashes.collect(), ordered }
    }
}

fn id_of(value: &Bson) -> Option<Id> {
    let held = RawDocumentBuf::try_from(&doc! {"v": value.clone()}).ok()?;
    let value: RawBsonRef<'_> = held.get("v").ok()??;
    Some(Id::from_raw(value))
}

fn value_at<'a>(document: &'a Document, path: &str) -> Option<&'a Bson> {
    match path.split_once('.') {
        None => document.get(path),
        Some((first, rest)) => value_at(document.get_document(first).ok()?, rest),
    }
}

/// Returns an `_id` of the type of `id` that is hardly taken, close to it in order unless the type's values are random.
fn new_id(id: &Bson, number: usize) -> Bson {
    let next = number as i64 + 1;
    match id {
        Bson::String(text) => format!("{text}~{number}").into(),
        Bson::Int32(id) => (i64::from(*id) + next).into(),
        Bson::Int64(id) => id.saturating_add(next).into(),
        Bson::Double(id) => (id + fraction(number)).into(),
        Bson::DateTime(id) => {
            DateTime::from_millis(id.timestamp_millis().saturating_add(next)).into()
        }
        Bson::Binary(id) => {
            let mut bytes = vec![0; id.bytes.len()];
            rand::rng().fill(&mut bytes[..]);
            Binary { subtype: id.subtype, bytes }.into()
        }
        _ => ObjectId::new().into(),
    }
}

/// Returns a number between 0 and 1 that differs for each of so many operations.
fn fraction(number: usize) -> f64 {
    (number + 1) as f64 / (2 * OPERATIONS_MAX) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reviews() -> Vec<Document> {
        let review = |n: i32| {
            doc! {"_id": format!("B{n:09}"), "user": format!("user{:05}@example.org", n % 40),
            "address": {"zip": 60_000 + n}, "stars": n % 5}
        };
        (0..400).map(review).collect()
    }

    fn operation(kind: Kind, bounds: Vec<(&str, Bound)>) -> Operation {
        let bounds = bounds.into_iter().map(|(path, bound)| (path.to_owned(), bound)).collect();
        Operation {
            kind,
            bounds,
            sets: Vec::new(),
            documents: 3,
            transaction: None,
            ignored: Vec::new(),
            is_upsert: false,
            is_unknown: false,
            is_unseen_insert: false,
        }
    }

    fn hidden(value: &Bson, below: u32) -> Datum {
        Datum::Hidden { hash: hash_of(&id_of(value).unwrap()), below }
    }

    #[test]
    fn commands_have_the_conditions_that_choose_shards() {
        let documents = reviews();
        let mut known = Known::new(&documents);
        let user = Bson::from("user00007@example.org");
        let plain = |value: &Bson| Datum::Plain(id_of(value).unwrap());
        let read = operation(Kind::Read, vec![("user", Bound::Equal(hidden(&user, 0)))]);
        let found = known.command("reviews", &read, 5).unwrap();
        assert_eq!(found.get_document("filter").unwrap(), &doc! {"user": {"$eq": user.clone()}});
        assert_eq!(found.get_i64("limit").unwrap(), 3);
        // A value that is not in the sample is the one at its position.
        let zip = hidden(&Bson::Int32(99_999), 1 << 31);
        let range = Bound::Between(Some(zip), Some(plain(&Bson::Int32(70_000))));
        let many = operation(Kind::WriteMany, vec![("address.zip", range)]);
        let update = known.command("reviews", &many, 6).unwrap();
        let statement = update.get_array("updates").unwrap()[0].as_document().unwrap();
        let between = doc! {"address.zip": {"$gte": 60_200, "$lte": 70_000}};
        assert_eq!(statement.get_document("q").unwrap(), &between);
        assert!(statement.get_bool("multi").unwrap());
        // It would write all documents.
        let all = operation(Kind::WriteMany, vec![]);
        assert_eq!(known.command("reviews", &all, 7), None);
        let unknown = operation(Kind::WriteMany, vec![("gone", Bound::Equal(hidden(&user, 0)))]);
        assert_eq!(known.command("reviews", &unknown, 8), None);
    }

    #[test]
    fn inserted_documents_have_what_was_seen_and_a_new_id() {
        let documents = reviews();
        let mut known = Known::new(&documents);
        let user = Bson::from("user00031@example.org");
        let id = Bson::from("B000000077");
        let insert = operation(
            Kind::Insert,
            vec![("user", Bound::Equal(hidden(&user, 0))), ("_id", Bound::Equal(hidden(&id, 0)))],
        );
        let mut ids = std::collections::HashSet::new();
        for number in 0..3 {
            let command = known.command("reviews", &insert, number).unwrap();
            let document = command.get_array("documents").unwrap()[0].as_document().unwrap();
            assert_eq!(document.get("user"), Some(&user));
            assert!(document.get_str("_id").unwrap().starts_with("B000000077~"), "{document}");
            assert!(document.get_document("address").is_ok(), "{document}");
            assert!(ids.insert(document.get_str("_id").unwrap().to_owned()));
        }
        let number = 1_712_345_678_901_234_567_i64;
        assert_eq!(new_id(&number.into(), 4), Bson::from(number + 5));
        let uuid =
            Bson::Binary(Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![7; 16] });
        assert_ne!(new_id(&uuid, 0), new_id(&uuid, 0));
    }
}
