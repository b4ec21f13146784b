//! Commands about the server itself: INFO, CONFIG GET, and COMMAND, which shows the table of commands.

use super::answer::{Answer, SYNTAX};
use super::command::{Command, find};
use super::parse::Arguments;
use super::session::Call;
use super::{DATABASES, Settings, glob};

fn bulk(text: &str) -> Answer {
    Answer::bulk(text)
}

pub(super) fn info(Call { arguments, settings, .. }: Call<'_>) -> Result<Answer, Answer> {
    Ok(info_of(&arguments, settings))
}

/// Returns the answer to an INFO with these arguments, which name the wanted sections.
pub(super) fn info_of(arguments: &Arguments<'_>, settings: &Settings) -> Answer {
    let is_wanted = |section: &str| {
        let is_named = |name: &[u8]| {
            let all: [&[u8]; 3] = [b"all", b"default", b"everything"];
            all.iter().any(|all| name.eq_ignore_ascii_case(all))
                || name.eq_ignore_ascii_case(section.as_bytes())
        };
        arguments.len() == 1 || arguments.from(1).any(is_named)
    };
    let sections = sections(settings);
    let sections = sections.iter().filter(|(name, _)| is_wanted(name)).map(|(name, lines)| {
        let lines = lines.iter().map(|(key, value)| format!("{key}:{value}\r\n"));
        format!("# {name}\r\n{}", lines.collect::<String>())
    });
    Answer::Text(sections.collect::<Vec<_>>().join("\r\n"))
}

/// Returns all sections of INFO: the versions and the mode, and after them the facts from [`Settings::info`].
fn sections(settings: &Settings) -> Vec<(String, Vec<(String, String)>)> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let known = vec![
        pair("redis_version", &settings.redis_version),
        pair("imago_version", &settings.version),
        pair("redis_mode", "standalone"),
    ];
    let mut sections = vec![("Server".to_owned(), known)];
    for (name, lines) in (settings.info)() {
        match sections.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => known.extend(lines),
            None => sections.push((name, lines)),
        }
    }
    sections
}

pub(super) fn config(Call { arguments, settings, .. }: Call<'_>) -> Result<Answer, Answer> {
    let known = [
        // There are no periodic snapshots: the log has all that was acknowledged.
        ("save", String::new()),
        ("appendonly", "yes".to_owned()),
        ("databases", DATABASES.to_string()),
        ("maxmemory", settings.maxmemory.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("proto-max-bulk-len", settings.request_bytes_max.to_string()),
        ("timeout", "0".to_owned()),
    ];
    let is_wanted = |name: &str| {
        arguments.from(2).any(|pattern| glob::fits(&pattern.to_ascii_lowercase(), name.as_bytes()))
    };
    let found = known.iter().filter(|(name, _)| is_wanted(name));
    Ok(Answer::Map(found.map(|(name, value)| (bulk(name), bulk(value))).collect()))
}

pub(super) fn commands(_: &Arguments<'_>, table: &'static [Command]) -> Result<Answer, Answer> {
    Ok(Answer::Array(table.iter().map(describe).collect()))
}

pub(super) fn command_count(
    _: &Arguments<'_>,
    table: &'static [Command],
) -> Result<Answer, Answer> {
    Ok(Answer::count(table.len()))
}

pub(super) fn command_info(
    arguments: &Arguments<'_>,
    table: &'static [Command],
) -> Result<Answer, Answer> {
    let names = arguments.from(2);
    if names.len() == 0 {
        return commands(arguments, table);
    }
    let described = names.map(|name| named(table, name).map_or(Answer::NilArray, describe));
    Ok(Answer::Array(described.collect()))
}

pub(super) fn command_docs(
    arguments: &Arguments<'_>,
    table: &'static [Command],
) -> Result<Answer, Answer> {
    let explain = |command: &Command| (bulk(command.name), explain(command));
    let names = arguments.from(2);
    let explained = match names.len() {
        0 => table.iter().map(explain).collect(),
        _ => names.filter_map(|name| named(table, name)).map(explain).collect(),
    };
    Ok(Answer::Map(explained))
}

pub(super) fn command_list(
    arguments: &Arguments<'_>,
    table: &'static [Command],
) -> Result<Answer, Answer> {
    let pattern = match arguments.len() {
        2 => None,
        5 if arguments.is(2, "FILTERBY") && arguments.is(3, "PATTERN") => arguments.get(4),
        _ => return Err(Answer::error(SYNTAX)),
    };
    let is_wanted = |command: &&Command| {
        pattern.is_none_or(|pattern| glob::fits(pattern, command.name.as_bytes()))
    };
    let names = table.iter().filter(is_wanted).map(|command| bulk(command.name));
    Ok(Answer::Array(names.collect()))
}

pub(super) fn command_keys(
    arguments: &Arguments<'_>,
    table: &'static [Command],
) -> Result<Answer, Answer> {
    let asked = arguments.behind(2);
    let Some(command) = find(table, asked.at(0)) else {
        return Err(Answer::error("ERR Invalid command specified"));
    };
    if command.keys.first == 0 {
        return Err(Answer::error("ERR The command has no key arguments"));
    }
    if !command.takes(asked.len()) {
        return Err(Answer::error("ERR Invalid number of arguments specified for command"));
    }
    Ok(Answer::Array(command.keys(&asked).map(Answer::bulk).collect()))
}

/// Returns the command with this name, or the subcommand if the name is `COMMAND|SUBCOMMAND`; `None` if there is
/// none.
fn named(table: &'static [Command], name: &[u8]) -> Option<&'static Command> {
    match name.iter().position(|byte| *byte == b'|') {
        None => find(table, name),
        Some(bar) => find(find(table, &name[..bar])?.following, &name[bar + 1..]),
    }
}

/// Returns the description of a command by which clients route requests: name, arity, flags, first key, last key and
/// step between keys; categories, hints and key specifications, all of which are empty; and subcommands.
fn describe(command: &Command) -> Answer {
    let flags = command.flags.iter().map(|flag| Answer::status(flag)).collect();
    let integer = |value: i8| Answer::Integer(value.into());
    Answer::Array(vec![
        bulk(command.name),
        integer(command.arity),
        Answer::Set(flags),
        integer(command.keys.first),
        integer(command.keys.last),
        integer(command.keys.step),
        Answer::Set(Vec::new()),
        Answer::Array(Vec::new()),
        Answer::Array(Vec::new()),
        Answer::Array(command.following.iter().map(describe).collect()),
    ])
}

/// Returns the documentation of a command and its subcommands, for COMMAND DOCS.
fn explain(command: &Command) -> Answer {
    let mut known = vec![
        (bulk("summary"), bulk(command.summary)),
        (bulk("since"), bulk(command.since)),
        (bulk("group"), bulk(command.group)),
    ];
    if !command.following.is_empty() {
        let following = command.following.iter();
        let following = following.map(|command| (bulk(command.name), explain(command))).collect();
        known.push((bulk("subcommands"), Answer::Map(following)));
    }
    Answer::Map(known)
}
