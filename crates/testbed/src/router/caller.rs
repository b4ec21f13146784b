//! One client of the router: its user, and the ways in which its commands reach the servers.

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

/// The fields that a command takes from its client's connection.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub(super) core: Arc<Core>,
    /// The user as which the client has logged in.
    pub(super) user: Option<Arc<User>>,
    /// The connection's number: routed commands of one connection go through one shard.
    pub(super) seat: usize,
}

impl Caller {
    /// The user's name, by which cursors and transactions are told apart.
    pub(super) fn user_name(&self) -> Option<&str> {
        self.user.as_ref().map(|user| &*user.name)
    }

    /// Runs a `cluster…` command through a shard's primary, again while routing data is stale.
    pub(super) async fn routed(
        &self,
        body: Document,
        documents: Documents<'_>,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        let mut round = 0;
        loop {
            // Another shard each time: the one asked first may be the one that is lost.
            let route = self.core.route(self.seat + round as usize).await?;
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

    /// Runs a versioned command on one shard, in a transaction if there is one.
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

    /// Runs a command on the config server as the client.
    pub(super) async fn on_config(
        &self,
        body: Document,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        self.core.on_config(self.user.as_ref(), body, repeat).await
    }

    /// For a command whose routing data may turn out to be stale.
    pub(super) fn staleness<'a>(&'a self, namespace: &'a Namespace) -> Staleness<'a> {
        Staleness { core: &self.core, namespace, round: 0 }
    }
}

/// Rounds of one command in which its routing data was found stale.
pub(super) struct Staleness<'a> {
    core: &'a Core,
    namespace: &'a Namespace,
    round: u32,
}

impl Staleness<'_> {
    /// True if the command is to be run again with fresh routing data.
    pub(super) fn again(&mut self, failure: &Failure) -> bool {
        let again = code::is_stale(failure.code()) && self.round < STALE_ROUNDS;
        if again {
            self.round += 1;
            self.core.forget(self.namespace, failure.code());
        }
        again
    }

    /// Gives a migration that is under way time to end.
    pub(super) async fn pause(&self) {
        pause(self.round).await;
    }
}

impl Core {
    /// Forgets the routing data that a shard has found stale.
    pub(super) fn forget(&self, namespace: &Namespace, code: i32) {
        if code == code::STALE_DB_VERSION {
            self.catalog.forget_database(&namespace.database);
        } else {
            self.catalog.forget(&namespace.to_string());
        }
    }
}

/// Grows with the rounds: a migration's critical section takes a moment.
pub(super) async fn pause(round: u32) {
    let wait_ms = if round <= 1 { 0 } else { (5u64 << round.min(8)).min(1_000) };
    sleep(Duration::from_millis(wait_ms)).await;
}

/// A command's body with another name; its first value stays.
pub(super) fn renamed(body: &Document, name: &str) -> Document {
    let mut fields = body.iter();
    let first = fields.next().map(|(_, value)| value.clone());
    let mut renamed = doc! { name: first };
    renamed.extend(fields.map(|(key, value)| (key.clone(), value.clone())));
    renamed
}

/// References to documents, as commands take them.
pub(super) fn refs<'a, I>(documents: I) -> Vec<&'a RawDocument>
where
    I: IntoIterator<Item = &'a bson::RawDocumentBuf>,
{
    documents.into_iter().map(|document| &**document).collect()
}

/// Copies the fields that are there.
pub(super) fn copy(from: &Document, to: &mut Document, fields: &[&str]) {
    for field in fields {
        if let Some(value) = from.get(field) {
            to.insert(*field, value.clone());
        }
    }
}
