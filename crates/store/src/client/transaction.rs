//! A transaction while its closure runs: the rows that the transaction has read and written so far.
//!
//! Invariants:
//! 1. A row is requested once; later reads by the closure return the same value, or the transaction's own write.
//! 2. Nothing is written before EXEC, and EXEC applies all writes or none.
//! 3. The closure's result is returned only if all rows that it read were of one state.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::{Batch, Connection, Fault};
use super::ordered::OrderedKey;
use super::{ClientError, Isolation, Table};

/// A transaction in progress, which a closure reads and writes: see [`super::Client::transaction`].
pub struct Transaction<'c> {
    connection: &'c mut Connection,
    isolation: Isolation,
    rows: BTreeMap<RowId, Row>,
    /// Number of snapshots of the store from which the transaction has read.
    states: u32,
    fault: Option<Fault>,
}

/// Identifies a row: the number of its numbered table, and its encoded key there.
type RowId = (u32, Vec<u8>);

/// The encoded value of a row; `None` if there is no row.
type Bytes = Option<Vec<u8>>;

#[derive(Default)]
struct Row {
    read: Option<Bytes>,
    written: Option<Bytes>,
}

impl Row {
    /// Returns the row's encoded value as the closure sees it, the transaction's own write if there is one; `None` if
    /// there is no row.
    fn seen(&self) -> Option<&[u8]> {
        self.written.as_ref().or(self.read.as_ref())?.as_deref()
    }
}

impl<'c> Transaction<'c> {
    pub(super) fn begin(
        connection: &'c mut Connection,
        isolation: Isolation,
    ) -> Result<Self, Fault> {
        connection.begin()?;
        Ok(Self { connection, isolation, rows: BTreeMap::new(), states: 0, fault: None })
    }

    /// Reads the row of a key as the transaction sees it; returns `None` if there is no row.
    ///
    /// # Errors
    /// Returns [`ClientError::Again`] if the transaction must begin again, which it does after the closure has
    /// returned.
    pub fn get<K, V>(&mut self, table: &Table<K, V>, key: &K) -> Result<Option<V>, ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        let mut found = self.get_many(table, std::slice::from_ref(key))?;
        Ok(found.pop().flatten())
    }

    /// Reads the rows of these keys in order; those that the transaction has not read yet are read in one snapshot of
    /// the store. A transaction that only reads, and does so by one call, never conflicts.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn get_many<K, V>(
        &mut self,
        table: &Table<K, V>,
        keys: &[K],
    ) -> Result<Vec<Option<V>>, ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        let row_ids = keys.iter().map(|key| Ok((table.number(), table.key(key)?)));
        let row_ids = row_ids.collect::<Result<Vec<RowId>, ClientError>>()?;
        self.learn(table.number(), &row_ids)?;
        let value = |row_id: &RowId| {
            let seen = self.rows.get(row_id).and_then(Row::seen);
            seen.map(|bytes| table.value_of(&row_id.1, bytes)).transpose()
        };
        row_ids.iter().map(value).collect()
    }

    /// Sets the row of a key when the transaction commits.
    ///
    /// # Errors
    /// Returns an error if the key is too long, or if the value cannot be serialized.
    pub fn put<K, V>(&mut self, table: &Table<K, V>, key: &K, value: &V) -> Result<(), ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        let value = table.bytes(value)?;
        self.write(table, key, Some(value))
    }

    /// Deletes the row of a key when the transaction commits. A key without a row is ignored.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn delete<K: OrderedKey, V>(
        &mut self,
        table: &Table<K, V>,
        key: &K,
    ) -> Result<(), ClientError> {
        self.write(table, key, None)
    }

    fn write<K: OrderedKey, V>(
        &mut self,
        table: &Table<K, V>,
        key: &K,
        value: Bytes,
    ) -> Result<(), ClientError> {
        let row_id = (table.number(), table.key(key)?);
        self.rows.entry(row_id).or_default().written = Some(value);
        Ok(())
    }

    /// Reads those rows of a numbered table that the transaction has neither read nor written yet, and watches them.
    fn learn(&mut self, table: u32, row_ids: &[RowId]) -> Result<(), ClientError> {
        if self.fault.is_some() {
            return Err(ClientError::Again);
        }
        let is_new = |row_id: &&RowId| !self.rows.contains_key(*row_id);
        let mut unknown: Vec<_> = row_ids.iter().filter(is_new).map(|(_, key)| &**key).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if unknown.is_empty() {
            return Ok(());
        }
        match self.connection.watch(table, &unknown) {
            Ok(found) => {
                self.states += 1;
                for (key, read) in unknown.into_iter().zip(found) {
                    let row = Row { read: Some(read), written: None };
                    self.rows.insert((table, key.to_vec()), row);
                }
                Ok(())
            }
            Err(Fault::Failed(error)) => Err(error),
            Err(fault) => {
                self.fault = Some(fault);
                Err(ClientError::Again)
            }
        }
    }

    /// Ends the transaction with the closure's result `returned`, and returns that result if all rows that the
    /// closure read were of one state and its writes are committed.
    pub(super) fn finish<T, E>(mut self, returned: Result<T, E>) -> Result<Result<T, E>, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        // A closure must fail because of a fact that was true, not because it read rows of two states.
        let writes = returned.is_ok() && self.rows.values().any(|row| row.written.is_some());
        if writes || self.states > 1 {
            let batches =
                if writes { batches(&self.rows, self.isolation) } else { BTreeMap::new() };
            self.connection.exec(batches)?;
        }
        Ok(returned)
    }
}

/// Returns the writes of EXEC for each numbered table, among them the locks of rows that were only read.
fn batches(rows: &BTreeMap<RowId, Row>, isolation: Isolation) -> BTreeMap<u32, Batch<'_>> {
    let mut batches: BTreeMap<u32, Batch<'_>> = BTreeMap::new();
    for ((table, key), row) in rows {
        let is_kept = row.written.is_none();
        if is_kept && isolation == Isolation::Snapshot {
            continue;
        }
        let batch = batches.entry(*table).or_default();
        match row.seen() {
            Some(value) if !is_kept => batch.put.push((key, value)),
            None if !is_kept => batch.deleted.push(key),
            Some(_) => batch.there.push(key),
            None => batch.absent.push(key),
        }
    }
    batches
}
