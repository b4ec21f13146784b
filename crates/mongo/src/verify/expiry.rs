//! Documents that are due for deletion by a TTL index. Servers delete them within about a minute, each by its own
//! clock.
//!
//! After a cut-over, or between any two clusters, one side may have deleted such a document while the other has not
//! yet. That is not a difference, and copying the document again would restore an expired one. The server that still
//! has the document decides whether it is due, since only that server compares dates, arrays of dates and partial
//! filters as its TTL monitor does.
//!
//! Invariant: a document that is due more than [`CLOCKS_APART_MS`] in the future, by the clock of the server that has
//! it, is never treated as expired.

use std::collections::HashSet;

use bson::{Bson, DateTime, Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use imago_job::control::Control;
use mongodb::options::ReadConcern;

use super::Difference;
use super::read_retry::retry_transient;
use super::recheck::Confirmed;
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::server::collection::{Definition, Handle};
use crate::server::endpoint::{answer, primary};
use crate::server::retention::{expires_after_s, integer};

/// Largest difference between the clocks of two clusters that is allowed for, in milliseconds.
const CLOCKS_APART_MS: i64 = 10_000;
/// Maximum number of `_id`s in one query.
const IDS_MAX: usize = 500;

/// The expiry rules of one collection at both sides; `source` are those of the source.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    source: Vec<Rule>,
    /// The rules of the source and the further rules of the destination.
    either: Vec<Rule>,
}

/// An expiry rule of a collection: a TTL index, or the expiry time of a clustered collection. Documents expire
/// `after_s` seconds after the date in `field`; `partial` is the filter of a partial index.
#[derive(Clone, Debug, PartialEq)]
struct Rule {
    field: String,
    after_s: i64,
    partial: Option<Document>,
}

impl Expiry {
    pub(super) fn of(left: &Definition, right: &Definition) -> Self {
        let source = Rule::all_of(left);
        let mut either = source.clone();
        either.extend(Rule::all_of(right).into_iter().filter(|rule| !source.contains(rule)));
        Self { source, either }
    }

    /// Returns `found` without the documents that only one side still has and that are due for deletion there. A
    /// document that only the destination lacks must be due by a rule of the source.
    pub(super) async fn unexpired(
        &self,
        source: &Handle,
        destination: &Handle,
        mut found: Vec<Confirmed>,
        control: &Control,
    ) -> Result<Vec<Confirmed>> {
        let sides = [
            (Difference::Missing, source, &self.source),
            (Difference::Extra, destination, &self.either),
        ];
        for (kind, at, rules) in sides {
            if rules.is_empty() {
                continue;
            }
            let ids: Vec<Id> =
                found.iter().filter(|of| of.kind == kind).map(|of| of.id.clone()).collect();
            let mut passed = HashSet::new();
            for ids in ids.chunks(IDS_MAX) {
                let ask = || expired(at, ids, rules);
                passed.extend(retry_transient("ask for expired documents", control, ask).await?);
            }
            found.retain(|of| of.kind != kind || !passed.contains(&of.id));
        }
        Ok(found)
    }
}

/// Returns those of `ids` whose documents in the collection `at` are due for deletion by one of `rules`.
async fn expired(at: &Handle, ids: &[Id], rules: &[Rule]) -> Result<Vec<Id>> {
    let hello = at.endpoint.run("admin", doc! {"hello": 1}).await?;
    let now = hello.get_datetime("localTime").map_err(|e| Error::malformed("hello", e))?;
    let ids = ids.iter().map(|id| Bson::try_from(id.as_raw())).collect::<Result<Vec<_>, _>>();
    let ids = ids.map_err(|e| Error::malformed("an _id", e))?;
    let passed: Vec<Document> = rules.iter().map(|rule| rule.filter(*now)).collect();
    let filter = doc! {"_id": {"$in": ids}, "$or": passed};
    let doing = format!("find of expired documents on {}", at.ns);
    let found = at.endpoint.client().database(&at.ns.db).collection::<RawDocumentBuf>(&at.ns.coll);
    let found = found
        .find(filter)
        .projection(doc! {"_id": 1})
        .selection_criteria(primary())
        .read_concern(ReadConcern::majority());
    let read = async { found.await?.try_collect::<Vec<RawDocumentBuf>>().await };
    let found = answer(&doing, read).await?.map_err(|error| Error::server(&*doing, error))?;
    let id = |of: &RawDocumentBuf| Id::of_document(of).map_err(|e| Error::malformed(&*doing, e));
    found.iter().map(id).collect()
}

impl Rule {
    fn all_of(definition: &Definition) -> Vec<Self> {
        let clustered = definition.options.get("expireAfterSeconds").and_then(integer);
        let of_ids = clustered.map(|after_s| Self { field: "_id".into(), after_s, partial: None });
        definition.indexes.iter().filter_map(Self::of_index).chain(of_ids).collect()
    }

    fn of_index(index: &Document) -> Option<Self> {
        let after_s = expires_after_s(index)?;
        let field = index.get_document("key").ok()?.keys().next()?.clone();
        let partial = index.get_document("partialFilterExpression").ok().cloned();
        Some(Self { field, after_s, partial })
    }

    /// Returns a filter for documents that are due for deletion by this rule at the time `now`, or will be within
    /// [`CLOCKS_APART_MS`]. In an array of dates the earliest counts.
    fn filter(&self, now: DateTime) -> Document {
        let ms = now.timestamp_millis() - self.after_s * 1_000 + CLOCKS_APART_MS;
        let passed = doc! {&self.field: {"$lte": DateTime::from_millis(ms)}};
        match &self.partial {
            None => passed,
            Some(partial) => doc! {"$and": [passed, partial.clone()]},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::collection::Kind;

    #[test]
    fn each_rule_in_force_counts_once() {
        let of = |indexes: Vec<Document>| Definition {
            kind: Kind::Collection,
            options: doc! {},
            indexes,
            building: Vec::new(),
            shard_key: None,
        };
        let ttl = |after_s: i32| {
            doc! {
                "key": {"session.seenAt": 1}, "name": "seen", "expireAfterSeconds": after_s,
                "partialFilterExpression": {"kept": false},
            }
        };
        let plain = doc! {"key": {"user": 1}, "name": "user_1"};
        let source = of(vec![plain, ttl(3_600)]);
        assert_eq!(Expiry::of(&source, &source).either.len(), 1);
        let suspended = Expiry::of(&source, &of(vec![ttl(i32::MAX)]));
        assert_eq!(suspended.either.len(), 1);
        let shorter = Expiry::of(&source, &of(vec![ttl(60)]));
        assert_eq!((shorter.source.len(), shorter.either.len()), (1, 2), "it loses documents");
        let rule = &Expiry::of(&source, &source).source[0];
        let until = DateTime::from_millis(1_764_000_000_000 - 3_590_000);
        assert_eq!(
            rule.filter(DateTime::from_millis(1_764_000_000_000)),
            doc! {"$and": [{"session.seenAt": {"$lte": until}}, {"kept": false}]}
        );
    }
}
