//! Operations on rows. An operation is a parsed command: it declares the keys that it needs, and then reads
//! and writes their rows.
//!
//! Invariant: an operation that answers with an error has written nothing. So inside EXEC the error is that
//! command's reply, and the other commands take effect.

use serde::{Deserialize, Serialize};

use super::answer::{Answer, NOT_AN_INTEGER, SYNTAX};
use super::call::Call;
use super::keys::{key, keys};
use super::number;
use super::parse::Arguments;
use super::rows::{RowOperation, Rows};
use super::script::{Script, machine};
use crate::key::{Key, Table, Value};
use crate::record;
use crate::transaction::Abort;

/// An operation on rows, parsed from a command.
#[derive(Serialize, Deserialize)]
pub(super) enum Operation {
    /// Returns the value of a key.
    Get(Key),
    /// Returns the values of all keys.
    GetAll(Vec<Key>),
    /// Returns the value of a key, and deletes its row.
    GetDelete(Key),
    /// Sets the value of a key under a condition.
    Set {
        key: Key,
        #[serde(with = "record::value")]
        value: Value,
        when: When,
        reply: SetReply,
    },
    /// Sets the values of several keys; if `only_absent` is true, only if none of them has a row.
    SetAll {
        #[serde(with = "record::pairs")]
        rows: Vec<(Key, Value)>,
        only_absent: bool,
    },
    /// Deletes the rows of the keys, and returns how many there were.
    Delete(Vec<Key>),
    /// Returns how many of the keys have a row.
    Exists(Vec<Key>),
    /// Returns the type of a key's value: `string`, or `none` without a row.
    Kind(Key),
    /// Returns the length of a key's value in bytes; 0 without a row.
    Length(Key),
    /// Appends bytes to a key's value, and returns the new length in bytes.
    Append(Key, #[serde(with = "record::value")] Value),
    /// Adds to the integer that a key's value is, and returns the sum.
    Add(Key, i64),
    /// Runs a Lua script.
    Script(Box<Script>),
    /// Runs a registered procedure.
    Call(Box<Call>),
}

/// The condition under which SET writes the value.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum When {
    /// In any case.
    Always,
    /// Only if the key has no row.
    Absent,
    /// Only if the key has a row.
    Present,
}

/// The form of the reply to setting a value.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SetReply {
    /// The reply is OK, or nil if the value was not set.
    Ok,
    /// The reply is the old value, or nil if there was none.
    Old,
    /// The reply is 1 if the value was set, otherwise 0.
    Whether,
}

type Understood = Result<Operation, Answer>;

pub(super) fn get(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Get(key(table, arguments.at(1))?))
}

pub(super) fn get_all(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::GetAll(keys(arguments, table)?))
}

pub(super) fn get_delete(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::GetDelete(key(table, arguments.at(1))?))
}

pub(super) fn get_set(arguments: &Arguments<'_>, table: Table) -> Understood {
    put(arguments, table, When::Always, SetReply::Old)
}

pub(super) fn set_absent(arguments: &Arguments<'_>, table: Table) -> Understood {
    put(arguments, table, When::Absent, SetReply::Whether)
}

pub(super) fn set(arguments: &Arguments<'_>, table: Table) -> Understood {
    let (mut when, mut reply) = (When::Always, SetReply::Ok);
    for (at, option) in (3..).zip(arguments.from(3)) {
        let is_timed = || ["EX", "PX", "EXAT", "PXAT"].iter().any(|word| arguments.is(at, word));
        if arguments.is(at, "NX") && when != When::Present {
            when = When::Absent;
        } else if arguments.is(at, "XX") && when != When::Absent {
            when = When::Present;
        } else if arguments.is(at, "GET") {
            reply = SetReply::Old;
        } else if arguments.is(at, "KEEPTTL") {
            // No key has a time to live, so there is nothing to do.
        } else if is_timed() && arguments.get(at + 1).is_some() {
            let option = String::from_utf8_lossy(option).to_ascii_uppercase();
            let text = format!(
                "ERR 'SET' with {option} is not supported by Imago: keys do not expire here"
            );
            return Err(Answer::error(text));
        } else {
            return Err(Answer::error(SYNTAX));
        }
    }
    put(arguments, table, when, reply)
}

fn put(arguments: &Arguments<'_>, table: Table, when: When, reply: SetReply) -> Understood {
    let (key, value) = (key(table, arguments.at(1))?, arguments.at(2).into());
    Ok(Operation::Set { key, value, when, reply })
}

pub(super) fn set_all(arguments: &Arguments<'_>, table: Table) -> Understood {
    put_all(arguments, table, false)
}

pub(super) fn set_all_absent(arguments: &Arguments<'_>, table: Table) -> Understood {
    put_all(arguments, table, true)
}

fn put_all(arguments: &Arguments<'_>, table: Table, only_absent: bool) -> Understood {
    if arguments.len().is_multiple_of(2) {
        let name = if only_absent { "msetnx" } else { "mset" };
        return Err(Answer::error(format!("ERR wrong number of arguments for '{name}' command")));
    }
    let pairs = arguments.from(1).step_by(2).zip(arguments.from(2).step_by(2));
    let rows = pairs.map(|(name, value)| Ok((key(table, name)?, value.into())));
    Ok(Operation::SetAll { rows: rows.collect::<Result<_, _>>()?, only_absent })
}

pub(super) fn delete(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Delete(keys(arguments, table)?))
}

