//! Encodes keys such that the byte order of the encodings is the order of the values: rows are stored in the order of
//! their keys' values, and a scan from one value to another is a scan over bytes.
//!
//! Invariants, checked by property tests:
//! 1. The byte order of the encodings is the order of the values, also for tuples, whose parts are encoded one after
//!    the other.
//! 2. At most one value is a prefix of a byte string, and a whole key leaves no bytes after it.

/// A key with an encoding whose byte order is the order of the values.
///
/// An implementation for a type with parts joins the encodings of the parts, in the order in which they are
/// compared.
pub trait OrderedKey: Sized {
    /// Appends the encoding of this key to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes one value from the front of `bytes`, and removes its encoding there; returns `None` if the bytes do
    /// not begin with the encoding of a value.
    fn decode(bytes: &mut &[u8]) -> Option<Self>;
}

/// A type whose values are prefixes of keys of type `K`: the first parts of a tuple. The rows with one prefix are
/// adjacent.
pub trait PrefixOf<K>: OrderedKey {}

/// Decodes a key from all of these bytes; returns `None` if they are not exactly the encoding of one key.
pub(super) fn whole<K: OrderedKey>(mut bytes: &[u8]) -> Option<K> {
    let key = K::decode(&mut bytes)?;
    bytes.is_empty().then_some(key)
}

/// Returns the least byte string that is greater than all byte strings with this prefix, or `None` if there is none.
pub(super) fn prefix_successor(mut prefix: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return Some(prefix);
        }
    }
    None
}

macro_rules! unsigned {
    ($($type:ty),+) => {$(
        /// Encodes the number with the most significant byte first.
        impl OrderedKey for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                let (own, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_be_bytes(*own))
            }
        }
    )+};
}

macro_rules! signed {
    ($($type:ty as $unsigned:ty),+) => {$(
        /// Encodes the number with the most significant byte first and the sign bit inverted, so that negative
        /// numbers come first.
        impl OrderedKey for $type {
            fn encode(&self, out: &mut Vec<u8>) {
                (self.cast_unsigned() ^ (1 << (<$unsigned>::BITS - 1))).encode(out);
            }

            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                let turned = <$unsigned>::decode(bytes)?;
                Some((turned ^ (1 << (<$unsigned>::BITS - 1))).cast_signed())
            }
        }
    )+};
}

unsigned!(u8, u16, u32, u64, u128);
signed!(i8 as u8, i16 as u16, i32 as u32, i64 as u64, i128 as u128);

/// Encodes the bytes as they are, but each zero byte as `00 FF`, followed by `00 00` at the end, which is less than
/// any continuation.
impl OrderedKey for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_text(self, out);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut text = Self::new();
        loop {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            if *byte != 0 {
                text.push(*byte);
                continue;
            }
            let (mark, rest) = bytes.split_first()?;
            *bytes = rest;
            match *mark {
                0 => return Some(text),
                u8::MAX => text.push(0),
                _ => return None,
            }
        }
    }
}

/// Encodes the text's bytes in UTF-8 like those of a `Vec<u8>`.
impl OrderedKey for String {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_text(self.as_bytes(), out);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        Self::from_utf8(Vec::decode(bytes)?).ok()
    }
}

pub(super) fn encode_text(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        out.push(*byte);
        if *byte == 0 {
            out.push(u8::MAX);
        }
    }
    out.extend_from_slice(&[0, 0]);
}

macro_rules! tuple {
    ($($part:ident $at:tt),+) => {
        /// Encodes the parts of the tuple one after the other.
        impl<$($part: OrderedKey),+> OrderedKey for ($($part,)+) {
            fn encode(&self, out: &mut Vec<u8>) {
                $(self.$at.encode(out);)+
            }

            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                Some(($($part::decode(bytes)?,)+))
            }
        }
    };
}

tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);

impl<A: OrderedKey, B: OrderedKey> PrefixOf<(A, B)> for A {}
impl<A: OrderedKey, B: OrderedKey, C: OrderedKey> PrefixOf<(A, B, C)> for A {}
impl<A: OrderedKey, B: OrderedKey, C: OrderedKey> PrefixOf<(A, B, C)> for (A, B) {}
impl<A: OrderedKey, B: OrderedKey, C: OrderedKey, D: OrderedKey> PrefixOf<(A, B, C, D)> for A {}
impl<A: OrderedKey, B: OrderedKey, C: OrderedKey, D: OrderedKey> PrefixOf<(A, B, C, D)> for (A, B) {}
impl<A, B, C, D> PrefixOf<(A, B, C, D)> for (A, B, C)
where
    A: OrderedKey,
    B: OrderedKey,
    C: OrderedKey,
    D: OrderedKey,
{
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    fn bytes<K: OrderedKey>(key: &K) -> Vec<u8> {
        let mut out = Vec::new();
        key.encode(&mut out);
        out
    }

    fn check<K: OrderedKey + Ord + Debug>(one: &K, other: &K) -> Result<(), TestCaseError> {
        let (first, second) = (bytes(one), bytes(other));
        prop_assert_eq!(first.cmp(&second), one.cmp(other));
        prop_assert!(whole(&first).is_some_and(|read: K| read == *one));
        // Half a key is none, nor is one with more behind.
        prop_assert!(whole::<K>(&first[..first.len() - 1]).is_none());
        prop_assert!(whole::<K>(&[&*first, &[7]].concat()).is_none());
        Ok(())
    }

    /// Texts that often begin alike, with the bytes that mean something here.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![Just(0_u8), Just(1), Just(254), Just(255)];
        prop::collection::vec(byte, 0..5)
    }

    /// Numbers at which bytes change, and any.
    fn number() -> impl Strategy<Value = i64> {
        let near = [i64::MIN, -256, -1, 0, 1, 255, 256, i64::MAX];
        prop_oneof![prop::sample::select(near.to_vec()), any::<i64>()]
    }

    proptest! {
        #[test]
        fn numbers_are_ordered_as_their_bytes(one in number(), other in number()) {
            check(&one, &other)?;
            check(&one.cast_unsigned(), &other.cast_unsigned())?;
            check(&(one as i32), &(other as i32))?;
            check(&(one as i8), &(other as i8))?;
            check(&(one as u16), &(other as u16))?;
            check(&i128::from(one), &i128::from(other))?;
        }

        #[test]
        fn texts_are_ordered_as_their_bytes(one in text(), other in text(), any in any::<[String; 2]>()) {
            check(&one, &other)?;
            check(&any[0], &any[1])?;
        }

        #[test]
        fn tuples_are_ordered_as_their_bytes(
            one in (text(), number(), text()),
            other in (text(), number(), text()),
        ) {
            check(&one, &other)?;
            check(&(one.1, one.0.clone()), &(other.1, other.0.clone()))?;
            check(&(one.0.clone(), one.2.clone(), one.1, 1_u8), &(other.0, other.2, other.1, 2))?;
        }

        #[test]
        fn what_begins_so_lies_between_the_prefix_and_what_is_behind_it(
            first in text(),
            one in (text(), number()),
        ) {
            let (prefix, key) = (bytes(&first), bytes(&one));
            let end = prefix_successor(prefix.clone());
            let is_within = key >= prefix && end.is_none_or(|end| key < end);
            prop_assert_eq!(is_within, one.0 == first);
        }
    }

    #[test]
    fn nothing_is_behind_the_last_prefix() {
        assert_eq!(prefix_successor(vec![1, 255, 255]), Some(vec![2]));
        assert_eq!(prefix_successor(vec![255, 255]), None);
        assert_eq!(prefix_successor(Vec::new()), None);
    }
}
