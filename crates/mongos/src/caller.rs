//! One client of the router: its user, and the functions that send its commands to the servers.

use std::sync::Arc;
use std::time::Duration;

use bson::raw::RawDocument;
use bson::{Document, doc};
use tokio::time::sleep;

use super::answer::{Answer, Failure, code};
use super::backend::Documents;
use super::core::{Core, Namespace, Repeat, STALE_ROUNDS};
use super::endpoint::Endpoint;
use super::transactions::Transaction;
use crate::User;

/// One client connection of the router, as the code that runs its commands sees it.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) core: Arc<Core>,
    /// User as which the client has logged in; `None` if the client has not logged in.
    pub(super) user: Option<Arc<User>>,
    /// Number of the client's connection, which selects the shard that executes its routed (`cluster…`) commands.
    pub(super) connection_number: usize,
}

impl Caller {
    /// Returns the name of the client's user, which identifies the owner of cursors and transactions; `None` without
    /// login.
    pub(super) fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| &*user.name)
    }

    /// Runs a `cluster…` command through a shard's primary, and repeats it, each time through the next shard, while a
    /// shard reports stale routing data. `repeat` states when a command may be sent to the primary again.
    pub(super) async fn routed(
        &self,
        body: Document,
        documents: Documents<'_>,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        let mut round = 0;
        loop {
            // Each repetition uses another shard: the previous one may be lost.
            let route = self.core.route(self.connection_number + round as usize).await?;
            let user = self.user.as_ref();
            let run = self.core.on_primary(user, &route, body.clone(), documents, repeat).await;
            match run {
                Err(failure) if code::is_stale(failure.code()) && round < STALE_ROUNDS => {
                    round += 1;
                    pause(round).await;
                }
                outcome => return outcome.map(Answer::routed),
            }
        }
    }

    /// Runs `body` on the shard of `endpoint`, with the versions of `endpoint`; within `transaction` if there is one,
    /// else on the shard's primary.
    pub(super) async fn at(
        &self,
        endpoint: &Endpoint,
        mut body: Document,
        documents: Documents<'_>,
        repeat: Repeat,
        transaction: Option<&Transaction>,
    ) -> Result<Answer, Failure> {
        endpoint.stamp(&mut body);
        if let Some(transaction) = transaction {
            return self.in_transaction(transaction, &endpoint.shard, body, documents).await;
        }
        let shard = self.core.shard(&endpoint.shard).await?;
        self.core.on_primary(self.user.as_ref(), &shard, body, documents, repeat).await
    }

    /// Runs the command `body` on the config server as the client's user.
    pub(super) async fn on_config(
        &self,
        body: Document,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        self.core.on_config(self.user.as_ref(), body, repeat).await
    }

    /// Returns a counter of retries for one command on the collection `namespace` whose routing data may be stale.
    pub(super) fn staleness<'a>(&'a self, namespace: &'a Namespace) -> Staleness<'a> {
        Staleness { core: &self.core, namespace, round: 0 }
    }
}

/// Counts the retries of one command because its routing data was stale, at most [`STALE_ROUNDS`].
pub(super) struct Staleness<'a> {
    core: &'a Core,
    namespace: &'a Namespace,
    round: u32,
}

impl Staleness<'_> {
    /// Returns true if `failure` reports stale routing data and the command may be retried; the cached routing data
    /// is then discarded, so that the retry reads it anew.
    pub(super) fn again(&mut self, failure: &Failure) -> bool {
        let again = code::is_stale(failure.code()) && self.round < STALE_ROUNDS;
        if again {
            self.round += 1;
            self.core.forget(self.namespace, failure.code());
        }
        again
    }

    /// Sleeps before the next retry, longer with each retry, because a migration may be under way.
    pub(super) async fn pause(&self) {
        pause(self.round).await;
    }
}

impl Core {
    /// Discards the routing data that a shard rejected with the error `code`: that of the whole database of
    /// `namespace` if its version was stale, else that of the collection only.
    pub(super) fn forget(&self, namespace: &Namespace, code: i32) {
        if code == code::STALE_DB_VERSION {
            self.catalog.forget_database(&namespace.database);
        } else {
            self.catalog.forget(&namespace.to_string());
        }
    }
}

/// Sleeps before retry number `round`: not before the first, then 20 ms, doubled with each retry up to 1 s, because
/// the critical section of a migration takes a moment.
pub(super) async fn pause(round: u32) {
    let wait_ms = if round <= 1 { 0 } else { (5u64 << round.min(8)).min(1_000) };
    sleep(Duration::from_millis(wait_ms)).await;
}

/// Returns the command `body` with another command name; the value of its first field is unchanged.
pub(super) fn renamed(body: &Document, name: &str) -> Document {
    let mut fields = body.iter();
    let first = fields.next().map(|(_, value)| value.clone());
    let mut renamed = doc! { name: first };
    renamed.extend(fields.map(|(key, value)| (key.clone(), value.clone())));
    renamed
}

/// Returns references to the documents, in the form that [`Documents`] takes.
pub(super) fn refs<'a, I>(documents: I) -> Vec<&'a RawDocument>
where
    I: IntoIterator<Item = &'a bson::RawDocumentBuf>,
{
    documents.into_iter().map(|document| &**document).collect()
}

/// Copies the fields named `fields` from `from` to `to`; those that `from` does not have are skipped.
pub(super) fn copy(from: &Document, to: &mut Document, fields: &[&str]) {
    for field in fields {
        if let Some(value) = from.get(field) {
            to.insert(*field, value.clone());
        }
    }
}
