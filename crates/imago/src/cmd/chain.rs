//! `imago chain`: chained MapReduce jobs over a MongoDB collection, as programs that any engine can run.

mod keys;
mod map;
mod proxy;
mod reading;
mod reduce;
mod run;

use imago_provision::chain::Error;

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Fetch the documents of the keys on stdin, and write the next keys to stdout.
    Map(map::Args),
    /// Write each line of sorted stdin once; of a Merkle tree, the next level's nodes.
    Reduce(reduce::Args),
    /// Run a whole chain in this process, and report what each phase read and how long it took.
    Run(run::Args),
    /// Draw the keys with which a chain begins.
    Keys(keys::Args),
    /// Put a cache in front of a router: a proxy that serves finds by key from Redis, and forwards
    /// all other requests.
    Proxy(proxy::Args),
}

/// Runs `imago chain` with these arguments.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.action {
        Action::Map(args) => Box::pin(map::run(args, context)).await,
        Action::Reduce(args) => reduce::run(args, context).await,
        Action::Run(args) => Box::pin(run::run(args, context)).await,
        Action::Keys(args) => keys::run(&args),
        Action::Proxy(args) => Box::pin(proxy::run(args, context)).await,
    }
}

/// Converts an error of the chain into the failure of the command: exit code, machine-readable code and help.
fn failure(error: Error) -> Failure {
    let (exit, code, help) = match &error {
        Error::Usage(_) => (Exit::Usage, "usage", None),
        Error::Input { .. } | Error::Read { .. } => (Exit::Failed, "input", None),
        Error::Missing { .. } => (
            Exit::Failed,
            "missing_document",
            Some("--missing skip leaves such keys out, and counts them"),
        ),
        Error::UnrequestedDocument { .. } | Error::DuplicateDocument { .. } => {
            (Exit::Failed, "document", None)
        }
        Error::Unreachable { .. } | Error::NoRouter { .. } => {
            (Exit::Precondition, "unreachable", None)
        }
        Error::Source { .. } => (Exit::Failed, "server", None),
        Error::Cache { .. } => (
            Exit::Failed,
            "cache",
            Some("without --cache-required the job goes on without a cache"),
        ),
        Error::Tree(_) => (Exit::Failed, "tree", None),
        Error::Write(_) => (Exit::Failed, "output", None),
        Error::Listen { .. } => (Exit::Precondition, "listen", None),
        Error::Interrupted => (Exit::Interrupted, "interrupted", None),
        _ => (Exit::Failed, "chain", None),
    };
    let failure = Failure::from_error(exit, code, &error);
    match help {
        Some(help) => failure.help(help),
        None => failure,
    }
}

/// Writes counters to stderr in the form that Hadoop collects, if the process runs as a Hadoop task. Each counter is
/// a name and a value.
fn report_hadoop_counters(counters: &[(&str, u64)]) {
    if std::env::var_os("mapreduce_task_attempt_id").is_some() {
        for (name, count) in counters {
            eprintln!("reporter:counter:imago,{name},{count}");
        }
    }
}
