//! Reads within a transaction.
//!
//! The servers' routed reads do not take part in a client's transaction, so the router queries the owning shards
//! itself. A find over several shards is merged here, up to [`MERGED_BYTES_MAX`] bytes of replies. Of the pipelines
//! over several shards only those are supported that are equivalent to a find or a count; others are rejected with an
//! error that names the stage.

use std::cmp::Ordering;
use std::collections::VecDeque;

use bson::{Bson, Document, RawDocumentBuf, doc};

use super::answer::cursor_answer;
use super::answer::{Answer, Failure, code, integer};
use super::caller::Caller;
use super::caller::copy;
use super::catalog::Placement;
use super::core::{Namespace, Repeat};
use super::cursors::take_batch;
use super::endpoint::Endpoint;
use super::order;
use super::transactions::Transaction;

const MERGED_BYTES_MAX: usize = 64 * 1024 * 1024;
const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024 - 64 * 1024;
const FIRST_BATCH: usize = 101;
/// Name of the field in which shards return the sort key of each document of a sorted find.
const SORT_KEY: &str = "__routerSortKey";

impl Caller {
    /// Runs the find or aggregate command `body` within `transaction`, on all shards that may have matches.
    pub(super) async fn read_in(
        &self,
        transaction: &Transaction,
        body: Document,
    ) -> Result<Answer, Failure> {
        let namespace = Namespace::of(&body)?;
        let placement = match self.core.placement(&namespace, false).await {
            Err(failure) if failure.code() == code::NAMESPACE_NOT_FOUND => {
                return cursor_answer(0, &namespace.to_string(), "firstBatch", &[]);
            }
            placement => placement?,
        };
        let is_find = body.contains_key("find");
        let filter = if is_find {
            body.get_document("filter").cloned().unwrap_or_default()
        } else {
            leading_match(&body)
        };
        let collation = body.get_document("collation").ok();
        let endpoints = self.target_query(&namespace, &placement, &filter, collation).await?;
        if let [endpoint] = &*endpoints {
            return self.read_at(transaction, endpoint, body).await;
        }
        if is_find {
            return self.find_merged(transaction, &namespace, &endpoints, &body).await;
        }
        self.aggregate_merged(transaction, &namespace, &endpoints, &body).await
    }

    /// Runs the read `body` on the shard of `endpoint`, whose own cursor continues the read.
    pub(super) async fn read_at(
        &self,
        transaction: &Transaction,
        endpoint: &Endpoint,
        body: Document,
    ) -> Result<Answer, Failure> {
        let run = self.at(endpoint, body, None, Repeat::Never, Some(transaction));
        let answer = run.await?;
        let shard = self.core.shard(&endpoint.shard).await?;
        let address = shard.primary(&self.core.pool).await?;
        self.remember(&answer, &address, "getMore");
        Ok(answer)
    }

    async fn find_merged(
        &self,
        transaction: &Transaction,
        namespace: &Namespace,
        endpoints: &[Endpoint],
        body: &Document,
    ) -> Result<Answer, Failure> {
        let count = |key: &str| {
            integer(body, key).and_then(|count| usize::try_from(count.saturating_abs()).ok())
        };
        let skip = count("skip").unwrap_or(0);
        let limit = count("limit").filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let sort = body.get_document("sort").ok().filter(|sort| !sort.is_empty());
        let mut part = body.clone();
        for field in ["skip", "limit", "batchSize", "singleBatch"] {
            part.remove(field);
        }
        if let Ok(enough) = i64::try_from(skip.saturating_add(limit)) {
            part.insert("limit", enough);
        }
        if sort.is_some() {
            let mut projection = body.get_document("projection").cloned().unwrap_or_default();
            projection.insert(SORT_KEY, doc! { "$meta": "sortKey" });
            part.insert("projection", projection);
        }
        let mut merged = self.read_all(transaction, namespace, endpoints, &part).await?;
        if let Some(sort) = sort {
            merged = sorted(merged, sort)?;
        }
        let mut rest: VecDeque<_> = merged.into_iter().skip(skip).take(limit).collect();
        let first =
            take_batch(&mut rest, count("batchSize").unwrap_or(FIRST_BATCH), BATCH_BYTES_MAX);
        let single = body.get_bool("singleBatch").unwrap_or(false);
        let id = if rest.is_empty() || single {
            0
        } else {
            self.core.cursors.open_buffered(self.user_name(), rest)?
        };
        cursor_answer(id, &namespace.to_string(), "firstBatch", &first)
    }

