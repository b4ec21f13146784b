//! A table as a program sees it: typed keys and values, and their encoding in the store's rows.

use std::any::type_name;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ClientError;
use super::ordered::{OrderedKey, PrefixOf, encode_text, prefix_successor, whole};
use crate::key::KEY_BYTES_MAX;
use crate::resp::DATABASES;

/// A table of the store: rows of one type, with keys of one type. Values are encoded in postcard's format.
///
/// A table is only a name: nothing is created in the store. A program that uses a table with other types gets
/// an error for the rows that it cannot decode.
///
/// ```
/// use imago_store::client::Table;
///
/// const BALANCES: Table<u64, i64> = Table::new(1);
/// const ORDERS: Table<(String, u64), Vec<u32>> = Table::named(2, "orders");
/// ```
pub struct Table<K, V> {
    number: u32,
    name: &'static str,
    types: PhantomData<fn(K) -> V>,
}

/// A range of encoded keys: from the first key on, up to and without the second; `None` for the end of the numbered
/// table.
pub(super) type Span = (Vec<u8>, Option<Vec<u8>>);

impl<K, V> Table<K, V> {
    /// Returns the table that has all rows of one of the store's numbered tables, which is Redis's database of that
    /// number.
    ///
    /// # Panics
    /// Panics if the store has no table of that number: the numbers are 0 to 15.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self::named(number, "")
    }

    /// Returns the table `name` among several in one of the store's numbered tables, in which they follow each other
    /// by name. A numbered table must not have both named tables and one without a name.
    ///
    /// # Panics
    /// As [`Table::new`].
    #[must_use]
    pub const fn named(number: u32, name: &'static str) -> Self {
        assert!(number < DATABASES, "a store has 16 tables, the first is 0");
        Self { number, name, types: PhantomData }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the bytes with which all encoded keys of the table begin: its encoded name, or none without a name.
    fn start(&self) -> Vec<u8> {
        let mut start = Vec::new();
        if !self.name.is_empty() {
            encode_text(self.name.as_bytes(), &mut start);
        }
        start
    }
}

impl<K: OrderedKey, V> Table<K, V> {
    /// Encodes a row's key as the store has it, with the table's name before it.
    pub(super) fn key(&self, key: &K) -> Result<Vec<u8>, ClientError> {
        self.prefix_bytes(key)
    }

    /// Returns the range of encoded keys that a range of keys covers.
    pub(super) fn range(&self, range: &impl RangeBounds<K>) -> Result<Span, ClientError> {
        // No key lies between a key and that key with a zero byte appended.
        let after = |key| self.key(key).map(|key| [&*key, &[0]].concat());
        let start = match range.start_bound() {
            Bound::Included(key) => self.key(key)?,
            Bound::Excluded(key) => after(key)?,
            Bound::Unbounded => self.start(),
        };
        let end = match range.end_bound() {
            Bound::Included(key) => Some(after(key)?),
            Bound::Excluded(key) => Some(self.key(key)?),
            Bound::Unbounded => prefix_successor(self.start()),
        };
        Ok((start, end))
    }

    /// Returns the range of encoded keys that begin with the encoding of `prefix`.
    pub(super) fn prefix(&self, prefix: &impl PrefixOf<K>) -> Result<Span, ClientError> {
        let start = self.prefix_bytes(prefix)?;
        Ok((start.clone(), prefix_successor(start)))
    }

    /// Decodes a row's key from the bytes that the store has.
    pub(super) fn key_of(&self, bytes: &[u8]) -> Result<K, ClientError> {
        let own = bytes.strip_prefix(&*self.start());
        own.and_then(whole).ok_or_else(|| self.type_mismatch(bytes, type_name::<K>()))
    }

    fn prefix_bytes(&self, with: &impl OrderedKey) -> Result<Vec<u8>, ClientError> {
        let mut key = self.start();
        with.encode(&mut key);
        match key.len() {
            0..=KEY_BYTES_MAX => Ok(key),
            bytes => Err(ClientError::KeyTooLong(bytes)),
        }
    }

    fn type_mismatch(&self, key: &[u8], expected: &'static str) -> ClientError {
        let key = key.escape_ascii().to_string();
        ClientError::OtherType { table: self.number, key, expected }
    }
}

impl<K: OrderedKey, V: Serialize + DeserializeOwned> Table<K, V> {
    pub(super) fn bytes(&self, value: &V) -> Result<Vec<u8>, ClientError> {
        postcard::to_stdvec(value).map_err(ClientError::Unwritable)
    }

    pub(super) fn value_of(&self, key: &[u8], bytes: &[u8]) -> Result<V, ClientError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            _ => Err(self.type_mismatch(key, type_name::<V>())),
        }
    }
}
