//! The procedures of the transactions that clients' requests become; they run at a site.
//!
//! A procedure encodes its reply, in the protocol version that the connection had when the request arrived.

use serde::{Deserialize, Serialize};

use super::answer::{Answer, Protocol, array_of};
use super::codec::{self, Kind};
use super::command_table::RowCommands;
use super::operation::Operation;
use super::rows::{RowOperation as _, Rows, check};
use super::{KEYS_MAX, Request};
use crate::key::{Key, KeyRange};
use crate::record::StoredValue;
use crate::reply::Reply;
use crate::transaction::{Abort, Procedure, View};

/// The procedure of a transaction that is a single operation.
#[derive(Serialize, Deserialize)]
pub(super) struct Single {
    pub operation: Operation,
    protocol: Protocol,
}

impl Procedure for Single {
    fn run(&mut self, view: &mut View<'_>) -> Result<Reply, Abort> {
        let answer = self.operation.run(&mut Rows::new(view, &RowCommands))?;
        check(answer.bytes())?;
        Ok(answer.encoded(self.protocol))
    }

    fn encode(&self) -> Option<Vec<u8>> {
        codec::encode(Kind::Single, self)
    }
}

/// One of the queued commands that EXEC runs, parsed.
#[derive(Serialize, Deserialize)]
pub(super) enum Step {
    /// The answer of a command that concerns only the connection, and was answered before the transaction.
    Say(Answer),
    /// An operation on rows.
    Do(Operation),
}

/// The procedure of an EXEC: all its commands, after a check of the watched keys.
#[derive(Serialize, Deserialize)]
pub(super) struct Batch {
    /// The queued commands, each with the protocol version in which it is answered.
    pub steps: Vec<(Step, Protocol)>,
    /// The watched keys, each with the version that its row had when it was watched; `None` for a key without a row.
    watched: Vec<(Key, Option<u64>)>,
    protocol: Protocol,
}

impl Procedure for Batch {
    fn run(&mut self, view: &mut View<'_>) -> Result<Reply, Abort> {
        let mut rows = Rows::new(view, &RowCommands);
        for (key, version) in &self.watched {
            if rows.seen(key)?.map(|seen| seen.version) != *version {
                rows.note_stale();
                return Ok(Answer::NilArray.encoded(self.protocol));
            }
        }
        let mut out = Reply::default();
        array_of(self.steps.len(), &mut out);
        for (step, protocol) in &self.steps {
            let answer = match step {
                Step::Say(answer) => answer,
                Step::Do(operation) => &operation.run(&mut rows)?,
            };
            check(out.len() + answer.bytes())?;
            answer.encode(*protocol, &mut out);
        }
        Ok(out)
    }

    fn encode(&self) -> Option<Vec<u8>> {
        codec::encode(Kind::Batch, self)
    }
}

/// Keys with the versions of their rows as a transaction saw them; `None` for a key without a row.
pub(super) type Versions = Vec<(Key, Option<u64>)>;

/// The procedure of WATCH, which returns the versions of the rows of the keys, and their values if requested, all of
/// one snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct Watch {
    /// The keys to watch, in the order of the request.
    pub keys: Vec<Key>,
    /// True if the client requested the values of the keys, by IMAGO.WATCH.
    pub says_values: bool,
}

/// The versions and values of the rows that WATCH read.
#[derive(Serialize, Deserialize)]
pub(super) struct Watched {
    /// The version of each key's row.
    pub versions: Versions,
    /// The values of the keys, in the order of the request, if the client requested them; otherwise empty.
    pub values: Vec<Option<StoredValue>>,
}

impl Procedure for Watch {
    fn run(&mut self, view: &mut View<'_>) -> Result<Reply, Abort> {
        let rows = Rows::new(view, &RowCommands);
        let (mut versions, mut values, mut bytes) = (Versions::new(), Vec::new(), 0);
        for key in &self.keys {
            let seen = rows.seen(key)?;
            versions.push((key.clone(), seen.as_ref().map(|seen| seen.version)));
            if self.says_values {
                let value = seen.map(|seen| StoredValue(seen.value));
                bytes += value.as_ref().map_or(0, |value| value.0.len());
                check(bytes)?;
                values.push(value);
            }
        }
        let watched = Watched { versions, values };
        Ok(postcard::to_stdvec(&watched).expect("they have a form in bytes").into())
    }

    fn encode(&self) -> Option<Vec<u8>> {
        codec::encode(Kind::Watch, self)
    }
}

/// Returns the reply of an EXEC whose commands all are answered without rows.
pub(super) fn said(steps: &[(Step, Protocol)]) -> Reply {
    let mut out = Reply::default();
    array_of(steps.len(), &mut out);
    for (step, protocol) in steps {
        if let Step::Say(answer) = step {
            answer.encode(*protocol, &mut out);
        }
    }
    out
}

/// Returns the transaction of a single operation, or the error if it has too many keys.
pub(super) fn single(operation: Operation, protocol: Protocol) -> Result<Request, Answer> {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    operation.declare(&mut reads, &mut writes);
    request(reads, writes, Box::new(Single { operation, protocol }))
}

/// Returns a procedure that checks whether the key has a row, and the encoded reply that it gives if so.
pub(crate) fn exists(key: &Key) -> (Box<dyn Procedure>, &'static [u8]) {
    let operation = Operation::Exists(vec![key.clone()]);
    (Box::new(Single { operation, protocol: Protocol::Two }), b":1\r\n")
}

/// Returns the transaction of an EXEC with these steps and watched keys, or the error if it has too many keys.
pub(super) fn batch(
    steps: Vec<(Step, Protocol)>,
    watched: Vec<(Key, Option<u64>)>,
    protocol: Protocol,
) -> Result<Request, Answer> {
    let mut reads: Vec<Key> = watched.iter().map(|(key, _)| key.clone()).collect();
    let mut writes = Vec::new();
    for (step, _) in &steps {
        if let Step::Do(operation) = step {
            operation.declare(&mut reads, &mut writes);
        }
    }
    request(reads, writes, Box::new(Batch { steps, watched, protocol }))
}

/// Returns a transaction with this procedure over these keys, which are sorted and made distinct; or the error if
/// there are more than [`KEYS_MAX`].
pub(super) fn request(
    mut reads: Vec<Key>,
    mut writes: Vec<Key>,
    procedure: Box<dyn Procedure>,
) -> Result<Request, Answer> {
    for keys in [&mut reads, &mut writes] {
        if keys.len() > 1 {
            keys.sort_unstable();
            keys.dedup();
        }
    }
    // A key that may be written may be read too.
    reads.retain(|key| writes.binary_search(key).is_err());
    let keys = reads.len() + writes.len();
    if keys > KEYS_MAX {
        let text = format!("ERR {keys} keys are too many for one transaction: at most {KEYS_MAX}");
        return Err(Answer::error(text));
    }
    let reads = reads.iter().map(KeyRange::only).collect();
    Ok(Request { reads, writes, procedure, alone: false })
}
