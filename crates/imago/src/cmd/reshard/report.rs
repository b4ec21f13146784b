//! `imago reshard report`: what came of a change of the shard key for clients, beside what the advice had predicted.

use std::path::PathBuf;

use imago_job::id::JobId;
use imago_mongo::reshard::advise::{Advice, ClientEffect, KeyChange, KeyOutcome};
use imago_mongo::server::endpoint::Endpoint;

use super::advise::Judge;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::render::{duration, grouped};
use crate::table::table;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Judges the new key by what clients do now, on the chunks that there are, and the old one as if the collection were \
changed back. Name a source of the same kind as for the advice, once clients have worked with the new key for a while: \
an hour says more than a minute. Leaves the collection as it is.

Examples:
  imago reshard advise --uri mongodb://127.0.0.1:27017 --ns shop.reviews --profile 10m --json > advice.json
  imago reshard report 1m8ncax28-ebam --uri mongodb://127.0.0.1:27017 --advice advice.json --profile 10m")]
pub struct Args {
    /// The job that changed the key; `imago job list` shows them.
    #[arg(value_name = "JOB")]
    id: JobId,
    /// The cluster's router: mongodb://[user:password@]host:port[,…]/[?options].
    #[arg(long, value_name = "URI", hide_env_values = true)]
    uri: String,
    /// The advice from before the change, as `imago reshard advise --json` printed it.
    #[arg(long, value_name = "FILE")]
    advice: PathBuf,
    #[command(flatten)]
    judge: Judge,
}

/// Compares what was predicted of a change of the shard key with what clients do after it.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    args.judge.check()?;
    let before = read(&args.advice)?;
    let cluster = Endpoint::connect(&args.uri, "cluster").await?;
    let change = KeyChange::of(&cluster, &args.id).await?;
    let old = vec![change.old_key.clone()];
    let after = args.judge.judge(&cluster, change.ns.clone(), old, context).await?;
    let outcome = change.compared(&before, &after)?;
    context.output.result(&outcome, text)
}

/// Reads the advice in a file.
fn read(path: &PathBuf) -> Result<Advice, Failure> {
    let wrong = |cause: &dyn std::fmt::Display| {
        let message = format!("{} holds no advice: {cause}", path.display());
        Failure::new(Exit::Usage, "advice", message)
            .help("name the file of `imago reshard advise --json` before the change")
    };
    let bytes = std::fs::read(path).map_err(|cause| wrong(&cause))?;
    serde_json::from_slice(&bytes).map_err(|cause| wrong(&cause))
}

fn text(outcome: &KeyOutcome) -> String {
    let since = duration(outcome.since_s.saturating_mul(1_000));
    let mut text = format!(
        "{}  changed from {} to {} by job {}, {since} ago\n{} operations from {}\n",
        outcome.ns,
        outcome.old_key,
        outcome.key,
        outcome.job,
        grouped(outcome.operations),
        outcome.source.source,
    );
    for note in &outcome.source.notes {
        text += &format!("note: {note}\n");
    }
    text += "\n";
    let row = |what: &str, of: fn(&ClientEffect) -> f64| {
        let values = [outcome.before, outcome.predicted, outcome.now];
        let values = values.iter().map(|effect| format!("{:.1} %", 100.0 * of(effect)));
        std::iter::once(what.to_owned()).chain(values).collect::<Vec<_>>()
    };
    let rows = [
        row("reads by one shard", |effect| effect.reads_by_one),
        row("writes by one shard", |effect| effect.writes_by_one),
        row("busiest shard", |effect| effect.busiest),
        row("one value", |effect| effect.hottest),
    ];
    let headings = ["SHARE", "OLD KEY, BEFORE", "NEW KEY, PREDICTED", "NEW KEY, NOW"];
    text += &table(&headings, rows, &[1, 2, 3]);
    let (low, high) = outcome.predicted_interval;
    text += &format!(
        "\nthroughput that the busiest shard allows, beside the old key: predicted {:.2} × ({low:.2} to {high:.2})",
        outcome.predicted_ratio
    );
    text += &match (outcome.ratio_now, outcome.interval_now) {
        (Some(now), Some((low, high))) => {
            format!("; by what clients do now {now:.2} × ({low:.2} to {high:.2})\n")
        }
        (Some(now), None) => format!("; by what clients do now {now:.2} ×, by few operations\n"),
        (None, _) => "; the old key cannot be judged by what clients do now\n".to_owned(),
    };
    if let Some(received) = &outcome.received {
        let shares = received.iter().map(|share| format!("{:.1} %", 100.0 * share));
        let shares = shares.collect::<Vec<_>>().join(", ");
        text += &format!("operations that shards showed: {shares}\n");
    }
    text
}
