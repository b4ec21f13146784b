//! Results of the jobs, and their picture.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use imago_tune::redis::fit::Measured;
use serde::Serialize;

use super::{EXTENTS, FIELDS, Job, Known, Outcome, Size, TUNED, WAYS, by_name};
use crate::Header;
use crate::error::Result;
use crate::statistics::Figure;
use imago_chart::{Axis, Chart, Form, Picture, Point, Series, save};

/// Result of the benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Number of records that fit with each configuration, according to the tuner's measurements.
    pub records_max: BTreeMap<&'static str, f64>,
    /// Measurements of the tuner for a hash, with each configuration.
    pub measured: BTreeMap<&'static str, Measured>,
    /// Duration of the tuner's measurements before the first job, two changes of the setting included, in seconds.
    pub probe_s: f64,
    /// Mean time of a change of the setting, in seconds.
    pub change_s: f64,
    /// Number of runs that failed, for each method.
    pub failed: BTreeMap<&'static str, usize>,
    /// Number of runs that the tuner declined, because no configuration holds the job.
    pub declined: usize,
    /// Number of jobs that a fixed method completed in all rounds, and the tuner did not.
    pub unserved: usize,
    /// Time of the better fixed method divided by that of the tuner: median, minimum and maximum over the jobs that
    /// both completed in all rounds, by the median of each job. Above 1, the tuner was faster.
    pub tuned_to_better: Option<Figure>,
    /// Results of each job.
    pub jobs: Vec<JobReport>,
    /// Files of the picture.
    pub pictures: Vec<PathBuf>,
}

/// Results of a job, with all methods.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobReport {
    /// Name of the size: a share of the records that fit by default, `between` (more than fit by default, fewer than
    /// fit compact), or `beyond` (more than fit compact).
    pub size: &'static str,
    /// Number of records.
    pub records: u64,
    /// Name of the distribution of the keys.
    pub keys: &'static str,
    /// Name of the mix of operations.
    pub mix: &'static str,
    /// Results of each method.
    pub ways: Vec<WayReport>,
    /// Time of the better fixed method divided by that of the tuner, over the rounds; null unless a fixed method and
    /// the tuner completed all rounds.
    pub tuned_to_better: Option<Figure>,
}

/// Results of a job with one method.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WayReport {
    /// Name of the method.
    pub way: &'static str,
    /// Number of rounds in which a write was rejected for lack of memory.
    pub failed: usize,
    /// Number of rounds in which the tuner declined the job.
    pub declined: usize,
    /// Error message of the server at the first failure.
    pub refusal: Option<String>,
    /// Time of the job, in seconds: change, load and operations.
    pub job_s: Option<Figure>,
    /// Time of the job without a change, in seconds, predicted from the sample: processor time of the server only.
    /// Null for the tuner.
    pub predicted_s: Option<f64>,
    /// Records loaded and operations done, per second of the job's time.
    pub requests_s: Option<Figure>,
    /// Operations per second, without the load.
    pub operations_s: Option<Figure>,
    /// Encodings of the hashes that occurred.
    pub encodings: Vec<String>,
    /// Number of rounds with a change of the setting before the job.
    pub changes: usize,
    /// Total time of these changes, in seconds.
    pub changes_s: f64,
}

