//! The rows that operations read and write, inside a transaction.

use super::ANSWER_BYTES_MAX;
use crate::key::{Key, Value};
use crate::transaction::{Abort, Seen, View, WRITTEN_BYTES_MAX};

/// The budget left to the scripts of one transaction.
#[derive(Clone, Default)]
pub(super) struct Allowance {
    /// Once one was run: the instructions that are left, and when it has to end, in ms.
    pub begun: Option<(u64, u64)>,
}

/// Rows, with what is written to them counted: a transaction that grows
/// beyond what it may be ends there, not when it has filled the memory.
pub(super) struct Rows<'r, 'v> {
    view: &'r mut View<'v>,
    written_bytes: usize,
    /// The budget left to scripts.
    pub allowance: Allowance,
}

impl<'r, 'v> Rows<'r, 'v> {
    pub fn new(view: &'r mut View<'v>) -> Self {
        Self { view, written_bytes: 0, allowance: Allowance::default() }
    }

    pub fn get(&self, key: &Key) -> Result<Option<Value>, Abort> {
        Ok(self.view.get(key)?.map(|seen| seen.value))
    }

    pub fn get_each(&self, keys: &[Key]) -> Result<Vec<Option<Seen>>, Abort> {
        self.view.get_each(keys)
    }

    /// A row with its version, if it is there.
    pub fn seen(&self, key: &Key) -> Result<Option<Seen>, Abort> {
        self.view.get(key)
    }

    /// Takes note that a row that was read before is not as it was.
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

    /// Lets a procedure have the rows as they are, and counts what it wrote afterwards.
    pub fn lend<T>(
        &mut self,
        run: impl FnOnce(&mut View<'v>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let done = run(self.view)?;
        self.written_bytes = self.view.written_bytes();
        self.check()?;
        Ok(done)
    }

    fn count(&mut self, key: &Key, value_bytes: usize) -> Result<(), Abort> {
        let key_bytes = key.as_bytes().len();
        let before = self.view.written.get(key);
        let before =
            before.map_or(0, |value| key_bytes + value.as_ref().map_or(0, |value| value.len()));
        self.written_bytes = self.written_bytes - before + key_bytes + value_bytes;
        self.check()
    }

    fn check(&self) -> Result<(), Abort> {
        if self.written_bytes > WRITTEN_BYTES_MAX {
            return Err(Abort::TooLarge(self.written_bytes));
        }
        Ok(())
    }
}

/// Returns an error if an answer of so many bytes is too long.
pub(super) fn check(answer_bytes: usize) -> Result<(), Abort> {
    if answer_bytes > ANSWER_BYTES_MAX {
        let text = format!("ERR the answer would be longer than {ANSWER_BYTES_MAX} bytes");
        return Err(Abort::Refused(text));
    }
    Ok(())
}
