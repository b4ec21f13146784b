//! The effect of a commit on a row: a new value, a deletion, or a change of the middle of the value.
//!
//! If only a small part of a value changes (APPEND, a script, a procedure), the log contains that part: a byte
//! appended to ten megabytes takes some dozen bytes of log. The part is found by comparing the new value
//! with the old one, however the change was made. In the process that committed the change, the update also has the
//! whole new value, which the sites there share.
//!
//! Invariant: a part is applied to the value that it was compared with. A partition's writes have one
//! order, and each row has the version of its last write, which is checked.

use serde::{Deserialize, Serialize};

use super::Row;
use crate::key::Value;

/// Maximum size in bytes of a value that is always logged as a whole; a longer one may be logged as a changed part.
const WHOLE_BYTES_MAX: usize = if cfg!(test) { 4 } else { 4 * 1024 };
/// Estimated size in bytes that a changed part takes in the log in addition to its new bytes.
const PART_BYTES: usize = if cfg!(test) { 0 } else { 64 };
/// Number of bytes of the old and the new value that are compared at once.
const BLOCK_BYTES: usize = 256;

/// The effect of a commit on one row. In the log, the first two variants have the format of an `Option`, because
/// updates were written as an `Option` before there were parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Update {
    /// Deletes the row.
    Delete,
    /// Sets the row to this value, whether or not the row existed.
    Put(#[serde(with = "super::value")] Value),
    /// Replaces the middle of the row's present value.
    Part(Part),
}

/// The replacement of the middle of a row's value.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The version of the row whose value is changed: the part applies to no other.
    base: u64,
    /// Number of bytes at the start of the old value that stay unchanged.
    start: u64,
    /// Number of bytes at the end of the old value that stay unchanged.
    end: u64,
    /// The new bytes between the unchanged start and the unchanged end.
    #[serde(with = "super::value")]
    middle: Value,
    /// The whole new value if this process committed the change; `None` if the part was read from the log or
    /// received.
    #[serde(skip)]
    whole: Option<Value>,
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        let of = |part: &Self| (part.base, part.start, part.end);
        of(self) == of(other) && self.middle == other.middle
    }
}

impl Eq for Part {}

impl Update {
    /// Returns the update that changes a row from an old state to a new value; `None` stands for no row. `old` is
    /// only called if the new value is long enough to be compared with the old one.
    #[must_use]
    pub fn between<'r>(old: impl FnOnce() -> Option<&'r Row>, new: Option<Value>) -> Self {
        let Some(new) = new else { return Self::Delete };
        if new.len() <= WHOLE_BYTES_MAX {
            return Self::Put(new);
        }
        let long = old().filter(|old| old.value.len() > WHOLE_BYTES_MAX);
        match long.and_then(|old| Part::between(old, &new)) {
            Some(part) => Self::Part(part),
            None => Self::Put(new),
        }
    }

    /// Returns the row's value after the update, or `None` if the update deletes the row. `old` is the row before the
    /// update.
    ///
    /// # Panics
    /// Panics if a part is applied to a row of another version than the one with which it was compared, or to no row.
    #[must_use]
    pub fn value(&self, old: Option<&Row>) -> Option<Value> {
        match self {
            Self::Delete => None,
            Self::Put(value) => Some(Value::clone(value)),
            Self::Part(part) => {
                let old = old.expect("a row of which a part changed is there");
                assert_eq!(old.version, part.base, "a part is applied to what it is a part of");
                Some(part.whole.clone().unwrap_or_else(|| part.applied_to(&old.value)))
            }
        }
    }

    /// Returns true if the update replaces only a part of the value, and so needs the old row.
    #[must_use]
    pub fn is_part(&self) -> bool {
        matches!(self, Self::Part(_))
    }

    /// Returns an upper bound of the update's encoded size in the log, in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        1 + match self {
            Self::Delete => 0,
            Self::Put(value) => 5 + value.len(),
            Self::Part(part) => 3 * 10 + 5 + part.middle.len(),
        }
    }
}

impl Part {
    /// Returns the part in which `new` differs from the old row's value, or `None` if the part would not take at most
    /// half as much log as the whole value.
    fn between(old: &Row, new: &Value) -> Option<Self> {
        let (from, to) = (&*old.value, &**new);
        let start = common_start(from, to);
        let end = common_end(&from[start..], &to[start..]);
        let middle = &to[start..to.len() - end];
        (middle.len() + PART_BYTES <= to.len() / 2).then(|| Self {
            base: old.version,
            start: start as u64,
            end: end as u64,
            middle: middle.into(),
            whole: Some(Value::clone(new)),
        })
    }

