//! Keys and values, which are byte strings. All keys are in one ordered space, table after table.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Maximum length of a row's own key, in bytes; the table's number is not counted.
pub const KEY_BYTES_MAX: usize = 64 * 1024;

/// The value of a row: a byte string. Cloning it copies a reference.
pub type Value = Arc<[u8]>;

/// The number of a table, with which the key of each of its rows begins; the catalogue maps table names to numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Table(pub u32);

/// The key of a row in the store: the table's number in four bytes, most significant byte first, and the
/// row's own key.
///
/// Cloning a key copies at most a reference. Keys are ordered as byte strings, so that a table's rows are adjacent. A
/// short key is stored inline, so that comparing it reads no other memory.
#[derive(Clone)]
pub struct Key(Form);

/// Maximum length in bytes of a key that is stored inline, table number included: with this length a `Key` takes no
/// more memory than if it could only be a reference.
const SHORT_MAX: usize = 22;

/// The bytes of a key, inline or shared.
#[derive(Clone)]
enum Form {
    /// The length of the key, and an array that begins with its bytes.
    Short(u8, [u8; SHORT_MAX]),
    /// The bytes of a key that is too long to be stored inline.
    Long(Arc<[u8]>),
}

impl Form {
    /// Returns the concatenation of two byte strings as a key's bytes.
    fn of(parts: [&[u8]; 2]) -> Self {
        let [first, second] = parts;
        let length = first.len() + second.len();
        if length > SHORT_MAX {
            return Self::Long(parts.concat().into());
        }
        let mut bytes = [0; SHORT_MAX];
        bytes[..first.len()].copy_from_slice(first);
        bytes[first.len()..length].copy_from_slice(second);
        Self::Short(length as u8, bytes)
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl Key {
    /// Returns the key of the row whose own key is `row` in this table.
    #[must_use]
    pub fn new(table: Table, row: &[u8]) -> Self {
        Self(Form::of([&table.0.to_be_bytes(), row]))
    }

    /// Returns the least key: the empty string, which precedes every table.
    #[must_use]
    pub fn least() -> Self {
        Self(Form::of([&[], &[]]))
    }

    /// Returns the key whose bytes, table number included, [`Key::as_bytes`] returned.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(Form::of([bytes, &[]]))
    }

    /// Returns the table's number and the row's own key, as one byte string.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Form::Short(length, bytes) => &bytes[..usize::from(*length)],
            Form::Long(bytes) => bytes,
        }
    }

    /// Returns the table and the row's own key; `None` if the key is shorter than a table's number, as the bound of a
    /// range may be.
    #[must_use]
    pub fn row(&self) -> Option<(Table, &[u8])> {
        let (table, row) = self.as_bytes().split_first_chunk()?;
        Some((Table(u32::from_be_bytes(*table)), row))
    }

    /// Returns an equal key in memory of its own. Cloning or dropping a key writes to a reference count that all its
    /// clones share. So keys that all sites read all the time should not be shared among them.
    #[must_use]
    pub fn unshared(&self) -> Self {
        Self::from_bytes(self.as_bytes())
    }

    /// Returns the least key that is greater than this one.
    #[must_use]
    pub fn successor(&self) -> Self {
        Self(Form::of([self.as_bytes(), &[0]]))
    }
}

/// Writes `TABLE:ROW`, with each byte of the row that is not printable ASCII escaped as in Rust's byte
/// strings (`\x00`); nothing for the least key.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some((table, row)) => write!(f, "{}:{}", table.0, row.escape_ascii()),
            None if self.as_bytes().is_empty() => Ok(()),
            None => write!(f, "<{}>", self.as_bytes().escape_ascii()),
        }
    }
}

/// The error for a text, which it contains, that does not have the format `TABLE:ROW` of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no key; write TABLE:ROW, for example 0:user42, with \\xNN for other bytes")]
pub struct InvalidKey(String);

impl FromStr for Key {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        let fault = || InvalidKey(text.to_owned());
        if text.is_empty() {
            return Ok(Self::least());
        }
        let (table, row) = text.split_once(':').ok_or_else(fault)?;
        let table = Table(table.parse().map_err(|_| fault())?);
        let mut bytes = Vec::with_capacity(row.len());
        let mut rest = row.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'\\' {
                bytes.push(byte);
                continue;
            }
            bytes.push(match rest.next().ok_or_else(fault)? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                quoted @ (b'\'' | b'"' | b'\\') => quoted,
                b'x' => {
                    let digit = |byte: u8| char::from(byte).to_digit(16);
                    let mut next = || rest.next().and_then(digit).ok_or_else(fault);
                    let (high, low) = (next()?, next()?);
                    u8::try_from(high * 16 + low).map_err(|_| fault())?
                }
                _ => return Err(fault()),
            });
        }
        match bytes.len() {
            0..=KEY_BYTES_MAX => Ok(Self::new(table, &bytes)),
            _ => Err(fault()),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.row() {
            Some((table, row)) => write!(f, "{}:{}", table.0, row.escape_ascii()),
            None => write!(f, "<{}>", self.as_bytes().escape_ascii()),
        }
    }
}

/// A range of keys: from `start` on, up to and without `end`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyRange {
    /// The first key of the range.
    pub start: Key,
    /// The first key after the range; `None` for a range that reaches to the end of the key space.
    pub end: Option<Key>,
}

