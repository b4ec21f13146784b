//! What each configuration of a real Cassandra cluster serves of each mix: the measurements that tuning decides by.
//!
//! Each configuration is rolled out (all nodes at once: no client is served), a closed load of one mix runs until
//! throughput no longer rises, and then some windows are measured. Rounds go forth and back through the configurations, so
//! that none is always the first. Each measurement is a line in a file as soon as it is made; those that the file has
//! already are not made again.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_job::reporter::Events;
use imago_plan::tune::sampling::{is_warm, order};
use imago_tune::cassandra::ClusterFile;
use imago_tune::cassandra::roll::{Roller, Spec};
use imago_tune::cassandra::{Consistency, Error, Result};
use imago_tune::configurations::Configuration;
use imago_workload::driver::{self, Arrival, Control, Options, Report};
use imago_workload::history::{IdForm, Recorder};
use imago_workload::mix::Mix;
use imago_workload::review::Reviews;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::load::cassandra::{CassandraTarget, Schema, count_rows, preload};

/// The columns of the file.
const COLUMNS: &str = "configuration,operations_s,reads,updates,inserts,scans,round,warm_s,spread";

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// How the nodes are reached.
    pub file: ClusterFile,
    /// The keyspace and the table that are loaded.
    pub table: (String, String),
    /// The consistency level of all operations.
    pub consistency: Consistency,
    /// Rows, and the size of one.
    pub documents: u64,
    /// The size of a row.
    pub size_bytes: u32,
    /// The configurations.
    pub configurations: Vec<Configuration>,
    /// The mixes; none deletes.
    pub mixes: Vec<Mix>,
    /// How often each is measured.
    pub rounds: usize,
    /// Operations at once.
    pub clients: u32,
    /// The length of a window.
    pub window: Duration,
    /// Windows that are measured when the database is warm.
    pub windows: usize,
    /// The longest that warming up may take.
    pub warm_max: Duration,
    /// The file that gets the measurements.
    pub out: PathBuf,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The configuration's name.
    pub configuration: String,
    /// The mix.
    pub mix: String,
    /// Its round.
    pub round: usize,
    /// Operations a second: the mean of the windows.
    pub operations_s: f64,
    /// The difference of the quickest window and the slowest, as a share of the mean.
    pub spread: f64,
    /// How long warming up took, in seconds.
    pub warm_s: f64,
    /// False if throughput still rose when the bound was reached.
    pub is_warm: bool,
}

