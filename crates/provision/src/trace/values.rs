//! Variable-length integers, and the decoding of a block's payload.

/// Appends the variable-length encoding of `value` (LEB128: seven bits per byte, the lowest first) to `to`.
pub(super) fn put(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// The remaining bytes of a block's payload. Each method consumes bytes, and returns `None` if the payload is too
/// short.
pub(super) struct Payload<'a>(pub(super) &'a [u8]);

impl<'a> Payload<'a> {
    /// Consumes a variable-length integer and returns it; `None` also if it exceeds 64 bits.
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Consumes one byte and returns it.
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    /// Consumes `length` bytes and returns them.
    pub(super) fn bytes(&mut self, length: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Returns true if all bytes of the payload are consumed.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_read_as_it_was_written(value: u64, small in 0u64..300) {
            for value in [value, small, 0, u64::MAX] {
                let mut bytes = Vec::new();
                put(&mut bytes, value);
                let mut payload = Payload(&bytes);
                prop_assert_eq!(payload.number(), Some(value));
                prop_assert!(payload.is_empty());
            }
        }

        #[test]
        fn any_bytes_are_a_number_or_none(bytes: Vec<u8>) {
            let mut payload = Payload(&bytes);
            while payload.number().is_some() {}
        }
    }
}
