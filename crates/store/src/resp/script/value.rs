//! What a command answers as a value of Lua, and what a script returns as an answer.

use mlua::{Lua, Table, Value};

use super::super::ANSWER_BYTES_MAX;
use super::super::answer::Answer;

/// How much a script may return, where every value is as long as this and its text, and how deep values
/// may lie in one another. One text may be there many times, so the machine's memory is no bound.
const VALUE_BYTES: usize = 64;
const DEPTH_MAX: usize = 100;

/// An answer, as a script gets it.
pub(super) fn to_lua(lua: &Lua, answer: &Answer) -> mlua::Result<Value> {
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
        Answer::Nil | Answer::NilArray => Value::Boolean(false),
        Answer::Array(answers) | Answer::Set(answers) => {
            let table = lua.create_table()?;
            for (at, answer) in (1..).zip(answers) {
                table.raw_set(at, to_lua(lua, answer)?)?;
            }
            Value::Table(table)
        }
        Answer::Map(pairs) => {
            let table = lua.create_table()?;
            for (at, (key, value)) in (1..).step_by(2).zip(pairs) {
                table.raw_set(at, to_lua(lua, key)?)?;
                table.raw_set(at + 1, to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
    })
}

/// What a script returns, as an answer.
pub(super) fn to_answer(value: &Value) -> mlua::Result<Answer> {
    let mut bytes_left = ANSWER_BYTES_MAX;
    let answer = convert(value, DEPTH_MAX, &mut bytes_left)?;
    Ok(if bytes_left == 0 { Answer::error("ERR the script returned too much") } else { answer })
}

fn convert(value: &Value, depth: usize, left: &mut usize) -> mlua::Result<Answer> {
    let bytes = VALUE_BYTES + value.as_string().map_or(0, |text| text.as_bytes().len());
    *left = left.saturating_sub(bytes);
    if *left == 0 {
        return Ok(Answer::Nil);
    }
    Ok(match value {
        Value::String(text) => Answer::bulk(text.as_bytes()),
        Value::Integer(value) => Answer::Integer(*value),
        // What C does for these on the machines that Redis runs on.
        Value::Number(value) if !(-9.3e18..9.223_372_036_854_775e18).contains(value) => {
            Answer::Integer(i64::MIN)
        }
        Value::Number(value) => Answer::Integer(*value as i64),
        Value::Boolean(true) => Answer::Integer(1),
        Value::Table(_) if depth == 0 => Answer::error("ERR reached lua stack limit"),
        Value::Table(table) => return of_table(table, depth - 1, left),
        _ => Answer::Nil,
    })
}

fn of_table(table: &Table, depth: usize, left: &mut usize) -> mlua::Result<Answer> {
    if let Value::String(text) = table.raw_get("err")? {
        return Ok(Answer::error(&*text.as_bytes()));
    }
    if let Value::String(text) = table.raw_get("ok")? {
        return Ok(Answer::Status(text.to_string_lossy().into()));
    }
    let mut answers = Vec::new();
    loop {
        let value: Value = table.raw_get(answers.len() + 1)?;
        if value.is_nil() || *left == 0 {
            return Ok(Answer::Array(answers));
        }
        answers.push(convert(&value, depth, left)?);
    }
}

/// The text of what a script failed with.
pub(super) fn to_text(value: &Value) -> Vec<u8> {
    match value {
        Value::Table(table) => match table.raw_get("err") {
            Ok(Value::String(text)) => text.as_bytes().to_vec(),
            _ => b"ERR unknown error".to_vec(),
        },
        Value::String(text) => [b"ERR ", &*text.as_bytes()].concat(),
        Value::Error(error) => format!("ERR {}", reason(error)).into_bytes(),
        other => format!("ERR {}", other.to_string().unwrap_or_default()).into_bytes(),
    }
}

/// An error of the machine, on one line and the same each time.
pub(super) fn reason(error: &mlua::Error) -> String {
    match error {
        mlua::Error::MemoryError(_) => "not enough memory".to_owned(),
        mlua::Error::CallbackError { cause, .. } => reason(cause),
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}
