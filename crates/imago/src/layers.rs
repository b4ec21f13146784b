//! The sources of an option's value: flags override the environment, which overrides `imago.toml`.
//!
//! All three are derived from clap's definitions of the options. The option `--batch-size` of the
//! verb `copy` is `IMAGO_COPY_BATCH_SIZE` in the environment and `batch-size` under `[copy]` in the
//! file; the name of a global option has no verb in it. An option of several verbs, such as `--to`,
//! can be set once for all of them, as `IMAGO_TO` or as `to` above all tables; of several values
//! the one set closest to the verb wins. A key of the file that is no option is an error, so that a
//! misspelt one is not silently ignored.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::OsStr;
use clap::{Arg, ArgAction, Command};
use figment::Figment;
use figment::providers::{Format, Toml};
use figment::value::{Dict, Value};

use crate::exit::{Exit, Failure};

const FILE: &str = "imago.toml";

/// The settings of the configuration file, which the command line and the environment override. (Clap itself reads
/// the environment, by the variable names that it is given.)
pub struct Settings {
    path: PathBuf,
    file: Dict,
}

impl Settings {
    /// Returns the settings of an empty configuration file.
    pub fn none() -> Self {
        Self { path: PathBuf::from(FILE), file: Dict::new() }
    }

    /// Reads the configuration file: the one that the command line `typed` or `IMAGO_CONFIG` names, or `imago.toml`
    /// if it exists. A key that is no option of `command` is an error.
    pub fn read(typed: &[OsString], command: &Command) -> Result<Self, Failure> {
        let named = named_file(typed);
        let path = named.clone().unwrap_or_else(|| PathBuf::from(FILE));
        if named.is_none() && !path.exists() {
            return Ok(Self::none());
        }
        let text = std::fs::read_to_string(&path).map_err(|cause| {
            bad(format!("cannot read the configuration file {}", path.display())).because(&cause)
        })?;
        let file: Dict = Figment::from(Toml::string(&text)).extract().map_err(|cause| {
            bad(format!("the configuration file {} is not valid", path.display())).because(&cause)
        })?;
        check_known(&file, command, &path, "")?;
        Ok(Self { path, file })
    }

    /// Makes the failure for a value in the configuration file that its option does not accept; `what` is clap's
    /// message.
    pub fn blame(&self, what: String) -> Failure {
        bad(format!("in the configuration file {}: {what}", self.path.display()))
    }

    /// Adds the settings to a command and its subcommands, as environment variables and default values of their
    /// options.
    pub fn below(&self, command: Command) -> Command {
        layer(command, &[&self.file], &["IMAGO".to_owned()])
    }
}

/// Returns true if errors are to be written as JSON, by the command line `typed` or the environment. This is decided
/// before parsing, because parsing may fail.
pub fn json_wanted(typed: &[OsString]) -> bool {
    let set = std::env::var("IMAGO_JSON")
        .is_ok_and(|value| !matches!(value.to_lowercase().as_str(), "" | "0" | "false" | "no"));
    set || options(typed).any(|word| word == "--json")
}

fn options(typed: &[OsString]) -> impl Iterator<Item = &OsString> {
    typed.iter().skip(1).take_while(|word| *word != "--")
}