/// Measures what the file does not have yet, and returns that. Ends early when it is cancelled.
///
/// # Errors
/// The cluster could not be rolled or loaded; the file could not be read or written. What was measured is in the file.
pub async fn run(
    request: &Request,
    process: &str,
    cancel: &CancellationToken,
    say: &(dyn Fn(String) + Sync),
) -> Result<Vec<Sample>> {
    let done = lines_of(&request.out)?;
    let reviews = Reviews { size_bytes: request.size_bytes, ..Reviews::default() };
    let schema = Schema { id_form: IdForm::Text, reviews };
    let (keyspace, table) = (&*request.table.0, &*request.table.1);
    let uri = &request.file.uri;
    let connect = || CassandraTarget::connect(uri, (keyspace, table), request.consistency, schema);
    let first = connect().await?;
    match count_rows(&first, request.documents).await? {
        0 => {
            say(format!("filling {keyspace}.{table} with {} rows", request.documents));
            preload(&first, request.documents, |_| {}).await?;
        }
        found if found < request.documents => {
            let what = format!("{keyspace}.{table} has {found} rows, not {}", request.documents);
            let help = "drop it, and it is filled again; or name as many --documents as it has";
            return Err(Error::Precondition { what, help: help.into() });
        }
        _ => {}
    }
    drop(first);
    let mut samples = Vec::new();
    for (round, number) in order(request.configurations.len(), request.rounds) {
        let configuration = &request.configurations[number];
        let missing: Vec<&Mix> = request
            .mixes
            .iter()
            .filter(|mix| !done.contains(&key(&configuration.name, mix, round)))
            .collect();
        if missing.is_empty() {
            continue;
        }
        say(format!("round {}: rolling out {}", round + 1, configuration.name));
        let spec = Spec::of(&request.configurations, number, &format!("{keyspace}.{table}"));
        if !spec.changes.is_empty() || !spec.compaction.is_empty() {
            let roller = Roller::connect(request.file.clone(), spec).await?;
            let events = Events::default();
            Box::pin(roller.begin(process, &events, cancel.clone())).await?;
        }
        for mix in missing {
            if cancel.is_cancelled() {
                return Ok(samples);
            }
            let target = Arc::new(connect().await?);
            let sample = measure(request, target, *mix, &configuration.name, round).await?;
            say(format!(
                "round {}: {} serves {:.0}/s of {} (± {:.0} %, warm after {:.0} s{})",
                round + 1,
                sample.configuration,
                sample.operations_s,
                sample.mix,
                50.0 * sample.spread,
                sample.warm_s,
                if sample.is_warm { "" } else { ", still rising" },
            ));
            write(&request.out, &sample, mix)?;
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// Loads the table with one mix until it is warm, and measures.
async fn measure(
    request: &Request,
    target: Arc<CassandraTarget>,
    mix: Mix,
    configuration: &str,
    round: usize,
) -> Result<Sample> {
    let options = Options {
        mix,
        arrival: Arrival::Closed,
        duration: None,
        in_flight_max: request.clients,
        preloaded: request.documents,
        reviews: Reviews { size_bytes: request.size_bytes, ..Reviews::default() },
        seed: round as u64 + 1,
        ..Options::default()
    };
    let wrong = |error: driver::DriverError| Error::Failed {
        what: error.to_string(),
        help: "the same command makes the measurements that are missing".into(),
    };
    let running = driver::start(options, target, Recorder::nothing()).map_err(wrong)?;
    let control = running.control();
    let began = Instant::now();
    let mut windows = Vec::new();
    while !is_warm(&windows) && began.elapsed() < request.warm_max {
        windows.push(window(&control, request.window).await);
    }
    let (was_warm, warm_s) = (is_warm(&windows), began.elapsed().as_secs_f64());
    let mut measured = Vec::new();
    for _ in 0..request.windows {
        measured.push(window(&control, request.window).await);
    }
    control.stop();
    let (report, _): (Report, _) = running.finish().await.map_err(wrong)?;
    let failed = report.reads.tally.failed + report.writes.tally.failed;
    if failed > 0 {
        let why = report.failures.first().map_or("", |failure| &failure.message);
        return Err(Error::Failed {
            what: format!("{failed} operations failed under {configuration}: {why}"),
            help: "use fewer --clients: what is measured must be service and not refusal".into(),
        });
    }
    let mean = measured.iter().sum::<f64>() / measured.len() as f64;
    let most = measured.iter().copied().fold(f64::MIN, f64::max);
    let least = measured.iter().copied().fold(f64::MAX, f64::min);
    Ok(Sample {
        configuration: configuration.to_owned(),
        mix: mix.to_string(),
        round,
        operations_s: mean,
        spread: if mean > 0.0 { (most - least) / mean } else { 0.0 },
        warm_s,
        is_warm: was_warm,
    })
}

/// Operations a second within a window that begins now.
async fn window(control: &Control<CassandraTarget>, length: Duration) -> f64 {
    let ended = || {
        let now = control.snapshot();
        now.reads.total() + now.writes.total()
    };
    let (began, before) = (Instant::now(), ended());
    tokio::time::sleep(length).await;
    (ended() - before) as f64 / began.elapsed().as_secs_f64()
}

/// What tells a measurement from others in the file.
fn key(configuration: &str, mix: &Mix, round: usize) -> (String, String, usize) {
    (configuration.to_owned(), counts(mix), round)
}

fn counts(mix: &Mix) -> String {
    format!("{},{},{},{}", mix.read, mix.update, mix.insert, mix.scan)
}

/// The measurements that the file has.
fn lines_of(path: &Path) -> Result<Vec<(String, String, usize)>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::Usage(format!("cannot read {}: {cause}", path.display()))),
    };
    let other = |line: usize| {
        let shown = path.display();
        Error::Usage(format!(
            "{shown}, line {line}: no measurement of this command; name another --out"
        ))
    };
    let mut lines = text.lines();
    if lines.next().is_some_and(|first| first != COLUMNS) {
        return Err(other(1));
    }
    let mut found = Vec::new();
    for (number, line) in (2..).zip(lines) {
        let fields: Vec<&str> = line.split(',').collect();
        let [name, _, reads, updates, inserts, scans, round, ..] = fields[..] else {
            return Err(other(number));
        };
        let round = round.parse().map_err(|_| other(number))?;
        found.push((name.to_owned(), format!("{reads},{updates},{inserts},{scans}"), round));
    }
    Ok(found)
}

/// Adds a measurement to the file, which is on disk when this returns.
fn write(path: &Path, sample: &Sample, mix: &Mix) -> Result<()> {
    let written = || {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        let head = if file.metadata()?.len() == 0 { format!("{COLUMNS}\n") } else { String::new() };
        let Sample { configuration, operations_s, round, warm_s, spread, .. } = sample;
        let counts = counts(mix);
        let line = format!(
            "{head}{configuration},{operations_s:.1},{counts},{round},{warm_s:.1},{spread:.3}\n"
        );
        file.write_all(line.as_bytes())?;
        file.sync_all()
    };
    written().map_err(|cause| Error::Failed {
        what: format!("cannot write {}: {cause}", path.display()),
        help: "the same command makes the measurements that are missing".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_file_is_not_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("here.csv");
        assert_eq!(lines_of(&path).unwrap(), []);
        let mix: Mix = "read=90,update=5,scan=5".parse().unwrap();
        let sample = Sample {
            configuration: "unified T8".into(),
            mix: mix.to_string(),
            round: 1,
            operations_s: 4_711.25,
            spread: 0.043,
            warm_s: 35.0,
            is_warm: true,
        };
        write(&path, &sample, &mix).unwrap();
        write(&path, &Sample { configuration: "unified L10".into(), ..sample }, &mix).unwrap();
        let expected = ["unified T8", "unified L10"].map(|name| key(name, &mix, 1));
        assert_eq!(lines_of(&path).unwrap(), expected);
        let file = std::fs::File::open(&path).unwrap();
        let read = imago_tune::measurements::Measurements::read("here.csv", file).unwrap();
        assert_eq!(
            (read.samples.len(), read.names),
            (2, vec!["unified T8".into(), "unified L10".into()])
        );
    }

    #[test]
    fn another_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.csv");
        for text in ["start,reads\n1490054400,9\n", &format!("{COLUMNS}\nhalf a li")] {
            std::fs::write(&path, text).unwrap();
            let error = lines_of(&path).unwrap_err().to_string();
            assert!(error.contains("name another --out"), "{error}");
        }
    }
}
