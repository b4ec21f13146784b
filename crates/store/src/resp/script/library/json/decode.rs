//! The JSON decoder.

use mlua::{Lua, Table, Value};

use super::super::{Bounds, DEPTH_MAX, Fault, said};
use super::Config;

pub(super) fn decoded(
    lua: &Lua,
    bytes: &[u8],
    config: &Config,
    bounds: &Bounds,
) -> Result<Value, Fault> {
    // In UTF-16 and UTF-32, one of the first two bytes is zero.
    if bytes.len() >= 2 && (bytes[0] == 0 || bytes[1] == 0) {
        return said("JSON parser does not support UTF-16 or UTF-32");
    }
    let mut reader = Reader { lua, bytes, at: 0, config, bounds };
    let value = reader.value()?;
    match reader.next() {
        Token { what: What::End, .. } => Ok(value),
        other => other.unexpected("the end"),
    }
}

/// A token of JSON, and its position in the text in bytes.
struct Token {
    what: What,
    at: usize,
}

enum What {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Wrong(&'static str),
}

impl Token {
    fn unexpected<T>(&self, expected: &str) -> Result<T, Fault> {
        let found = match self.what {
            What::ObjectBegin => "T_OBJ_BEGIN",
            What::ObjectEnd => "T_OBJ_END",
            What::ArrayBegin => "T_ARR_BEGIN",
            What::ArrayEnd => "T_ARR_END",
            What::Text(_) => "T_STRING",
            What::Number(_) => "T_NUMBER",
            What::Boolean(_) => "T_BOOLEAN",
            What::Null => "T_NULL",
            What::Colon => "T_COLON",
            What::Comma => "T_COMMA",
            What::End => "T_END",
            What::Wrong(what) => what,
        };
        said(format!("Expected {expected} but found {found} at character {}", self.at + 1))
    }
}

struct Reader<'l, 'b> {
    lua: &'l Lua,
    bytes: &'b [u8],
    at: usize,
    config: &'b Config,
    bounds: &'b Bounds,
}

/// An object or an array of JSON whose end was not read, and the key or index of its next value.
enum Open {
    Object(Table, mlua::String),
    Array(Table, usize),
}

impl Reader<'_, '_> {
    /// Returns the byte at a distance after the next one to read; after the last byte a zero, as in C.
    fn peek(&self, behind: usize) -> u8 {
        self.bytes.get(self.at + behind).copied().unwrap_or(0)
    }

    fn has(&self, word: &[u8]) -> bool {
        self.bytes[self.at..].starts_with(word)
    }

    /// Reads a JSON value with all values in it. The method does not recurse, since a thread's stack is small.
    fn value(&mut self) -> Result<Value, Fault> {
        let mut open: Vec<Open> = Vec::new();
        let mut token = self.next();
        loop {
            // The machine itself counts the memory of its values.
            self.bounds.check(0)?;
            let mut value = match token.what {
                What::Text(bytes) => Value::String(self.lua.create_string(bytes)?),
                What::Number(number) => Value::Number(number),
                What::Boolean(is) => Value::Boolean(is),
                What::Null => Value::NULL,
                What::ObjectBegin | What::ArrayBegin => {
                    self.check_depth(open.len() + 1)?;
                    let table = self.lua.create_table()?;
                    let is_object = matches!(token.what, What::ObjectBegin);
                    token = self.next();
                    match token.what {
                        What::ObjectEnd if is_object => Value::Table(table),
                        What::ArrayEnd if !is_object => Value::Table(table),
                        _ => {
                            if is_object {
                                let key = self.key(token)?;
                                open.push(Open::Object(table, key));
                                token = self.next();
                            } else {
                                open.push(Open::Array(table, 1));
                            }
                            continue;
                        }
                    }
                }
                _ => return token.unexpected("value"),
            };
            // The value belongs to the innermost open container. It may complete that container, which
            // belongs to the next one.
            loop {
                let Some(last) = open.pop() else { return Ok(value) };
                token = self.next();
                match last {
                    Open::Object(table, key) => {
                        table.raw_set(key, value)?;
                        match token.what {
                            What::ObjectEnd => value = Value::Table(table),
                            What::Comma => {
                                let key = self.next();
                                let key = self.key(key)?;
                                open.push(Open::Object(table, key));
                                break;
                            }
                            _ => return token.unexpected("comma or object end"),
                        }
                    }
                    Open::Array(table, at) => {
                        table.raw_set(at, value)?;
                        match token.what {
                            What::ArrayEnd => value = Value::Table(table),
                            What::Comma => {
                                open.push(Open::Array(table, at + 1));
                                break;
                            }
                            _ => return token.unexpected("comma or array end"),
                        }
                    }
                }
            }
            token = self.next();
        }
    }

