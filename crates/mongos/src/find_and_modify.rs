//! findAndModify, executed on the one shard that the query's shard key determines.

use bson::{Bson, Document, doc};

use super::answer::{Answer, Failure, code};
use super::caller::Caller;
use super::catalog::Placement;
use super::core::{Namespace, Repeat};
use super::endpoint::Endpoint;
use super::owner_change::{Change, Moved};
use super::targeting::Single;
use super::transactions::Transaction;

impl Caller {
    /// Executes a client's `findAndModify` on the shard that its query determines, and again while routing data is
    /// stale; within `transaction` if there is one.
    pub(super) async fn find_and_modify(
        &self,
        body: &Document,
        transaction: Option<&Transaction>,
    ) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        let repeat = if transaction.is_none() && body.contains_key("txnNumber") {
            Repeat::Safe
        } else {
            Repeat::Never
        };
        if namespace.is_on_config() {
            return self.on_config(body.clone(), repeat).await;
        }
        let mut staleness = self.staleness(&namespace);
        loop {
            let once = self.find_and_modify_once(&namespace, body, repeat, transaction);
            match once.await {
                Err(failure) if transaction.is_none() && staleness.again(&failure) => {
                    staleness.pause().await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn find_and_modify_once(
        &self,
        namespace: &Namespace,
        body: &Document,
        repeat: Repeat,
        transaction: Option<&Transaction>,
    ) -> Result<Answer, Failure> {
        let endpoint = match self.modified_at(namespace, body).await {
            Err(failure) if failure.code() == code::NAMESPACE_NOT_FOUND => {
                return Answer::try_from(doc! {
                    "lastErrorObject": { "n": 0, "updatedExisting": false },
                    "value": Bson::Null, "ok": 1.0,
                });
            }
            endpoint => endpoint?,
        };
        let mut command = body.clone();
        for field in ["$readPreference", "$clusterTime", "readConcern"] {
            command.remove(field);
        }
        match self.at(&endpoint, command, None, repeat, transaction).await {
            Err(failure) if failure.code() == code::WOULD_CHANGE_OWNING_SHARD => {
                let change =
                    Change { caller: self, namespace, endpoint: &endpoint, body, documents: None };
                let moved = change.run(transaction, failure).await?;
                self.moved_answer(body, moved).await
            }
            answer => answer,
        }
    }

    async fn modified_at(
        &self,
        namespace: &Namespace,
        body: &Document,
    ) -> Result<Endpoint, Failure> {
        let upsert = body.get_bool("upsert").unwrap_or(false);
        let collection = match self.core.placement(namespace, upsert).await? {
            Placement::Unsharded { shard, database_version } => {
                return Ok(Endpoint::unsharded(&shard, &database_version));
            }
            Placement::Sharded(collection) => collection,
        };
        let query = body.get_document("query").cloned().unwrap_or_default();
        let single = Single {
            query: &query,
            collation: body.get_document("collation").ok(),
            replacement: None,
            upsert,
            by_id: false,
        };
        let endpoints = self.target_single(namespace, &collection, single).await;
        let endpoints = endpoints.map_err(|failure| match failure.code() {
            code::INVALID_OPTIONS | code::SHARD_KEY_NOT_FOUND => Failure::new(
                code::SHARD_KEY_NOT_FOUND,
                "Query for sharded findAndModify must contain the shard key",
            ),
            _ => failure,
        })?;
        endpoints
            .into_iter()
            .next()
            .ok_or_else(|| Failure::malformed("a write that concerns no shard"))
    }

    /// Composes the reply to the `findAndModify` `body` whose document moved to another shard.
    async fn moved_answer(&self, body: &Document, moved: Moved) -> Result<Answer, Failure> {
        let new = body.get_bool("new").unwrap_or(false);
        let value = if new { Some(moved.after) } else { moved.before };
        let value = match (value, body.get_document("fields")) {
            (Some(value), Ok(fields)) if !fields.is_empty() => {
                Some(self.project(body, value, fields).await?)
            }
            (value, _) => value,
        };
        let mut outcome = doc! { "n": 1, "updatedExisting": moved.upserted.is_none() };
        if let Some(id) = moved.upserted {
            outcome.insert("upserted", id);
        }
        let answer = doc! {
            "lastErrorObject": outcome,
            "value": value.map_or(Bson::Null, Bson::Document),
            "ok": 1.0,
        };
        Ok(Answer::try_from(answer)?.not_before(&moved.times))
    }

    /// Returns the document `value` after the projection `fields`, computed by an aggregation on a shard.
    async fn project(
        &self,
        body: &Document,
        value: Document,
        fields: &Document,
    ) -> Result<Document, Failure> {
        let project = doc! {
            "aggregate": 1,
            "pipeline": [{ "$documents": [{ "$literal": value }] }, { "$project": fields }],
            "cursor": {},
            "$db": super::core::database_of(body),
        };
        let answer = self.on_shard(project).await?.document()?;
        let batch = answer.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        let batch = batch.map_err(Failure::malformed)?;
        let projected = batch.first().and_then(Bson::as_document).cloned();
        projected.ok_or_else(|| Failure::malformed("a projection without a result"))
    }
}
