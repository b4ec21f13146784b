//! Measurements of the throughput of a real database under each configuration and each mix of operations: the input
//! of the decisions of tuning.
//!
//! Each configuration is rolled out while no client is served. A closed load of one mix runs until throughput no
//! longer rises, and then some windows are measured. Rounds alternate their direction through the configurations, so
//! that none is always the first. Each measurement is appended to a file as soon as it is made. Measurements that the
//! file already has are not repeated.
//!
//! Filling and rolling are specific to a database ([`Sampled`]); everything else is here.

pub mod cassandra;
mod file;
pub mod redis;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_plan::tune::sampling::{is_warm, order};
use imago_tune::cluster::{Error, Result};
use imago_tune::configurations::Configuration;
use imago_workload::driver::{self, Arrival, Control, Options, Report};
use imago_workload::history::Recorder;
use imago_workload::mix::Mix;
use imago_workload::review::Reviews;
use imago_workload::target::Target;
use imago_workload::timeline::Tally;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

/// A measurement fails if more than one in this many reads finds no record. A record may be absent for a moment.
const MISSED_SHARE: u64 = 100;

/// The requested measurements: configurations and mixes, the records, and the load.
#[derive(Clone, Debug)]
pub struct Request {
    /// Number of records with which the database is filled.
    pub documents: u64,
    /// Size of a record, in bytes.
    pub size_bytes: u32,
    /// The configurations to measure.
    pub configurations: Vec<Configuration>,
    /// The mixes of operations to measure; none of them deletes records.
    pub mixes: Vec<Mix>,
    /// Number of measurements of each configuration with each mix: one in each round.
    pub rounds: usize,
    /// Number of operations that the load keeps in flight.
    pub clients: u32,
    /// Length of a window: the interval over which throughput is averaged.
    pub window: Duration,
    /// Number of windows in each measurement, after the database is warm.
    pub windows: usize,
    /// Maximum time for warming up before a measurement, after which the windows begin in any case.
    pub warm_max: Duration,
    /// Path of the file to which the measurements are appended.
    pub out: PathBuf,
}

/// The process that requests the measurements, and its connection to them.
#[derive(Clone, Copy)]
pub struct Caller<'c> {
    /// Name of the process, recorded in the jobs that roll out configurations.
    pub process: &'c str,
    /// Cancelling this token ends the measurements after the current window.
    pub cancel: &'c CancellationToken,
    /// Callback that receives messages about the progress, for people.
    pub say: &'c (dyn Fn(String) + Sync),
}

/// A database whose configurations are measured.
#[expect(async_fn_in_trait, reason = "one task measures, and awaits one thing after the other")]
pub trait Sampled {
    /// The type of the connection to which the load of a measurement is sent.
    type Target: Target;
    /// True if the database reports the memory and the processor time that it uses under a configuration.
    const REPORTS_USAGE: bool;

