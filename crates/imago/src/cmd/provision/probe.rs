//! `imago provision probe`: measures the cost of a request at each station (client, cache, router, shard).

use std::path::PathBuf;

use imago_provision::chain::{self, Namespace};
use imago_provision::probe::{self, Cores, Error, Measured, Probe, Request};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::table::table;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The probe makes the requests of a chained job (imago chain) and asks each server for the processor time that it used: \
serverStatus of the router and of all members of all shards, INFO of the cache. It needs connections to all members. \
Other clients' work would be counted too: run it while the cluster is idle.

It only reads the database. In the cache it writes entries that begin with imago-probe-, and deletes them in the end; \
before a kill -9 they stay, and an eviction policy removes them in time.

Servers do not report how many processors they may use: set --cores where it is fewer than all.

Examples:
  imago provision probe --uri mongodb://127.0.0.1:27017 --ns shop.messages --cache redis://127.0.0.1:6379 --out probe.json
  imago provision probe --uri mongodb://127.0.0.1:27017 --ns shop.messages --keys chain.imt --cores shard=0.3 --out probe.json")]
pub(super) struct Args {
    /// The database: mongodb://HOST:PORT of a router or a replica set.
    #[arg(long, value_name = "URI")]
    uri: String,
    /// The collection.
    #[arg(long, value_name = "DB.COLL")]
    ns: Namespace,
    /// A Redis, as redis://HOST:PORT.
    #[arg(long, value_name = "URI")]
    cache: Option<String>,
    /// The time for all windows together, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(4..=3_600))]
    seconds: u32,
    /// Batches in flight.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    workers: u32,
    /// Read the keys of this trace; without it a sample of the collection.
    #[arg(long, value_name = "TRACE")]
    keys: Option<PathBuf>,
    /// Processors of a station: client, cache, router or shard (each member); for example shard=0.3. Without it all of
    /// this machine.
    #[arg(long, value_name = "STATION=N", value_delimiter = ',', value_parser = cores)]
    cores: Vec<(String, f64)>,
    /// The file that gets the probe, over an earlier one.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Runs `imago provision probe`: measures the costs, writes them to the file and prints them.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let all = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    // Redis runs commands in one thread.
    let mut cores = Cores { client: all, cache: 1.0, router: all, shard: all };
    for (station, count) in &args.cores {
        match &**station {
            "client" => cores.client = *count,
            "cache" => cores.cache = *count,
            "router" => cores.router = *count,
            _ => cores.shard = *count,
        }
    }
    let request = Request {
        uri: args.uri,
        namespace: args.ns,
        cache: args.cache,
        seconds: f64::from(args.seconds),
        workers: args.workers,
        keys: args.keys,
        cores,
        when: imago_provision::utc::now(),
    };
    let say = |line: String| eprintln!("{line}");
    let probe = Box::pin(probe::run(&request, &context.cancel, &say)).await;
    let probe = probe.map_err(|error| failure(&error))?;
    probe.write(&args.out).map_err(|error| failure(&error))?;
    context.output.result(&probe, text)
}

/// Formats the result of a probe as text.
fn text(probe: &Probe) -> String {
    let costs = &probe.costs;
    let rows = [
        ("client: job", Some(costs.client)),
        ("client: find", Some(costs.client_find)),
        ("client: MGET", costs.client_get),
        ("client: SETs", costs.client_set),
        ("proxy", costs.proxy),
        ("cache: MGET", costs.cache_get),
        ("cache: SETs", costs.cache_set),
        ("router", costs.router),
        ("shard", Some(costs.shard)),
    ];
    let rows = rows.into_iter().filter_map(|(station, cost)| Some(row(station, cost?)));
    let mut text = table(&["STATION", "REQUEST", "KEY", "ERROR"], rows, &[1, 2, 3]);
    let trips = [
        ("the cache", probe.round_trips.cache),
        ("the router", probe.round_trips.router),
        ("a shard", Some(probe.round_trips.shard)),
    ];
    for (server, trip) in trips {
        if let Some(trip) = trip {
            let (ping, wait) = (trip.ping_s * 1e6, trip.wait_s * 1e6);
            text += &format!("a ping of {server} takes {ping:.0} µs, {wait:.0} of them waiting\n");
        }
    }
    let sizes = &probe.sizes;
    text += &format!(
        "{} documents of {:.0} bytes; an entry in the cache takes {} more\n",
        sizes.documents,
        sizes.document_bytes,
        sizes.entry_bytes.map_or("(not measured)".into(), |bytes| format!("{bytes:.0}")),
    );
    if let Some(page) = probe.costs.page {
        text += &format!(
            "a page of {:.0} KiB that a shard reads from disk takes {:.0} µs of its processor and {:.0} µs of waiting\n",
            page.bytes / 1024.0,
            page.processor_s * 1e6,
            page.wait_s * 1e6,
        );
    }
    for share in &probe.shards {
        text += &format!(
            "shard {}: {:.1} % of the documents, {:.1} % of the keys\n",
            share.shard,
            100.0 * share.documents,
            100.0 * share.keys,
        );
    }
    text
}

/// Returns a row of the table of costs: the station, its costs in microseconds, and their error.
fn row(station: &str, cost: Measured) -> [String; 4] {
    [
        station.to_owned(),
        format!("{:.1} µs", cost.request_s * 1e6),
        format!("{:.2} µs", cost.key_s * 1e6),
        format!("{:.1} %", cost.relative_error * 100.0),
    ]
}

/// Parses the name of a station and its number of processors: `shard=0.3`.
fn cores(text: &str) -> Result<(String, f64), String> {
    let wrong = || {
        format!(
            "`{text}` is not a station with its processors; write client=2, cache=1, router=1 or \
             shard=0.3"
        )
    };
    let (station, count) = text.split_once('=').ok_or_else(wrong)?;
    let count: f64 = count.parse().map_err(|_| wrong())?;
    let is_known = ["client", "cache", "router", "shard"].contains(&station);
    let is_some = count > 0.0 && count <= 4_096.0;
    if is_known && is_some { Ok((station.to_owned(), count)) } else { Err(wrong()) }
}

/// Converts an error of the probe into a failure, with an exit code and a code for programs.
fn failure(error: &Error) -> Failure {
    let (exit, code) = match error {
        Error::Read(chain::Error::Usage(_)) => (Exit::Usage, "usage"),
        Error::Read(chain::Error::Unreachable { .. } | chain::Error::NoRouter { .. }) => {
            (Exit::Precondition, "unreachable")
        }
        Error::Read(chain::Error::Interrupted) | Error::Interrupted => {
            (Exit::Interrupted, "interrupted")
        }
        Error::Ask { .. } | Error::MissingValue { .. } | Error::Unfit(_) => {
            (Exit::Precondition, "probe")
        }
        Error::Read(_) | Error::Cache(_) | Error::Task(_) => (Exit::Failed, "probe"),
        Error::Io { .. } | Error::Foreign { .. } => (Exit::Failed, "file"),
    };
    Failure::from_error(exit, code, error)
}
