//! The transactions of sessions: the participants of each, and its progress.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bson::{Document, doc};

/// Sessions whose transaction is remembered; the one used longest ago makes room.
const SESSIONS_MAX: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Participant {
    pub(super) shard: String,
    pub(super) wrote: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// In order of joining; the first coordinates.
    pub(super) participants: Vec<Participant>,
    /// No statement has succeeded yet, so that all may be tried again from the beginning.
    pub(super) begun: bool,
    /// It takes no more statements.
    pub(super) ended: bool,
    /// It was asked to commit, and may be asked again.
    pub(super) committing: bool,
}

/// One transaction of one session.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) session: Document,
    pub(super) number: i64,
    /// With which each participant begins.
    pub(super) read_concern: Option<Document>,
    pub(super) state: Mutex<State>,
}

impl Transaction {
    pub(super) fn with<T>(&self, use_state: impl FnOnce(&mut State) -> T) -> T {
        use_state(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The first statement failed on stale routing data: everything begins again.
    pub(super) fn may_restart(&self) -> bool {
        self.with(|state| !state.begun && !state.ended)
    }

    /// A statement has succeeded.
    pub(super) fn succeeded(&self) {
        self.with(|state| state.begun = true);
    }

    /// A statement has failed, and with it the transaction.
    pub(super) fn failed(&self) {
        self.with(|state| state.ended = true);
    }

    /// The shard at which the outcome can be learnt later: one that wrote, as drivers hand it back.
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

    /// Adds the fields that make `body` a statement of this transaction on `shard`.
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

    /// Forgets the participants; they are to be told to abort.
    pub(super) fn take_participants(&self) -> Vec<Participant> {
        self.with(|state| std::mem::take(&mut state.participants))
    }
}

/// The latest transaction of each session.
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
