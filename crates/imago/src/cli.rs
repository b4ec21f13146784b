//! The grammar of the command line: the root command, and the table of verbs.

use std::ffi::OsString;
use std::io::IsTerminal;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cmd;
use crate::context::Context;
use crate::exit::{Exit, Failure, Rendering};
use crate::layers;
use crate::options::{Global, colour_wanted};

#[cfg(test)]
mod reference;

/// Version of the program for `--version`, with the commit and the profile of the build.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("IMAGO_COMMIT"),
    ", ",
    env!("IMAGO_BUILD_PROFILE"),
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

/// The verbs; one module of [`cmd`] each.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "made once, from what was typed")]
pub enum Verb {
    /// List jobs, show their state and control them, from any machine.
    Job(cmd::job::Args),
    /// Show how many of the predictions of earlier jobs came true.
    Foresight(cmd::foresight::Args),
    /// Start, inspect and stop real clusters on this machine, and inject faults into them.
    Testbed(cmd::testbed::Args),
    /// Copy live collections to another cluster, and follow them there.
    Copy(cmd::copy::Args),
    /// Move the clients to a copy, and back.
    Cutover(cmd::cutover::Args),
    /// Compare a copy with its source, document by document, and report the differences.
    Verify(cmd::verify::Args),
    /// Copy again the documents that `verify` found different.
    Repair(cmd::repair::Args),
    /// Change a live collection's shard key, its chunks or its set of shards, moving the least data.
    Reshard(cmd::reshard::Args),
    /// Serve transactions from a store whose partitions, masters and replicas change while it runs.
    Store(cmd::store::Args),
    /// Tune a database's configuration: measure, advise when to change which settings, and roll
    /// changes out.
    Tune(cmd::tune::Args),
    /// Predict how many shards and replicas, and how much cache, a chained job needs.
    Provision(cmd::provision::Args),
    /// Run chained MapReduce jobs over a collection, through a cache, by pipes, Hadoop or Spark.
    Chain(cmd::chain::Args),
    /// Watch a busy collection move between two real clusters on this machine.
    Demo(cmd::demo::Args),
    /// Measure the costs of Imago, compared with the servers alone.
    #[cfg(feature = "bench")]
    Bench(cmd::bench::Args),
    /// Say that this program has no benchmarks, and where they are.
    #[cfg(not(feature = "bench"))]
    #[command(hide = true)]
    Bench(cmd::without_bench::Args),
    /// Print a completion script for a shell.
    Completions(cmd::completions::Args),
    /// Write a manual page of each verb.
    Man(cmd::man::Args),
    /// Run a realistic workload against a collection, and check the acknowledged operations.
    Load(cmd::load::Args),
}

impl Verb {
    /// Runs the verb that was given on the command line. The future of each verb is boxed, so that no large one
    /// enlarges the others.
    pub async fn run(self, context: &Context) -> Result<(), Failure> {
        match self {
            Verb::Job(args) => cmd::job::run(args, context).await,
            Verb::Foresight(args) => cmd::foresight::run(args, context).await,
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
            #[cfg(feature = "bench")]
            Verb::Bench(args) => cmd::bench::run(args, context).await,
            #[cfg(not(feature = "bench"))]
            Verb::Bench(args) => cmd::without_bench::run(args),
            Verb::Completions(args) => cmd::completions::run(&args, Cli::command(), context),
            Verb::Man(args) => cmd::man::run(&args, Cli::command()),
            Verb::Load(args) => cmd::load::run(args, context).await,
        }
    }
}

/// The result of a command line that runs no verb: help that was requested, or a usage error.
pub struct Unparsed {
    /// Text to print for the user.
    pub shown: Shown,
    /// Exit code with which the process ends.
    pub exit: Exit,
}

/// The text of an [`Unparsed`], by its origin.
pub enum Shown {
    /// Text from clap: help, version, or a usage error for a person.
    Clap(clap::Error),
    /// A failure of Imago itself, or a usage error for a program, with the way in which it is printed.
    Failure(Box<Failure>, Rendering),
}

impl Shown {
    /// Prints the text: help on stdout, and errors on stderr.
    pub fn print(&self) {
        match self {
            // A terminal that is gone does not change the exit code.
            Shown::Clap(error) => drop(error.print()),
            Shown::Failure(failure, rendering) => failure.print(*rendering),
        }
    }
}

/// Parses the command line `typed`, whose first word is the program. Flags override the environment, which overrides
/// the configuration file. Returns the command, and the way in which its errors are printed.
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

/// Returns true if `typed` causes the same error without the configuration file.
fn is_typed(error: &clap::Error, typed: &[OsString]) -> bool {
    let alone = try_parse(layers::Settings::none().below(Cli::command()), typed);
    alone.is_err_and(|alone| words(&alone) == words(error))
}

fn words(error: &clap::Error) -> String {
    error.render().to_string().trim_start_matches("error: ").trim_end().to_owned()
}
