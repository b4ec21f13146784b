//! insert, update, delete.
//!
//! Inserts, and writes that drivers may repeat (`txnNumber`), are sent by the router itself to the shards that own
//! the documents, with the versions of its routing data and with statement ids, so that a shard recognises a
//! repetition: the servers' routed commands do not accept a `txnNumber` from a client. Other updates and deletes
//! are sent as routed commands.
//!
//! Invariant: each operation of a batch counts once. Operations that a shard rejected because routing data was
//! stale were not executed and are sent again; the others never are.

use std::collections::HashMap;

use bson::raw::RawDocument;
use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::future::join_all;

use super::answer::{Answer, Failure, code, integer};
use super::caller::{Caller, pause, refs, renamed};
use super::catalog::Placement;
use super::core::{Namespace, Repeat, STALE_ROUNDS};
use super::endpoint::Endpoint;
use super::message::Request;
use super::owner_change;
use super::targeting::{Single, replacement};
use super::transactions::Transaction;
use super::write_outcome::{Outcome, Stale, write_error};

/// Fields of the client's command that the router removes, because it sets them itself for each shard.
const OWN_FIELDS: [&str; 7] = [
    "$clusterTime",
    "$readPreference",
    "stmtId",
    "stmtIds",
    "shardVersion",
    "databaseVersion",
    "readConcern",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Insert,
    Update,
    Delete,
}

impl Kind {
    fn field(self) -> &'static str {
        match self {
            Self::Insert => "documents",
            Self::Update => "updates",
            Self::Delete => "deletes",
        }
    }

    fn routed(self) -> &'static str {
        match self {
            Self::Insert => "clusterInsert",
            Self::Update => "clusterUpdate",
            Self::Delete => "clusterDelete",
        }
    }
}

/// A client's insert, update or delete command while the router executes it.
pub(super) struct Write<'a> {
    caller: &'a Caller,
    transaction: Option<&'a Transaction>,
    namespace: Namespace,
    kind: Kind,
    /// The client's command without its operations.
    body: Document,
    operations: Vec<RawDocumentBuf>,
    ordered: bool,
    /// True if a driver may repeat the command (it has a `txnNumber`), so that the shards recognise a repetition.
    repeatable: bool,
    first_statement: i32,
}

/// Destination of a group of operations.
#[derive(Debug, Clone, PartialEq)]
enum Dispatch {
    /// These shards, all at once: more than one only for a write by `_id` or of many documents.
    Shards(Vec<Endpoint>),
    /// A shard that routes the operations itself (`clusterUpdate`, `clusterDelete`).
    Routed,
}

struct Group {
    dispatch: Dispatch,
    /// Indexes of the group's operations in the client's command, in ascending order.
    operations: Vec<usize>,
}

impl Caller {
    /// Executes the insert, update or delete command `request`, within `transaction` or, if that is `None`, outside
    /// of one.
    pub(super) async fn write(
        &self,
        request: Request,
        transaction: Option<&Transaction>,
    ) -> Result<Answer, Failure> {
        let namespace = Namespace::of(&request.body)?;
        if namespace.is_on_config() {
            return self.write_on_config(request).await;
        }
        let write = Write::new(self, request, namespace, transaction)?;
        write.run().await
    }

    async fn write_on_config(&self, request: Request) -> Result<Answer, Failure> {
        let repeat =
            if request.body.contains_key("txnNumber") { Repeat::Safe } else { Repeat::Never };
        let sequence = request.sequence.unwrap_or_default();
        let documents = refs(&sequence.documents);
        let documents = Some((&*sequence.field, &*documents));
        let config = &self.core.config;
        self.core.on_primary(self.user.as_ref(), config, request.body, documents, repeat).await
    }
}

impl<'a> Write<'a> {
    fn new(
        caller: &'a Caller,
        request: Request,
        namespace: Namespace,
        transaction: Option<&'a Transaction>,
    ) -> Result<Self, Failure> {
        let kind = match request.name() {
            "insert" => Kind::Insert,
            "update" => Kind::Update,
            _ => Kind::Delete,
        };
        let operations = request.sequence.filter(|sequence| sequence.field == kind.field());
        let operations = operations.map_or_else(Vec::new, |sequence| sequence.documents);
        if operations.is_empty() || operations.len() > 100_000 {
            let message = format!(
                "Write batch sizes must be between 1 and 100000. Got {} operations.",
                operations.len()
            );
            return Err(Failure::new(16, message));
        }
        let mut body = request.body;
        let first_statement = integer(&body, "stmtId").unwrap_or(0);
        for field in OWN_FIELDS {
            body.remove(field);
        }
        Ok(Self {
            caller,
            transaction,
            namespace,
            kind,
            ordered: body.get_bool("ordered").unwrap_or(true),
            repeatable: transaction.is_none() && body.contains_key("txnNumber"),
            first_statement: i32::try_from(first_statement).unwrap_or(0),
            body,
            operations,
        })
    }

