//! Multi-document transactions over shards.
//!
//! The servers' routed commands do not take part in a client's transaction, so the router is the transaction router
//! itself, by the servers' protocol. Each shard joins with its first statement (`startTransaction`), and the first
//! to join coordinates. A transaction that wrote on more than one shard is committed by that coordinator in two
//! phases (`coordinateCommitTransaction`), which survives the router. A statement that fails ends the transaction
//! on all shards.

use std::sync::{Arc, Mutex};

use bson::{Bson, Document, doc};
use futures_util::future::join_all;

use super::answer::{Answer, Failure, code, integer};
use super::backend::Documents;
use super::caller::Caller;
use super::core::Repeat;
use super::transactions::Transaction;

impl Caller {
    /// Returns the transaction to which the command `body` belongs, and begins it if the command states
    /// `startTransaction`; `None` if the command is outside of a transaction.
    pub(super) fn transaction_of(
        &self,
        body: &Document,
    ) -> Result<Option<Arc<Transaction>>, Failure> {
        if body.get_bool("autocommit").unwrap_or(true) {
            return Ok(None);
        }
        let (session, key, number) = self.identity(body)?;
        if !body.get_bool("startTransaction").unwrap_or(false) {
            let known = self.core.transactions.get(&key, number);
            let known = known.filter(|transaction| !transaction.with(|state| state.ended));
            return known.map(Some).ok_or_else(|| {
                let message = format!(
                    "Given transaction number {number} does not match any in-progress transaction"
                );
                Failure::new(code::NO_SUCH_TRANSACTION, message)
                    .labelled("TransientTransactionError")
            });
        }
        let read_concern = body.get_document("readConcern").ok().map(|c| self.pin_snapshot(c));
        let transaction =
            Arc::new(Transaction { session, number, read_concern, state: Mutex::default() });
        self.core.transactions.put(key, Arc::clone(&transaction));
        Ok(Some(transaction))
    }

    /// Begins a transaction under the session and transaction number of `body`, for a write that turns out to need
    /// one.
    pub(super) fn implicit_transaction(
        &self,
        body: &Document,
    ) -> Result<Arc<Transaction>, Failure> {
        let (session, key, number) = self.identity(body)?;
        let state = Mutex::default();
        let transaction = Arc::new(Transaction { session, number, read_concern: None, state });
        self.core.transactions.put(key, Arc::clone(&transaction));
        Ok(transaction)
    }

    /// Returns the session of `body`, the session's key among the sessions of all users, and the transaction's
    /// number.
    fn identity(&self, body: &Document) -> Result<(Document, Vec<u8>, i64), Failure> {
        let session = body.get_document("lsid").cloned().map_err(|_| {
            Failure::new(code::INVALID_OPTIONS, "a transaction needs a session (lsid)")
        })?;
        let number = integer(body, "txnNumber").ok_or_else(|| {
            Failure::new(code::INVALID_OPTIONS, "a transaction needs a txnNumber")
        })?;
        let mut key = session.to_vec().map_err(Failure::malformed)?;
        key.extend_from_slice(self.user_name().unwrap_or_default().as_bytes());
        Ok((session, key, number))
    }

    /// Adds a read time (`atClusterTime`) to a snapshot read concern that has none, so that all participants read at
    /// the same time.
    fn pin_snapshot(&self, concern: &Document) -> Document {
        let mut concern = concern.clone();
        let snapshot = concern.get_str("level").is_ok_and(|level| level == "snapshot");
        if snapshot && !concern.contains_key("atClusterTime") {
            let after = concern.remove("afterClusterTime").and_then(|time| match time {
                Bson::Timestamp(time) => Some(time),
                _ => None,
            });
            let now = self.core.clock.now().map(|(time, _)| time);
            if let Some(at) = after.max(now) {
                concern.insert("atClusterTime", at);
            }
        }
        concern
    }

    /// Runs one statement of `transaction` on the shard `shard`, which joins the transaction if it has not joined
    /// yet.
    pub(super) async fn in_transaction(
        &self,
        transaction: &Transaction,
        shard: &str,
        mut body: Document,
        documents: Documents<'_>,
    ) -> Result<Answer, Failure> {
        transaction.enlist(shard, &mut body);
        let set = self.core.shard(shard).await?;
        // A primary that is gone took the transaction with it, so a repetition is useless.
        let run =
            self.core.on_primary(self.user.as_ref(), &set, body, documents, Repeat::Never).await;
        let answer = run.map_err(|failure| {
            if code::is_retryable(failure.code()) || code::is_stale(failure.code()) {
                failure.labelled("TransientTransactionError")
            } else {
                failure
            }
        })?;
        if answer.raw().get_bool("readOnly").is_ok_and(|read_only| !read_only) {
            transaction.note_written(shard);
        }
        Ok(answer)
    }

