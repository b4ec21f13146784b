//! `imago load`: fills the collection, runs the load, and prints the measurements.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use imago_load::{Schema, cassandra, mongo, redis};
use imago_mongo::namespace::Namespace;
use imago_tune::cassandra::{Consistency, Uri as CassandraUri};
use imago_tune::redis::Uri as RedisUri;
use imago_workload::driver::{self, DriverError, Options, Report, Running};
use imago_workload::history::{Header, Model, Recorder, RecorderError};
use imago_workload::keys::Distribution;
use imago_workload::review::Reviews;
use imago_workload::target::Target;
use imago_workload::timeline::{Latency, Silence};

use super::{RunArgs, control, failure, view};
use crate::context::Context;
use crate::exit::cluster_failure;
use crate::exit::{Exit, Failure};

/// Fills the collection, table or set of records that `--uri` and `--ns` name, and runs a load on it to its end.
pub(super) async fn run(args: RunArgs, context: &Context) -> Result<(), Failure> {
    let missing = |what| Failure::new(Exit::Usage, "usage", format!("--{what} is required"));
    let uri = args.uri.as_deref().ok_or_else(|| missing("uri"))?;
    let namespace = args.ns.clone().ok_or_else(|| missing("ns"))?;
    let options = options(&args)?;
    if CassandraUri::is_one(uri) {
        let uri = uri.parse().map_err(|error| cluster_failure(&error))?;
        return on_cassandra(&args, &uri, &namespace, options, context).await;
    }
    if RedisUri::is_one(uri) {
        let uri = uri.parse().map_err(|error| cluster_failure(&error))?;
        return on_redis(&args, &uri, &namespace, options, context).await;
    }
    let schema = Schema { id_form: args.ids.into(), reviews: options.reviews };
    let connected = mongo::MongoTarget::connect(uri, &namespace, schema).await;
    let target = connected.map_err(|error| failure(&error))?;
    let filling = async |told: &(dyn Fn(u64) + Sync)| {
        let filled = if args.preloaded {
            mongo::require_documents(&target, args.documents).await
        } else {
            mongo::preload(&target, args.documents, told).await
        };
        filled.map_err(|error| failure(&error))
    };
    fill(&args, filling, context).await?;
    if fills_only(&args) {
        return Ok(());
    }
    let recorder = recorder(&args, &namespace, &options, Model::Documents, false)?;
    let connect: control::Connect<mongo::MongoTarget> = Box::new(move |uri, ns| {
        let namespace = ns.unwrap_or_else(|| namespace.clone());
        Box::pin(async move {
            let connected = mongo::MongoTarget::connect(&uri, &namespace, schema).await;
            connected.map_err(|error| error.to_string())
        })
    });
    drive(&args, target, connect, options, recorder, context).await
}

/// Fills a Cassandra table and runs a load on it.
async fn on_cassandra(
    args: &RunArgs,
    uri: &CassandraUri,
    namespace: &Namespace,
    options: Options,
    context: &Context,
) -> Result<(), Failure> {
    let schema = Schema { id_form: args.ids.into(), reviews: options.reviews };
    let table = (&*namespace.db, &*namespace.coll);
    let connected = cassandra::CassandraTarget::connect(uri, table, args.consistency, schema).await;
    let target = connected.map_err(|error| cluster_failure(&error))?;
    let filling = async |told: &(dyn Fn(u64) + Sync)| {
        let filled = if args.preloaded {
            cassandra::require_rows(&target, args.documents).await
        } else {
            cassandra::preload(&target, args.documents, told).await
        };
        filled.map_err(|error| cluster_failure(&error))
    };
    fill(args, filling, context).await?;
    if fills_only(args) {
        return Ok(());
    }
    // Quorum reads and quorum writes overlap in at least one replica.
    let reads_are_current = matches!(
        args.consistency,
        Consistency::Quorum | Consistency::LocalQuorum | Consistency::EachQuorum | Consistency::All
    );
    let recorder = recorder(args, namespace, &options, Model::Registers, reads_are_current)?;
    let connect: control::Connect<cassandra::CassandraTarget> = Box::new(|_, _| {
        Box::pin(async { Err("a load on Cassandra cannot be switched to another cluster".into()) })
    });
    drive(args, target, connect, options, recorder, context).await
}

