//! The table of the commands that clients can send, sorted by name. COMMAND shows the table, and requests are checked
//! against it.

use super::answer::{Answer, cut};
use super::command::Handler::{self, *};
use super::command::{Command, Keys, find};
use super::parse::Arguments;
use super::rows::{RowOperation, ScriptCommands};
use super::session::client;
use super::{call, introspection, operation, scan, script, session};
use crate::key::Table;

mod unsupported;

/// All supported commands, sorted by name for a binary search.
pub(super) static COMMANDS: &[Command] = &[
    new("append", 3, "string", "2.0.0", "Appends to a value, or sets it where there is none.")
        .flags(GROWS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::append)),
    new("auth", -2, "connection", "1.0.0", "Says who the client is.")
        .flags(FOR_STRANGERS)
        .handler(Session(session::auth)),
    new("client", -2, "connection", "2.4.0", "What concerns connections.").following(CLIENT),
    new("command", -1, "server", "2.8.13", "Describes all commands.")
        .flags(ASKS)
        .handler(Describe(introspection::commands))
        .following(COMMAND),
    new("config", -2, "server", "2.0.0", "What concerns the configuration.").following(CONFIG),
    new("decr", 2, "string", "1.0.0", "Subtracts one from an integer.")
        .flags(GROWS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::decrement)),
    new("decrby", 3, "string", "1.0.0", "Subtracts from an integer.")
        .flags(GROWS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::decrement_by)),
    new("del", -2, "generic", "1.0.0", "Deletes keys.")
        .flags(WRITES)
        .keys_at(1, -1, 1)
        .handler(Rows(operation::delete)),
    new("discard", 1, "transactions", "2.0.0", "Drops what was queued.")
        .flags(CONTROLS)
        .handler(Discard),
    new("echo", 2, "connection", "1.0.0", "Says what it was told.")
        .flags(ASKS_FAST)
        .handler(Session(session::echo)),
    new("eval", -3, "scripting", "2.6.0", "Runs a script.")
        .flags(SCRIPTS)
        .handler(Script(script::eval)),
    new("eval_ro", -3, "scripting", "7.0.0", "Runs a script that only reads.")
        .flags(SCRIPTS_READ)
        .handler(Script(script::eval_ro)),
    new("evalsha", -3, "scripting", "2.6.0", "Runs a script that is known by its SHA-1.")
        .flags(SCRIPTS)
        .handler(Script(script::eval_sha)),
    new("evalsha_ro", -3, "scripting", "7.0.0", "The same for one that only reads.")
        .flags(SCRIPTS_READ)
        .handler(Script(script::eval_sha_ro)),
    new("exec", 1, "transactions", "1.2.0", "Runs what was queued as one transaction.")
        .flags(RUNS)
        .handler(Exec),
    new("exists", -2, "generic", "1.0.0", "Counts which of the keys are there.")
        .flags(READS_FAST)
        .keys_at(1, -1, 1)
        .handler(Rows(operation::exists)),
    new("get", 2, "string", "1.0.0", "Reads a value.")
        .flags(READS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::get)),
    new("getdel", 2, "string", "6.2.0", "Reads a value and deletes it.")
        .flags(WRITES_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::get_delete)),
    new("getset", 3, "string", "1.0.0", "Reads a value and sets another.")
        .flags(GROWS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::get_set)),
    new("hello", -1, "connection", "6.0.0", "Chooses the version of the protocol.")
        .flags(FOR_STRANGERS)
        .handler(Session(session::hello)),
    new("imago.call", -3, "scripting", "0.1.0", "Runs a procedure of the store by its name.")
        .flags(SCRIPTS)
        .handler(Call(call::call)),
    new("imago.call_ro", -3, "scripting", "0.1.0", "Runs a procedure that only reads.")
        .flags(SCRIPTS_READ)
        .handler(Call(call::call_ro)),
    new(
        "imago.call_rw",
        -4,
        "scripting",
        "0.1.0",
        "Runs a procedure that writes keys and reads others.",
    )
    .flags(SCRIPTS)
    .handler(Call(call::call_rw)),
    new("imago.range", -3, "generic", "0.1.0", "Reads rows from one key on, up to another.")
        .flags(READS)
        .handler(Scan(scan::range)),
    new("imago.watch", -2, "transactions", "0.1.0", "Watches keys and reads their values.")
        .flags(CONTROLS)
        .keys_at(1, -1, 1)
        .handler(Watch { says_values: true }),
    new("incr", 2, "string", "1.0.0", "Adds one to an integer.")
        .flags(GROWS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::increment)),
    new("incrby", 3, "string", "1.0.0", "Adds to an integer.")
        .flags(GROWS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::increment_by)),
    new("info", -1, "server", "1.0.0", "Describes the server.")
        .flags(ASKS)
        .handler(Session(introspection::info)),
    new("mget", -2, "string", "1.0.0", "Reads values.")
        .flags(READS_FAST)
        .keys_at(1, -1, 1)
        .handler(Rows(operation::get_all)),
    new("mset", -3, "string", "1.0.1", "Sets values.")
        .flags(GROWS)
        .keys_at(1, -1, 2)
        .handler(Rows(operation::set_all)),
    new("msetnx", -3, "string", "1.0.1", "Sets values if none of the keys is there.")
        .flags(GROWS)
        .keys_at(1, -1, 2)
        .handler(Rows(operation::set_all_absent)),
    new("multi", 1, "transactions", "1.2.0", "Begins a transaction.")
        .flags(CONTROLS)
        .handler(Multi),
    new("ping", -1, "connection", "1.0.0", "Says that it is there.")
        .flags(FAST)
        .handler(Session(session::ping)),
    new("quit", -1, "connection", "1.0.0", "Ends the connection.")
        .flags(FOR_STRANGERS)
        .handler(Quit),
    new("reset", 1, "connection", "6.2.0", "Makes the connection as it was at its beginning.")
        .flags(FOR_STRANGERS)
        .handler(Reset),
    new("scan", -2, "generic", "2.8.0", "Lists keys, some at a time.")
        .flags(READS)
        .handler(Scan(scan::scan)),
    new("script", -2, "scripting", "2.6.0", "What concerns the texts of scripts.")
        .following(SCRIPT),
    new("select", 2, "connection", "1.0.0", "Chooses the database.")
        .flags(ASKS_FAST)
        .handler(Session(session::select)),
    new("set", -3, "string", "1.0.0", "Sets a value.")
        .flags(GROWS)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::set)),
    new("setnx", 3, "string", "1.0.0", "Sets a value if there is none.")
        .flags(GROWS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::set_absent)),
    new("strlen", 2, "string", "2.2.0", "Measures a value.")
        .flags(READS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::length)),
    new("type", 2, "generic", "1.0.0", "Says what kind of value is there.")
        .flags(READS_FAST)
        .keys_at(1, 1, 1)
        .handler(Rows(operation::kind)),
    new("unlink", -2, "generic", "4.0.0", "Deletes keys.")
        .flags(WRITES_FAST)
        .keys_at(1, -1, 1)
        .handler(Rows(operation::delete)),
    new("unwatch", 1, "transactions", "2.2.0", "Forgets which keys are watched.")
        .flags(CONTROLS)
        .handler(Unwatch),
    new(
        "watch",
        -2,
        "transactions",
        "2.2.0",
        "Lets the next EXEC do nothing if one of the keys changes before.",
    )
    .flags(CONTROLS)
    .keys_at(1, -1, 1)
    .handler(Watch { says_values: false }),
];