    /// Fills the database with the requested records, or checks that it may be filled, before the first configuration
    /// is rolled out.
    ///
    /// # Errors
    /// Returns an error if the database has other records than those to be measured, or the error of the server.
    async fn prepare(&self, request: &Request, caller: &Caller<'_>) -> Result<()>;

    /// Rolls out the configuration at the index `number` of the request. Afterwards all records exist, stored as the
    /// configuration specifies.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be rolled out, or the database cannot be filled.
    async fn roll(&mut self, request: &Request, number: usize, caller: &Caller<'_>) -> Result<()>;

    /// Opens a connection to the database for the load of one measurement.
    ///
    /// # Errors
    /// Returns an error if no node answers, or the login fails.
    async fn target(&self, request: &Request) -> Result<Self::Target>;

    /// Returns the memory that the database uses now and the processor time that it has used since its start; `None`
    /// if the database does not report them.
    ///
    /// # Errors
    /// Returns the error of the server.
    async fn used(&self) -> Result<Option<ResourceUsage>>;
}

/// Resources that all serving nodes of a database use together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceUsage {
    /// Memory that the nodes use now, in bytes.
    pub memory_bytes: u64,
    /// Processor time that the nodes have used since their start, in seconds.
    pub cpu_s: f64,
}

/// One measurement: the throughput of one configuration with one mix in one round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Name of the configuration that was rolled out.
    pub configuration: String,
    /// The mix of operations, as text.
    pub mix: String,
    /// Number of the round of measurements, from 0.
    pub round: usize,
    /// Operations that ended per second: the mean of the windows.
    pub operations_s: f64,
    /// Difference between the throughput of the fastest and the slowest window, as a share of the mean.
    pub spread: f64,
    /// Time of warming up before the first window, in seconds.
    pub warm_s: f64,
    /// False if throughput was still rising when the maximum time for warming up had passed.
    pub is_warm: bool,
    /// Size of a record, in bytes.
    pub record_bytes: u32,
    /// Memory that the database uses after the configuration was rolled out, with all records and before any load, in
    /// bytes; `None` if the database does not report it.
    pub memory_bytes: Option<u64>,
    /// Processor time of the database per operation in the measured windows, in microseconds; `None` if the database
    /// does not report it. Unlike throughput, it does not depend on the speed of the load.
    pub cpu_us: Option<f64>,
}

impl Request {
    /// Returns the generator of the content of the records.
    fn reviews(&self) -> Reviews {
        Reviews { size_bytes: self.size_bytes, ..Reviews::default() }
    }

    /// Returns the requested measurements that are not in `done`, in the order of measurement: the round, the index
    /// of the configuration, and the mixes.
    fn missing(&self, done: &[file::Key]) -> Vec<(usize, usize, Vec<Mix>)> {
        let of = |(round, number): (usize, usize)| {
            let name = &self.configurations[number].name;
            let is_missing = |mix: &&Mix| !done.contains(&file::key(name, mix, round));
            let mixes: Vec<Mix> = self.mixes.iter().filter(is_missing).copied().collect();
            (!mixes.is_empty()).then_some((round, number, mixes))
        };
        order(self.configurations.len(), self.rounds).into_iter().filter_map(of).collect()
    }
}

/// Makes the requested measurements that are not in the file of `request` yet, appends them to it, and returns them.
/// Returns early, without an error, if `caller.cancel` is cancelled.
///
/// # Errors
/// Returns an error if the database cannot be rolled or loaded, or the file cannot be read or written. Completed
/// measurements are in the file.
pub async fn run<D: Sampled>(
    database: &mut D,
    request: &Request,
    caller: &Caller<'_>,
) -> Result<Vec<Sample>> {
    let missing = request.missing(&file::read(&request.out, D::REPORTS_USAGE, request.size_bytes)?);
    let mut samples = Vec::new();
    if missing.is_empty() {
        return Ok(samples);
    }
    let say = caller.say;
    database.prepare(request, caller).await?;
    for (round, number, mixes) in missing {
        let name = &*request.configurations[number].name;
        say(format!("round {}: rolling out {name}", round + 1));
        database.roll(request, number, caller).await?;
        let memory_bytes = database.used().await?.map(|used| used.memory_bytes);
        for mix in mixes {
            if caller.cancel.is_cancelled() {
                return Ok(samples);
            }
            let measured = measure(database, request, mix, (name, round), caller.cancel).await?;
            let Some(measured) = measured else { return Ok(samples) };
            let sample = Sample { memory_bytes, ..measured };
            say(describe(&sample));
            file::write(&request.out, &sample, &mix, D::REPORTS_USAGE)?;
            samples.push(sample);
        }
    }
    Ok(samples)
}