/// Fills a Redis server or cluster with records and runs a load on them.
async fn on_redis(
    args: &RunArgs,
    uri: &RedisUri,
    namespace: &Namespace,
    options: Options,
    context: &Context,
) -> Result<(), Failure> {
    let schema = Schema { id_form: args.ids.into(), reviews: options.reviews };
    let records = (&*namespace.db, &*namespace.coll);
    let durability = redis::Durability { replicas: args.wait_replicas, wait: args.wait_timeout };
    let connected = redis::RedisTarget::connect(uri, records, durability, schema).await;
    let target = connected.map_err(|error| cluster_failure(&error))?;
    let filling = async |told: &(dyn Fn(u64) + Sync)| {
        let filled = if args.preloaded {
            redis::require_records(&target, args.documents).await
        } else {
            redis::preload(&target, args.documents, told).await
        };
        filled.map_err(|error| cluster_failure(&error))
    };
    fill(args, filling, context).await?;
    if fills_only(args) {
        return Ok(());
    }
    // All reads go to masters.
    let recorder = recorder(args, namespace, &options, Model::Arrivals, true)?;
    let connect: control::Connect<redis::RedisTarget> = Box::new(|_, _| {
        Box::pin(async { Err("a load on Redis cannot be switched to another cluster".into()) })
    });
    drive(args, target, connect, options, recorder, context).await
}

/// Runs the operations of a load on `target`, and prints the measurements. `connect` connects to another cluster, if
/// the control socket requests a switch.
async fn drive<T: Target>(
    args: &RunArgs,
    target: T,
    connect: control::Connect<T>,
    options: Options,
    recorder: Recorder,
    context: &Context,
) -> Result<(), Failure> {
    // The socket exists before the first operation, so that a script can wait for it.
    let listener = args.control.as_deref().map(control::Listener::bind).transpose()?;
    let running = driver::start(options, Arc::new(target), recorder).map_err(|e| ended(&e))?;
    let serving = listener.map(|listener| listener.serve(running.control(), connect));
    let report = steer(running, context).await;
    drop(serving);
    let mut report = report?;
    if args.no_timeline {
        report.timeline.clear();
    }
    context.output.result(&report, summary)
}

fn fills_only(args: &RunArgs) -> bool {
    args.duration.is_zero() && !args.until_stopped
}

fn options(args: &RunArgs) -> Result<Options, Failure> {
    let usage = |error: &dyn std::error::Error| {
        Failure::new(Exit::Usage, "usage", format!("the load cannot run: {error}"))
    };
    let reviews = Reviews {
        seed: args.seed,
        size_bytes: args.size_bytes,
        products: args.products,
        users: args.users,
        correlation: args.correlation,
    };
    reviews.validate().map_err(|error| usage(&error))?;
    let options = Options {
        turns: args.then.clone(),
        mix: args.mix,
        keys: Distribution::named(&args.keys, args.shape).map_err(|error| usage(&error))?,
        rate_per_s: args.rate,
        arrival: args.arrival.into(),
        duration: (!args.until_stopped).then_some(args.duration),
        in_flight_max: args.in_flight,
        op_timeout: args.op_timeout,
        preloaded: args.documents,
        reviews,
        reinsert: args.reinsert,
        scan_documents: args.scan_documents,
        seed: args.seed,
    };
    // Filling alone needs no valid operations.
    if !fills_only(args) {
        options.validate().map_err(|error| ended(&error))?;
    }
    Ok(options)
}

/// Converts an error of the load's driver into the failure of the command.
fn ended(error: &DriverError) -> Failure {
    let exit = match error {
        DriverError::Option(_) => Exit::Usage,
        _ => Exit::Failed,
    };
    Failure::from_error(exit, "load", error)
}

/// Fills the collection by `filling`, or checks that it is full, and shows the progress, unless the user interrupts
/// it.
async fn fill(
    args: &RunArgs,
    filling: impl AsyncFnOnce(&(dyn Fn(u64) + Sync)) -> Result<(), Failure>,
    context: &Context,
) -> Result<(), Failure> {
    let bar = view::filling(context, args.documents);
    let told = |inserted| bar.set_position(inserted);
    let filled = tokio::select! {
        filled = Box::pin(filling(&told)) => filled,
        () = context.cancel.cancelled() => {
            Err(Failure::new(Exit::Failed, "cancelled", "stopped while filling the \
                collection, which now holds a part of the documents"))
        }
    };
    bar.finish_and_clear();
    filled
}

