//! `imago tune roll` for a Redis server or cluster.

use std::fmt::Write as _;

use imago_tune::redis::ClusterFile;
use imago_tune::redis::roll::{self, NodePreview, Outcome, Preview, Roller, Spec};

use super::{Args, changes};
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Exit, Failure, cluster_failure};
use crate::table::table;

/// Rolls a new configuration out to a Redis server or cluster, resumes such a roll, or previews it.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let file = ClusterFile::read(&args.cluster).map_err(|error| cluster_failure(&error))?;
    for (named, flag) in [
        (!args.compaction.is_empty(), "--compaction"),
        (args.at_once, "--at-once"),
        (!args.canary.is_zero(), "--canary"),
    ] {
        if named {
            let what = format!("{flag} is for Cassandra, but the cluster file is for Redis");
            return Err(Failure::new(Exit::Usage, "usage", what));
        }
    }
    let (process, cancel) = (process(), context.cancel.clone());
    let rolled = if let Some(job) = &args.resume {
        Box::pin(roll::resume(file, &args.cluster, job, &process, context.events(), cancel)).await
    } else {
        let changes = changes(args.set, args.unset)?;
        let (tolerate, unserved) = (args.tolerate, args.unserved);
        let spec = Spec { changes, tolerate, unserved, is_of_controller: false };
        let roller = Roller::new(file, spec).map_err(|error| cluster_failure(&error))?;
        if args.dry_run {
            let preview = roller.preview().await.map_err(|error| cluster_failure(&error))?;
            return context.output.result(&preview, preview_text);
        }
        Box::pin(roller.begin(&args.cluster, &process, context.events(), cancel)).await
    };
    let outcome = rolled.map_err(|error| cluster_failure(&error))?;
    context.output.result(&outcome, outcome_text)
}

/// Formats the preview of a roll of Redis as text.
fn preview_text(preview: &Preview) -> String {
    let shown = |value: &Option<String>| match value.as_deref() {
        None => "default".to_owned(),
        Some("") => "\"\"".to_owned(),
        Some(value) => value.to_owned(),
    };
    let row = |node: &NodePreview, [setting, now, then, class]: [String; 4]| {
        [node.name.clone(), node.part.clone(), setting, now, then, class]
    };
    let none = || ["-", "has it already", "-", "-"].map(str::to_owned);
    let rows = preview.nodes.iter().flat_map(|node| {
        let changed = node.changes.iter().map(|change| {
            let setting = change.setting.clone();
            row(node, [setting, shown(&change.from), shown(&change.to), change.class.to_owned()])
        });
        let changed: Vec<_> = changed.collect();
        if changed.is_empty() { vec![row(node, none())] } else { changed }
    });
    let mut text = table(&["NODE", "PART", "SETTING", "NOW", "THEN", "CLASS"], rows, &[]);
    if preview.restarts {
        _ = writeln!(text, "nodes are restarted in {} steps:", preview.steps.len());
        for (number, step) in (1..).zip(&preview.steps) {
            _ = writeln!(text, "  {number}. {step}");
        }
    } else {
        text.push_str("no node is restarted\n");
    }
    for obstacle in &preview.obstacles {
        _ = writeln!(text, "cannot begin now: {obstacle}");
    }
    text
}

/// Formats the outcome of a roll of Redis as text.
fn outcome_text(outcome: &Outcome) -> String {
    let mut text = format!("{} is done in {:.1} s\n", outcome.job, outcome.elapsed_s);
    _ = writeln!(text, "  new settings: {}", outcome.nodes.join(", "));
    for (name, took) in outcome.took.iter().filter(|(_, took)| took.away_s > 0.0) {
        _ = writeln!(
            text,
            "  {name} answered again after {:.1} s, and was in step after {:.1} s",
            took.away_s, took.whole_s
        );
    }
    for handed in &outcome.fail_overs {
        let (from, to) = (&handed.from, &handed.to);
        _ = writeln!(text, "  {to} took the place of {from} within {:.0} ms", handed.took_ms);
    }
    text
}