    async fn run(self) -> Result<Answer, Failure> {
        let mut pending: Vec<usize> = (0..self.operations.len()).collect();
        let mut outcome = Outcome::default();
        let mut round = 0;
        while !pending.is_empty() && (!self.ordered || outcome.errors.is_empty()) {
            let (groups, refused) = self.plan(&pending).await?;
            for (operation, failure) in refused {
                outcome.errors.push((operation, write_error(operation, &failure)));
                pending.retain(|other| *other != operation);
            }
            let mut sent = Vec::new();
            for group in &groups {
                sent.push(Box::pin(self.send(group)));
            }
            let answers = join_all(sent).await;
            let mut progress = false;
            let mut stale = None;
            for (group, answers) in groups.iter().zip(answers) {
                match outcome.take(&group.operations, answers?, self.ordered) {
                    Ok(done) => {
                        progress |= !done.is_empty();
                        pending.retain(|operation| done.binary_search(operation).is_err());
                    }
                    Err(Stale { code, done }) => {
                        progress |= !done.is_empty();
                        pending.retain(|operation| done.binary_search(operation).is_err());
                        stale = Some(code);
                    }
                }
            }
            if let Some(code) = stale {
                if self.transaction.is_some() {
                    return Err(Failure::new(code, "routing data became stale in a transaction"));
                }
                round = if progress { 1 } else { round + 1 };
                if round > STALE_ROUNDS {
                    let message = format!(
                        "{}: routing data of {} was still stale after {STALE_ROUNDS} attempts",
                        self.kind.routed(),
                        self.namespace
                    );
                    return Err(Failure::new(code, message));
                }
                self.caller.core.forget(&self.namespace, code);
                pause(round).await;
            }
        }
        outcome.answer(self.kind == Kind::Update, self.repeatable)
    }

    /// Divides the operations with the indexes `pending` into groups that can be sent now. Returns the groups, and
    /// the operations for which no shard could be determined, with the error.
    async fn plan(
        &self,
        pending: &[usize],
    ) -> Result<(Vec<Group>, Vec<(usize, Failure)>), Failure> {
        if !self.targets_itself() {
            let whole = Group { dispatch: Dispatch::Routed, operations: pending.to_vec() };
            return Ok((vec![whole], Vec::new()));
        }
        let create = self.kind == Kind::Insert || self.kind == Kind::Update;
        let placement = match self.caller.core.placement(&self.namespace, create).await {
            Err(failure) if failure.code() == code::NAMESPACE_NOT_FOUND => {
                // Nothing can match in a database that does not exist.
                let none =
                    Group { dispatch: Dispatch::Shards(Vec::new()), operations: pending.to_vec() };
                return Ok((vec![none], Vec::new()));
            }
            placement => placement?,
        };
        let mut groups: Vec<Group> = Vec::new();
        let mut by_shard: HashMap<String, usize> = HashMap::new();
        let mut refused = Vec::new();
        for &operation in pending {
            let endpoints = match self.target(&placement, operation).await {
                Ok(endpoints) => endpoints,
                Err(failure) if self.transaction.is_some() => return Err(failure),
                Err(failure) => {
                    if self.ordered && !groups.is_empty() {
                        break;
                    }
                    refused.push((operation, failure));
                    if self.ordered {
                        break;
                    }
                    continue;
                }
            };
            let single = if let [only] = &*endpoints { Some(only.shard.clone()) } else { None };
            let known = single.as_ref().and_then(|shard| by_shard.get(shard).copied());
            if let Some(group) = known {
                groups[group].operations.push(operation);
                continue;
            }
            if self.ordered && !groups.is_empty() {
                break;
            }
            if let Some(shard) = single {
                by_shard.insert(shard, groups.len());
            }
            groups
                .push(Group { dispatch: Dispatch::Shards(endpoints), operations: vec![operation] });
            if self.ordered && by_shard.is_empty() {
                break;
            }
        }
        Ok((groups, refused))
    }

    /// Returns true if the router determines the shards of the operations itself, rather than sending a routed
    /// command.
    fn targets_itself(&self) -> bool {
        self.transaction.is_some() || self.kind == Kind::Insert || self.repeatable
    }