fn recorder(
    args: &RunArgs,
    namespace: &Namespace,
    options: &Options,
    model: Model,
    reads_are_current: bool,
) -> Result<Recorder, Failure> {
    let Some(path) = &args.record else { return Ok(Recorder::nothing()) };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let header = Header {
        imago_history: Header::VERSION,
        preloaded: args.documents,
        reviews: options.reviews,
        id_form: args.ids.into(),
        model,
        reads_are_current,
        namespace: namespace.to_string(),
        started_unix_ms: since_1970.as_millis() as u64,
    };
    Recorder::file(path, &header)
        .map_err(|error: RecorderError| Failure::from_error(Exit::Failed, "history", &error))
}

/// Displays a load while it runs, and stops it if the user requests that. Returns its report.
async fn steer<T: Target>(running: Running<T>, context: &Context) -> Result<Report, Failure> {
    let control = running.control();
    let view = view::View::new(context);
    let mut finished = std::pin::pin!(running.finish());
    let mut ticks = tokio::time::interval(view::PERIOD);
    let mut stopped = false;
    let ended_as = loop {
        tokio::select! {
            ended_as = &mut finished => break ended_as,
            _ = ticks.tick() => view.show(&control.snapshot()),
            () = context.cancel.cancelled(), if !stopped => {
                stopped = true;
                control.stop();
            }
        }
    };
    view.clear();
    ended_as.map(|(report, _)| report).map_err(|error| ended(&error))
}

fn ms(us: u64) -> String {
    format!("{:.1}", us as f64 / 1000.0)
}

/// Formats the report of a load as text.
fn summary(report: &Report) -> String {
    let mut text = String::new();
    let seconds = report.elapsed_ms as f64 / 1000.0;
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        text.write_fmt(arguments).and_then(|()| text.write_char('\n')).unwrap_or_default();
    };
    line(format_args!(
        "{} operations in {seconds:.1} s ({:.0}/s of {:.0}/s requested), keys {}, mix {}",
        report.started,
        report.started as f64 / seconds.max(0.001),
        report.rate_per_s,
        report.keys,
        report.mix,
    ));
    for mark in &report.targets {
        line(format_args!("from {:.1} s to {}", mark.at_ms as f64 / 1000.0, mark.target));
    }
    let columns = ["", "ok", "not found", "failed", "p50 ms", "p95 ms", "p99 ms", "max ms"];
    let [a, b, c, d, e, f, g, h] = columns;
    line(format_args!("{a:8}{b:>10}{c:>11}{d:>9}{e:>9}{f:>9}{g:>9}{h:>9}"));
    for kind in &report.kinds {
        let (tally, Latency { p50_us, p95_us, p99_us, max_us, .. }) = (kind.tally, kind.latency);
        line(format_args!(
            "{:8}{:>10}{:>11}{:>9}{:>9}{:>9}{:>9}{:>9}",
            kind.kind.name(),
            tally.ok,
            tally.not_found,
            tally.failed,
            ms(p50_us),
            ms(p95_us),
            ms(p99_us),
            ms(max_us),
        ));
    }
    for (name, side) in [("reads", &report.reads), ("writes", &report.writes)] {
        let Silence { from_ms, lasted_us } = side.longest_silence;
        if side.tally.total() > 0 {
            line(format_args!(
                "longest time without a reply to {name}: {} ms, at {:.1} s",
                ms(lasted_us),
                from_ms as f64 / 1000.0
            ));
        }
    }
    if report.dropped > 0 {
        line(format_args!(
            "{} operations were due and not sent: {} were in flight already",
            report.dropped, report.in_flight_max
        ));
    }
    if report.unavailable > 0 {
        line(format_args!(
            "{} operations failed because too few replicas were available",
            report.unavailable
        ));
    }
    for failure in &report.failures {
        let sure = match failure.fate {
            imago_workload::history::Fate::Refused => "not applied",
            _ => "perhaps applied",
        };
        line(format_args!(
            "{} of the {}s failed ({sure}): {}",
            failure.count,
            failure.kind.name(),
            failure.message
        ));
    }
    text
}