    /// Reads all documents that `body` finds on the shards of `endpoints`, one shard after the other.
    async fn read_all(
        &self,
        transaction: &Transaction,
        namespace: &Namespace,
        endpoints: &[Endpoint],
        body: &Document,
    ) -> Result<Vec<RawDocumentBuf>, Failure> {
        let mut documents = Vec::new();
        let mut bytes = 0;
        for endpoint in endpoints {
            let run = self.at(endpoint, body.clone(), None, Repeat::Never, Some(transaction));
            let mut answer = run.await?;
            loop {
                bytes += answer.raw().as_bytes().len();
                if bytes > MERGED_BYTES_MAX {
                    let message = format!(
                        "a read of several shards in a transaction exceeds {MERGED_BYTES_MAX} bytes"
                    );
                    return Err(Failure::new(146, message));
                }
                let cursor = answer.raw().get_document("cursor").map_err(Failure::malformed)?;
                for name in ["firstBatch", "nextBatch"] {
                    let Ok(batch) = cursor.get_array(name) else { continue };
                    for document in batch.into_iter().flatten() {
                        documents.extend(document.as_document().map(ToOwned::to_owned));
                    }
                }
                let id = super::answer::number(cursor, "id").unwrap_or(0);
                if id == 0 {
                    break;
                }
                let more = doc! {
                    "getMore": id, "collection": &namespace.collection,
                    "$db": &namespace.database,
                };
                answer = self.in_transaction(transaction, &endpoint.shard, more, None).await?;
            }
        }
        Ok(documents)
    }

    async fn aggregate_merged(
        &self,
        transaction: &Transaction,
        namespace: &Namespace,
        endpoints: &[Endpoint],
        body: &Document,
    ) -> Result<Answer, Failure> {
        let stages: Vec<&Document> = body
            .get_array("pipeline")
            .into_iter()
            .flatten()
            .filter_map(Bson::as_document)
            .collect();
        let matches = stages.iter().take_while(|stage| stage.contains_key("$match")).count();
        let mut part = doc! { "aggregate": &namespace.collection, "cursor": {} };
        copy(body, &mut part, &["collation", "hint", "comment", "let", "maxTimeMS", "$db"]);
        let counts = matches + 1 == stages.len() && is_count(stages[matches]);
        if matches != stages.len() && !counts {
            let stage = stages[matches].keys().next().map_or("", String::as_str);
            let message = format!(
                "the testbed's router cannot run an aggregation with {stage} over several shards \
                 in a transaction"
            );
            return Err(Failure::new(code::NOT_IN_TRANSACTION, message));
        }
        copy(body, &mut part, &["pipeline"]);
        let documents = self.read_all(transaction, namespace, endpoints, &part).await?;
        if !counts {
            let mut rest: VecDeque<_> = documents.into();
            let first = take_batch(&mut rest, FIRST_BATCH, BATCH_BYTES_MAX);
            let id = if rest.is_empty() {
                0
            } else {
                self.core.cursors.open_buffered(self.user_name(), rest)?
            };
            return cursor_answer(id, &namespace.to_string(), "firstBatch", &first);
        }
        let n: i64 = documents.iter().filter_map(|part| super::answer::number(part, "n")).sum();
        let id = documents.first().and_then(|part| part.get("_id").ok().flatten());
        let id = id.and_then(|id| Bson::try_from(id).ok());
        let total = id.map(|id| doc! { "_id": id, "n": n });
        let batch: Result<Vec<_>, _> = total.iter().map(RawDocumentBuf::try_from).collect();
        let batch = batch.map_err(Failure::malformed)?;
        cursor_answer(0, &namespace.to_string(), "firstBatch", &batch)
    }

