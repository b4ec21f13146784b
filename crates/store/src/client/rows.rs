//! Operations without a closure: reads and writes of several rows, each operation a transaction of its own; and
//! scans.

use std::ops::RangeBounds;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::Batch;
use super::ordered::{OrderedKey, PrefixOf};
use super::table::Span;
use super::{Client, ClientError, Table};

/// Maximum number of rows that one request of a scan reads.
const ROWS_AT_ONCE: usize = 1_000;

impl Client {
    /// Reads the row of a key; returns `None` if there is no row.
    ///
    /// # Errors
    /// Returns an error if no attempt was answered, or if the row has another type.
    pub fn get<K, V>(&mut self, table: &Table<K, V>, key: &K) -> Result<Option<V>, ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        let mut found = self.get_many(table, std::slice::from_ref(key))?;
        Ok(found.pop().flatten())
    }

    /// Reads the rows of at most 10,000 keys, all in one snapshot of the store. The result is in the order of `keys`,
    /// with `None` for a key without a row.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_many<K, V>(
        &mut self,
        table: &Table<K, V>,
        keys: &[K],
    ) -> Result<Vec<Option<V>>, ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let keys = keys.iter().map(|key| table.key(key)).collect::<Result<Vec<_>, _>>()?;
        let all: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        let found = self.attempt(|connection| connection.read(table.number(), &all))?;
        let value = |(row, key): (Option<Vec<u8>>, &Vec<u8>)| {
            row.map(|row| table.value_of(key, &row)).transpose()
        };
        found.into_iter().zip(&keys).map(value).collect()
    }

    /// Sets at most 10,000 rows in one transaction. Present rows are replaced without being read.
    ///
    /// # Errors
    /// Returns the reason why nothing happened, or [`ClientError::Unknown`] if the transaction may have happened.
    pub fn put_many<K, V>(
        &mut self,
        table: &Table<K, V>,
        rows: &[(K, V)],
    ) -> Result<(), ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        let rows = rows.iter().map(|(key, value)| Ok((table.key(key)?, table.bytes(value)?)));
        let rows = rows.collect::<Result<Vec<_>, ClientError>>()?;
        let put = rows.iter().map(|(key, value)| (&**key, &**value)).collect();
        self.write(table.number(), &Batch { put, ..Batch::default() })
    }

    /// Deletes the rows of at most 10,000 keys in one transaction. Keys without a row are ignored.
    ///
    /// # Errors
    /// As [`Client::put_many`].
    pub fn delete_many<K: OrderedKey, V>(
        &mut self,
        table: &Table<K, V>,
        keys: &[K],
    ) -> Result<(), ClientError> {
        let keys = keys.iter().map(|key| table.key(key)).collect::<Result<Vec<_>, _>>()?;
        let deleted = keys.iter().map(|key| &**key).collect();
        self.write(table.number(), &Batch { deleted, ..Batch::default() })
    }

    /// Runs the procedure `name` that is registered in the store ([`crate::resp::Procedures`]) as one transaction
    /// over these keys, which the procedure may write, and returns the procedure's reply.
    ///
    /// # Errors
    /// As [`Client::put_many`]; if the procedure refuses, [`ClientError::Refused`].
    pub fn call<K: OrderedKey, V>(
        &mut self,
        name: &str,
        table: &Table<K, V>,
        keys: &[K],
        arguments: &[&[u8]],
    ) -> Result<Vec<u8>, ClientError> {
        let keys = keys.iter().map(|key| table.key(key)).collect::<Result<Vec<_>, _>>()?;
        let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
        self.attempt(|connection| connection.call(table.number(), name, &keys, arguments))
    }

    fn write(&mut self, table: u32, batch: &Batch<'_>) -> Result<(), ClientError> {
        if batch.put.is_empty() && batch.deleted.is_empty() {
            return Ok(());
        }
        self.attempt(|connection| connection.write(table, batch))
    }

    /// Returns at most `limit` of the first rows whose keys are in a range, in key order. To continue, scan the range
    /// after the last key.
    ///
    /// The scan is not a snapshot: rows of different partitions, or a thousand rows apart, may be of different
    /// states. A row that exists throughout the scan is included; one that is created or deleted meanwhile may be.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn scan<K, V>(
        &mut self,
        table: &Table<K, V>,
        range: impl RangeBounds<K>,
        limit: usize,
    ) -> Result<Vec<(K, V)>, ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        self.walk(table, table.range(&range)?, limit)
    }

    /// Returns at most `limit` of the first rows whose keys begin with `prefix`, as [`Client::scan`] does.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn scan_prefix<K, V>(
        &mut self,
        table: &Table<K, V>,
        prefix: &impl PrefixOf<K>,
        limit: usize,
    ) -> Result<Vec<(K, V)>, ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        self.walk(table, table.prefix(prefix)?, limit)
    }

    fn walk<K, V>(
        &mut self,
        table: &Table<K, V>,
        (start, end): Span,
        limit: usize,
    ) -> Result<Vec<(K, V)>, ClientError>
    where
        K: OrderedKey,
        V: Serialize + DeserializeOwned,
    {
        let mut rows = Vec::new();
        // The store takes an empty end for the end of the table; but here it would precede all keys, and the
        // range is empty.
        let mut from = Some(start).filter(|_| end.as_ref().is_none_or(|end| !end.is_empty()));
        let to = end.unwrap_or_default();
        while let Some(start) = from.take().filter(|_| rows.len() < limit) {
            let count = (limit - rows.len()).min(ROWS_AT_ONCE);
            let step =
                self.attempt(|connection| connection.step(table.number(), &start, &to, count));
            let (next, found) = step?;
            for (key, value) in found {
                rows.push((table.key_of(&key)?, table.value_of(&key, &value)?));
            }
            from = next;
        }
        Ok(rows)
    }
}