pub(super) fn exists(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Exists(keys(arguments, table)?))
}

pub(super) fn kind(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Kind(key(table, arguments.at(1))?))
}

pub(super) fn length(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Length(key(table, arguments.at(1))?))
}

pub(super) fn append(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Append(key(table, arguments.at(1))?, arguments.at(2).into()))
}

pub(super) fn increment(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Add(key(table, arguments.at(1))?, 1))
}

pub(super) fn decrement(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Add(key(table, arguments.at(1))?, -1))
}

pub(super) fn increment_by(arguments: &Arguments<'_>, table: Table) -> Understood {
    Ok(Operation::Add(key(table, arguments.at(1))?, amount(arguments)?))
}

pub(super) fn decrement_by(arguments: &Arguments<'_>, table: Table) -> Understood {
    let amount = amount(arguments)?.checked_neg();
    let amount = amount.ok_or_else(|| Answer::error("ERR decrement would overflow"))?;
    Ok(Operation::Add(key(table, arguments.at(1))?, amount))
}

fn amount(arguments: &Arguments<'_>) -> Result<i64, Answer> {
    number::integer(arguments.at(2)).ok_or_else(|| Answer::error(NOT_AN_INTEGER))
}

impl RowOperation for Operation {
    fn declare(&self, reads: &mut Vec<Key>, writes: &mut Vec<Key>) {
        match self {
            Self::Get(key) | Self::Kind(key) | Self::Length(key) => reads.push(key.clone()),
            Self::GetAll(keys) | Self::Exists(keys) => reads.extend_from_slice(keys),
            Self::GetDelete(key) | Self::Append(key, _) | Self::Add(key, _) => {
                writes.push(key.clone());
            }
            Self::Set { key, .. } => writes.push(key.clone()),
            Self::SetAll { rows, .. } => writes.extend(rows.iter().map(|(key, _)| key.clone())),
            Self::Delete(keys) => writes.extend_from_slice(keys),
            Self::Script(script) => script.declare(reads, writes),
            Self::Call(call) => call.declare(reads, writes),
        }
    }

    fn run(&self, rows: &mut Rows<'_, '_>) -> Result<Answer, Abort> {
        match self {
            Self::Get(key) => rows.get(key).map(Answer::value),
            Self::GetAll(keys) => {
                let values = rows.get_each(keys)?;
                let values = values.into_iter().map(|seen| Answer::value(seen.map(|it| it.value)));
                Ok(Answer::Array(values.collect()))
            }
            Self::GetDelete(key) => {
                let old = rows.get(key)?;
                if old.is_some() {
                    rows.delete(key)?;
                }
                Ok(Answer::value(old))
            }
            Self::Set { key, value, when, reply } => {
                let needs_old = *when != When::Always || *reply == SetReply::Old;
                let old = if needs_old { rows.get(key)? } else { None };
                let is_set = match when {
                    When::Always => true,
                    When::Absent => old.is_none(),
                    When::Present => old.is_some(),
                };
                if is_set {
                    rows.put(key, value.clone())?;
                }
                Ok(match reply {
                    SetReply::Old => Answer::value(old),
                    SetReply::Whether => Answer::Integer(is_set.into()),
                    SetReply::Ok if is_set => Answer::OK,
                    SetReply::Ok => Answer::Nil,
                })
            }
            Self::SetAll { rows: all, only_absent } => {
                if *only_absent {
                    for (key, _) in all {
                        if rows.get(key)?.is_some() {
                            return Ok(Answer::Integer(0));
                        }
                    }
                }
                for (key, value) in all {
                    rows.put(key, value.clone())?;
                }
                Ok(if *only_absent { Answer::Integer(1) } else { Answer::OK })
            }
            Self::Delete(keys) => {
                let mut deleted = 0;
                for key in keys {
                    if rows.get(key)?.is_some() {
                        rows.delete(key)?;
                        deleted += 1;
                    }
                }
                Ok(Answer::Integer(deleted))
            }
            Self::Exists(keys) => {
                let mut there = 0;
                for key in keys {
                    there += i64::from(rows.get(key)?.is_some());
                }
                Ok(Answer::Integer(there))
            }
            Self::Script(script) => machine::run(script, rows),
            Self::Call(call) => call.run(rows),
            Self::Kind(key) => {
                let is_there = rows.get(key)?.is_some();
                Ok(Answer::status(if is_there { "string" } else { "none" }))
            }
            Self::Length(key) => Ok(Answer::count(rows.get(key)?.map_or(0, |value| value.len()))),
            Self::Append(key, end) => {
                let old = rows.get(key)?.unwrap_or_default();
                let value: Value = [&*old, end].concat().into();
                let bytes = value.len();
                rows.put(key, value)?;
                Ok(Answer::count(bytes))
            }
            Self::Add(key, amount) => {
                let old = rows.get(key)?;
                let old = match old.as_deref().map_or(Some(0), number::integer) {
                    Some(old) => old,
                    None => return Ok(Answer::error(NOT_AN_INTEGER)),
                };
                let Some(sum) = old.checked_add(*amount) else {
                    return Ok(Answer::error("ERR increment or decrement would overflow"));
                };
                let mut digits = Vec::with_capacity(20);
                number::decimal(sum, &mut digits);
                rows.put(key, digits.into())?;
                Ok(Answer::Integer(sum))
            }
        }
    }
}
