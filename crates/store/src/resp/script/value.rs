//! Converts a command's answer to a value of Lua, and a script's result to an answer.

use mlua::{Lua, Table, Value};

use super::super::ANSWER_BYTES_MAX;
use super::super::answer::{Answer, Protocol};
use super::super::number::general;
use super::raise::{Raised, raised};

/// Size in bytes at which each value of a script's result is counted, in addition to the length of its text; and
/// maximum nesting of values. The machine's memory does not limit the result, in which one text may occur many times.
const VALUE_BYTES: usize = 64;
const DEPTH_MAX: usize = 100;

/// Converts a command's answer to the value that a script gets which uses this version of the protocol.
pub(super) fn to_lua(lua: &Lua, answer: &Answer, protocol: Protocol) -> mlua::Result<Value> {
    let field = |name: &str, text: &[u8]| {
        let table = lua.create_table()?;
        table.set(name, lua.create_string(text)?)?;
        Ok(Value::Table(table))
    };
    Ok(match answer {
        Answer::Status(text) => return field("ok", text.as_bytes()),
        Answer::Error(text) => return field("err", text),
        Answer::Integer(value) => Value::Number(*value as f64),
        Answer::Bulk(value) => Value::String(lua.create_string(value)?),
        Answer::Text(text) => Value::String(lua.create_string(text)?),
        Answer::Nil | Answer::NilArray if protocol == Protocol::Three => Value::Nil,
        Answer::Nil | Answer::NilArray => Value::Boolean(false),
        Answer::Boolean(_) | Answer::Double(_) | Answer::BigNumber(_) | Answer::Verbatim(..) => {
            unreachable!("only scripts answer these, and none calls another")
        }
        Answer::Array(answers) | Answer::Set(answers) => {
            let table = lua.create_table()?;
            for (at, answer) in (1..).zip(answers) {
                table.raw_set(at, to_lua(lua, answer, protocol)?)?;
            }
            Value::Table(table)
        }
        Answer::Map(pairs) => {
            let table = lua.create_table()?;
            for (at, (key, value)) in (1..).step_by(2).zip(pairs) {
                table.raw_set(at, to_lua(lua, key, protocol)?)?;
                table.raw_set(at + 1, to_lua(lua, value, protocol)?)?;
            }
            Value::Table(table)
        }
    })
}

/// Converts a script's result to an answer as this version of the protocol has it, or to an error if the result is
/// too large.
pub(super) fn to_answer(value: &Value, protocol: Protocol) -> mlua::Result<Answer> {
    let mut returned = Returned { bytes_left: ANSWER_BYTES_MAX, protocol };
    let answer = returned.convert(value, DEPTH_MAX)?;
    let is_too_much = returned.bytes_left == 0;
    Ok(if is_too_much { Answer::error("ERR the script returned too much") } else { answer })
}

/// The state of the conversion of one script's result.
struct Returned {
    /// Number of bytes that the rest of the answer may take; 0 once it is too large.
    bytes_left: usize,
    protocol: Protocol,
}

impl Returned {
    fn convert(&mut self, value: &Value, depth: usize) -> mlua::Result<Answer> {
        let bytes = VALUE_BYTES + value.as_string().map_or(0, |text| text.as_bytes().len());
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        if self.bytes_left == 0 {
            return Ok(Answer::Nil);
        }
        Ok(match value {
            Value::String(text) => Answer::bulk(text.as_bytes()),
            Value::Integer(value) => Answer::Integer(*value),
            // The result of the conversion in C on the machines on which Redis runs.
            Value::Number(value) if !(-9.3e18..9.223_372_036_854_775e18).contains(value) => {
                Answer::Integer(i64::MIN)
            }
            Value::Number(value) => Answer::Integer(*value as i64),
            Value::Boolean(is) if self.protocol == Protocol::Three => Answer::Boolean(*is),
            Value::Boolean(true) => Answer::Integer(1),
            Value::Table(_) if depth == 0 => Answer::error("ERR reached lua stack limit"),
            Value::Table(table) => return self.of_table(table, depth - 1),
            _ => Answer::Nil,
        })
    }

