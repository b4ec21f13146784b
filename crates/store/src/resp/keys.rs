//! Converts the keys in a request's arguments.

use super::answer::{Answer, NOT_AN_INTEGER};
use super::number;
use super::parse::Arguments;
use crate::key::{KEY_BYTES_MAX, Key, Table};

/// Returns the key of the row called `name` in a database, or an error if the name is too long.
pub(super) fn key(table: Table, name: &[u8]) -> Result<Key, Answer> {
    if name.len() > KEY_BYTES_MAX {
        let text =
            format!("ERR a key of {} bytes is too long: at most {KEY_BYTES_MAX}", name.len());
        return Err(Answer::error(text));
    }
    Ok(Key::new(table, name))
}

/// Returns the keys in a database that all arguments after the command's name denote.
pub(super) fn keys(arguments: &Arguments<'_>, table: Table) -> Result<Vec<Key>, Answer> {
    arguments.from(1).map(|name| key(table, name)).collect()
}

/// Returns the number of keys in a request to run a script or a procedure, which the argument at index `at` gives; the
/// keys follow that argument.
pub(super) fn count_keys(arguments: &Arguments<'_>, at: usize) -> Result<usize, Answer> {
    let count = number::integer(arguments.at(at)).ok_or_else(|| Answer::error(NOT_AN_INTEGER))?;
    if count > (arguments.len() - at) as i64 - 1 {
        return Err(Answer::error("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(count).map_err(|_| Answer::error("ERR Number of keys can't be negative"))
}
