//! `imago tune roll`: applies a new configuration to all nodes of a cluster while it serves.

mod redis;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use imago_job::id::JobId;
use imago_tune::cassandra::compaction::Compaction;
use imago_tune::cassandra::roll::{self, Outcome, Preview, Roller, Spec};
use imago_tune::cassandra::{ClusterFile, connection};
use imago_tune::cluster;

use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::table::table;
use crate::values::duration;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Settings that are live are applied in running nodes, one by one, and written for the next start. The others \
need a restart.

Cassandra: nodes are restarted in steps, such that each range of each keyspace keeps enough replicas for \
--consistency. Before each step every node must see all others up, with one schema, and none may hold hints for \
another one. The job's state is in the cluster (keyspace imago).

Redis: replicas are restarted first, then one that has all takes its master's place, and the old master is \
restarted. Before each step all nodes must be up, and every replica must have what its master has. A master \
without a replica is restarted only with --unserved. The job's state is beside the cluster file (NAME.jobs).

Ctrl-C lets the node that is under way come back first.

The cluster file:

  database = \"cassandra\"
  uri = \"cassandra://10.0.0.1:9042,10.0.0.2:9042\"
  # A program that reads a script from its standard input, on the node; without it: sh, on this machine.
  # {name} and {host} stand for those of the node. Each command may also stand in a node's own table.
  shell = \"ssh {name} sudo sh\"
  configuration = \"/etc/cassandra/cassandra.yaml\"
  nodetool = \"nodetool\"
  # Only to change the heap (max_heap_size).
  jvm_options = \"/etc/cassandra/jvm-server.options\"
  stop = \"systemctl stop cassandra\"
  start = \"systemctl start cassandra\"

  [[node]]
  name = \"cas-1\"
  address = \"10.0.0.1:9042\"

That of Redis has database = \"redis\", a uri of redis://, the path of redis.conf, and neither nodetool nor jvm_options.

Examples:
  imago tune roll --cluster cluster.toml --set concurrent_reads=64 --set memtable_heap_space=512MiB --dry-run
  imago tune roll --cluster cluster.toml --set compaction_throughput=32MiB/s
  imago tune roll --cluster redis.toml --set hash-max-listpack-entries=1024 --set io-threads=4")]
pub(super) struct Args {
    /// The file that says how the nodes are reached.
    #[arg(long, value_name = "FILE")]
    cluster: PathBuf,
    /// A setting and its new value, as in cassandra.yaml or redis.conf; `imago tune knobs` lists them.
    #[arg(long, value_name = "SETTING=VALUE", value_parser = setting, required_unless_present_any = ["resume", "unset", "compaction"])]
    set: Vec<(String, String)>,
    /// A setting that gets its default again.
    #[arg(long, value_name = "SETTING")]
    unset: Vec<String>,
    /// A table and its new compaction, as keyspace.table={"class": …}; by ALTER TABLE, without a restart (Cassandra only).
    #[arg(long, value_name = "TABLE=JSON", value_parser = compaction)]
    compaction: Vec<(String, Compaction)>,
    /// The consistency level that clients need meanwhile (Cassandra only).
    #[arg(long, value_name = "LEVEL", default_value = "quorum", value_parser = level)]
    consistency: String,
    /// Further node failures that the cluster must tolerate meanwhile; for Redis in each shard.
    #[arg(long, value_name = "N", default_value_t = 0)]
    tolerate: usize,
    /// Restart all nodes at once; clients are not served meanwhile (Cassandra only).
    #[arg(long)]
    at_once: bool,
    /// Restart a master that has no replica, too; its keys are not served meanwhile (Redis only).
    #[arg(long)]
    unserved: bool,
    /// Time for which the first node is compared with the others before and after its change, a
    /// table's compaction included; the roll goes on only if it improves (Cassandra only). 0s: no
    /// comparison.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    canary: Duration,
    /// Show the steps and obstacles of the roll; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Go on with a job whose process died or was interrupted.
    #[arg(long, value_name = "JOB", conflicts_with_all = ["set", "unset", "compaction", "consistency", "tolerate", "at_once", "unserved", "canary", "dry_run"])]
    resume: Option<JobId>,
}

/// Parses `SETTING=VALUE` into name and value; only the setting `save` may have an empty value.
pub(super) fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && (!value.is_empty() || name == "save") => {
            Ok((name.to_owned(), value.to_owned()))
        }
        _ => Err("it must be SETTING=VALUE, such as concurrent_reads=64".into()),
    }
}

/// Parses `keyspace.table=JSON` into the table and its compaction.
fn compaction(text: &str) -> Result<(String, Compaction), String> {
    let (table, json) = text.split_once('=').ok_or("it must be keyspace.table={\"class\": …}")?;
    let compaction = Compaction::parse(json).map_err(|error| error.to_string())?;
    Ok((table.to_owned(), compaction))
}

