//! The grammar of the command line: the root command, the options that every verb has, and the
//! table of verbs.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::cmd;
use crate::context::Context;
use crate::exit::{Exit, Failure, Rendering};
use crate::layers;

/// The version, and what it was built of.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("IMAGO_COMMIT"),
    ", ",
    env!("IMAGO_PROFILE"),
    " build)"
);

/// Change the shape of a distributed database while it serves.
#[derive(Debug, Parser)]
#[command(name = "imago", version = VERSION, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 usage, 3 verification found differences, \
                        4 a precondition is unmet, 5 interrupted and resumable.\n\
                        Every option can also be set in the environment or in imago.toml.")]
pub struct Cli {
    /// Options that every verb has.
    #[command(flatten)]
    pub global: Global,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Options that every verb has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every verb")]
pub struct Global {
    /// Print results as JSON on stdout, and an error as one JSON object on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// Display of progress on stderr; auto: a bar on a terminal, plain lines elsewhere.
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "HOW")]
    pub progress: ProgressMode,
    /// Serve Prometheus metrics at this address, for example 127.0.0.1:9090.
    #[arg(long, global = true, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// The log lines that appear on stderr, for example info or imago_mongo=debug; without it, only
    /// warnings of the libraries.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log_filter: Option<String>,
    /// Time that a cluster has for its first answer; for example 500ms, 5s, 1m.
    #[arg(long, global = true, value_name = "TIME", default_value = "5s", value_parser = cmd::load::duration)]
    pub connect_timeout: std::time::Duration,
    /// Read settings from this file instead of ./imago.toml.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Display of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// A bar when stderr is a terminal, plain lines when it is not.
    Auto,
    /// As auto, with a bar also on a terminal that calls itself dumb.
    Bar,
    /// Every event as one line of JSON.
    Json,
    /// Nothing.
    None,
}

/// The verbs; one module of [`cmd`] each.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "made once, from what was typed")]
pub enum Verb {
    /// Look at jobs and steer them, from any machine.
    Job(cmd::job::Args),
    /// Start, look at, give faults to, and end real clusters on this machine.
    Testbed(cmd::testbed::Args),
    /// Copy live collections to another cluster, and follow them there.
    Copy(cmd::copy::Args),
    /// Move the clients to a copy, and back.
    Cutover(cmd::cutover::Args),
    /// Compare a copy with its source, document for document, and say what differs.
    Verify(cmd::verify::Args),
    /// Copy again the documents that `verify` found different.
    Repair(cmd::repair::Args),
    /// Change a live collection's shard key, its chunks or its set of shards, moving the least data.
    Reshard(cmd::reshard::Args),
    /// Serve transactions from a store whose partitions, masters and replicas change while it runs.
    Store(cmd::store::Args),
    /// Say when a database's configuration should change, and to what.
    Tune(cmd::tune::Args),
    /// Say how many shards, replicas and how much cache a chained job needs.
    Provision(cmd::provision::Args),
    /// Run chained MapReduce jobs over a collection, through a cache, by pipes, Hadoop or Spark.
    Chain(cmd::chain::Args),
    /// Watch a busy collection move between two real clusters on this machine.
    Demo(cmd::demo::Args),
    /// Measure what Imago costs, beside what the servers alone need.
    Bench(cmd::bench::Args),
    /// Print a completion script for a shell.
    Completions(cmd::completions::Args),
    /// Drive a collection with a realistic workload, and check what it left behind.
    Load(cmd::load::Args),
}

impl Verb {
    /// Runs the verb. Each verb's future is boxed, so that none makes the others large.
    pub async fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Verb::Job(args) => cmd::job::run(args, context).await,
            Verb::Testbed(args) => cmd::testbed::run(args, context).await,
            Verb::Copy(args) => cmd::copy::run(args, context).await,
            Verb::Cutover(args) => Box::pin(cmd::cutover::run(args, context)).await,
            Verb::Demo(args) => cmd::demo::run(args, context).await,
            Verb::Verify(args) => cmd::verify::run(args, context).await,
            Verb::Repair(args) => cmd::repair::run(args, context).await,
            Verb::Reshard(args) => cmd::reshard::run(args, context).await,
            Verb::Store(args) => cmd::store::run(args, context).await,
            Verb::Tune(args) => cmd::tune::run(args, context).await,
            Verb::Provision(args) => cmd::provision::run(args, context).await,
            Verb::Chain(args) => cmd::chain::run(args, context).await,
            Verb::Bench(args) => cmd::bench::run(args, context).await,
            Verb::Completions(args) => cmd::completions::run(args, context).await,
            Verb::Load(args) => cmd::load::run(args, context).await,
        }
    }
}

/// The reason why there is nothing to run: a request for help, or arguments that make no sense.
pub struct Unparsed {
    /// The shown text.
    pub shown: Shown,
    /// The exit code to end with.
    pub exit: Exit,
}

/// The text that [`Unparsed`] shows.
pub enum Shown {
    /// Clap's own words: help, version, or a usage error for a person.
    Clap(clap::Error),
    /// A failure of our own, or a usage error for a program.
    Failure(Box<Failure>, Rendering),
}

impl Shown {
    /// Prints it where it belongs: help on stdout, errors on stderr.
    pub fn print(&self) {
        match self {
            // A terminal that went away is no reason to fail differently.
            Shown::Clap(error) => drop(error.print()),
            Shown::Failure(failure, rendering) => failure.print(*rendering),
        }
    }
}

/// True if the output is to be in colour; `terminal` is true if it is a terminal.
pub fn colour_wanted(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Parses the command line, over the environment, over the configuration file.
pub fn parse(typed: &[OsString]) -> Result<(Cli, Rendering), Unparsed> {
    // Needed before parsing, because parsing itself may fail.
    let early = Rendering {
        json: layers::json_wanted(typed),
        colour: colour_wanted(std::io::stderr().is_terminal()),
    };
    let failed = |failure: Failure| Unparsed {
        exit: failure.exit(),
        shown: Shown::Failure(Box::new(failure), early),
    };
    let settings = layers::Settings::read(typed, &Cli::command()).map_err(failed)?;
    match try_parse(settings.below(Cli::command()), typed) {
        Ok(cli) => {
            let rendering = Rendering { json: cli.global.json, ..early };
            Ok((cli, rendering))
        }
        Err(error) if !error.use_stderr() => {
            Err(Unparsed { shown: Shown::Clap(error), exit: Exit::Done })
        }
        Err(error) if is_bad_value(&error) && !is_typed(&error, typed) => {
            Err(failed(settings.blame(words(&error))))
        }
        Err(error) if early.json => Err(failed(Failure::new(Exit::Usage, "usage", words(&error)))),
        Err(error) => Err(Unparsed { shown: Shown::Clap(error), exit: Exit::Usage }),
    }
}

fn try_parse(mut command: clap::Command, typed: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = command.try_get_matches_from_mut(typed)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn is_bad_value(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation)
}

/// True if the same error occurs without the configuration file.
fn is_typed(error: &clap::Error, typed: &[OsString]) -> bool {
    let alone = try_parse(layers::Settings::none().below(Cli::command()), typed);
    alone.is_err_and(|alone| words(&alone) == words(error))
}

fn words(error: &clap::Error) -> String {
    error.render().to_string().trim_start_matches("error: ").trim_end().to_owned()
}