fn describe(sample: &Sample) -> String {
    let used = sample.memory_bytes.zip(sample.cpu_us);
    let used = used.map_or_else(String::new, |(bytes, cpu_us)| {
        format!(" with {:.1} MB and {cpu_us:.1} µs of processor time each", bytes as f64 / 1e6)
    });
    format!(
        "round {}: {} serves {:.0}/s of {}{used} (± {:.0} %, warm after {:.0} s{})",
        sample.round + 1,
        sample.configuration,
        sample.operations_s,
        sample.mix,
        50.0 * sample.spread,
        sample.warm_s,
        if sample.is_warm { "" } else { ", still rising" },
    )
}

/// Loads the records with one mix until the database is warm, and then measures the requested windows.
/// `configuration` and `round` are only recorded. Returns `None` if `cancel` is cancelled before all windows are
/// complete.
async fn measure<D: Sampled>(
    database: &D,
    request: &Request,
    mix: Mix,
    (configuration, round): (&str, usize),
    cancel: &CancellationToken,
) -> Result<Option<Sample>> {
    let target = Arc::new(database.target(request).await?);
    let options = Options {
        mix,
        arrival: Arrival::Closed,
        duration: None,
        in_flight_max: request.clients,
        preloaded: request.documents,
        reviews: request.reviews(),
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
    while !is_warm(&windows) && began.elapsed() < request.warm_max && !cancel.is_cancelled() {
        windows.push(window(&control, request.window).await);
    }
    let (was_warm, warm_s) = (is_warm(&windows), began.elapsed().as_secs_f64());
    let before = (ended(&control), database.used().await);
    let mut measured = Vec::new();
    while measured.len() < request.windows && !cancel.is_cancelled() {
        measured.push(window(&control, request.window).await);
    }
    let behind = (ended(&control), database.used().await);
    control.stop();
    let (report, _): (Report, _) = running.finish().await.map_err(wrong)?;
    if measured.len() < request.windows {
        return Ok(None);
    }
    let failed = report.reads.tally.failed + report.writes.tally.failed;
    if failed > 0 {
        let why = report.failures.first().map_or("", |failure| &failure.message);
        return Err(Error::Failed {
            what: format!("{failed} operations failed under {configuration}: {why}"),
            help: "use fewer --clients: what is measured must be service and not refusal".into(),
        });
    }
    let Tally { not_found, .. } = report.reads.tally;
    if not_found > report.reads.tally.total() / MISSED_SHARE {
        return Err(Error::Failed {
            what: format!("{not_found} reads under {configuration} found nothing"),
            help: "are all records there? A database that evicts them serves nothing that can be compared".into(),
        });
    }
    let operations = (behind.0 - before.0) as f64;
    let cpu_us = before.1?.zip(behind.1?).map(|(before, behind)| {
        let spent_s = behind.cpu_s - before.cpu_s;
        spent_s * 1e6 / operations
    });
    let mean = measured.iter().sum::<f64>() / measured.len() as f64;
    let most = measured.iter().copied().fold(f64::MIN, f64::max);
    let least = measured.iter().copied().fold(f64::MAX, f64::min);
    Ok(Some(Sample {
        configuration: configuration.to_owned(),
        mix: mix.to_string(),
        round,
        operations_s: mean,
        spread: if mean > 0.0 { (most - least) / mean } else { 0.0 },
        warm_s,
        is_warm: was_warm,
        record_bytes: request.size_bytes,
        memory_bytes: None,
        cpu_us: cpu_us.filter(|of| of.is_finite()),
    }))
}

/// Waits for `length`, the length of a window. Returns the operations per second that ended within it.
async fn window(control: &Control<impl Target>, length: Duration) -> f64 {
    let (began, before) = (Instant::now(), ended(control));
    tokio::time::sleep(length).await;
    (ended(control) - before) as f64 / began.elapsed().as_secs_f64()
}

/// Returns the number of operations that have ended since the load began.
fn ended(control: &Control<impl Target>) -> u64 {
    let now = control.snapshot();
    now.reads.total() + now.writes.total()
}

#[cfg(test)]
mod tests;
