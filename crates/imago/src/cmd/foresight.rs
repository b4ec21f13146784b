//! `imago foresight`, `imago store foresight` and `imago tune foresight`: how good the predictions of earlier jobs, of a store's
//! plans, and of changes of a configuration were; and `imago job report`: those of one job.

use std::fmt::Write as _;
use std::time::Duration;

use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::prediction::{COVERAGE_MEANT, Prediction, Quality, WIDENED_FROM};
use imago_job::record::Record;
use serde::Serialize;

use crate::cmd::job::{JobArgs, JournalArgs, journal};
use crate::context::Context;
use crate::exit::Failure;
use crate::table::table;
use crate::values;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "What is predicted: bytes, the size of what is copied; index_s, the time of building indexes; \
                        copy_s, the time from a tenth of the copy until it has caught up, or until a reshard has committed; \
                        reshard_s, the whole time of a reshard, by its plan. A job that is removed takes its \
                        predictions with it."
)]
pub struct Args {
    #[command(flatten)]
    kept: JournalArgs,
    /// Only predictions of this last time, such as 12h or 30m.
    #[arg(long, value_name = "TIME", value_parser = values::duration)]
    since: Option<Duration>,
}

/// Who made the predictions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// This number of jobs of a cluster.
    Jobs(usize),
    /// This number of plans that a store executed.
    Plans(usize),
    /// This number of changes of a cluster's configuration.
    Changes(usize),
}

/// The quality of the predictions of the jobs in a cluster, or of a store's plans.
#[derive(Debug, Serialize)]
pub struct Summary {
    #[serde(flatten)]
    by: By,
    /// The share (0..1) of measured values that intervals are meant to contain.
    coverage_meant: f64,
    /// The quality of the predictions of each name.
    predictions: Vec<Kind>,
}

#[derive(Debug, Serialize)]
struct Kind {
    #[serde(flatten)]
    quality: Quality,
    /// Share (0..1) of measured values inside their intervals; `None` if nothing was measured.
    coverage: Option<f64>,
}

impl Summary {
    fn of(records: &[Record], since_ms: u64) -> Self {
        let is_asked = |one: &&Prediction| one.at_ms >= since_ms;
        let all = || records.iter().flat_map(|record| &record.predictions).filter(is_asked);
        let has_any = |record: &&Record| record.predictions.iter().any(|one| is_asked(&one));
        Self::by(By::Jobs(records.iter().filter(has_any).count()), all())
    }

    /// Returns the quality of these predictions.
    pub fn by<'p>(by: By, predictions: impl Iterator<Item = &'p Prediction>) -> Self {
        let kind = |quality: Quality| Kind { coverage: quality.coverage(), quality };
        let predictions = Quality::by_name(predictions).into_iter().map(kind).collect();
        Self { by, coverage_meant: COVERAGE_MEANT, predictions }
    }

    /// Returns the summary as a table.
    pub fn in_words(&self) -> String {
        if self.predictions.is_empty() {
            let nothing = match self.by {
                By::Jobs(_) => "no job in this cluster predicted anything\n",
                By::Plans(_) => {
                    "the store has executed no plan that adaptation predicted something of\n"
                }
                By::Changes(_) => "no change of this cluster's configuration was judged\n",
            };
            return nothing.to_owned();
        }
        let percent =
            |share: Option<f64>| share.map_or("-".into(), |it| format!("{:.0} %", 100.0 * it));
        let row = |Kind { quality, coverage }: &Kind| {
            [
                quality.name.clone(),
                quality.predicted.to_string(),
                quality.realized.to_string(),
                format!("{} ({})", quality.inside, percent(*coverage)),
                percent(quality.median_error),
                quality.bias.map_or("-".into(), |bias| format!("{bias:.2}")),
            ]
        };
        let headings = [
            "PREDICTED",
            "TIMES",
            "MEASURED",
            "IN INTERVAL",
            "MEDIAN ERROR",
            "MEASURED ÷ PREDICTED",
        ];
        let mut text = table(&headings, self.predictions.iter().map(row), &[1, 2, 3, 4, 5]);
        let meant = percent(Some(self.coverage_meant));
        let by = match self.by {
            By::Jobs(many) => format!("jobs: {many}"),
            By::Plans(many) => format!("plans: {many}"),
            By::Changes(many) => format!("changes: {many}"),
        };
        _ = writeln!(text, "{meant} are meant to be in their interval; {by}");
        for Kind { quality, .. } in
            self.predictions.iter().filter(|kind| kind.quality.widening > 1.0)
        {
            _ = writeln!(
                text,
                "{}: too few were, of {WIDENED_FROM} or more: intervals are {:.1} times as wide now",
                quality.name, quality.widening
            );
        }
        text
    }
}