fn named_file(typed: &[OsString]) -> Option<PathBuf> {
    let mut words = options(typed);
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().map(PathBuf::from);
        }
        if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            return Some(PathBuf::from(path));
        }
    }
    std::env::var_os("IMAGO_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

fn bad(message: String) -> Failure {
    Failure::new(Exit::Usage, "configuration", message)
        .help("options are written `name = value`, those of a verb under `[verb]`; see --help")
}

/// Returns the name of an option that can be set outside the command line; `None` for `--help` and `--version`, which
/// are not settings, and for arguments without a long name.
fn setting(arg: &Arg) -> Option<&str> {
    arg.get_long().filter(|long| !matches!(*long, "help" | "version"))
}

fn check_known(file: &Dict, command: &Command, path: &Path, within: &str) -> Result<(), Failure> {
    for (key, value) in file {
        let verb = command.get_subcommands().find(|verb| verb.get_name() == key);
        let option = option_within(command, key);
        let place = if within.is_empty() { key.clone() } else { format!("{within}.{key}") };
        let file_name = path.display();
        match (value, verb, option) {
            (Value::Dict(_, inner), Some(verb), _) => check_known(inner, verb, path, &place)?,
            (Value::Dict(..), _, Some(_)) => {
                return Err(bad(format!("{file_name}: `{place}` is a table, not a value")));
            }
            (Value::Array(..), _, Some(option)) if !takes_many(option) => {
                return Err(bad(format!("{file_name}: `{place}` is a list, not one value")));
            }
            (_, _, Some(_)) if key == "config" => {
                return Err(bad(format!("{file_name}: a configuration file cannot name another")));
            }
            (_, _, Some(_)) => {}
            (_, _, None) => {
                return Err(bad(format!("{file_name}: `{place}` is not an option of imago")));
            }
        }
    }
    Ok(())
}

/// Returns the option named `name` of the verb `command` or of one of its subcommands; `None` if there is none.
fn option_within<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let own = command.get_arguments().find(|arg| setting(arg) == Some(name));
    own.or_else(|| command.get_subcommands().find_map(|verb| option_within(verb, name)))
}

fn takes_many(option: &Arg) -> bool {
    matches!(option.get_action(), ArgAction::Append)
        || option.get_num_args().is_some_and(|count| count.max_values() > 1)
}

/// Adds settings to a command and its subcommands. `tables` (of the configuration file) and `variables` (prefixes of
/// environment variables) are those of the verbs on the path to this command, the outermost first.
fn layer(command: Command, tables: &[&Dict], variables: &[String]) -> Command {
    let command = command.mut_args(|arg| {
        let Some(name) = setting(&arg).map(str::to_owned) else { return arg };
        let arg =
            arg.env(OsStr::from(variable(variables, &name))).hide_env(true).hide_env_values(true);
        match tables.iter().rev().find_map(|table| table.get(&name)).map(words) {
            // An option with a value in the file is not required on the command line.
            Some(values) if !values.is_empty() => arg.required(false).default_values(values),
            _ => arg,
        }
    });
    command.mut_subcommands(|verb| {
        let name = verb.get_name().to_owned();
        let own = match tables.last().and_then(|table| table.get(&name)) {
            Some(Value::Dict(_, inner)) => inner.clone(),
            _ => Dict::new(),
        };
        let prefix = variables.last().map_or("", String::as_str);
        let tables: Vec<&Dict> = tables.iter().copied().chain([&own]).collect();
        let own = format!("{prefix}_{}", shout(&name));
        let variables: Vec<String> = variables.iter().cloned().chain([own]).collect();
        layer(verb, &tables, &variables)
    })
}

/// Returns the name of the environment variable for an option: among those that are set, the one closest to the verb;
/// if none is set, the closest one. `prefixes` are those of the verbs, the outermost first.
fn variable(prefixes: &[String], option: &str) -> String {
    let name = |prefix: &String| format!("{prefix}_{}", shout(option));
    let is_set = |name: &String| std::env::var_os(name).is_some();
    let closest = || prefixes.last().map(name).unwrap_or_default();
    prefixes.iter().rev().map(name).find(is_set).unwrap_or_else(closest)
}

fn shout(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

/// Converts a value of the configuration file into command-line words: a list gives several words, a table none.
fn words(value: &Value) -> Vec<OsStr> {
    let text = |text: String| OsStr::from(text);
    match value {
        Value::String(_, string) => vec![text(string.clone())],
        Value::Char(_, char) => vec![text(char.to_string())],
        Value::Bool(_, flag) => vec![text(flag.to_string())],
        Value::Num(_, number) => number
            .to_u128()
            .map(|n| n.to_string())
            .or_else(|| number.to_i128().map(|n| n.to_string()))
            .or_else(|| number.to_f64().map(|n| n.to_string()))
            .map(text)
            .into_iter()
            .collect(),
        Value::Array(_, values) => values.iter().flat_map(words).collect(),
        Value::Empty(..) | Value::Dict(..) => Vec::new(),
    }
}
