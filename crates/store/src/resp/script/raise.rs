//! Errors that functions in Rust raise in scripts.
//!
//! A function in Rust can only raise an error of Rust, but scripts expect a value of Lua: a text that begins with its
//! position in the script, or, for the error of a command, a table. A function that catches errors converts them
//! ([`caught`]).

use std::fmt;
use std::sync::Arc;

use mlua::{Lua, Value};

/// The name of a script in error messages, and the name under which Lua knows it.
pub(super) const CHUNK: &str = "user_script";
pub(super) const NAME: &str = "@user_script";
/// Number of stack levels above an error in which the position in the script is searched.
const LEVELS_MAX: usize = 8;

/// An error that a function of this crate raised in a script.
#[derive(Clone, Debug)]
pub(super) enum Raised {
    /// The error text with which a command replied.
    Reply(Vec<u8>),
    /// The text of another error, which begins with its position in the script if that is known.
    Text(Vec<u8>),
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Reply(text) | Self::Text(text)) = self;
        f.write_str(&String::from_utf8_lossy(text))
    }
}

impl std::error::Error for Raised {}

/// Returns an error to raise for the error reply of a command.
pub(super) fn reply(text: impl Into<Vec<u8>>) -> mlua::Error {
    mlua::Error::ExternalError(Arc::new(Raised::Reply(text.into())))
}

/// Returns an error to raise in a library function, whose text begins with the line of the script if the script
/// itself called the function.
pub(super) fn here(lua: &Lua, text: &str) -> mlua::Error {
    let place = line_at(lua, 1).flatten();
    let place = place.map(|line| format!("{CHUNK}:{line}: ")).unwrap_or_default();
    mlua::Error::ExternalError(Arc::new(Raised::Text(format!("{place}{text}").into_bytes())))
}

/// Returns the error that a function of this crate raised, or `None` if `error` is another one.
pub(super) fn raised(error: &mlua::Error) -> Option<&Raised> {
    match error {
        mlua::Error::CallbackError { cause, .. } => raised(cause),
        mlua::Error::ExternalError(error) => error.downcast_ref(),
        _ => None,
    }
}

/// Converts a raised error to the value that a script catches; returns other values unchanged.
pub(super) fn caught(lua: &Lua, value: Value) -> mlua::Result<Value> {
    let text = |bytes: &[u8]| Ok(Value::String(lua.create_string(bytes)?));
    match &value {
        Value::Error(error) => match raised(error) {
            Some(Raised::Text(bytes)) => text(bytes),
            Some(Raised::Reply(bytes)) => {
                let table = lua.create_table()?;
                table.set("err", text(bytes)?)?;
                Ok(Value::Table(table))
            }
            None => Ok(value),
        },
        _ => Ok(value),
    }
}

/// Returns the number of the script's line that is running, or that called the running function; `None` if it is not
/// found.
pub(super) fn line(lua: &Lua) -> Option<usize> {
    // The functions that a script calls take a few levels at most.
    (1..LEVELS_MAX).map_while(|level| line_at(lua, level)).flatten().next()
}

/// Returns the number of the script's line at a level of the stack: `None` if there is no such level, and
/// `Some(None)` if the level is not in the script.
fn line_at(lua: &Lua, level: usize) -> Option<Option<usize>> {
    lua.inspect_stack(level, |frame| {
        let is_script = frame.source().source.is_some_and(|source| source == NAME);
        frame.current_line().filter(|_| is_script)
    })
}