/// Shows the quality of the predictions of the jobs in a cluster.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let journal = journal(&args.kept).await?;
    let (records, now_ms) = (journal.list().await?, journal.now_ms().await?);
    let span_ms = args.since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let since_ms = span_ms.map_or(0, |span_ms| now_ms.saturating_sub(span_ms));
    context.output.result(&Summary::of(&records, since_ms), Summary::in_words)
}

/// What one job predicted, and what came of it.
#[derive(Debug, Serialize)]
struct JobReport {
    job: JobId,
    kind: String,
    predictions: Vec<Outcome>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(flatten)]
    prediction: Prediction,
    /// True if the measured value is inside the interval; `None` if it is not measured.
    is_inside: Option<bool>,
}

impl JobReport {
    fn in_words(&self) -> String {
        if self.predictions.is_empty() {
            return format!("job {} ({}) has predicted nothing yet\n", self.job, self.kind);
        }
        let number = |value: f64| match value {
            0.0..100.0 => format!("{value:.1}"),
            _ => format!("{value:.0}"),
        };
        let row = |Outcome { prediction, is_inside }: &Outcome| {
            let of = prediction.predicted;
            [
                prediction.name.clone(),
                number(of.expected),
                format!("{} to {}", number(of.low), number(of.high)),
                prediction.realized.map_or("-".to_owned(), number),
                match is_inside {
                    Some(true) => "yes".to_owned(),
                    Some(false) => "no".to_owned(),
                    None => "-".to_owned(),
                },
            ]
        };
        let headings = ["QUANTITY", "PREDICTED", "90 % INTERVAL", "MEASURED", "IN INTERVAL"];
        table(&headings, self.predictions.iter().map(row), &[1, 2, 3])
    }
}

/// Shows what one job predicted, and what came of it.
pub async fn report(one: &JobArgs, context: &Context) -> Result<(), Failure> {
    let record = journal(&one.kept).await?.load(&one.id).await?;
    let outcome = |prediction: Prediction| Outcome {
        is_inside: prediction.realized.map(|value| prediction.predicted.contains(value)),
        prediction,
    };
    let predictions = record.predictions.into_iter().map(outcome).collect();
    let report = JobReport { job: record.id, kind: record.kind, predictions };
    context.output.result(&report, JobReport::in_words)
}

#[cfg(test)]
mod tests {
    use imago_job::prediction::Interval;
    use serde_json::Value;

    use super::*;

    fn record(predictions: Vec<Prediction>) -> Record {
        Record { predictions, ..Record::new("copy", Value::Null, 1_764_460_800_000) }
    }

    fn prediction(name: &str, predicted: Interval, realized: Option<f64>) -> Prediction {
        Prediction { name: name.to_owned(), predicted, at_ms: 1_764_460_800_000, realized }
    }

    #[test]
    fn the_summary_counts_what_came_true() {
        let copy = |is| prediction("copy_s", Interval::within(60.0, 1.5), is);
        let bytes = prediction("bytes", Interval::within(1.2e9, 1.05), Some(1.21e9));
        let records = [
            record(vec![bytes, copy(Some(66.0))]),
            record(vec![copy(Some(120.0)), copy(None)]),
            record(Vec::new()),
        ];
        let text = Summary::of(&records, 0).in_words();
        assert_eq!(
            text,
            "PREDICTED  TIMES  MEASURED  IN INTERVAL  MEDIAN ERROR  MEASURED ÷ PREDICTED\n\
             bytes          1         1    1 (100 %)           1 %                  1.01\n\
             copy_s         3         2     1 (50 %)           9 %                  1.10\n\
             90 % are meant to be in their interval; jobs: 2\n"
        );
        let later = Summary::of(&records, 1_764_460_800_001);
        assert_eq!(later.in_words(), "no job in this cluster predicted anything\n");
    }

    #[test]
    fn intervals_that_did_not_hold_are_told_to_be_wider() {
        let copy = |is| prediction("copy_s", Interval::within(24.0, 1.2), Some(is));
        let missed = record((0..12).map(|n| copy(24.0 + 2.0 * f64::from(n))).collect());
        let text = Summary::of(&[missed], 0).in_words();
        assert!(text.contains("times as wide now"), "{text}");
    }
}