static CLIENT: &[Command] = &[
    new("client|getname", 2, "connection", "2.6.9", "The connection's name.")
        .flags(UNSCRIPTED)
        .handler(Session(client::name)),
    new("client|id", 2, "connection", "5.0.0", "The connection's number.")
        .flags(UNSCRIPTED)
        .handler(Session(client::id)),
    new("client|info", 2, "connection", "6.2.0", "Describes the connection.")
        .flags(UNSCRIPTED)
        .handler(Session(client::info)),
    new("client|list", -2, "connection", "2.4.0", "Describes connections: this one.")
        .flags(ADMINISTERS)
        .handler(Session(client::list)),
    new(
        "client|no-evict",
        3,
        "connection",
        "7.0.0",
        "Accepted; no connection is dropped for its size.",
    )
    .flags(ADMINISTERS)
    .handler(Session(client::accept_and_ignore)),
    new("client|no-touch", 3, "connection", "7.2.0", "Accepted; keys have no age.")
        .flags(UNSCRIPTED)
        .handler(Session(client::accept_and_ignore)),
    new("client|setinfo", 4, "connection", "7.2.0", "Names the client's library.")
        .flags(UNSCRIPTED)
        .handler(Session(client::library)),
    new("client|setname", 3, "connection", "2.6.9", "Names the connection.")
        .flags(UNSCRIPTED)
        .handler(Session(client::rename)),
];