    /// Runs `distinct` within `transaction`: only for an unsharded collection, as with a `mongos`.
    pub(super) async fn distinct_in(
        &self,
        transaction: &Transaction,
        body: Document,
    ) -> Result<Answer, Failure> {
        let namespace = Namespace::of(&body)?;
        match self.core.placement(&namespace, false).await? {
            Placement::Unsharded { shard, database_version } => {
                let endpoint = Endpoint::unsharded(&shard, &database_version);
                self.read_at(transaction, &endpoint, body).await
            }
            Placement::Sharded(_) => Err(Failure::new(
                code::NOT_IN_TRANSACTION,
                "Cannot run 'distinct' on a sharded collection in a multi-document transaction. \
                 Please see http://dochub.mongodb.org/core/transaction-distinct for a recommended \
                 alternative.",
            )),
        }
    }
}

/// Returns the condition of a `$match` with which the pipeline of `body` begins; an empty document if it begins with
/// another stage.
fn leading_match(body: &Document) -> Document {
    let stages = body.get_array("pipeline").into_iter().flatten().filter_map(Bson::as_document);
    let first = stages.into_iter().next().and_then(|stage| stage.get_document("$match").ok());
    first.cloned().unwrap_or_default()
}

/// Returns true if `stage` is the `$group` to which drivers translate `count_documents`.
fn is_count(stage: &Document) -> bool {
    let Ok(group) = stage.get_document("$group") else { return false };
    let counts = group.get_document("n").is_ok_and(|n| integer(n, "$sum") == Some(1));
    let constant = matches!(group.get("_id"), Some(Bson::Null | Bson::Int32(_) | Bson::Int64(_)));
    group.len() == 2 && counts && constant
}

/// Sorts the documents of several shards by the sort keys that the shards added, and removes these keys.
fn sorted(documents: Vec<RawDocumentBuf>, sort: &Document) -> Result<Vec<RawDocumentBuf>, Failure> {
    let descending: Vec<bool> =
        sort.keys().map(|key| integer(sort, key).is_some_and(|way| way < 0)).collect();
    let mut keyed = Vec::with_capacity(documents.len());
    for document in &documents {
        let key = document.get_array(SORT_KEY).map_err(Failure::malformed)?;
        let key: Result<Vec<Bson>, _> =
            key.into_iter().map(|value| Bson::try_from(value?)).collect();
        let plain = super::message::without(document, |name| name.as_str() == SORT_KEY);
        keyed.push((key.map_err(Failure::malformed)?, plain));
    }
    let mut undecided = false;
    keyed.sort_by(|(left, _), (right, _)| {
        for ((left, right), descending) in left.iter().zip(right).zip(&descending) {
            let order = order::compare(left, right).unwrap_or_else(|| {
                undecided = true;
                Ordering::Equal
            });
            if order != Ordering::Equal {
                return if *descending { order.reverse() } else { order };
            }
        }
        Ordering::Equal
    });
    if undecided {
        let message = "the testbed's router cannot merge sorted values of these types (decimals, \
                       arrays, code) in a transaction";
        return Err(Failure::new(code::NOT_IN_TRANSACTION, message));
    }
    Ok(keyed.into_iter().map(|(_, document)| document).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn documents_are_merged_by_the_shards_sort_keys() {
        let documents = [(1, 2), (2, 1), (1, 3)].map(|(a, b)| {
            rawdoc! { "a": a, "b": b, "__routerSortKey": [a, b] }
        });
        let merged = sorted(documents.into(), &doc! { "a": 1, "b": -1 }).unwrap();
        let expected = [(1, 3), (1, 2), (2, 1)].map(|(a, b)| rawdoc! { "a": a, "b": b });
        assert_eq!(merged, expected);
    }

    #[test]
    fn the_count_of_drivers_is_recognised() {
        assert!(is_count(&doc! { "$group": { "_id": 1, "n": { "$sum": 1 } } }));
        assert!(!is_count(&doc! { "$group": { "_id": "$a", "n": { "$sum": 1 } } }));
        assert!(!is_count(&doc! { "$group": { "_id": 1, "n": { "$sum": "$a" } } }));
    }
}
