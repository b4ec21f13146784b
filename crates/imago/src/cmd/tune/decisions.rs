//! `imago tune decisions`, `hold` and `go-on`: what was decided for a cluster, and whether anything may be.

use std::fmt::Write as _;

use imago_job::clock;
use imago_tune::cassandra::Error;
use imago_tune::cassandra::decisions::{DAYS_MAX, Entry};
use serde::Serialize;

use super::jobs::Kept;
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
        let journal = args.kept.cassandra().await?;
        let entries = journal.decisions(clock::now_ms() / 1_000, args.days).await?;
        Ok(Decided { held_by: journal.held_by().await?, entries })
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

/// What the cluster keeps.
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
        let journal = kept.cassandra().await?;
        journal.hold(is_held, &process()).await
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
