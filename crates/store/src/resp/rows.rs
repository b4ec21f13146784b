//! The rows that operations read and write in a transaction, and the operations that scripts call on them.

use super::ANSWER_BYTES_MAX;
use super::answer::Answer;
use super::parse::Arguments;
use crate::key::{Key, Table, Value};
use crate::transaction::{Abort, Seen, View, WRITTEN_BYTES_MAX};

/// The remaining budget of instructions and time that the scripts of one transaction share.
#[derive(Clone, Default)]
pub(super) struct Allowance {
    /// The number of remaining instructions, and the deadline in ms by the clock of the script limits; `None` until
    /// the first script has run.
    pub begun: Option<(u64, u64)>,
}

/// The rows that a transaction reads and writes, with the size of its writes counted: a transaction that exceeds the
/// limit ends at once, before it fills the memory.
pub(super) struct Rows<'r, 'v> {
    view: &'r mut View<'v>,
    /// Size of the keys and values written so far, in bytes.
    written_bytes: usize,
    /// The remaining budget of the transaction's scripts.
    pub allowance: Allowance,
    /// The commands that the transaction's scripts may call.
    pub commands: &'static dyn ScriptCommands,
}

/// An operation on the rows of a transaction.
pub(super) trait RowOperation {
    /// Adds the keys that the operation only reads to `reads`, and the keys that it may write to `writes`.
    fn declare(&self, reads: &mut Vec<Key>, writes: &mut Vec<Key>);

    /// Executes the operation on the rows of a transaction, and returns its answer, which may be an error.
    ///
    /// # Errors
    /// Returns the reason why the whole transaction is to have no effect.
    fn run(&self, rows: &mut Rows<'_, '_>) -> Result<Answer, Abort>;
}

/// The commands that a script may call.
pub(super) trait ScriptCommands: Sync {
    /// Returns the operation of a script's call on the database `table`.
    ///
    /// # Errors
    /// Returns the error that the script gets.
    fn operation(
        &self,
        arguments: &Arguments<'_>,
        table: Table,
    ) -> Result<Box<dyn RowOperation>, Answer>;
}

impl<'r, 'v> Rows<'r, 'v> {
    pub fn new(view: &'r mut View<'v>, commands: &'static dyn ScriptCommands) -> Self {
        Self { view, written_bytes: 0, allowance: Allowance::default(), commands }
    }

    pub fn get(&self, key: &Key) -> Result<Option<Value>, Abort> {
        Ok(self.view.get(key)?.map(|seen| seen.value))
    }

    pub fn get_each(&self, keys: &[Key]) -> Result<Vec<Option<Seen>>, Abort> {
        self.view.get_each(keys)
    }

    /// Returns the row of a key with its version, or `None` if there is none.
    pub fn seen(&self, key: &Key) -> Result<Option<Seen>, Abort> {
        self.view.get(key)
    }

    /// Records that a row which the client watches has changed, so that the transaction does nothing.
    pub fn note_stale(&self) {
        self.view.is_stale.set(true);
    }

    pub fn put(&mut self, key: &Key, value: Value) -> Result<(), Abort> {
        self.count(key, value.len())?;
        self.view.put(key, value)
    }

    pub fn delete(&mut self, key: &Key) -> Result<(), Abort> {
        self.count(key, 0)?;
        self.view.delete(key)
    }

    /// Runs a registered procedure on the transaction's rows, and counts its writes afterwards.
    pub fn with_view<T>(
        &mut self,
        run: impl FnOnce(&mut View<'v>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let done = run(self.view)?;
        self.written_bytes = self.view.written_bytes();
        self.check()?;
        Ok(done)
    }

    /// Counts the write of a value of this length to a key; returns an error if the writes exceed the limit.
    fn count(&mut self, key: &Key, value_bytes: usize) -> Result<(), Abort> {
        let key_bytes = key.as_bytes().len();
        let before = self.view.written.get(key);
        let before =
            before.map_or(0, |value| key_bytes + value.as_ref().map_or(0, |value| value.len()));
        self.written_bytes = self.written_bytes - before + key_bytes + value_bytes;
        self.check()
    }

    /// Returns an error if the writes exceed the limit on one transaction.
    fn check(&self) -> Result<(), Abort> {
        if self.written_bytes > WRITTEN_BYTES_MAX {
            return Err(Abort::TooLarge(self.written_bytes));
        }
        Ok(())
    }
}

/// Returns an error if an answer of this length in bytes is longer than [`ANSWER_BYTES_MAX`].
pub(super) fn check(answer_bytes: usize) -> Result<(), Abort> {
    if answer_bytes > ANSWER_BYTES_MAX {
        let text = format!("ERR the answer would be longer than {ANSWER_BYTES_MAX} bytes");
        return Err(Abort::Refused(text));
    }
    Ok(())
}
