//! A command that clients can send: its name, arity, key positions and effect.

use super::answer::Answer;
use super::operation::Operation;
use super::parse::Arguments;
use super::session::Act;
use super::{Settings, call, scan, script};
use std::sync::Arc;

use crate::key::Table;

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
    /// Describes commands of the table.
    Describe(fn(&Arguments<'_>, &'static [Command]) -> Result<Answer, Answer>),
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
    pub fn last_name(&self) -> &'static str {
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
