//! A transaction while its closure runs: what it read, and what it will write.
//!
//! Invariants:
//! 1. A row is asked for once; later reads of the closure return that, or its own write.
//! 2. Nothing is written before EXEC, and EXEC writes all of it or nothing.
//! 3. What the closure returned counts only if everything that it read was one state.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::{Batch, Connection, Fault};
use super::ordered::OrderedKey;
use super::{ClientError, Isolation, Table};

/// See [`super::Client::transaction`].
pub struct Transaction<'c> {
    connection: &'c mut Connection,
    isolation: Isolation,
    rows: BTreeMap<RowId, Row>,
    /// States from which it has read.
    states: u32,
    fault: Option<Fault>,
}

/// A table's number, and a row's key in it.
type RowId = (u32, Vec<u8>);

/// A row, or that there is none.
type Bytes = Option<Vec<u8>>;

#[derive(Default)]
struct Row {
    read: Option<Bytes>,
    written: Option<Bytes>,
}

impl Row {
    /// Its value as the closure sees it.
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

    /// Reads a row.
    ///
    /// # Errors
    /// [`ClientError::Again`] if the transaction has to begin again, which it does as soon as the
    /// closure has returned.
    pub fn get<K, V>(&mut self, table: &Table<K, V>, key: &K) -> Result<Option<V>, ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        let mut found = self.get_many(table, std::slice::from_ref(key))?;
        Ok(found.pop().flatten())
    }

    /// Reads rows, in one state of the store those that it has not read yet. A transaction that only reads,
    /// and does so by one call of this, never meets others.
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

    /// Sets a row, when the transaction commits.
    ///
    /// # Errors
    /// Returns an error if key or value have no form in bytes that the store takes.
    pub fn put<K, V>(&mut self, table: &Table<K, V>, key: &K, value: &V) -> Result<(), ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        let value = table.bytes(value)?;
        self.write(table, key, Some(value))
    }

    /// Deletes a row, if it is there when the transaction commits.
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

    /// Asks for the rows of a table of which it knows nothing.
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

    /// Ends it: what the closure returned, if it counts.
    pub(super) fn finish<T, E>(mut self, returned: Result<T, E>) -> Result<Result<T, E>, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        // A closure shall refuse for a fact that was true, not for rows that it read of two states.
        let writes = returned.is_ok() && self.rows.values().any(|row| row.written.is_some());
        if writes || self.states > 1 {
            let batches =
                if writes { batches(&self.rows, self.isolation) } else { BTreeMap::new() };
            self.connection.exec(batches)?;
        }
        Ok(returned)
    }
}

/// The work of EXEC, by the numbers of tables.
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
