//! The commands. One table contains the name, arity, key positions and effect of each. COMMAND shows the
//! table, and requests are checked against it.

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

/// A command, or a subcommand such as ID of CLIENT.
pub(super) struct Command {
    /// The name in lower case; of a subcommand after the command's name and a bar, as in `client|id`.
    pub name: &'static str,
    /// Number of arguments, the name included; if negative, its absolute value is the minimum.
    pub arity: i8,
    pub flags: &'static [&'static str],
    pub keys: Keys,
    pub group: &'static str,
    /// The first version of Redis with the command; for Imago's own commands, of Imago.
    pub since: &'static str,
    pub summary: &'static str,
    pub handler: Handler,
    pub following: &'static [Command],
}

/// The positions of the keys among the arguments; `first` is 0 if there are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub first: i8,
    /// Counted from the end if negative.
    pub last: i8,
    pub step: i8,
}

/// The effect of a command.
#[derive(Clone, Copy)]
pub(super) enum Handler {
    /// Reads and writes rows of one database.
    Rows(fn(&Arguments<'_>, Table) -> Result<Operation, Answer>),
    /// Reads and writes rows by a script.
    Script(script::Understand),
    /// Reads and writes rows by a registered procedure.
    Call(call::Understand),
    /// Reads or changes the state of its connection.
    Session(Act),
    /// Iterates over rows in key order.
    Scan(scan::Understand),
    Multi,
    Exec,
    Discard,
    Watch {
        says_values: bool,
    },
    Unwatch,
    Reset,
    Quit,
    /// Does nothing itself; only its subcommands do.
    Nothing,
}

impl Command {
    /// Returns the keys of a request that has the right number of arguments.
    pub fn keys<'a>(&self, arguments: &Arguments<'a>) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let Keys { first, last, step } = self.keys;
        let last = match usize::try_from(last) {
            Ok(last) => last,
            Err(_) => arguments.len().saturating_sub(usize::from(last.unsigned_abs())),
        };
        let count = if first == 0 { 0 } else { (last + 1).saturating_sub(first as usize) };
        arguments.from(first as usize).take(count).step_by(step.max(1) as usize)
    }

    /// Returns true if the command accepts this number of arguments.
    pub fn takes(&self, count: usize) -> bool {
        let least = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { count >= least } else { count == least }
    }

    /// Returns the operation of a request that reads and writes rows; `None` for other commands.
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

    fn last_name(&self) -> &'static str {
        self.name.rsplit('|').next().unwrap_or(self.name)
    }
}

/// Finds a command by its name, in either case; `None` if there is no such command.
pub(super) fn find<'t>(among: &'t [Command], name: &[u8]) -> Option<&'t Command> {
    let mut lower = [0; 24];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let found = among.binary_search_by(|command| command.last_name().as_bytes().cmp(lower)).ok()?;
    Some(&among[found])
}

/// Returns the command of a request, after a check of the number of arguments.
///
/// # Errors
/// Returns the text of the error, without its code.
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

/// Returns the reason why a command of Redis is not supported; `None` if Redis has no such command.
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