    /// Aborts `transaction` on every participating shard, and removes its participants. Errors are ignored.
    pub(super) async fn give_up(&self, transaction: &Transaction) {
        let participants = transaction.take_participants();
        let mut aborts = Vec::new();
        for participant in &participants {
            aborts.push(self.abort_on(transaction, &participant.shard));
        }
        // A shard that does not receive the abort times the transaction out by itself, and often a shard has
        // aborted it already: an error here is of no interest to the client.
        join_all(aborts).await;
    }

    async fn abort_on(&self, transaction: &Transaction, shard: &str) -> Result<Answer, Failure> {
        let shard = self.core.shard(shard).await?;
        let mut abort = doc! { "abortTransaction": 1, "$db": "admin" };
        transaction.fields(&mut abort);
        self.core.on_primary(self.user.as_ref(), &shard, abort, None, Repeat::Safe).await
    }

    /// Commits the client's transaction that `body` names, or finds out the outcome if it is unknown here.
    pub(super) async fn commit(&self, body: &Document) -> Result<Answer, Failure> {
        let (session, key, number) = self.identity(body)?;
        let Some(transaction) = self.core.transactions.get(&key, number) else {
            return self.recover(session, number, body).await;
        };
        if transaction.with(|state| state.ended && !state.committing) {
            let message = format!("Transaction {number} has been aborted.");
            return Err(Failure::new(code::NO_SUCH_TRANSACTION, message)
                .labelled("TransientTransactionError"));
        }
        transaction.with(|state| {
            state.ended = true;
            state.committing = true;
        });
        self.commit_known(&transaction, body).await
    }

    pub(super) async fn commit_known(
        &self,
        transaction: &Transaction,
        body: &Document,
    ) -> Result<Answer, Failure> {
        let participants = transaction.with(|state| state.participants.clone());
        let writers: Vec<_> = participants.iter().filter(|known| known.wrote).collect();
        let commit = |name: &str| {
            let mut commit = doc! { name: 1, "$db": "admin" };
            for option in ["writeConcern", "maxTimeMS", "comment"] {
                if let Some(value) = body.get(option) {
                    commit.insert(option, value.clone());
                }
            }
            transaction.fields(&mut commit);
            commit
        };
        if participants.is_empty() {
            return Answer::try_from(doc! { "ok": 1.0 });
        }
        if writers.len() > 1 {
            let listed = participants.iter().map(|known| doc! { "shardId": &known.shard });
            let mut coordinate = commit("coordinateCommitTransaction");
            coordinate.insert("participants", listed.collect::<Vec<_>>());
            return self.commit_on(&participants[0].shard, coordinate).await;
        }
        // Readers first: once the only writer has committed, nothing can fail any more.
        let mut last = None;
        let readers = participants.iter().filter(|known| !known.wrote);
        for participant in readers.chain(writers) {
            last = Some(self.commit_on(&participant.shard, commit("commitTransaction")).await?);
        }
        last.ok_or_else(|| Failure::malformed("transaction without participants"))
    }

    async fn commit_on(&self, shard: &str, commit: Document) -> Result<Answer, Failure> {
        let shard = self.core.shard(shard).await?;
        // The reply to a repeated commit of the same transaction is the outcome of the first one.
        self.core.on_primary(self.user.as_ref(), &shard, commit, None, Repeat::Safe).await
    }

    /// Determines the outcome of a transaction that this router does not know, by the recovery token in the driver's
    /// command.
    async fn recover(
        &self,
        session: Document,
        number: i64,
        body: &Document,
    ) -> Result<Answer, Failure> {
        let token = body.get_document("recoveryToken").ok();
        let shard = token.and_then(|token| token.get_str("recoveryShardId").ok());
        let shard = shard.ok_or_else(|| {
            let message =
                format!("transaction {number} is not known here, and has no recovery token");
            Failure::new(code::NO_SUCH_TRANSACTION, message)
        })?;
        let mut coordinate = doc! {
            "coordinateCommitTransaction": 1, "participants": [], "$db": "admin",
            "lsid": session, "txnNumber": number, "autocommit": false,
        };
        if let Some(concern) = body.get("writeConcern") {
            coordinate.insert("writeConcern", concern.clone());
        }
        self.commit_on(shard, coordinate).await
    }

    /// Aborts the client's transaction that `body` names.
    pub(super) async fn abort(&self, body: &Document) -> Result<Answer, Failure> {
        let (_, key, number) = self.identity(body)?;
        let known = self.core.transactions.get(&key, number);
        let transaction = known.ok_or_else(|| {
            let message = format!("no transaction {number} is in progress on this session");
            Failure::new(code::NO_SUCH_TRANSACTION, message)
        })?;
        if transaction.with(|state| state.ended) {
            let message = format!("transaction {number} has ended already");
            return Err(Failure::new(code::NO_SUCH_TRANSACTION, message));
        }
        self.give_up(&transaction).await;
        transaction.with(|state| state.ended = true);
        Answer::try_from(doc! { "ok": 1.0 })
    }
}