static COMMAND: &[Command] = &[
    new("command|count", 2, "server", "2.8.13", "Counts the commands.")
        .flags(ASKS)
        .handler(Describe(introspection::command_count)),
    new("command|docs", -2, "server", "7.0.0", "Explains commands.")
        .flags(ASKS)
        .handler(Describe(introspection::command_docs)),
    new("command|getkeys", -4, "server", "2.8.13", "Says which arguments are keys.")
        .flags(ASKS)
        .handler(Describe(introspection::command_keys)),
    new("command|info", -2, "server", "2.8.13", "Describes commands.")
        .flags(ASKS)
        .handler(Describe(introspection::command_info)),
    new("command|list", -2, "server", "7.0.0", "Lists the names of commands.")
        .flags(ASKS)
        .handler(Describe(introspection::command_list)),
];

static SCRIPT: &[Command] = &[
    new("script|exists", -3, "scripting", "2.6.0", "Says which scripts are known.")
        .flags(NOT_SCRIPTED)
        .handler(Session(script::exists)),
    new("script|flush", -2, "scripting", "2.6.0", "Forgets all scripts.")
        .flags(NOT_SCRIPTED)
        .handler(Session(script::flush)),
    new("script|load", 3, "scripting", "2.6.0", "Makes a script known.")
        .flags(LOADS)
        .handler(Session(script::load)),
];

static CONFIG: &[Command] = &[new("config|get", -3, "server", "2.0.0", "Reads the configuration.")
    .flags(ADMINISTERS)
    .handler(Session(introspection::config))];

const SCRIPTS: &[&str] = &["noscript", "stale", "skip_monitor", "no_mandatory_keys", "movablekeys"];
const SCRIPTS_READ: &[&str] =
    &["readonly", "noscript", "stale", "skip_monitor", "no_mandatory_keys", "movablekeys"];
const NOT_SCRIPTED: &[&str] = &["noscript"];
const LOADS: &[&str] = &["noscript", "stale"];
const GROWS_FAST: &[&str] = &["write", "denyoom", "fast"];
const GROWS: &[&str] = &["write", "denyoom"];
const WRITES_FAST: &[&str] = &["write", "fast"];
const WRITES: &[&str] = &["write"];
const READS: &[&str] = &["readonly"];
const READS_FAST: &[&str] = &["readonly", "fast"];
const FOR_STRANGERS: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];
const CONTROLS: &[&str] = &["noscript", "loading", "stale", "fast", "allow_busy"];
const ASKS: &[&str] = &["loading", "stale"];
const ASKS_FAST: &[&str] = &["loading", "stale", "fast"];
const UNSCRIPTED: &[&str] = &["noscript", "loading", "stale"];
const ADMINISTERS: &[&str] = &["admin", "noscript", "loading", "stale"];
const RUNS: &[&str] = &["noscript", "loading", "stale", "skip_slowlog"];
const FAST: &[&str] = &["fast"];

const fn new(
    name: &'static str,
    arity: i8,
    group: &'static str,
    since: &'static str,
    summary: &'static str,
) -> Command {
    let keys = Keys { first: 0, last: 0, step: 0 };
    let (flags, following) = (&[], &[]);
    Command { name, arity, flags, keys, group, since, summary, handler: Nothing, following }
}

impl Command {
    const fn flags(self, flags: &'static [&'static str]) -> Self {
        Self { flags, ..self }
    }

    const fn keys_at(self, first: i8, last: i8, step: i8) -> Self {
        Self { keys: Keys { first, last, step }, ..self }
    }

    const fn handler(self, handler: Handler) -> Self {
        Self { handler, ..self }
    }

    const fn following(self, following: &'static [Command]) -> Self {
        Self { following, ..self }
    }
}

/// Returns the command or subcommand that a request names, after a check of the number of arguments.
///
/// # Errors
/// Returns the text of the error, without its code, if the command is unknown or the number of arguments is wrong.
pub(super) fn command_of(arguments: &Arguments<'_>) -> Result<&'static Command, Vec<u8>> {
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

/// The commands that a script may call: those that read or write rows of one database.
pub(super) struct RowCommands;

impl ScriptCommands for RowCommands {
    fn operation(
        &self,
        arguments: &Arguments<'_>,
        table: Table,
    ) -> Result<Box<dyn RowOperation>, Answer> {
        let Some(command) = find(COMMANDS, arguments.at(0)) else {
            let reason = unsupported::reason(arguments);
            let reason =
                reason.unwrap_or_else(|| b"Unknown Redis command called from script".into());
            return Err(Answer::error([b"ERR ", &*reason].concat()));
        };
        let Handler::Rows(understand) = command.handler else {
            return Err(Answer::error("ERR This Redis command is not allowed from script"));
        };
        if !command.takes(arguments.len()) {
            let text = "ERR Wrong number of args calling Redis command from script";
            return Err(Answer::error(text));
        }
        Ok(Box::new(understand(arguments, table)?))
    }
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
