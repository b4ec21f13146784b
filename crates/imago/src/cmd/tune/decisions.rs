//! `imago tune decisions`, `hold` and `go-on`: the log of tuning decisions for a cluster, and the switch that
//! suspends changes of its configuration.

use std::fmt::Write as _;

use imago_job::clock;
use imago_job::prediction::{Interval, Prediction};
use imago_tune::cluster::Error;
use imago_tune::controller::Judged;
use imago_tune::decisions::{DAYS_MAX, DecisionLog, Entry, Kind};
use serde::Serialize;

use super::cluster::{ClusterArgs, Jobs};
use crate::cmd::foresight::{By, Summary};
use crate::cmd::process::process;
use crate::context::Context;
use crate::exit::{Failure, cluster_failure};

/// The arguments of `decisions`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    kept: ClusterArgs,
    /// Days to list, today included.
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=i64::from(DAYS_MAX)))]
    days: u16,
}

/// Runs `imago tune decisions`: prints the entries in the log of decisions for a cluster.
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
                "{process} has suspended changes: `imago tune go-on` allows them again"
            );
        }
        text
    })
}

/// Name of the prediction of a change: the throughput after it, divided by that before it.
const GAIN_RATIO: &str = "gain_ratio";
/// Names of the predictions of the median and of the 99th percentile of the time to a reply after a change, divided by those
/// before it.
const MEDIAN_RATIO: &str = "median_ratio";
const P99_RATIO: &str = "p99_ratio";
/// Factor of the interval of these: they were measured while the database served as much as it could, which clients seldom ask
/// for.
const TIMES_WITHIN: f64 = 2.0;

/// Shows how good the predicted gains of a cluster's changes were, and the predicted times of its rolls.
pub(super) async fn foresight(kept: &ClusterArgs, context: &Context) -> Result<(), Failure> {
    let read = async {
        let jobs = kept.jobs().await?;
        let decided = match &jobs {
            Jobs::Cassandra { journal, .. } => decided(journal, DAYS_MAX).await?,
            Jobs::Redis { decisions, .. } => decided(decisions, DAYS_MAX).await?,
        };
        let rolls = jobs.journal().list().await?;
        Ok((decided.entries, rolls.into_iter().flat_map(|roll| roll.predictions).collect()))
    };
    let read: Result<(Vec<Entry>, Vec<Prediction>), Error> = read.await;
    let (entries, rolls) = read.map_err(|error| cluster_failure(&error))?;
    let summary = predictions(&entries, rolls);
    context.output.result(&summary, Summary::in_words)
}

/// Returns the quality of the predicted gains in entries of the log of decisions, and of the predictions of rolls.
fn predictions(entries: &[Entry], rolls: Vec<Prediction>) -> Summary {
    let prediction = |entry: &Entry| {
        let judged = Judged::of(entry)?;
        let ([low, high], (predicted, realised)) = (judged.predicted_interval?, judged.gain()?);
        Some(Prediction {
            name: GAIN_RATIO.to_owned(),
            predicted: Interval::new(1.0 + low, 1.0 + predicted, 1.0 + high),
            at_ms: u64::try_from(entry.at_ms).unwrap_or(0),
            realized: Some(1.0 + realised),
        })
    };
    let gains: Vec<Prediction> = entries.iter().filter_map(prediction).collect();
    let times: Vec<Prediction> = entries.iter().flat_map(times).collect();
    Summary::by(By::Changes(gains.len()), gains.iter().chain(&times).chain(&rolls))
}

/// Returns the predicted and the measured times to a reply after a change, divided by those before it.
fn times(entry: &Entry) -> Vec<Prediction> {
    let Some(judged) = Judged::of(entry) else { return Vec::new() };
    let names = [MEDIAN_RATIO, P99_RATIO];
    let measured = [judged.median_times, judged.slowest_times];
    let of = |(name, (predicted, measured)): (&str, (f64, Option<f64>))| Prediction {
        name: name.to_owned(),
        predicted: Interval::within(predicted, TIMES_WITHIN),
        at_ms: u64::try_from(entry.at_ms).unwrap_or(0),
        realized: measured,
    };
    let predicted = judged.predicted_times.into_iter().flatten();
    names.into_iter().zip(predicted.zip(measured)).map(of).collect()
}

