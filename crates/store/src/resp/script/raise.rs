//! Errors that functions in Rust raise in scripts.
//!
//! Such a function can only raise an error of Rust, but scripts expect a value of Lua: a text with its
//! position in the script before it, or, for the error of a command, a table. A function that catches errors
//! converts them ([`caught`]).

use std::fmt;
use std::sync::Arc;

use mlua::{Lua, Value};

/// The name of a script in error messages, and in the machine.
pub(super) const CHUNK: &str = "user_script";
pub(super) const NAME: &str = "@user_script";
/// Number of stack levels above an error in which its position in the script is searched.
const LEVELS_MAX: usize = 8;

/// A raised error: see the module's documentation.
#[derive(Clone, Debug)]
pub(super) enum Raised {
    /// The error of a command.
    Reply(Vec<u8>),
    Text(Vec<u8>),
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Reply(text) | Self::Text(text)) = self;
        f.write_str(&String::from_utf8_lossy(text))
    }
}

impl std::error::Error for Raised {}

/// Returns an error for the error reply of a command.
pub(super) fn reply(text: impl Into<Vec<u8>>) -> mlua::Error {
    mlua::Error::ExternalError(Arc::new(Raised::Reply(text.into())))
}

/// Returns an error in the call of a function, with the position in the script if the script made the call.
pub(super) fn here(lua: &Lua, text: &str) -> mlua::Error {
    let place = line_at(lua, 1).flatten();
    let place = place.map(|line| format!("{CHUNK}:{line}: ")).unwrap_or_default();
    mlua::Error::ExternalError(Arc::new(Raised::Text(format!("{place}{text}").into_bytes())))
}

/// Returns the error that a function of this crate raised, or `None` for another error.
pub(super) fn raised(error: &mlua::Error) -> Option<&Raised> {
    match error {
        mlua::Error::CallbackError { cause, .. } => raised(cause),
        mlua::Error::ExternalError(error) => error.downcast_ref(),
        _ => None,
    }
}

/// Converts an error to the value that a script catches.
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

/// Returns the line of the script that is running, or that called the running function; `None` if it is not
/// found.
pub(super) fn line(lua: &Lua) -> Option<usize> {
    // The functions that a script calls take a few levels at most.
    (1..LEVELS_MAX).map_while(|level| line_at(lua, level)).flatten().next()
}

/// Returns `None` if there is no such level, and `Some(None)` if the level is not in the script.
fn line_at(lua: &Lua, level: usize) -> Option<Option<usize>> {
    lua.inspect_stack(level, |frame| {
        let is_script = frame.source().source.is_some_and(|source| source == NAME);
        frame.current_line().filter(|_| is_script)
    })
}
