//! The JSON encoder.

use mlua::{Function, Table, Value};

use super::super::{Bounds, DEPTH_MAX, Fault, as_number, said, type_name};
use super::{Config, Invalid};
use crate::resp::number::general;

/// Returns a value of Lua encoded as JSON. `next` is Lua's function of that name.
pub(super) fn encoded(
    value: &Value,
    next: &Function,
    config: &Config,
    bounds: &Bounds,
) -> Result<Vec<u8>, Fault> {
    let mut writer = Writer { next, config, bounds, out: Vec::new(), open: Vec::new() };
    writer.value(value)?;
    while let Some(last) = writer.open.pop() {
        writer.go_on(last)?;
    }
    Ok(writer.out)
}

struct Writer<'c> {
    next: &'c Function,
    config: &'c Config,
    bounds: &'c Bounds,
    out: Vec<u8>,
    /// Tables that are not written completely, the outermost first. The encoder does not recurse, since a thread's
    /// stack is small.
    open: Vec<Open>,
}

/// A table of Lua of which a part has been written, and the progress in it.
enum Open {
    Array { table: Table, written: usize, length: usize },
    Object { table: Table, last: Value },
}

impl Writer<'_> {
    /// Writes a value that is not a table, or the beginning of a table as JSON.
    fn value(&mut self, value: &Value) -> Result<(), Fault> {
        self.bounds.check(self.out.len())?;
        match value {
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(it) if it.0.is_null() => self.out.extend_from_slice(b"null"),
            Value::Boolean(is) => {
                self.out.extend_from_slice(if *is { b"true".as_slice() } else { b"false" });
            }
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => self.text(&text.as_bytes())?,
            Value::Table(table) => {
                let depth = self.open.len() + 1;
                let most = usize::try_from(self.config.encode_depth_max).unwrap_or(DEPTH_MAX);
                if depth > most.min(DEPTH_MAX) {
                    return said(format!("Cannot serialise, excessive nesting ({depth})"));
                }
                let (length, table) = (self.array_length(table)?, table.clone());
                self.out.push(if length.is_some() { b'[' } else { b'{' });
                self.open.push(match length {
                    Some(length) => Open::Array { table, written: 0, length },
                    None => Open::Object { table, last: Value::Nil },
                });
            }
            other => return unwritable(type_name(other), "type not supported"),
        }
        Ok(())
    }

    /// Writes the next value of a partly written table, or the table's end.
    fn go_on(&mut self, last: Open) -> Result<(), Fault> {
        match last {
            Open::Array { written, length, .. } if written == length => self.out.push(b']'),
            Open::Array { table, written, length } => {
                if written > 0 {
                    self.out.push(b',');
                }
                let value: Value = table.raw_get(written + 1)?;
                self.open.push(Open::Array { table, written: written + 1, length });
                self.value(&value)?;
            }
            Open::Object { table, last } => {
                let is_first = last.is_nil();
                let (key, value): (Value, Value) = self.next.call((&table, last))?;
                if key.is_nil() {
                    self.out.push(b'}');
                    return Ok(());
                }
                if !is_first {
                    self.out.push(b',');
                }
                self.key(&key)?;
                self.open.push(Open::Object { table, last: key });
                self.value(&value)?;
            }
        }
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Fault> {
        match (key, as_number(key)) {
            (_, Some(number)) => {
                self.out.push(b'"');
                self.number(number)?;
                self.out.push(b'"');
            }
            (Value::String(text), _) => self.text(&text.as_bytes())?,
            _ => return unwritable(type_name(key), "table key must be a number or string"),
        }
        self.out.push(b':');
        Ok(())
    }

    /// Returns the number of elements if a table is encoded as an array; `None` if it is encoded as an object.
    fn array_length(&self, table: &Table) -> Result<Option<usize>, Fault> {
        let (mut most, mut items) = (0.0_f64, 0_i64);
        for pair in table.pairs::<Value, Value>() {
            match as_number(&pair?.0) {
                Some(key) if key.floor() == key && key >= 1.0 => most = most.max(key),
                _ => return Ok(None),
            }
            items += 1;
        }
        let Config { sparse_convert, sparse_ratio, sparse_safe, .. } = *self.config;
        let is_sparse =
            sparse_ratio > 0 && most > (items * sparse_ratio) as f64 && most > sparse_safe as f64;
        match (is_sparse, sparse_convert) {
            (true, false) => unwritable("table", "excessively sparse array"),
            (true, true) => Ok(None),
            (false, _) => Ok((most > 0.0).then_some(most as usize)),
        }
    }

    fn number(&mut self, number: f64) -> Result<(), Fault> {
        let text = match self.config.encode_invalid {
            _ if number.is_finite() => {
                general(number, usize::try_from(self.config.precision).unwrap_or(14))
            }
            Invalid::Error => return unwritable("number", "must not be NaN or Inf"),
            Invalid::Null => "null".to_owned(),
            Invalid::Number if number.is_nan() => "nan".to_owned(),
            Invalid::Number => general(number, 14),
        };
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn text(&mut self, text: &[u8]) -> Result<(), Fault> {
        self.bounds.check(self.out.len() + text.len())?;
        self.out.push(b'"');
        for byte in text {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' => self.out.extend_from_slice(b"\\/"),
                8 => self.out.extend_from_slice(b"\\b"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                12 => self.out.extend_from_slice(b"\\f"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                0..=31 | 127 => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                other => self.out.push(*other),
            }
        }
        self.out.push(b'"');
        Ok(())
    }
}

fn unwritable<T>(kind: &str, why: &str) -> Result<T, Fault> {
    said(format!("Cannot serialise {kind}: {why}"))
}
