//! The keys that a request names.

use super::answer::{Answer, NOT_AN_INTEGER};
use super::number;
use super::parse::Arguments;
use crate::key::{KEY_BYTES_MAX, Key, Table};

/// The key of a name.
pub(super) fn key(table: Table, name: &[u8]) -> Result<Key, Answer> {
    if name.len() > KEY_BYTES_MAX {
        let text =
            format!("ERR a key of {} bytes is too long: at most {KEY_BYTES_MAX}", name.len());
        return Err(Answer::error(text));
    }
    Ok(Key::new(table, name))
}

/// The keys that the arguments from the first on name.
pub(super) fn keys(arguments: &Arguments<'_>, table: Table) -> Result<Vec<Key>, Answer> {
    arguments.from(1).map(|name| key(table, name)).collect()
}

/// Number of arguments behind the second that are keys, of a script or a procedure.
pub(super) fn count_keys(arguments: &Arguments<'_>) -> Result<usize, Answer> {
    let count = number::integer(arguments.at(2)).ok_or_else(|| Answer::error(NOT_AN_INTEGER))?;
    if count > arguments.len() as i64 - 3 {
        return Err(Answer::error("ERR Number of keys can't be greater than number of args"));
    }
    usize::try_from(count).map_err(|_| Answer::error("ERR Number of keys can't be negative"))
}