/// Prints the last decision for a cluster, with the reason for or against each other configuration, and the outcome
/// of the last change.
pub(super) async fn explain(kept: &ClusterArgs, context: &Context) -> Result<(), Failure> {
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
                "{process} has suspended changes: `imago tune go-on` allows them again"
            );
        }
        text
    })
}

/// The last decision for a cluster, the last change, and whether changes are suspended, for programs.
#[derive(Serialize)]
struct Explained {
    /// The process that suspended changes of the configuration; `None`: changes are not suspended.
    held_by: Option<String>,
    /// The last decision in the log; `None`: nothing was decided.
    decided: Option<Entry>,
    /// The last log entry about a change (its start, its end, or its outcome); `None`: no change was made.
    changed: Option<Entry>,
}

/// Reads the decisions of the last `days` days from a log, and whether changes are suspended.
async fn decided(log: &impl DecisionLog, days: u16) -> Result<Decided, Error> {
    let entries = log.decisions(clock::now_ms() / 1_000, days).await?;
    Ok(Decided { held_by: log.suspended_by().await?, entries })
}

/// The entries in the log of decisions for a cluster, for programs.
#[derive(Serialize)]
struct Decided {
    /// The process that suspended changes of the configuration; `None`: changes are not suspended.
    held_by: Option<String>,
    /// The entries of the log of decisions, the oldest first.
    entries: Vec<Entry>,
}

/// The reply of `hold` and of `go-on` without a job, for programs.
#[derive(Serialize)]
struct HoldState {
    /// True if changes of the configuration are suspended.
    is_held: bool,
}

/// Runs `hold` (`is_held`) or `go-on` without a job: suspends or allows the changes that controllers make to a
/// cluster's configuration.
pub(super) async fn hold(
    kept: &ClusterArgs,
    is_held: bool,
    context: &Context,
) -> Result<(), Failure> {
    let held = async {
        match kept.jobs().await? {
            Jobs::Cassandra { journal, .. } => journal.set_suspended(is_held, &process()).await,
            Jobs::Redis { decisions, .. } => decisions.set_suspended(is_held, &process()).await,
        }
    };
    held.await.map_err(|error: Error| cluster_failure(&error))?;
    context.output.result(&HoldState { is_held }, |held| {
        if held.is_held {
            "no changes are made until `imago tune go-on`; a roll under way continues, `imago tune \
             pause JOB` pauses it\n"
                .into()
        } else {
            "changes may be made again\n".into()
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn judged_changes_are_counted_with_their_intervals() {
        let change = json!({"from": "size-tiered", "to": "leveled", "predicted": 0.4});
        let entry =
            |kind, detail| Entry { at_ms: 1_795_737_600_000, kind, what: String::new(), detail };
        let judged = |predicted: f64, realised: f64, interval: Option<[f64; 2]>| {
            let detail = json!({
                "change": change, "predicted": predicted, "predicted_interval": interval,
                "realised": realised, "noise": 0.02, "median_times": null, "slowest_times": null,
                "memory": null, "worse": null,
            });
            entry(Kind::Judged, detail)
        };
        let entries = [
            entry(Kind::Decided, json!({})),
            judged(0.61, 0.48, Some([0.2, 1.1])),
            judged(0.61, 4.69, Some([0.1, 1.3])),
            // Of an earlier version, without an interval.
            judged(0.2, 0.2, None),
        ];
        let text = predictions(&entries, Vec::new()).in_words();
        assert!(text.contains("gain_ratio      2         2     1 (50 %)"), "{text}");
        assert!(text.ends_with("changes: 2\n"), "{text}");
        let none = predictions(&entries[..1], Vec::new()).in_words();
        assert_eq!(none, "no change of this cluster's configuration was judged\n");
    }
}
