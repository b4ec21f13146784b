//! `imago load check`: checks whether the content of a collection is consistent with a recorded history. `imago load
//! history`: prints the recorded history.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use imago_load::{Schema, cassandra, mongo, redis};
use imago_mongo::namespace::Namespace;
use imago_tune::cassandra::{Consistency, Uri as CassandraUri};
use imago_tune::redis::Uri as RedisUri;
use imago_workload::check::{Anomaly, Checker, Verdict, Wrong};
use imago_workload::history::{History, HistoryError, Model};

use super::failure;
use crate::context::Context;
use crate::exit::cluster_failure;
use crate::exit::{Exit, Failure};

/// Maximum number of printed examples of each kind of anomaly; `--json` has more of them.
const SHOWN_MAX: usize = 5;

/// The recording and the collection to check.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The cluster whose content is checked.
    #[arg(long)]
    uri: String,
    /// The collection there; without: the one that the load was started with.
    #[arg(long, value_name = "DB.COLL")]
    ns: Option<Namespace>,
    /// The recording of the load.
    #[arg(long, value_name = "FILE")]
    history: PathBuf,
}

/// The recording to print.
#[derive(Debug, clap::Args)]
pub(super) struct HistoryArgs {
    /// The recording of a load.
    #[arg(long, value_name = "FILE")]
    history: PathBuf,
    /// Only the operations on this `_id`.
    #[arg(long)]
    id: Option<String>,
}

fn unreadable(error: &HistoryError) -> Failure {
    let exit = match error {
        HistoryError::Read { .. } => Exit::Failed,
        _ => Exit::Precondition,
    };
    Failure::from_error(exit, "history", error)
}

/// Checks the content of a collection, table or set of records against a recorded history, and prints the verdict.
/// Fails if they contradict each other.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let path = args.history;
    let reading = tokio::task::spawn_blocking(move || History::read(&path).map(Checker::new));
    let mut checker = reading
        .await
        .map_err(|error| Failure::from_error(Exit::Failed, "history", &error))?
        .map_err(|error| unreadable(&error))?;
    let namespace = match args.ns {
        Some(namespace) => namespace,
        None => checker.header().namespace.parse().map_err(|error| failure(&error))?,
    };
    let shown = checker.header().model;
    let asked = match &args.uri {
        uri if CassandraUri::is_one(uri) => Model::Registers,
        uri if RedisUri::is_one(uri) => Model::Arrivals,
        _ => Model::Documents,
    };
    if shown != asked {
        let recorded = match shown {
            Model::Documents => "MongoDB",
            Model::Registers => "Cassandra",
            Model::Arrivals => "Redis",
        };
        let what = format!(
            "the history was recorded on {recorded}, and --uri names another kind of cluster"
        );
        return Err(Failure::new(Exit::Usage, "usage", what));
    }
    match asked {
        Model::Documents => show_collection(&args.uri, &namespace, &mut checker)
            .await
            .map_err(|error| failure(&error))?,
        Model::Registers => show_table(&args.uri, &namespace, &mut checker)
            .await
            .map_err(|error| cluster_failure(&error))?,
        Model::Arrivals => show_records(&args.uri, &namespace, &mut checker)
            .await
            .map_err(|error| cluster_failure(&error))?,
    };
    let verdict = checker.finish();
    context.output.result(&verdict, summary)?;
    if verdict.holds() {
        return Ok(());
    }
    let anomalies = verdict.counts.anomalies();
    let what =
        format!("{namespace} contradicts the acknowledged operations: {anomalies} anomalies");
    Err(Failure::new(Exit::Differences, "differences", what))
}

async fn show_collection(
    uri: &str,
    namespace: &Namespace,
    checker: &mut Checker,
) -> imago_mongo::error::Result<u64> {
    let schema = Schema::of(checker.header());
    let target = mongo::MongoTarget::connect(uri, namespace, schema).await?;
    mongo::show_content(&target, checker).await
}

