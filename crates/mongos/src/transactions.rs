//! The transactions of the clients' sessions: the participating shards and the progress of each.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bson::{Document, doc};

/// Limit of the number of sessions whose latest transaction is stored; beyond it the least recently used one is
/// removed.
const SESSIONS_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Participant {
    pub(super) shard: String,
    pub(super) wrote: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Participating shards in the order in which they joined; the first coordinates the commit.
    pub(super) participants: Vec<Participant>,
    /// True once a statement of the transaction has succeeded. Until then it may be started again on all shards.
    pub(super) begun: bool,
    /// True if the transaction accepts no more statements.
    pub(super) ended: bool,
    /// True once the client has requested a commit. A commit may be requested again.
    pub(super) committing: bool,
}

/// One multi-document transaction of a client's session.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) session: Document,
    pub(super) number: i64,
    /// Read concern that is sent to each participant with its first statement; `None` for the server's default.
    pub(super) read_concern: Option<Document>,
    pub(super) state: Mutex<State>,
}

impl Transaction {
    pub(super) fn with<T>(&self, use_state: impl FnOnce(&mut State) -> T) -> T {
        use_state(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns true if the transaction may be started again after stale routing data: no statement has succeeded yet,
    /// and it has not ended.
    pub(super) fn may_restart(&self) -> bool {
        self.with(|state| !state.begun && !state.ended)
    }

    /// Records that a statement of the transaction has succeeded.
    pub(super) fn succeeded(&self) {
        self.with(|state| state.begun = true);
    }

    /// Records that a statement, and with it the transaction, has failed.
    pub(super) fn failed(&self) {
        self.with(|state| state.ended = true);
    }

    /// Returns the recovery token, which drivers send to find out a commit's outcome: the id of a shard that wrote.
    /// Returns `None` if no shard wrote.
    pub(super) fn recovery_token(&self) -> Option<Document> {
        let wrote = self
            .with(|state| state.participants.iter().find(|participant| participant.wrote).cloned());
        wrote.map(|participant| doc! { "recoveryShardId": participant.shard })
    }

    pub(super) fn fields(&self, body: &mut Document) {
        body.insert("lsid", self.session.clone());
        body.insert("txnNumber", self.number);
        body.insert("autocommit", false);
    }

    /// Adds the fields that make `body` a statement of this transaction on the shard `shard`, which becomes a
    /// participant if it is none yet.
    pub(super) fn enlist(&self, shard: &str, body: &mut Document) {
        self.fields(body);
        body.remove("startTransaction");
        body.remove("readConcern");
        body.remove("writeConcern");
        let (joins, first) = self.with(|state| {
            let joins = !state.participants.iter().any(|known| known.shard == shard);
            let first = state.participants.is_empty();
            if joins {
                state.participants.push(Participant { shard: shard.to_owned(), wrote: false });
            }
            (joins, first)
        });
        if joins {
            body.insert("startTransaction", true);
            if let Some(concern) = &self.read_concern {
                body.insert("readConcern", concern.clone());
            }
        }
        if first {
            body.insert("coordinator", true);
        }
    }

    pub(super) fn note_written(&self, shard: &str) {
        self.with(|state| {
            for participant in &mut state.participants {
                participant.wrote |= participant.shard == shard;
            }
        });
    }

    /// Removes all participants and returns them, so that the caller aborts the transaction on them.
    pub(super) fn take_participants(&self) -> Vec<Participant> {
        self.with(|state| std::mem::take(&mut state.participants))
    }
}

/// Table of the latest transaction of each session.
#[derive(Debug, Default)]
pub(super) struct Transactions(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<Vec<u8>, (u64, Arc<Transaction>)>,
    clock: u64,
}

impl Transactions {
    pub(super) fn get(&self, session: &[u8], number: i64) -> Option<Arc<Transaction>> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.clock += 1;
        let now = table.clock;
        let (used, transaction) = table.sessions.get_mut(session)?;
        *used = now;
        (transaction.number == number).then(|| Arc::clone(transaction))
    }

    pub(super) fn put(&self, session: Vec<u8>, transaction: Arc<Transaction>) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        table.clock += 1;
        if table.sessions.len() >= SESSIONS_MAX && !table.sessions.contains_key(&session) {
            let oldest = table.sessions.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(oldest) = oldest.map(|(session, _)| session.clone()) {
                table.sessions.remove(&oldest);
            }
        }
        let now = table.clock;
        table.sessions.insert(session, (now, transaction));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transaction() -> Transaction {
        Transaction {
            session: doc! { "id": 1 },
            number: 7,
            read_concern: Some(doc! { "level": "snapshot" }),
            state: Mutex::default(),
        }
    }

    #[test]
    fn a_shard_joins_once_and_the_first_coordinates() {
        let transaction = transaction();
        let statement = |shard| {
            let mut body = doc! { "find": "c", "readConcern": { "level": "local" } };
            transaction.enlist(shard, &mut body);
            let has = |key| body.contains_key(key);
            (has("startTransaction"), has("coordinator"), has("readConcern"))
        };
        assert_eq!(statement("a"), (true, true, true));
        assert_eq!(statement("a"), (false, false, false));
        assert_eq!(statement("b"), (true, false, true));
    }

    #[test]
    fn the_recovery_token_names_a_shard_that_wrote() {
        let transaction = transaction();
        for shard in ["a", "b"] {
            transaction.enlist(shard, &mut Document::new());
        }
        assert_eq!(transaction.recovery_token(), None);
        transaction.note_written("b");
        assert_eq!(transaction.recovery_token(), Some(doc! { "recoveryShardId": "b" }));
    }
}