    fn check_depth(&self, depth: usize) -> Result<(), Fault> {
        let most = usize::try_from(self.config.decode_depth_max).unwrap_or(DEPTH_MAX);
        if depth > most.min(DEPTH_MAX) {
            let at = self.at;
            return said(format!(
                "Found too many nested data structures ({depth}) at character {at}"
            ));
        }
        Ok(())
    }

    /// Checks that the token is an object's key, reads the colon after it, and returns the key.
    fn key(&mut self, token: Token) -> Result<mlua::String, Fault> {
        let What::Text(key) = token.what else { return token.unexpected("object key string") };
        let colon = self.next();
        if !matches!(colon.what, What::Colon) {
            return colon.unexpected("colon");
        }
        Ok(self.lua.create_string(key)?)
    }

    fn next(&mut self) -> Token {
        while matches!(self.peek(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        let at = self.at;
        let what = match self.peek(0) {
            b'{' => What::ObjectBegin,
            b'}' => What::ObjectEnd,
            b'[' => What::ArrayBegin,
            b']' => What::ArrayEnd,
            b',' => What::Comma,
            b':' => What::Colon,
            0 => return Token { what: What::End, at },
            b'"' => return self.text(),
            b'-' | b'0'..=b'9' => {
                if !self.config.decode_invalid && self.is_invalid_number() {
                    return Token { what: What::Wrong("invalid number"), at };
                }
                return self.number();
            }
            _ if self.has(b"true") => {
                self.at += 4;
                return Token { what: What::Boolean(true), at };
            }
            _ if self.has(b"false") => {
                self.at += 5;
                return Token { what: What::Boolean(false), at };
            }
            _ if self.has(b"null") => {
                self.at += 4;
                return Token { what: What::Null, at };
            }
            b'+' | b'i' | b'I' | b'n' | b'N'
                if self.config.decode_invalid && self.is_invalid_number() =>
            {
                return self.number();
            }
            _ => return Token { what: What::Wrong("invalid token"), at },
        };
        self.at += 1;
        Token { what, at }
    }

    fn text(&mut self) -> Token {
        let begin = self.at;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let wrong = |at, what| Token { what: What::Wrong(what), at };
            match self.peek(0) {
                b'"' => break,
                0 => return wrong(self.at, "unexpected end of string"),
                b'\\' => {
                    let byte = match self.peek(1) {
                        byte @ (b'"' | b'\\' | b'/') => byte,
                        b'b' => 8,
                        b'f' => 12,
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'u' => {
                            let Some((character, length)) = self.escaped() else {
                                return wrong(self.at, "invalid unicode escape code");
                            };
                            text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                            self.at += length;
                            continue;
                        }
                        _ => return wrong(self.at, "invalid escape code"),
                    };
                    text.push(byte);
                    self.at += 2;
                }
                byte => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Token { what: What::Text(text), at: begin }
    }

    /// Returns the character that an escape in a string, or a surrogate pair of escapes, stands for, and the length
    /// of the escapes in bytes; `None` if they are invalid.
    fn escaped(&self) -> Option<(char, usize)> {
        let half = |behind: usize| -> Option<u32> {
            let digits = self.bytes.get(self.at + behind..self.at + behind + 4)?;
            let digits = std::str::from_utf8(digits).ok().filter(|it| !it.starts_with('+'))?;
            u32::from_str_radix(digits, 16).ok()
        };
        let code = half(2)?;
        if code & 0xf800 != 0xd800 {
            return Some((char::from_u32(code)?, 6));
        }
        let is_pair = code & 0x400 == 0 && self.peek(6) == b'\\' && self.peek(7) == b'u';
        let low = half(8).filter(|low| is_pair && low & 0xfc00 == 0xdc00)?;
        let code = ((code & 0x3ff) << 10 | low & 0x3ff) + 0x1_0000;
        Some((char::from_u32(code)?, 12))
    }

    /// Returns true if the text continues with a number in a form that JSON does not allow: with a plus sign, with
    /// leading zeros, in base 16, infinite, or not a number.
    fn is_invalid_number(&self) -> bool {
        if self.peek(0) == b'+' {
            return true;
        }
        let rest = &self.bytes[self.at + usize::from(self.peek(0) == b'-')..];
        match rest {
            [b'0', b'x' | b'X' | b'0'..=b'9', ..] => true,
            [first, ..] if *first <= b'9' => false,
            _ => {
                let word = rest.get(..3).map(<[u8]>::to_ascii_lowercase);
                word.is_some_and(|word| word == b"inf" || word == b"nan")
            }
        }
    }

    fn number(&mut self) -> Token {
        let at = self.at;
        let (number, length) = prefix(&self.bytes[at..]);
        self.at += length;
        let what = if length == 0 { What::Wrong("invalid number") } else { What::Number(number) };
        Token { what, at }
    }
}

/// Parses the number at the beginning of the bytes, as C's `strtod` does. Returns the number and its length in bytes,
/// which is 0 if there is no number.
fn prefix(bytes: &[u8]) -> (f64, usize) {
    let signed = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let sign = if bytes.first() == Some(&b'-') { -1.0 } else { 1.0 };
    let rest = &bytes[signed..];
    let is_word =
        |word: &[u8]| rest.get(..word.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(word));
    for (word, value) in
        [(&b"infinity"[..], f64::INFINITY), (b"inf", f64::INFINITY), (b"nan", f64::NAN)]
    {
        if is_word(word) {
            return (value.copysign(sign), signed + word.len());
        }
    }
    let count = |from: &[u8], fits: fn(&u8) -> bool| from.iter().take_while(|it| fits(it)).count();
    if is_word(b"0x") {
        return of_base_16(&rest[2..], sign, signed + 2);
    }
    let whole = count(rest, u8::is_ascii_digit);
    let mut length = whole;
    if rest.get(length) == Some(&b'.') {
        let digits = count(&rest[length + 1..], u8::is_ascii_digit);
        if whole + digits == 0 {
            return (0.0, 0);
        }
        length += 1 + digits;
    } else if whole == 0 {
        return (0.0, 0);
    }
    if matches!(rest.get(length), Some(b'e' | b'E')) {
        let signs = usize::from(matches!(rest.get(length + 1), Some(b'+' | b'-')));
        let digits = count(&rest[length + 1 + signs..], u8::is_ascii_digit);
        if digits > 0 {
            length += 1 + signs + digits;
        }
    }
    let text = std::str::from_utf8(&rest[..length]).expect("digits");
    (text.parse::<f64>().expect("a number").copysign(sign), signed + length)
}

/// Parses the digits of a number in base 16, which follow `before` bytes of sign and prefix. Returns the number and
/// its total length in bytes.
fn of_base_16(digits: &[u8], sign: f64, before: usize) -> (f64, usize) {
    let (mut value, mut length, mut scale) = (0.0_f64, 0, 0);
    let mut is_fraction = false;
    for byte in digits {
        match (char::from(*byte).to_digit(16), byte) {
            (Some(digit), _) => {
                value = value * 16.0 + f64::from(digit);
                scale -= 4 * i32::from(is_fraction);
            }
            (None, b'.') if !is_fraction => is_fraction = true,
            _ => break,
        }
        length += 1;
    }
    let has_digits = digits[..length].iter().any(u8::is_ascii_hexdigit);
    if !has_digits {
        // Only the zero of the prefix is a number.
        return (0.0_f64.copysign(sign), before - 1);
    }
    if matches!(digits.get(length), Some(b'p' | b'P')) {
        let rest = &digits[length + 1..];
        let signs = usize::from(matches!(rest.first(), Some(b'+' | b'-')));
        let many = rest[signs..].iter().take_while(|it| it.is_ascii_digit()).count();
        if many > 0 {
            let text = std::str::from_utf8(&rest[..signs + many]).expect("digits");
            scale += text.trim_start_matches('+').parse::<i32>().unwrap_or(100_000);
            length += 1 + signs + many;
        }
    }
    (sign * value * 2.0_f64.powi(scale), before + length)
}