    /// Returns the value that results from applying the part to the value `old`.
    fn applied_to(&self, old: &[u8]) -> Value {
        let (start, end) = (self.start as usize, self.end as usize);
        [&old[..start], &self.middle, &old[old.len() - end..]].concat().into()
    }
}

/// Returns the number of bytes that two values have in common at their start.
fn common_start(one: &[u8], other: &[u8]) -> usize {
    let blocks = one.chunks_exact(BLOCK_BYTES).zip(other.chunks_exact(BLOCK_BYTES));
    let at = blocks.take_while(|(one, other)| one == other).count() * BLOCK_BYTES;
    let rest = one[at..].iter().zip(&other[at..]);
    at + rest.take_while(|(one, other)| one == other).count()
}

/// Returns the number of bytes that two values have in common at their end.
fn common_end(one: &[u8], other: &[u8]) -> usize {
    let blocks = one.rchunks_exact(BLOCK_BYTES).zip(other.rchunks_exact(BLOCK_BYTES));
    let before = blocks.take_while(|(one, other)| one == other).count() * BLOCK_BYTES;
    let (one, other) = (&one[..one.len() - before], &other[..other.len() - before]);
    let rest = one.iter().rev().zip(other.iter().rev());
    before + rest.take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::StoredValue;

    fn row(value: &[u8]) -> Row {
        Row { version: 41, value: value.into() }
    }

    /// As it is read from a log.
    fn logged(update: &Update) -> (Update, usize) {
        let bytes = postcard::to_stdvec(update).unwrap();
        assert!(bytes.len() <= update.bytes_max(), "{} of {}", bytes.len(), update.bytes_max());
        (postcard::from_bytes(&bytes).unwrap(), bytes.len())
    }

    proptest! {
        #[test]
        fn the_new_value_comes_of_the_old_one(
            start in prop::collection::vec(0..3_u8, 0..700), end in prop::collection::vec(0..3_u8, 0..700),
            before in prop::collection::vec(0..3_u8, 0..40), after in prop::collection::vec(0..3_u8, 0..40),
        ) {
            let old = [&start[..], &before, &end].concat();
            let new = [&start[..], &after, &end].concat();
            let row = row(&old);
            let update = Update::between(|| Some(&row), Some(new.as_slice().into()));
            let (read, bytes) = logged(&update);
            prop_assert_eq!(&read, &update);
            for update in [&update, &read] {
                let value = update.value(Some(&row)).unwrap();
                prop_assert_eq!(&*value, &new[..]);
            }
            if start.len() + end.len() > 100 {
                prop_assert!(read.is_part() && bytes <= after.len() + 40, "{bytes} bytes");
            }
        }
    }

    #[test]
    fn what_is_other_or_short_is_logged_as_a_whole() {
        let (old, new) = (row(&[7; 1_000]), Value::from([8; 1_000]));
        assert_eq!(Update::between(|| Some(&old), Some(new.clone())), Update::Put(new.clone()));
        assert_eq!(Update::between(|| None, Some(new.clone())), Update::Put(new));
        let (abcd, short) = (row(b"abcd"), Value::from(*b"abce"));
        assert_eq!(Update::between(|| Some(&abcd), Some(short.clone())), Update::Put(short));
        assert_eq!(Update::between(|| Some(&old), None), Update::Delete);
    }

    #[test]
    fn what_was_logged_before_there_were_parts_is_read() {
        let older: [Option<StoredValue>; 2] = [None, Some(StoredValue(b"value"[..].into()))];
        let expected = [Update::Delete, Update::Put(b"value"[..].into())];
        for (older, expected) in older.iter().zip(expected) {
            let bytes = postcard::to_stdvec(older).unwrap();
            assert_eq!(postcard::from_bytes::<Update>(&bytes).unwrap(), expected);
            assert_eq!(postcard::to_stdvec(&expected).unwrap(), bytes);
        }
    }

    #[test]
    #[should_panic(expected = "a part is applied to what it is a part of")]
    fn a_part_of_another_version_is_not_applied() {
        let old = row(&[7; 100]);
        let update = Update::between(|| Some(&old), Some([7; 101][..].into()));
        let newer = Row { version: 42, ..old };
        _ = update.value(Some(&newer));
    }
}