/// Computes the results of a job from the outcomes of each method.
pub(super) fn job(
    job: &Job,
    operations: u64,
    predicted_s: [f64; TUNED],
    outcomes: &[Vec<Outcome>],
) -> JobReport {
    let records = job.hashes * FIELDS;
    let ways = WAYS.into_iter().zip(outcomes).enumerate();
    let way = |(number, (way, outcomes)): (usize, (&'static str, &Vec<Outcome>))| WayReport {
        predicted_s: predicted_s.get(number).copied(),
        ..of_way(way, records + operations, outcomes)
    };
    let ways: Vec<WayReport> = ways.map(way).collect();
    let seconds = |way: usize| {
        let of = |outcome: &Outcome| match outcome {
            Outcome::Served { job_s, .. } => Some(*job_s),
            Outcome::Failed(_) | Outcome::Declined => None,
        };
        outcomes[way].iter().map(of).collect::<Option<Vec<f64>>>()
    };
    // A method that failed in one round is excluded from the comparison.
    let fixed = (0..TUNED).filter_map(seconds);
    let median = |all: &Vec<f64>| Figure::of(all.iter().copied()).median;
    let better = fixed.min_by(|one, other| median(one).total_cmp(&median(other)));
    let ratios = better.zip(seconds(TUNED)).map(|(better, tuned)| {
        Figure::of(better.iter().zip(&tuned).map(|(better, tuned)| better / tuned))
    });
    JobReport {
        size: job.name,
        records,
        keys: job.kind.keys.0,
        mix: job.kind.mix.0,
        ways,
        tuned_to_better: ratios,
    }
}

fn of_way(way: &'static str, requests: u64, outcomes: &[Outcome]) -> WayReport {
    let mut told = WayReport {
        way,
        failed: 0,
        declined: 0,
        refusal: None,
        job_s: None,
        predicted_s: None,
        requests_s: None,
        operations_s: None,
        encodings: Vec::new(),
        changes: 0,
        changes_s: 0.0,
    };
    let (mut seconds, mut rates) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Outcome::Served { job_s, operations_s, encoding, change_s } => {
                seconds.push(*job_s);
                rates.push(*operations_s);
                if !told.encodings.contains(encoding) {
                    told.encodings.push(encoding.clone());
                }
                told.changes += usize::from(*change_s > 0.0);
                told.changes_s += change_s;
            }
            Outcome::Failed(why) => {
                told.failed += 1;
                told.refusal.get_or_insert_with(|| why.clone());
            }
            Outcome::Declined => told.declined += 1,
        }
    }
    let figure = |values: Vec<f64>| (!values.is_empty()).then(|| Figure::of(values));
    told.requests_s = figure(seconds.iter().map(|s| requests as f64 / s).collect());
    told.job_s = figure(seconds);
    told.operations_s = figure(rates);
    told
}

/// Formats the outcomes of a job in one round as a line.
pub(super) fn line(job: &Job, outcomes: &[Vec<Outcome>]) -> String {
    let told = |outcome: &Outcome| match outcome {
        Outcome::Served { job_s, .. } => format!("{job_s:.2} s"),
        Outcome::Failed(_) => "failed".to_owned(),
        Outcome::Declined => "declined".to_owned(),
    };
    let ways = WAYS.iter().zip(outcomes);
    let ways =
        ways.flat_map(|(way, all)| all.iter().map(move |one| format!("{way} {}", told(one))));
    let ways: Vec<String> = ways.collect();
    let (size, records) = (job.name, job.hashes * FIELDS);
    let (keys, mix) = (job.kind.keys.0, job.kind.mix.0);
    format!("{size} ({records} records), {keys}, {mix}: {}", ways.join(", "))
}

/// Builds the report, and draws the picture.
pub(super) fn report(
    size: Size,
    known: &Known,
    hold: [f64; 2],
    jobs: Vec<JobReport>,
    folder: Option<&Path>,
) -> Result<Report> {
    let sum = |of: fn(&WayReport) -> usize, way: usize| {
        jobs.iter().map(|job| of(&job.ways[way])).sum::<usize>()
    };
    let ratios: Vec<f64> =
        jobs.iter().filter_map(|job| job.tuned_to_better).map(|ratio| ratio.median).collect();
    let is_unserved = |job: &&JobReport| {
        let fixed = job.ways[..TUNED].iter().any(|way| way.job_s.is_some() && way.failed == 0);
        fixed && job.ways[TUNED].failed + job.ways[TUNED].declined > 0
    };
    Ok(Report {
        header: Header::of("sophia-redis", size),
        records_max: by_name(hold.into_iter().map(|hashes| hashes * FIELDS as f64)),
        measured: by_name(known.measured.iter().cloned()),
        probe_s: known.probe_s,
        change_s: known.costs[0].change_s,
        failed: by_name((0..WAYS.len()).map(|way| sum(|way| way.failed, way))),
        declined: sum(|way| way.declined, TUNED),
        unserved: jobs.iter().filter(is_unserved).count(),
        tuned_to_better: (!ratios.is_empty()).then(|| Figure::of(ratios)),
        pictures: draw(&jobs, folder)?,
        jobs,
    })
}

