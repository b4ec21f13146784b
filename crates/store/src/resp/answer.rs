//! The answer of a command, and its encoding in both versions of the Redis protocol.
//!
//! Commands answer with values instead of bytes: a script gets the same value that a client is sent, and EXEC
//! nests the values in an array.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::number::decimal;
use crate::key::Value;
use crate::reply::Reply;

/// Maximum memory that is reserved before an answer is encoded, in bytes. Long values are shared and need none.
const RESERVED_BYTES_MAX: usize = 16 * 1024;

pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const SYNTAX: &str = "ERR syntax error";

/// The version of the Redis protocol (RESP) that a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Protocol {
    Two,
    Three,
}

impl Protocol {
    pub fn number(self) -> i64 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// The answer of a command as a value, before it is encoded for a client or converted for a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// A status on one line, such as OK.
    Status(Cow<'static, str>),
    /// An error text, whose first word is a code by which clients distinguish errors.
    Error(Vec<u8>),
    /// An integer of 64 bits.
    Integer(i64),
    /// A number with a fraction, in decimal form.
    Double(String),
    /// A truth value, which version 2 of the protocol sends as the integer 1 or 0.
    Boolean(bool),
    /// An integer of any size, in decimal form on one line.
    BigNumber(Vec<u8>),
    /// A text with a format, which three letters name.
    Verbatim([u8; 3], #[serde(with = "crate::record::value")] Value),
    /// A byte string.
    Bulk(#[serde(with = "crate::record::value")] Value),
    /// Text for people, which version 3 of the protocol marks as text.
    Text(String),
    /// The absence of a value.
    Nil,
    /// The absence of an array, for which version 2 of the protocol has a form of its own.
    NilArray,
    /// A list of answers.
    Array(Vec<Answer>),
    /// A set of answers, which version 2 of the protocol sends as an array.
    Set(Vec<Answer>),
    /// Pairs of a key and a value, which version 2 of the protocol sends as one array.
    Map(Vec<(Answer, Answer)>),
}

impl Answer {
    pub const OK: Self = Self::Status(Cow::Borrowed("OK"));

    pub fn error(text: impl Into<Vec<u8>>) -> Self {
        Self::Error(text.into())
    }

    pub fn bulk(bytes: impl AsRef<[u8]>) -> Self {
        Self::Bulk(bytes.as_ref().into())
    }

    pub fn status(text: &'static str) -> Self {
        Self::Status(Cow::Borrowed(text))
    }

    pub fn value(value: Option<Value>) -> Self {
        value.map_or(Self::Nil, Self::Bulk)
    }

    pub fn count(count: usize) -> Self {
        Self::Integer(count as i64)
    }

    /// Returns an upper bound of the answer's encoded length, in bytes.
    pub fn bytes(&self) -> usize {
        let all = |answers: &[Self]| answers.iter().map(Self::bytes).sum::<usize>();
        32 + match self {
            Self::Status(text) => text.len(),
            Self::Error(text) => text.len(),
            Self::Bulk(value) => value.len(),
            Self::Text(text) => text.len(),
            Self::Double(text) => text.len(),
            Self::BigNumber(text) => text.len(),
            Self::Verbatim(_, text) => 4 + text.len(),
            Self::Integer(_) | Self::Boolean(_) | Self::Nil | Self::NilArray => 0,
            Self::Array(answers) | Self::Set(answers) => all(answers),
            Self::Map(pairs) => pairs.iter().map(|(key, value)| key.bytes() + value.bytes()).sum(),
        }
    }

    /// Returns the reply that contains the answer, encoded in this version of the protocol.
    pub fn encoded(&self, protocol: Protocol) -> Reply {
        let mut out = Reply::default();
        out.end().reserve(self.bytes().min(RESERVED_BYTES_MAX));
        self.encode(protocol, &mut out);
        out
    }

    /// Appends the answer, encoded in this version of the protocol, to `out`.
    pub fn encode(&self, protocol: Protocol, out: &mut Reply) {
        let is_three = protocol == Protocol::Three;
        match self {
            Self::Status(text) => line(b'+', text.as_bytes(), out.end()),
            Self::Error(text) => line(b'-', text, out.end()),
            Self::Integer(value) => head(b':', *value, out.end()),
            Self::Double(text) if is_three => line(b',', text.as_bytes(), out.end()),
            Self::Double(text) => bulk(b'$', &[text.as_bytes()], out.end()),
            Self::Boolean(is) if is_three => line(b'#', if *is { b"t" } else { b"f" }, out.end()),
            Self::Boolean(is) => head(b':', (*is).into(), out.end()),
            Self::BigNumber(text) if is_three => line(b'(', text, out.end()),
            Self::BigNumber(text) => bulk(b'$', &[text], out.end()),
            Self::Verbatim(kind, text) if is_three => bulk(b'=', &[kind, b":", text], out.end()),
            Self::Verbatim(_, text) => bulk(b'$', &[text], out.end()),
            Self::Bulk(value) => {
                head(b'$', value.len() as i64, out.end());
                out.push_value(value);
                out.end().extend_from_slice(b"\r\n");
            }
            Self::Text(text) if is_three => bulk(b'=', &[b"txt:", text.as_bytes()], out.end()),
            Self::Text(text) => bulk(b'$', &[text.as_bytes()], out.end()),
            Self::Nil | Self::NilArray if is_three => out.end().extend_from_slice(b"_\r\n"),
            Self::Nil => head(b'$', -1, out.end()),
            Self::NilArray => head(b'*', -1, out.end()),
            Self::Array(answers) => all(b'*', answers, protocol, out),
            Self::Set(answers) => all(if is_three { b'~' } else { b'*' }, answers, protocol, out),
            Self::Map(pairs) => {
                let (kind, each) = if is_three { (b'%', 1) } else { (b'*', 2) };
                head(kind, pairs.len() as i64 * each, out.end());
                for (key, value) in pairs {
                    key.encode(protocol, out);
                    value.encode(protocol, out);
                }
            }
        }
    }
}

/// Appends the head of an array of `count` elements to `out`; the encoded elements are to be appended after it.
pub(super) fn array_of(count: usize, out: &mut Reply) {
    head(b'*', count as i64, out.end());
}

/// Appends a kind and a number on one line.
fn head(kind: u8, value: i64, out: &mut Vec<u8>) {
    out.push(kind);
    decimal(value, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends a text on one line, after the byte `kind` that names its type. Line breaks in the text become blanks;
/// those at its end are removed.
fn line(kind: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(kind);
    let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
    let on_one = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
    out.extend(text[..end].iter().map(on_one));
    out.extend_from_slice(b"\r\n");
}

/// Appends the concatenation of the parts as a byte string of the given kind, with its length in front.
fn bulk(kind: u8, parts: &[&[u8]], out: &mut Vec<u8>) {
    head(kind, parts.iter().map(|part| part.len() as i64).sum(), out);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.extend_from_slice(b"\r\n");
}

/// Appends answers as an aggregate of the given kind.
fn all(kind: u8, answers: &[Answer], protocol: Protocol, out: &mut Reply) {
    head(kind, answers.len() as i64, out.end());
    answers.iter().for_each(|answer| answer.encode(protocol, out));
}

/// Returns the beginning of a text for an error message: at most `bytes_max` bytes, and, like C, only up to the first
/// zero byte.
pub(super) fn cut(text: &[u8], bytes_max: usize) -> &[u8] {
    let text = &text[..text.len().min(bytes_max)];
    text.split(|byte| *byte == 0).next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(answer: &Answer, two: &str, three: &str) {
        assert_eq!(answer.encoded(Protocol::Two).into_bytes().escape_ascii().to_string(), two);
        assert_eq!(answer.encoded(Protocol::Three).into_bytes().escape_ascii().to_string(), three);
        assert!(answer.bytes() >= two.replace("\\r\\n", "..").len());
    }

    #[test]
    fn version_3_names_what_version_2_has_no_names_for() {
        check(&Answer::Nil, r"$-1\r\n", r"_\r\n");
        check(&Answer::NilArray, r"*-1\r\n", r"_\r\n");
        check(&Answer::Text("a b".to_owned()), r"$3\r\na b\r\n", r"=7\r\ntxt:a b\r\n");
        let one = || vec![Answer::Integer(-1)];
        check(&Answer::Set(one()), r"*1\r\n:-1\r\n", r"~1\r\n:-1\r\n");
        let pair = (Answer::bulk("k"), Answer::Array(one()));
        let pair_bytes = r"$1\r\nk\r\n*1\r\n:-1\r\n";
        check(
            &Answer::Map(vec![pair]),
            &format!(r"*2\r\n{pair_bytes}"),
            &format!(r"%1\r\n{pair_bytes}"),
        );
    }

    #[test]
    fn line_breaks_in_an_error_become_spaces() {
        check(&Answer::error("ERR a\r\nb\r\n"), r"-ERR a  b\r\n", r"-ERR a  b\r\n");
    }
}