async fn show_table(
    uri: &str,
    namespace: &Namespace,
    checker: &mut Checker,
) -> imago_tune::cluster::Result<u64> {
    let table = (&*namespace.db, &*namespace.coll);
    let schema = Schema::of(checker.header());
    let uri = uri.parse()?;
    let connected = cassandra::CassandraTarget::connect(&uri, table, Consistency::Quorum, schema);
    cassandra::show_content(&connected.await?, checker).await
}

async fn show_records(
    uri: &str,
    namespace: &Namespace,
    checker: &mut Checker,
) -> imago_tune::cluster::Result<u64> {
    let records = (&*namespace.db, &*namespace.coll);
    let schema = Schema::of(checker.header());
    let nothing = redis::Durability { replicas: 0, wait: Duration::ZERO };
    let uri = uri.parse()?;
    let connected = redis::RedisTarget::connect(&uri, records, nothing, schema);
    redis::show_content(&connected.await?, checker).await
}

/// Formats the verdict of the check as text.
fn summary(verdict: &Verdict) -> String {
    let counts = verdict.counts;
    let mut text = format!(
        "{} documents checked against {} operations ({} writes acknowledged, {} refused, {} \
         without a definite answer)\n",
        verdict.documents,
        verdict.operations,
        verdict.writes_acknowledged,
        verdict.writes_refused,
        verdict.writes_unknown,
    );
    let kinds = [
        ("lost", counts.lost),
        ("resurrected", counts.resurrected),
        ("duplicated", counts.duplicated),
        ("stale", counts.stale),
        ("unknown", counts.unknown),
        ("missed", counts.missed),
        ("contradictory", counts.contradictory),
        ("undecided", counts.undecided),
    ];
    let words: Vec<String> = kinds.iter().map(|(name, count)| format!("{name} {count}")).collect();
    text.push_str(&words.join(", "));
    text.push('\n');
    if counts.stale_reads > 0 {
        writeln!(text, "{} reads returned a value that had been replaced", counts.stale_reads)
            .unwrap_or_default();
    }
    let mut shown: HashMap<Wrong, usize> = HashMap::new();
    let mut left_out = 0;
    for Anomaly { wrong, id, why, ops } in &verdict.named {
        let of_this_kind = shown.entry(*wrong).or_default();
        *of_this_kind += 1;
        if *of_this_kind > SHOWN_MAX {
            left_out += 1;
            continue;
        }
        let wrong = format!("{wrong:?}").to_lowercase();
        let last = ops.last().map(|op| format!("; last: {} {}", op.kind.name(), op.seq));
        writeln!(text, "{wrong}: {id}: {why}{}", last.unwrap_or_default()).unwrap_or_default();
    }
    if left_out > 0 {
        writeln!(text, "{left_out} more examples with --json").unwrap_or_default();
    }
    text
}

/// Prints a recorded history as lines of JSON: the header, then one operation per line.
pub(super) fn history(args: &HistoryArgs, context: &Context) -> Result<(), Failure> {
    let unwritable = |cause: serde_json::Error| {
        Failure::new(Exit::Failed, "output", "cannot write an entry as JSON").because(&cause)
    };
    // The header comes first in the output, but is known only after a first pass over the history.
    let (header, _) =
        History::scan(&args.history, |_, _| {}).map_err(|error| unreadable(&error))?;
    let wanted = match &args.id {
        Some(id) => Some(header.id_form.key(id).ok_or_else(|| {
            Failure::new(Exit::Usage, "usage", format!("{id} is no _id of this load"))
        })?),
        None => None,
    };
    context.output.text(&serde_json::to_string(&header).map_err(unwritable)?)?;
    let mut failed = None;
    let scanned = History::scan(&args.history, |_, op| {
        if failed.is_some() || wanted.is_some_and(|key| key != op.key) {
            return;
        }
        let written =
            serde_json::to_string(&op).map_err(unwritable).and_then(|op| context.output.text(&op));
        failed = written.err();
    });
    scanned.map_err(|error| unreadable(&error))?;
    failed.map_or(Ok(()), Err)
}