    async fn target(
        &self,
        placement: &Placement,
        operation: usize,
    ) -> Result<Vec<Endpoint>, Failure> {
        let raw: &RawDocument = &self.operations[operation];
        let collection = match placement {
            Placement::Sharded(collection) if self.kind != Kind::Insert => collection,
            _ => {
                let at = self.caller.target_document(&self.namespace, placement, raw).await?;
                return Ok(vec![at]);
            }
        };
        let part = |key: &str| raw.get_document(key).ok().and_then(|part| part.try_into().ok());
        let query: Document = part("q").unwrap_or_default();
        let collation: Option<Document> = part("collation");
        let many = match self.kind {
            Kind::Delete => super::answer::number(raw, "limit") == Some(0),
            _ => raw.get_bool("multi").unwrap_or(false),
        };
        if many {
            let collation = collation.as_ref();
            return self.caller.target_query(&self.namespace, placement, &query, collation).await;
        }
        let single = Single {
            query: &query,
            collation: collation.as_ref(),
            replacement: if self.kind == Kind::Update { replacement(raw) } else { None },
            upsert: raw.get_bool("upsert").unwrap_or(false),
            by_id: true,
        };
        let mut endpoints = self.caller.target_single(&self.namespace, collection, single).await?;
        if self.transaction.is_some() && endpoints.len() > 1 {
            // All parts of a transaction can be undone, so each shard may check its version.
            endpoints =
                collection.owners().iter().map(|s| Endpoint::owner(collection, s)).collect();
        }
        Ok(endpoints)
    }

    /// Sends the operations of `group`, and returns one reply for each shard that received them.
    async fn send(&self, group: &Group) -> Result<Vec<Answer>, Failure> {
        let picked: Vec<&RawDocument> =
            group.operations.iter().map(|operation| &*self.operations[*operation]).collect();
        let documents = Some((self.kind.field(), &*picked));
        let endpoints = match &group.dispatch {
            Dispatch::Shards(endpoints) => endpoints,
            Dispatch::Routed => {
                let body = renamed(&self.body, self.kind.routed());
                let answer = self.caller.routed(body, documents, Repeat::Never).await?;
                return Ok(vec![answer]);
            }
        };
        let mut body = self.body.clone();
        if self.repeatable {
            let statement = |operation: &usize| {
                self.first_statement + i32::try_from(*operation).unwrap_or(i32::MAX)
            };
            body.insert("stmtIds", group.operations.iter().map(statement).collect::<Vec<_>>());
        }
        let repeat = if self.repeatable { Repeat::Safe } else { Repeat::Never };
        let mut calls = Vec::new();
        for endpoint in endpoints {
            let body = body.clone();
            calls.push(self.caller.at(endpoint, body, documents, repeat, self.transaction));
        }
        let mut answers = Vec::with_capacity(endpoints.len());
        for answer in join_all(calls).await {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(failure) if failure.code() == code::WOULD_CHANGE_OWNING_SHARD => {
                    answers.push(self.change_owner(group, &endpoints[0], failure).await?);
                }
                Err(failure) if code::is_stale(failure.code()) && self.transaction.is_none() => {
                    // The shard rejected the whole command, so all of its operations are to be sent again.
                    let errors = (0..group.operations.len())
                        .map(|at| Bson::Document(write_error(at, &failure)));
                    let errors: Vec<Bson> = errors.collect();
                    answers
                        .push(Answer::try_from(doc! { "n": 0, "writeErrors": errors, "ok": 1.0 })?);
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(answers)
    }

    /// Moves the document of an update that gives it a shard key of another shard. `failure` is the rejection by the
    /// shard of `endpoint`.
    async fn change_owner(
        &self,
        group: &Group,
        endpoint: &Endpoint,
        failure: Failure,
    ) -> Result<Answer, Failure> {
        if self.operations.len() > 1 {
            return Err(Failure::new(
                code::INVALID_OPTIONS,
                "Document shard key value updates that cause the doc to move shards must be sent \
                 with write batch of size 1",
            ));
        }
        let operation = &self.operations[group.operations[0]];
        let change = owner_change::Change {
            caller: self.caller,
            namespace: &self.namespace,
            endpoint,
            body: &self.body,
            documents: Some((self.kind.field(), &[operation])),
        };
        let moved = change.run(self.transaction, failure).await?;
        let upserted = moved.upserted.map(|id| vec![doc! { "index": 0, "_id": id }]);
        let mut answer = doc! { "n": 1, "nModified": i32::from(upserted.is_none()), "ok": 1.0 };
        if let Some(upserted) = upserted {
            answer.insert("upserted", upserted);
        }
        Ok(Answer::try_from(answer)?.not_before(&moved.times))
    }
}
