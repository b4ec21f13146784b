//! The commands that clients can send. One table contains the name, arity, key positions and effect of each. COMMAND
//! shows the table, and requests are checked against it.

use super::answer::{Answer, cut};
use super::operation::Operation;
use super::parse::Arguments;
use super::session::Act;
use super::{Settings, call, scan, script};
use std::sync::Arc;

use crate::key::Table;

mod table;
mod unsupported;

pub(super) use table::COMMANDS;

/// One entry of the table of commands: a command, or a subcommand such as ID of CLIENT.
pub(super) struct Command {
    /// The command's name in lower case; for a subcommand the command's name, a bar and the subcommand's name, as in
    /// `client|id`.
    pub name: &'static str,
    /// Number of arguments, the command's name included; if negative, its absolute value is the minimum.
    pub arity: i8,
    /// The command's flags as COMMAND shows them, such as `readonly`.
    pub flags: &'static [&'static str],
    /// The positions of the command's keys among its arguments.
    pub keys: Keys,
    /// The command's group, as COMMAND DOCS shows it.
    pub group: &'static str,
    /// The first version of Redis that has the command; for Imago's own commands, the version of Imago.
    pub since: &'static str,
    pub summary: &'static str,
    /// The effect of the command.
    pub handler: Handler,
    /// The subcommands, sorted by name; empty for a command without subcommands.
    pub following: &'static [Command],
}

/// The positions of a command's keys among its arguments, where 0 is the name; `first` is 0 if there are no keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// Position of the first key.
    pub first: i8,
    /// Position of the last key; counted from the end if negative.
    pub last: i8,
    /// Distance between the positions of two keys.
    pub step: i8,
}

/// The way in which a command is executed.
#[derive(Clone, Copy)]
pub(super) enum Handler {
    /// Reads and writes rows of one database; the function parses the request.
    Rows(fn(&Arguments<'_>, Table) -> Result<Operation, Answer>),
    /// Runs a Lua script on rows; the function parses the request.
    Script(script::Understand),
    /// Runs a registered procedure in Rust on rows; the function parses the request.
    Call(call::Understand),
    /// Reads or changes the state of the client's connection.
    Session(Act),
    /// Reads the next rows of an iteration in key order; the function parses the request.
    Scan(scan::Understand),
    /// Begins to queue commands.
    Multi,
    /// Runs the queued commands as one transaction.
    Exec,
    /// Drops the queued commands.
    Discard,
    /// Watches keys; EXEC does nothing if one of them has changed since.
    Watch {
        /// True if the reply contains the values of the keys.
        says_values: bool,
    },
    /// Forgets all watched keys.
    Unwatch,
    /// Restores the initial state of the connection.
    Reset,
    /// Closes the connection.
    Quit,
    /// The command itself cannot be executed; only its subcommands can.
    Nothing,
}

impl Command {
    /// Returns the names of the keys in a request that has a valid number of arguments.
    pub fn keys<'a>(&self, arguments: &Arguments<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let Keys { first, last, step } = self.keys;
        let last = match usize::try_from(last) {
            Ok(last) => last,
            Err(_) => arguments.len().saturating_sub(usize::from(last.unsigned_abs())),
        };
        let count = if first == 0 { 0 } else { (last + 1).saturating_sub(first as usize) };
        arguments.from(first as usize).take(count).step_by(step.max(1) as usize)
    }

    /// Returns true if the command accepts `count` arguments, its name included.
    pub fn takes(&self, count: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { count >= least } else { count == least }
    }

    /// Returns the operation of a request for this command in the database `table`, or its error; `None` if the
    /// command does not read or write rows as one operation.
    pub fn operation(
        &self,
        arguments: &Arguments<'_>,
        table: Table,
        settings: &Arc<Settings>,
    ) -> Option<Result<Operation, Answer>> {
        match self.handler {
            Handler::Rows(understand) => Some(understand(arguments, table)),
            Handler::Script(understand) => {
                let script = understand(arguments, table, settings);
                Some(script.map(|script| Operation::Script(Box::new(script))))
            }
            Handler::Call(understand) => {
                let call = understand(arguments, table, settings);
                Some(call.map(|call| Operation::Call(Box::new(call))))
            }
            _ => None,
        }
    }

    /// Returns the subcommand's own name, or the command's name.
    fn last_name(&self) -> &'static str {
        self.name.rsplit('|').next().unwrap_or(self.name)
    }
}

/// Returns the command in a sorted table whose own name is `name`, in upper or lower case; `None` if there is no such
/// command.
pub(super) fn find<'t>(among: &'t [Command], name: &[u8]) -> Option<&'t Command> {
    let mut lower = [0; 24];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let found = among.binary_search_by(|command| command.last_name().as_bytes().cmp(lower)).ok()?;
    Some(&among[found])
}

/// Returns the command or subcommand that a request names, after a check of the number of arguments.
///
/// # Errors
/// Returns the text of the error, without its code, if the command is unknown or the number of arguments is wrong.
pub(super) fn of(arguments: &Arguments<'_>) -> Result<&'static Command, Vec<u8>> {
    let Some(command) = find(COMMANDS, arguments.at(0)) else {
        return Err(unsupported::reason(arguments).unwrap_or_else(|| unknown(arguments)));
    };
    let command = match arguments.get(1) {
        Some(second) if !command.following.is_empty() => match find(command.following, second) {
            Some(following) => following,
            None => {
                let reason = unsupported::reason_following(command.name, second);
                return Err(reason.unwrap_or_else(|| unknown_following(command, second)));
            }
        },
        _ => command,
    };
    if command.takes(arguments.len()) {
        Ok(command)
    } else {
        Err(format!("wrong number of arguments for '{}' command", command.name).into())
    }
}

/// Returns the error for a request whose command Redis has and Imago does not support; `None` if Redis has no such
/// command.
pub(super) fn missing(arguments: &Arguments<'_>) -> Option<Vec<u8>> {
    unsupported::reason(arguments)
}

fn unknown(arguments: &Arguments<'_>) -> Vec<u8> {
    let mut shown = Vec::new();
    for argument in arguments.from(1) {
        if shown.len() >= 128 {
            break;
        }
        let argument = cut(argument, 128 - shown.len());
        shown.extend([b"'", argument, b"' "].concat());
    }
    let name = cut(arguments.at(0), 128);
    [b"unknown command '", name, b"', with args beginning with: ", &shown].concat()
}

fn unknown_following(command: &Command, name: &[u8]) -> Vec<u8> {
    let first = command.name.to_ascii_uppercase();
    let end = format!("'. Try {first} HELP.");
    [b"unknown subcommand '", cut(name, 128), end.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_in_order_and_found_again() {
        let all = COMMANDS.iter().flat_map(|command| [COMMANDS, command.following]);
        for table in all {
            assert!(table.is_sorted_by_key(|command| command.last_name()));
            for command in table {
                let name = command.last_name().to_ascii_uppercase();
                assert_eq!(
                    find(table, name.as_bytes()).map(|found| found.name),
                    Some(command.name)
                );
            }
        }
        assert!(find(COMMANDS, &[b'a'; 100]).is_none());
    }
}