/// Parses the name of a Cassandra consistency level, and returns it in lower case.
pub(super) fn level(text: &str) -> Result<String, String> {
    let known = connection::CONSISTENCIES;
    match connection::consistency(text) {
        Some(_) => Ok(text.to_ascii_lowercase()),
        None => Err(format!("it must be {known}")),
    }
}

/// Runs `imago tune roll`: rolls a new configuration out to a cluster, resumes such a roll, or previews it.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let database = cluster::file::database(&args.cluster).map_err(|e| cluster_failure(&e))?;
    if database == "redis" {
        return redis::run(args, context).await;
    }
    let file = ClusterFile::read(&args.cluster).map_err(|error| cluster_failure(&error))?;
    if args.unserved {
        let what =
            "--unserved is for Redis; Cassandra's nodes are restarted all together by --at-once";
        return Err(Failure::new(Exit::Usage, "usage", what));
    }
    let (process, cancel) = (process(), context.cancel.clone());
    let rolled = if let Some(job) = &args.resume {
        Box::pin(roll::resume(file, job, &process, context.events(), cancel)).await
    } else {
        let changes = changes(args.set, args.unset)?;
        let spec = Spec {
            changes,
            compaction: args.compaction.into_iter().collect(),
            consistency: args.consistency,
            tolerate: args.tolerate,
            is_at_once: args.at_once,
            canary_s: args.canary.as_secs(),
            is_of_controller: false,
        };
        let roller = Roller::connect(file, spec).await.map_err(|error| cluster_failure(&error))?;
        if args.dry_run {
            let preview = roller.preview().await.map_err(|error| cluster_failure(&error))?;
            return context.output.result(&preview, preview_text);
        }
        Box::pin(roller.begin(&process, context.events(), cancel)).await
    };
    let outcome = rolled.map_err(|error| cluster_failure(&error))?;
    context.output.result(&outcome, outcome_text)
}

/// Merges `--set` and `--unset` into a map from settings to new values; `None`: the setting gets its default. A
/// setting that is named twice is an error.
pub(super) fn changes(
    set: Vec<(String, String)>,
    unset: Vec<String>,
) -> Result<BTreeMap<String, Option<String>>, Failure> {
    let mut changes: BTreeMap<String, Option<String>> = BTreeMap::new();
    let set = set.into_iter().map(|(name, value)| (name, Some(value)));
    for (name, value) in set.chain(unset.into_iter().map(|name| (name, None))) {
        if changes.contains_key(&name) {
            let what = format!("{name} is named twice");
            return Err(Failure::new(Exit::Usage, "usage", what));
        }
        changes.insert(name, value);
    }
    Ok(changes)
}

/// Formats the preview of a roll of Cassandra as text.
fn preview_text(preview: &Preview) -> String {
    let mut text = String::new();
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "default".into());
    let rows = preview.nodes.iter().flat_map(|node| {
        let row = |setting: &str, from: String, to: String, class: &str| {
            [node.name.clone(), node.rack.clone(), setting.into(), from, to, class.into()]
        };
        if node.changes.is_empty() {
            return vec![row("-", "has it already".into(), "-".into(), "-")];
        }
        let changed = |change: &roll::ValueChange| {
            row(&change.setting, shown(&change.from), shown(&change.to), change.class)
        };
        node.changes.iter().map(changed).collect()
    });
    if preview.nodes.iter().any(|node| !node.changes.is_empty()) || preview.tables.is_empty() {
        text.push_str(&table(&["NODE", "RACK", "SETTING", "NOW", "THEN", "CLASS"], rows, &[]));
    }
    for table in &preview.tables {
        _ = writeln!(
            text,
            "table {}: compaction {} instead of {}",
            table.table, table.to, table.from
        );
    }
    if preview.restarts {
        _ = writeln!(text, "nodes are restarted in {} steps:", preview.steps.len());
        for (step, names) in (1..).zip(&preview.steps) {
            _ = writeln!(text, "  {step}. {}", names.join(", "));
        }
    } else {
        text.push_str("no node is restarted\n");
    }
    for obstacle in &preview.obstacles {
        _ = writeln!(text, "cannot begin now: {obstacle}");
    }
    text
}

/// Formats the outcome of a roll of Cassandra as text.
fn outcome_text(outcome: &Outcome) -> String {
    let mut text = format!("{} is done in {:.0} s\n", outcome.job, outcome.elapsed_s);
    if !outcome.nodes.is_empty() {
        _ = writeln!(text, "  new settings: {}", outcome.nodes.join(", "));
    }
    if !outcome.tables.is_empty() {
        _ = writeln!(text, "  new compaction: {}", outcome.tables.join(", "));
    }
    for (name, took) in &outcome.took {
        let away = if took.away_s > 0.0 {
            format!("took clients again after {:.0} s, and ", took.away_s)
        } else {
            String::new()
        };
        _ = writeln!(text, "  {name} {away}was done after {:.1} s", took.whole_s);
    }
    text
}
