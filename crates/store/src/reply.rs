//! A transaction's reply, in the form in which it is sent: bytes, and long values that it shares with their
//! rows.
//!
//! A value of 16 KB or more is not copied, so thousands of replies with one row's value take its memory once.
//! A shorter value is copied, since that costs less than sending one more piece.

use std::borrow::Cow;
use std::fmt;
use std::io::IoSlice;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::key::Value;
use crate::output_buffer::Charge;
use crate::record::StoredValue;

/// Minimum length in bytes of a value that a reply shares with its row instead of copying it.
const SHARED_BYTES_MIN: usize = 16 * 1024;

/// The encoded reply to a client: a sequence of bytes, in which long values are shared with their rows.
#[derive(Default)]
pub struct Reply {
    /// The pieces of the reply, in order: copied bytes, and the shared value that follows them.
    pieces: Vec<(Vec<u8>, Value)>,
    /// The copied bytes after all pieces.
    tail: Vec<u8>,
    /// The reply's charge to its client's output buffer; `None` if the reply is not charged.
    charge: Option<Charge>,
}

impl Reply {
    /// Returns the length of the reply in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        let piece = |(bytes, value): &(Vec<u8>, Value)| bytes.len() + value.len();
        self.pieces.iter().map(piece).sum::<usize>() + self.tail.len()
    }

    /// Returns true if the reply has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the reply's bytes as one vector.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        if self.pieces.is_empty() { self.tail } else { self.to_bytes().into_owned() }
    }

    /// Returns the reply's bytes in one piece; they are borrowed if the reply shares no value.
    #[must_use]
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        if self.pieces.is_empty() {
            return Cow::Borrowed(&self.tail);
        }
        let mut all = Vec::with_capacity(self.len());
        self.slices().iter().for_each(|slice| all.extend_from_slice(slice));
        Cow::Owned(all)
    }

    /// Returns the reply's bytes as slices in order, none of them empty, without copying the bytes.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(2 * self.pieces.len() + 1);
        for (bytes, value) in &self.pieces {
            slices.push(IoSlice::new(bytes));
            slices.push(IoSlice::new(value));
        }
        slices.push(IoSlice::new(&self.tail));
        slices.retain(|slice| !slice.is_empty());
        slices
    }

    /// Returns the buffer at the end of the reply, to which further bytes are appended.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    /// Appends a value, which is copied if it is shorter than 16 KB and shared otherwise.
    pub(crate) fn push_value(&mut self, value: &Value) {
        if value.len() < SHARED_BYTES_MIN {
            self.tail.extend_from_slice(value);
        } else {
            self.pieces.push((std::mem::take(&mut self.tail), Value::clone(value)));
        }
    }

    /// Appends another reply to the same client, and takes over that reply's charge.
    pub(crate) fn append(&mut self, other: Self) {
        for (bytes, value) in other.pieces {
            self.tail.extend_from_slice(&bytes);
            self.pieces.push((std::mem::take(&mut self.tail), value));
        }
        self.tail.extend_from_slice(&other.tail);
        match (&mut self.charge, other.charge) {
            (Some(charge), Some(more)) => charge.join(more),
            (charge @ None, more) => *charge = more,
            (Some(_), None) => {}
        }
    }

    /// Empties the reply, drops its charge, and retains at most `kept_bytes` of its buffer's capacity.
    pub(crate) fn clear(&mut self, kept_bytes: usize) {
        self.charge = None;
        self.pieces = Vec::new();
        self.tail.clear();
        self.tail.shrink_to(kept_bytes);
    }

    /// Returns references to the values that the reply shares with rows.
    pub(crate) fn shared(&self) -> Vec<Value> {
        self.pieces.iter().map(|(_, value)| Value::clone(value)).collect()
    }

    /// Returns true if the reply is charged to an output buffer.
    pub(crate) fn is_charged(&self) -> bool {
        self.charge.is_some()
    }

    /// Replaces the reply's charge; `None` removes it.
    pub(crate) fn keep(&mut self, charge: Option<Charge>) {
        self.charge = charge;
    }

    /// Removes and returns the reply's charge.
    pub(crate) fn take_charge(&mut self) -> Option<Charge> {
        self.charge.take()
    }
}

impl From<Vec<u8>> for Reply {
    fn from(bytes: Vec<u8>) -> Self {
        Self { tail: bytes, ..Self::default() }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_bytes().escape_ascii())
    }
}

impl PartialEq for Reply {
    fn eq(&self, other: &Self) -> bool {
        self.to_bytes() == other.to_bytes()
    }
}

impl Eq for Reply {}

/// Serializes the reply as one byte string, without its charge.
impl Serialize for Reply {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(&self.to_bytes())
    }
}

impl<'de> Deserialize<'de> for Reply {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let StoredValue(value) = StoredValue::deserialize(from)?;
        let mut reply = Self::default();
        reply.push_value(&value);
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long(byte: u8) -> Value {
        vec![byte; SHARED_BYTES_MIN].into()
    }

    /// `head`, a short value, a long one, `middle`, a long one.
    fn mixed(first: &Value, second: &Value) -> Reply {
        let mut reply = Reply::from(b"head".to_vec());
        reply.push_value(&b"short"[..].into());
        reply.push_value(first);
        reply.end().extend_from_slice(b"middle");
        reply.push_value(second);
        reply
    }

    #[test]
    fn long_values_are_shared_and_short_ones_are_not() {
        let (first, second) = (long(1), long(2));
        let reply = mixed(&first, &second);
        assert_eq!((Value::strong_count(&first), Value::strong_count(&second)), (2, 2));
        let expected = [b"headshort", &*first, b"middle", &*second].concat();
        assert_eq!(reply.len(), expected.len());
        let slices = reply.slices();
        let sent: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        assert_eq!(sent, expected);
        drop(slices);
        assert_eq!(reply.into_bytes(), expected);
        assert_eq!(Value::strong_count(&first), 1);
    }

    #[test]
    fn replies_are_appended_in_their_order() {
        let (first, second) = (long(1), long(2));
        let mut all = mixed(&first, &second);
        all.append(Reply::from(b"between".to_vec()));
        all.append(mixed(&second, &first));
        let mut expected = mixed(&first, &second).into_bytes();
        expected.extend_from_slice(b"between");
        expected.extend(mixed(&second, &first).into_bytes());
        assert_eq!(all.into_bytes(), expected);
    }

    #[test]
    fn what_is_sent_to_another_process_comes_as_it_was() {
        let reply = mixed(&long(1), &long(2));
        let sent = postcard::to_stdvec(&reply).expect("it has a form in bytes");
        let come: Reply = postcard::from_bytes(&sent).expect("it was sent");
        assert_eq!(come, reply);
        assert_ne!(come, mixed(&long(1), &long(3)));
    }
}
