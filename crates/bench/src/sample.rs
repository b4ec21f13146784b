//! What each configuration of a real database serves of each mix: the measurements that tuning decides by.
//!
//! Each configuration is rolled out (no client is served meanwhile), a closed load of one mix runs until throughput no
//! longer rises, and then some windows are measured. Rounds go forth and back through the configurations, so that none is
//! always the first. Each measurement is a line in a file as soon as it is made; those that the file has already are not
//! made again.
//!
//! How a database is filled and rolled is its own ([`Sampled`]); all else is here.

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

/// Of so many reads one may find nothing: a record may be away for a moment.
const MISSED_SHARE: u64 = 100;

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct Request {
    /// Records, and the size of one.
    pub documents: u64,
    /// The size of a record.
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

/// The process that has something measured.
#[derive(Clone, Copy)]
pub struct Caller<'c> {
    /// Its name in the jobs of rolls.
    pub process: &'c str,
    /// Cancelled: it ends behind the window that is under way.
    pub cancel: &'c CancellationToken,
    /// Is told what is done.
    pub say: &'c (dyn Fn(String) + Sync),
}

/// A database whose configurations are measured.
#[expect(async_fn_in_trait, reason = "one task measures, and awaits one thing after the other")]
pub trait Sampled {
    /// What operations are sent to.
    type Target: Target;
    /// True if a measurement says what memory and processor time the configuration takes.
    const TELLS_USE: bool;

    /// Fills the database, or sees that it can be filled, before anything is rolled out.
    ///
    /// # Errors
    /// There are other records than are to be measured, or the server's message.
    async fn prepare(&self, request: &Request, caller: &Caller<'_>) -> Result<()>;

    /// Gives the database the configuration of this number. Behind it all records are there, kept as it says.
    ///
    /// # Errors
    /// It cannot be rolled out or filled.
    async fn roll(&mut self, request: &Request, number: usize, caller: &Caller<'_>) -> Result<()>;

    /// Connects for one load.
    ///
    /// # Errors
    /// No node answers or lets us in.
    async fn target(&self, request: &Request) -> Result<Self::Target>;

    /// What it uses now; none if it does not tell.
    ///
    /// # Errors
    /// The server's message.
    async fn used(&self) -> Result<Option<Used>>;
}

/// What all nodes that serve use together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Used {
    /// Memory.
    pub memory_bytes: u64,
    /// Processor time since they were started, in seconds.
    pub cpu_s: f64,
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
    /// Size of a record.
    pub record_bytes: u32,
    /// Memory in use when the configuration had been rolled out and the records were there, before any load.
    pub memory_bytes: Option<u64>,
    /// Processor time of the database per operation, in microseconds, in the windows that were measured. Unlike throughput it
    /// does not depend on how fast the load is.
    pub cpu_us: Option<f64>,
}

impl Request {
    /// The content of the records.
    fn reviews(&self) -> Reviews {
        Reviews { size_bytes: self.size_bytes, ..Reviews::default() }
    }

    /// The measurements that the file does not have: round, configuration and mixes, in their order.
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

/// Measures what the file does not have yet, and returns that. Ends early when it is cancelled.
///
/// # Errors
/// The database could not be rolled or loaded; the file could not be read or written. What was measured is in the file.
pub async fn run<D: Sampled>(
    database: &mut D,
    request: &Request,
    caller: &Caller<'_>,
) -> Result<Vec<Sample>> {
    let missing = request.missing(&file::read(&request.out, D::TELLS_USE, request.size_bytes)?);
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
            say(told(&sample));
            file::write(&request.out, &sample, &mix, D::TELLS_USE)?;
            samples.push(sample);
        }
    }
    Ok(samples)
}

fn told(sample: &Sample) -> String {
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

/// Loads the records with one mix until it is warm, and measures. None if it is cancelled before it has all windows.
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

/// Operations a second within a window that begins now.
async fn window(control: &Control<impl Target>, length: Duration) -> f64 {
    let (began, before) = (Instant::now(), ended(control));
    tokio::time::sleep(length).await;
    (ended(control) - before) as f64 / began.elapsed().as_secs_f64()
}

/// Operations that have ended.
fn ended(control: &Control<impl Target>) -> u64 {
    let now = control.snapshot();
    now.reads.total() + now.writes.total()
}

#[cfg(test)]
mod tests;