    fn of_table(&mut self, table: &Table, depth: usize) -> mlua::Result<Answer> {
        if let Some(answer) = self.of_one_field(table, depth)? {
            return Ok(answer);
        }
        let mut answers = Vec::new();
        loop {
            let value: Value = table.raw_get(answers.len() + 1)?;
            if value.is_nil() || self.bytes_left == 0 {
                return Ok(Answer::Array(answers));
            }
            answers.push(self.convert(&value, depth)?);
        }
    }

    /// Converts a table that names the type of its answer by a field, such as `err` or `map`; returns `None` for
    /// another table.
    fn of_one_field(&mut self, table: &Table, depth: usize) -> mlua::Result<Option<Answer>> {
        let field = |name: &str| table.raw_get::<Value>(name);
        if let Value::String(text) = field("err")? {
            return Ok(Some(Answer::error(&*text.as_bytes())));
        }
        if let Value::String(text) = field("ok")? {
            return Ok(Some(Answer::Status(text.to_string_lossy().into())));
        }
        if let Some(value) = as_number(&field("double")?) {
            return Ok(Some(Answer::Double(general(value, 17))));
        }
        if let Value::Table(map) = field("map")? {
            let mut pairs = Vec::new();
            for pair in map.pairs::<Value, Value>() {
                let (key, value) = pair?;
                pairs.push((self.convert(&key, depth)?, self.convert(&value, depth)?));
                if self.bytes_left == 0 {
                    break;
                }
            }
            return Ok(Some(Answer::Map(pairs)));
        }
        if let Value::Table(set) = field("set")? {
            let mut members = Vec::new();
            for pair in set.pairs::<Value, Value>() {
                members.push(self.convert(&pair?.0, depth)?);
                if self.bytes_left == 0 {
                    break;
                }
            }
            return Ok(Some(Answer::Set(members)));
        }
        if let Value::String(text) = field("big_number")? {
            let on_one = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
            return Ok(Some(Answer::BigNumber(text.as_bytes().iter().map(on_one).collect())));
        }
        if let Value::Table(verbatim) = field("verbatim_string")? {
            let part = |name: &str| verbatim.raw_get::<Value>(name);
            if let (Value::String(text), Value::String(format)) = (part("string")?, part("format")?)
            {
                let mut kind = [b' '; 3];
                for (to, letter) in kind.iter_mut().zip(format.as_bytes().iter()) {
                    *to = *letter;
                }
                return Ok(Some(Answer::Verbatim(kind, (*text.as_bytes()).into())));
            }
        }
        Ok(None)
    }
}

/// Returns the error text, with its code, for the value with which a script failed.
pub(super) fn to_text(value: &Value) -> Vec<u8> {
    match value {
        Value::Table(table) => match table.raw_get("err") {
            Ok(Value::String(text)) => text.as_bytes().to_vec(),
            _ => b"ERR unknown error".to_vec(),
        },
        Value::String(text) => [b"ERR ", &*text.as_bytes()].concat(),
        Value::Error(error) => match raised(error) {
            Some(Raised::Reply(text)) => text.clone(),
            Some(Raised::Text(text)) => [b"ERR ", &**text].concat(),
            None => format!("ERR {}", reason(error)).into_bytes(),
        },
        other => format!("ERR {}", other.to_string().unwrap_or_default()).into_bytes(),
    }
}

/// Returns a number of Lua, an integer or not, as scripts see it; `None` for other values.
pub(super) fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Number(value) => Some(*value),
        _ => None,
    }
}

/// Formats an error of the Lua machine on one line, without parts that differ between runs.
pub(super) fn reason(error: &mlua::Error) -> String {
    match error {
        mlua::Error::MemoryError(_) => "not enough memory".to_owned(),
        mlua::Error::CallbackError { cause, .. } => reason(cause),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}
