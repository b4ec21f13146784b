//! `imago load`: a realistic workload on a collection or table, and the check of the resulting
//! content.
//!
//! `imago load` runs a workload on MongoDB, Cassandra or Redis; `check` compares the content of a
//! collection with the replies recorded by a load; `switch`, `stop` and `status` control a running
//! load through its control socket, from any other process of the same user (a cut-over hook, for
//! example); `history` prints a recording. `tpcc`, `smallbank`, `twitter` and `ycsb` run transactions on `imago store`.

mod check;
mod control;
mod run;
mod transactions;
mod view;

use std::path::PathBuf;
use std::time::Duration;

use imago_mongo::error::{Class, Error};
use imago_mongo::namespace::Namespace;
use imago_tune::cassandra::Consistency;
use imago_workload::driver::Arrival;
use imago_workload::history::IdForm;
use imago_workload::mix::Mix;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::values::{consistency, duration};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Example:\n  \
    imago load --uri mongodb://localhost:27017 --ns shop.reviews --documents 200000 \\\n    \
    --duration 5m --record load.history --control load.sock\n  \
    imago load switch --control load.sock --uri mongodb://newhost:27017\n  \
    imago load check --uri mongodb://newhost:27017 --history load.history
  \
    imago load --uri cassandra://127.0.0.1 --ns shop.reviews --documents 50000 \\\n    \
    --mix read=60,update=20,insert=10,scan=10 --consistency quorum --record load.history
  \
    imago load --uri redis://127.0.0.1:6379,127.0.0.2:6379 --ns shop.reviews --documents 50000 \\\n    \
    --mix read=80,update=20 --wait-replicas 1 --record load.history")]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Check a collection against a recorded history; exit code 3 if the collection contradicts it.
    Check(check::Args),
    /// Switch the operations of a running load to another cluster.
    Switch(SwitchArgs),
    /// End a running load before its time, and wait until its history is complete.
    Stop(ControlArgs),
    /// Print what a running load has measured so far.
    Status(ControlArgs),
    /// Print a recorded history as lines of JSON.
    History(check::HistoryArgs),
    /// Run TPC-C on a running `imago store`, and check its consistency conditions.
    Tpcc(transactions::TpcC),
    /// Run SmallBank on a running `imago store`, and check the money.
    Smallbank(transactions::SmallBank),
    /// Run Twitter's transactions on a running `imago store`, and check the tweets.
    Twitter(transactions::Twitter),
    /// Run YCSB's transactions of several rows on a running `imago store`, and check the rows.
    Ycsb(transactions::Ycsb),
}

/// Parses TIME:MIX: a time since the start of the load, and the mix of operations from then on.
fn turn(text: &str) -> Result<(Duration, Mix), String> {
    let (from, mix) = text.split_once(':').ok_or("it must be TIME:MIX, as 60s:read=95,update=5")?;
    Ok((duration(from)?, mix.parse::<Mix>().map_err(|error| error.to_string())?))
}