/// Draws a picture in the form of Fig. 10: for each kind of job, the requests per second of each method, by size. A
/// failed job has no bar.
fn draw(jobs: &[JobReport], folder: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut charts = Vec::new();
    let mut kinds: Vec<(&str, &str)> = jobs.iter().map(|job| (job.keys, job.mix)).collect();
    kinds.dedup();
    for (keys, mix) in kinds {
        let of_kind: Vec<&JobReport> =
            jobs.iter().filter(|job| (job.keys, job.mix) == (keys, mix)).collect();
        let series = |(number, name): (usize, &&str)| {
            let bar = |(place, job): (usize, &&JobReport)| {
                let told = job.ways[number].requests_s?;
                let x = place as f64 + 0.27 * (number as f64 - 1.0);
                let [y, y_min, y_max] = [told.median, told.min, told.max].map(|of| of / 1e3);
                Some(Point { x, y, y_min, y_max })
            };
            Series {
                name: (*name).to_owned(),
                form: Form::Bars(0.25),
                points: of_kind.iter().enumerate().filter_map(bar).collect(),
            }
        };
        let words = EXTENTS.iter().map(|(name, ..)| *name);
        let words = words.filter(|name| of_kind.iter().any(|job| job.size == *name));
        charts.push(Chart {
            title: format!("{keys}, {mix}: size of the job, to what fits by default"),
            x: Axis::Words(words.collect()),
            y: "thousand requests a second",
            series: WAYS.iter().enumerate().map(series).collect(),
            marks: Vec::new(),
        });
    }
    Ok(save(&[Picture { name: "sophia-redis", columns: 2, charts }], folder)?)
}

#[cfg(test)]
mod tests {
    use super::super::KINDS;
    use super::*;

    fn served(job_s: f64, change_s: f64) -> Outcome {
        Outcome::Served { job_s, operations_s: 1e5, encoding: "listpack".into(), change_s }
    }

    fn told(outcomes: [Vec<Outcome>; 3]) -> JobReport {
        let one = Job { name: "1.11", hashes: 420, kind: KINDS[0] };
        job(&one, 80_000, [0.9, 4.1], &outcomes)
    }

    #[test]
    fn the_tuner_is_compared_with_the_better_way_that_never_failed() {
        let full = || Outcome::Failed("OOM command not allowed".into());
        let report = told([
            vec![served(1.0, 0.0), full(), full()],
            vec![served(4.0, 0.0), served(5.0, 0.0), served(4.5, 0.0)],
            vec![served(5.0, 0.5), served(5.0, 0.0), served(4.5, 0.0)],
        ]);
        let ratio = report.tuned_to_better.unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (0.8, 1.0, 1.0));
        assert_eq!((report.ways[0].failed, report.ways[2].changes), (2, 1));
        let predicted = [0, 1, 2].map(|way: usize| report.ways[way].predicted_s);
        assert_eq!(predicted, [Some(0.9), Some(4.1), None]);
        assert_eq!(report.ways[0].refusal.as_deref(), Some("OOM command not allowed"));
        let rate = report.ways[1].requests_s.unwrap();
        assert_eq!((rate.min, rate.max), (100_000.0, 125_000.0));
    }

    #[test]
    fn a_job_that_nothing_holds_is_compared_with_nothing() {
        let full = || vec![Outcome::Failed("OOM".into())];
        let outcomes = [full(), full(), vec![Outcome::Declined]];
        let one = Job { name: "beyond", hashes: 1_210, kind: KINDS[0] };
        let text = line(&one, &outcomes);
        assert_eq!(
            text,
            "beyond (1210000 records), uniform, read-heavy: default failed, compact failed, tuned declined"
        );
        let report = told(outcomes);
        assert_eq!((report.tuned_to_better, report.ways[2].declined), (None, 1));
    }
}