impl KeyRange {
    /// Returns the range of all keys.
    #[must_use]
    pub fn everything() -> Self {
        Self { start: Key::least(), end: None }
    }

    /// Returns the range that contains only this key.
    #[must_use]
    pub fn only(key: &Key) -> Self {
        Self { start: key.clone(), end: Some(key.successor()) }
    }

    /// Returns the range of all rows of a table.
    #[must_use]
    pub fn of_table(table: Table) -> Self {
        let end = table.0.checked_add(1).map(|next| Key::new(Table(next), &[]));
        Self { start: Key::new(table, &[]), end }
    }

    /// Returns true if the range contains no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    /// Returns true if the key is in the range.
    #[must_use]
    pub fn contains(&self, key: &Key) -> bool {
        self.start <= *key && self.ends_after(key)
    }

    /// Returns true if the range contains all keys of the other range.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.is_empty()
            || self.start <= other.start
                && match (&self.end, &other.end) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(end), Some(other)) => other <= end,
                }
    }

    /// Returns true if at least one possible key is in both ranges.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty()
            && !other.is_empty()
            && self.ends_after(&other.start)
            && other.ends_after(&self.start)
    }

    /// Returns the range of the keys that are in both ranges.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let start = self.start.clone().max(other.start.clone());
        let end = match (&self.end, &other.end) {
            (Some(one), Some(other)) => Some(one.min(other).clone()),
            (end, None) | (None, end) => end.clone(),
        };
        Self { start, end }
    }

    /// Extends this range to the end of `behind`, which must not begin before this range, if `behind` begins inside
    /// this range or directly after it. Returns false, and changes nothing, if there is a gap between the two.
    pub(crate) fn join(&mut self, behind: &Self) -> bool {
        let touches = self.end.as_ref().is_none_or(|end| behind.start <= *end);
        if touches {
            self.end = match (self.end.take(), &behind.end) {
                (Some(end), Some(other)) => Some(end.max(other.clone())),
                _ => None,
            };
        }
        touches
    }

    /// Returns an equal range, with keys in memory of their own: see [`Key::unshared`].
    #[must_use]
    pub fn unshared(&self) -> Self {
        Self { start: self.start.unshared(), end: self.end.as_ref().map(Key::unshared) }
    }

    /// Returns true if the key is before the end of the range.
    fn ends_after(&self, key: &Key) -> bool {
        self.end.as_ref().is_none_or(|end| key < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range() -> impl Strategy<Value = KeyRange> {
        let key = || prop::collection::vec(0..3_u8, 0..3);
        (key(), prop::option::of(key())).prop_map(|(start, end)| KeyRange {
            start: Key::from_bytes(&start),
            end: end.map(|end| Key::from_bytes(&end)),
        })
    }

    fn all_keys() -> Vec<Key> {
        let digits = || 0..4_u8;
        let mut keys = vec![Key::least()];
        for a in digits() {
            keys.push(Key::from_bytes(&[a]));
            for b in digits() {
                keys.push(Key::from_bytes(&[a, b]));
                keys.extend(digits().map(|c| Key::from_bytes(&[a, b, c])));
            }
        }
        keys
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in ["user", "x:user", "0:a\\", "0:a\\x0", "0:a\\q", "99999999999:a"] {
            assert_eq!(text.parse::<Key>(), Err(InvalidKey(text.into())));
        }
        assert_eq!("".parse(), Ok(Key::least()));
    }

    #[test]
    fn tables_lie_one_behind_the_other() {
        let row = Key::new(Table(7), b"row");
        assert_eq!(row.row(), Some((Table(7), b"row".as_slice())));
        assert!(KeyRange::of_table(Table(7)).contains(&row));
        assert!(!KeyRange::of_table(Table(6)).contains(&row));
        assert!(
            KeyRange::of_table(Table(u32::MAX)).contains(&Key::new(Table(u32::MAX), &[255; 9]))
        );
        assert_eq!(Key::least().row(), None);
    }

    proptest! {
        #[test]
        fn ranges_say_what_their_keys_say(one in range(), other in range()) {
            let keys = all_keys();
            let has = |range: &KeyRange, key: &Key| {
                *key >= range.start && range.end.as_ref().is_none_or(|end| key < end)
            };
            let both = one.intersection(&other);
            for key in &keys {
                prop_assert_eq!(one.contains(key), has(&one, key));
                prop_assert_eq!(both.contains(key), has(&one, key) && has(&other, key));
            }
            prop_assert_eq!(one.overlaps(&other), !both.is_empty());
            let mut joined = one.clone();
            if one.start <= other.start && joined.join(&other) {
                let is_in = |key: &Key| has(&one, key) || has(&other, key);
                prop_assert!(keys.iter().all(|key| joined.contains(key) == is_in(key)));
            }
            prop_assert_eq!(one.covers(&other), keys.iter().all(|k| !has(&other, k) || has(&one, k)) || other.is_empty());
        }

        #[test]
        fn a_key_is_what_its_text_says(table in any::<u32>(), row in prop::collection::vec(any::<u8>(), 0..9)) {
            let key = Key::new(Table(table), &row);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }

        #[test]
        fn nothing_lies_between_a_key_and_its_successor(at in 0..85_usize) {
            let keys = all_keys();
            let key = &keys[at];
            let only = KeyRange::only(key);
            prop_assert!(keys.iter().all(|other| only.contains(other) == (other == key)));
        }
    }
}