/// A load to run.
#[derive(Debug, clap::Args)]
struct RunArgs {
    /// The cluster, as a MongoDB connection string, or cassandra://NAME:PASSWORD@HOST:PORT,HOST:PORT, or
    /// redis://NAME:PASSWORD@HOST:PORT,HOST:PORT (one server, or nodes of a Redis Cluster).
    #[arg(long, required = true)]
    uri: Option<String>,
    /// The collection, as database.collection; for Cassandra the table, as keyspace.table, created
    /// if it is missing; for Redis db.coll, and keys begin with db:coll:.
    #[arg(long, required = true, value_name = "DB.COLL")]
    ns: Option<Namespace>,
    /// Insert this many documents first; the collection must be empty.
    #[arg(long, default_value_t = 0, value_name = "N")]
    documents: u64,
    /// The collection already holds the documents of --documents, made with the same seed and
    /// sizes and unchanged since.
    #[arg(long)]
    preloaded: bool,
    /// Operations per second.
    #[arg(long, default_value_t = 300.0, value_name = "OPS")]
    rate: f64,
    /// Duration, as 90s, 5m or 1h; 0s: fill the collection and end.
    #[arg(long, value_parser = duration, default_value = "60s", value_name = "TIME")]
    duration: Duration,
    /// Run until Ctrl-C or `imago load stop`.
    #[arg(long, conflicts_with = "duration")]
    until_stopped: bool,
    /// Shares of the operations: read, update, insert, delete and scan.
    #[arg(long, default_value = "read=40,update=40,insert=20,delete=0")]
    mix: Mix,
    /// Mix from a later time on, as 60s:read=95,update=5; repeatable, in the order of time.
    #[arg(long, value_name = "TIME:MIX", value_parser = turn)]
    then: Vec<(Duration, Mix)>,
    /// The most documents that a scan reads; of Redis, by one step of SCAN at one node.
    #[arg(long, default_value_t = 50, value_name = "N")]
    scan_documents: u32,
    /// The consistency level of all operations (Cassandra only): one, local_one, two, three, quorum, local_quorum,
    /// each_quorum or all.
    #[arg(long, default_value = "quorum", value_name = "LEVEL", value_parser = consistency)]
    consistency: Consistency,
    /// The replicas that have to acknowledge a write besides its master (Redis only; by WAIT). Without any a write that is
    /// acknowledged is lost if its master dies before a replica has it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    wait_replicas: u32,
    /// Timeout for their acknowledgements; the write then counts as possibly applied.
    #[arg(long, value_parser = duration, default_value = "1s", value_name = "TIME")]
    wait_timeout: Duration,
    /// Distribution of the operations over documents.
    #[arg(long, default_value = "uniform", value_parser = ["uniform", "zipf", "latest"])]
    keys: String,
    /// The skew of zipf and latest.
    #[arg(long, default_value_t = imago_workload::keys::PAPER_SHAPE)]
    shape: f64,
    /// Times at which operations are due: independent of each other, at equal distances, or (closed) as soon as another
    /// one has ended, --in-flight at once; --rate does not count then.
    #[arg(long, value_enum, default_value = "poisson")]
    arrival: ArrivalArg,
    /// The share of inserts that reuse the keys of deleted documents, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    reinsert: f64,
    /// Size of a document.
    #[arg(long, default_value_t = 1000, value_name = "BYTES")]
    size_bytes: u32,
    /// Number of different productIDs.
    #[arg(long, default_value_t = 50_000, value_name = "N")]
    products: u64,
    /// Number of different userIDs.
    #[arg(long, default_value_t = 50_000, value_name = "N")]
    users: u64,
    /// The share of documents whose userID follows from the productID in reverse order, 0 to 1.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    correlation: f64,
    /// The form of `_id`: ordered text, 64-bit integers, or scattered text.
    #[arg(long, value_enum, default_value = "text")]
    ids: IdsArg,
    /// Seed of the documents and of the choice of operations.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The most operations in flight; an operation that is due beyond it is dropped, and reported.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    in_flight: u32,
    /// Timeout of an operation, which then counts as possibly applied.
    #[arg(long, value_parser = duration, default_value = "30s", value_name = "TIME")]
    op_timeout: Duration,
    /// Record every operation in this file, for `imago load check`.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Listen on a Unix socket at this path for `imago load switch`, `stop` and `status`.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Leave the interval-by-interval time line out of the JSON result.
    #[arg(long)]
    no_timeline: bool,
}

/// The running load.
#[derive(Debug, clap::Args)]
struct ControlArgs {
    /// The control socket of the running load.
    #[arg(long, value_name = "PATH")]
    control: PathBuf,
}

/// The new destination of a running load.
#[derive(Debug, clap::Args)]
struct SwitchArgs {
    #[command(flatten)]
    to: ControlArgs,
    /// The cluster that operations go to from now on.
    #[arg(long)]
    uri: String,
    /// The collection there, when it has another name.
    #[arg(long, value_name = "DB.COLL")]
    ns: Option<Namespace>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum ArrivalArg {
    Poisson,
    Uniform,
    Closed,
}

impl From<ArrivalArg> for Arrival {
    fn from(arrival: ArrivalArg) -> Self {
        match arrival {
            ArrivalArg::Poisson => Self::Poisson,
            ArrivalArg::Uniform => Self::Uniform,
            ArrivalArg::Closed => Self::Closed,
        }
    }
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum IdsArg {
    Text,
    Integer,
    Scattered,
}

impl From<IdsArg> for IdForm {
    fn from(ids: IdsArg) -> Self {
        match ids {
            IdsArg::Text => Self::Text,
            IdsArg::Integer => Self::Integer,
            IdsArg::Scattered => Self::Scattered,
        }
    }
}

/// Runs `imago load`: the load itself, or the chosen subcommand.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    match args.verb {
        None => run::run(args.run, context).await,
        Some(Verb::Check(args)) => check::run(args, context).await,
        Some(Verb::History(args)) => check::history(&args, context),
        Some(Verb::Tpcc(args)) => args.run(context).await,
        Some(Verb::Smallbank(args)) => args.run(context).await,
        Some(Verb::Twitter(args)) => args.run(context).await,
        Some(Verb::Ycsb(args)) => args.run(context).await,
        Some(Verb::Switch(SwitchArgs { to, uri, ns })) => {
            let request = control::Request::Switch { uri, ns };
            control::ask(&to.control, &request, context).await
        }
        Some(Verb::Stop(to)) => control::stop(&to.control, context).await,
        Some(Verb::Status(to)) => {
            control::ask(&to.control, &control::Request::Status, context).await
        }
    }
}

/// Converts an error of the MongoDB library into the failure of this command. A load cannot be resumed, so an
/// interrupted one has failed.
fn failure(error: &Error) -> Failure {
    let exit = match error.class() {
        Class::Usage => Exit::Usage,
        Class::Precondition => Exit::Precondition,
        Class::Failed | Class::Interrupted => Exit::Failed,
    };
    let failure = Failure::from_error(exit, "load", error);
    match error.help() {
        Some(help) => failure.help(help),
        None => failure,
    }
}
