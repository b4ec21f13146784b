//! `imago tune decisions`, `hold` and `go-on`: what was decided for a cluster, and whether anything may be.

use std::fmt::Write as _;

use imago_job::clock;
use imago_tune::cluster::Error;
use imago_tune::decisions::{DAYS_MAX, DecisionLog, Entry, Kind};
use serde::Serialize;

use super::jobs::{Jobs, Kept};
use crate::cmd::load::cluster_failure;
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::Failure;

/// The arguments of `decisions`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    kept: Kept,
    /// Days to list, today included.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=i64::from(DAYS_MAX)))]
    days: u16,
}

/// Lists what was decided.
pub(super) async fn list(args: &Args, context: &Context) -> Result<(), Failure> {
    let read = async {
        match args.kept.jobs().await? {
            Jobs::Cassandra { journal, .. } => decided(&journal, args.days).await,
            Jobs::Redis { decisions, .. } => decided(&decisions, args.days).await,
        }
    };
    let kept = read.await.map_err(|error: Error| cluster_failure(&error))?;
    context.output.result(&kept, |kept| {
        let mut text = String::new();
        if kept.entries.is_empty() {
            text.push_str("nothing was decided\n");
        }
        for entry in &kept.entries {
            let at_s = u64::try_from(entry.at_ms / 1_000).unwrap_or(0);
            _ = writeln!(text, "{}  {}", super::plan::moment(at_s), entry.what);
        }
        if let Some(process) = &kept.held_by {
            _ = writeln!(
                text,
                "{process} holds changes back: `imago tune go-on` lets them be made"
            );
        }
        text
    })
}

/// Explains the last decision: each other configuration, why it is or is not changed to, and what came of the last change.
pub(super) async fn explain(kept: &Kept, context: &Context) -> Result<(), Failure> {
    let read = async {
        match kept.jobs().await? {
            Jobs::Cassandra { journal, .. } => decided(&journal, DAYS_MAX).await,
            Jobs::Redis { decisions, .. } => decided(&decisions, DAYS_MAX).await,
        }
    };
    let Decided { held_by, entries } =
        read.await.map_err(|error: Error| cluster_failure(&error))?;
    let last = |kind: Kind| entries.iter().rev().find(|entry| entry.kind == kind).cloned();
    let changed = entries.iter().rev().find(|entry| entry.kind != Kind::Decided).cloned();
    let explained = Explained { held_by, decided: last(Kind::Decided), changed };
    context.output.result(&explained, |explained| {
        let mut text = String::new();
        let at =
            |entry: &Entry| super::plan::moment(u64::try_from(entry.at_ms / 1_000).unwrap_or(0));
        match &explained.decided {
            None => text.push_str("nothing was decided\n"),
            Some(entry) => {
                _ = writeln!(text, "{}  {}", at(entry), entry.what);
                let others = entry.detail["alternatives"].as_array().into_iter().flatten();
                for because in others.filter_map(|other| other["because"].as_str()) {
                    _ = writeln!(text, "  {because}");
                }
            }
        }
        if let Some(entry) = &explained.changed {
            _ = writeln!(text, "the last change, {}  {}", at(entry), entry.what);
        }
        if let Some(process) = &explained.held_by {
            _ = writeln!(
                text,
                "{process} holds changes back: `imago tune go-on` lets them be made"
            );
        }
        text
    })
}

/// The last decision, and what is known beside it.
#[derive(Serialize)]
struct Explained {
    /// The process that has nothing changed; null: none.
    held_by: Option<String>,
    /// Null: nothing was decided.
    decided: Option<Entry>,
    /// The last change: that it began, ended, or what came of it; null: none was made.
    changed: Option<Entry>,
}

async fn decided(log: &impl DecisionLog, days: u16) -> Result<Decided, Error> {
    let entries = log.decisions(clock::now_ms() / 1_000, days).await?;
    Ok(Decided { held_by: log.held_by().await?, entries })
}

/// What is kept.
#[derive(Serialize)]
struct Decided {
    /// The process that has nothing changed; null: none.
    held_by: Option<String>,
    entries: Vec<Entry>,
}

/// The answer of `hold` and `go-on`.
#[derive(Serialize)]
struct Held {
    is_held: bool,
}

/// Has controllers change nothing, or go on.
pub(super) async fn hold(kept: &Kept, is_held: bool, context: &Context) -> Result<(), Failure> {
    let held = async {
        match kept.jobs().await? {
            Jobs::Cassandra { journal, .. } => journal.hold(is_held, &process()).await,
            Jobs::Redis { decisions, .. } => decisions.hold(is_held, &process()).await,
        }
    };
    held.await.map_err(|error: Error| cluster_failure(&error))?;
    context.output.result(&Held { is_held }, |held| {
        if held.is_held {
            "nothing is changed until `imago tune go-on`; a roll under way goes on, `imago tune pause JOB` stops that\n"
                .into()
        } else {
            "changes may be made again\n".into()
        }
    })
}
