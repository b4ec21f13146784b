//! An update that gives its document a shard key of another shard.
//!
//! The owning shard rejects such an update and returns the document before and after it (`WouldChangeOwningShard`).
//! The document is then deleted there and inserted on its new owner in one transaction: the client's own, or one
//! under the client's session and transaction number, so that a repetition of the write is recognised and rejected.

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};

use super::answer::{Answer, Failure, code};
use super::backend::Documents;
use super::caller::Caller;
use super::core::Namespace;
use super::endpoint::Endpoint;
use super::transactions::Transaction;

/// A write that its shard rejected because the document would belong to another shard.
pub(super) struct Change<'a> {
    pub(super) caller: &'a Caller,
    pub(super) namespace: &'a Namespace,
    /// The shard that rejected the write, with the versions that were sent to it.
    pub(super) endpoint: &'a Endpoint,
    /// The rejected command without its documents.
    pub(super) body: &'a Document,
    pub(super) documents: Documents<'a>,
}

/// Outcome of an update that moved its document to another shard.
#[derive(Debug)]
pub(super) struct Moved {
    /// The document before the update; `None` for an upsert.
    pub(super) before: Option<Document>,
    /// The document after the update.
    pub(super) after: Document,
    /// The document's `_id` if the document was inserted by an upsert; else `None`.
    pub(super) upserted: Option<Bson>,
    /// Reply to the insert or to the commit, for its operation and cluster time.
    pub(super) times: Answer,
}

impl Change<'_> {
    /// Deletes the document on its old shard and inserts it on the new one, within `transaction` or, if that is
    /// `None`, within a transaction of its own. `failure` is the rejection with both images of the document.
    pub(super) async fn run(
        &self,
        transaction: Option<&Transaction>,
        failure: Failure,
    ) -> Result<Moved, Failure> {
        if let Some(transaction) = transaction {
            return self.replace(transaction, &failure).await;
        }
        if !self.body.contains_key("txnNumber") {
            return Err(Failure::new(
                code::ILLEGAL_OPERATION,
                "Must run update to shard key field in a multi-statement transaction or with \
                 retryWrites: true.",
            ));
        }
        let mut staleness = self.caller.staleness(self.namespace);
        loop {
            let transaction = self.caller.implicit_transaction(self.body)?;
            let moved = self.in_own_transaction(&transaction).await;
            let Err(failure) = moved else { return moved };
            self.caller.give_up(&transaction).await;
            // The new owner may not know the collection yet. Nothing was committed, and shards may begin again
            // under the same number.
            if !staleness.again(&failure) {
                return Err(failure);
            }
            staleness.pause().await;
        }
    }

    async fn in_own_transaction(&self, transaction: &Transaction) -> Result<Moved, Failure> {
        // The command is repeated within the transaction: the document may have changed since the rejection.
        let again = self.caller.at(
            self.endpoint,
            self.body.clone(),
            self.documents,
            super::core::Repeat::Never,
            Some(transaction),
        );
        let moved = match again.await {
            Err(failure) if failure.code() == code::WOULD_CHANGE_OWNING_SHARD => {
                self.replace(transaction, &failure).await?
            }
            Err(failure) => return Err(failure),
            Ok(_) => {
                return Err(Failure::new(
                    112,
                    "the document changed while it was moved to another shard",
                ));
            }
        };
        let times = self.caller.commit_known(transaction, self.body).await?;
        Ok(Moved { times, ..moved })
    }

    async fn replace(
        &self,
        transaction: &Transaction,
        failure: &Failure,
    ) -> Result<Moved, Failure> {
        let image = |name: &str| failure.body().get_document(name).ok().cloned();
        let after =
            image("postImage").ok_or_else(|| Failure::malformed("refusal without image"))?;
        let upsert = failure.body().get_bool("shouldUpsert").unwrap_or(false);
        let before = image("preImage").filter(|_| !upsert);
        if let Some(before) = &before {
            self.delete(transaction, before).await?;
        }
        let times = self.insert(transaction, &after).await?;
        let upserted = upsert.then(|| after.get("_id").cloned().unwrap_or(Bson::Null));
        Ok(Moved { before, after, upserted, times })
    }

    async fn delete(&self, transaction: &Transaction, before: &Document) -> Result<(), Failure> {
        // The snapshot pins the state of the document; its `_id` is sufficient on its own shard.
        let id = before.get("_id").cloned().unwrap_or(Bson::Null);
        let delete = raw(&doc! { "q": { "_id": { "$eq": id } }, "limit": 1 })?;
        let body = doc! { "delete": &self.namespace.collection, "$db": &self.namespace.database };
        let documents = Some(("deletes", &[&*delete][..]));
        let never = super::core::Repeat::Never;
        let deleted =
            self.caller.at(self.endpoint, body, documents, never, Some(transaction)).await?;
        if deleted.number("n") != Some(1) {
            return Err(Failure::new(112, "the document vanished while it was moved")
                .labelled("TransientTransactionError"));
        }
        Ok(())
    }

    async fn insert(&self, transaction: &Transaction, after: &Document) -> Result<Answer, Failure> {
        let document = raw(after)?;
        let placement = self.caller.core.placement(self.namespace, false).await?;
        let endpoint = self.caller.target_document(self.namespace, &placement, &document).await?;
        let body = doc! { "insert": &self.namespace.collection, "$db": &self.namespace.database };
        let documents = Some(("documents", &[&*document][..]));
        let never = super::core::Repeat::Never;
        let inserted = self.caller.at(&endpoint, body, documents, never, Some(transaction)).await?;
        let answer = inserted.document()?;
        let error = answer.get_array("writeErrors").ok().and_then(|errors| errors.first());
        if let Some(error) = error.and_then(Bson::as_document) {
            let code = super::answer::integer(error, "code").unwrap_or(8);
            let code = i32::try_from(code).unwrap_or(8);
            let message = error.get_str("errmsg").unwrap_or("insert refused");
            return Err(Failure::new(code, message));
        }
        Ok(inserted)
    }
}

fn raw(document: &Document) -> Result<RawDocumentBuf, Failure> {
    RawDocumentBuf::try_from(document).map_err(Failure::malformed)
}
