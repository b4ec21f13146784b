//! The throughput of each configuration with each mix of operations, one measurement after the other.
//!
//! Each configuration is rolled out while no client is served. A load of one mix runs until throughput is on a plateau and no
//! work goes on in the background, and then some windows are measured. Each round goes through the configurations in an order
//! that is drawn at random, and every other round in the opposite order of the one before, so that none is always the first.
//! Each measurement is appended to a file as soon as it is made. Measurements that the file already has are not repeated.

use std::path::PathBuf;

use imago_plan::tune::judge::Window;
use imago_plan::tune::sampling::drawn_order;
use imago_plan::tune::workload::KINDS;
use imago_tune::cluster::Result;
use imago_workload::mix::Mix;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio_util::sync::CancellationToken;

use super::load::Load;
use super::{Caller, Request, Sample, Sampled, file};

/// The rounds of measurements, and their file.
#[derive(Clone, Debug)]
pub struct Rounds {
    /// Number of measurements of each configuration with each mix: one in each round.
    pub rounds: usize,
    /// Path of the file to which the measurements are appended.
    pub out: PathBuf,
}

/// Returns the measurements that are requested and not in `done`, in the order of measurement: the round, the index
/// of the configuration, and the mixes.
fn missing(request: &Request, rounds: usize, done: &[file::Key]) -> Vec<(usize, usize, Vec<Mix>)> {
    let of = |(round, number): (usize, usize)| {
        let name = &request.configurations[number].name;
        let is_missing = |mix: &&Mix| !done.contains(&file::key(name, mix, round));
        let mixes: Vec<Mix> = request.mixes.iter().filter(is_missing).copied().collect();
        (!mixes.is_empty()).then_some((round, number, mixes))
    };
    // The same order when the command is repeated, so that it goes on where it was interrupted.
    let mut rng = StdRng::seed_from_u64(1);
    drawn_order(request.configurations.len(), rounds, &mut rng).into_iter().filter_map(of).collect()
}

/// Makes the requested measurements that are not in the file yet, appends them to it, and returns them.
/// Returns early, without an error, if `caller.cancel` is cancelled.
///
/// # Errors
/// Returns an error if the database cannot be rolled or loaded, or the file cannot be read or written. Completed
/// measurements are in the file.
pub async fn run<D: Sampled>(
    database: &mut D,
    request: &Request,
    Rounds { rounds, out }: &Rounds,
    caller: &Caller<'_>,
) -> Result<Vec<Sample>> {
    let done = file::read(out, D::REPORTS_USAGE, request.size_bytes)?;
    let missing = missing(request, *rounds, &done);
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
            file::write(out, &sample, &mix, D::REPORTS_USAGE)?;
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
    let warm = sample.not_warm.as_ref().map_or_else(
        || format!("warm after {:.0} s", sample.warm_s),
        |why| format!("not warm after {:.0} s: {why}", sample.warm_s),
    );
    format!(
        "round {}: {} serves {:.0}/s of {}{used} (± {:.0} %, {warm})",
        sample.round + 1,
        sample.configuration,
        sample.operations_s,
        sample.mix,
        50.0 * sample.spread,
    )
}

/// Loads the records with one mix until the database is warm, and then measures the requested windows.
/// `configuration` and `round` are only recorded. Returns `None` if `cancel` is cancelled before all windows are
/// complete.
async fn measure<D: Sampled>(
    database: &mut D,
    request: &Request,
    mix: Mix,
    (configuration, round): (&str, usize),
    cancel: &CancellationToken,
) -> Result<Option<Sample>> {
    let mut load = Load::start(database, request, mix, round as u64 + 1).await?;
    let warmth = load.warm(database, request, cancel).await?;
    let before = (load.ended(), database.used().await);
    let mut measured = Vec::new();
    while measured.len() < request.windows && !cancel.is_cancelled() {
        measured.push(load.window(request.window).await);
    }
    let behind = (load.ended(), database.used().await);
    load.stop(configuration).await?;
    if measured.len() < request.windows {
        return Ok(None);
    }
    let operations = (behind.0 - before.0) as f64;
    let cpu_us = before.1?.zip(behind.1?).map(|(before, behind)| {
        let spent_s = behind.cpu_s - before.cpu_s;
        spent_s * 1e6 / operations
    });
    let rates = || measured.iter().map(|window| window.rate_s);
    let mean = rates().sum::<f64>() / measured.len() as f64;
    let (most, least) = (rates().fold(f64::MIN, f64::max), rates().fold(f64::MAX, f64::min));
    Ok(Some(Sample {
        configuration: configuration.to_owned(),
        mix: mix.to_string(),
        round,
        operations_s: mean,
        spread: if mean > 0.0 { (most - least) / mean } else { 0.0 },
        warm_s: warmth.warm_s,
        not_warm: warmth.not_warm,
        median_us: latency(&measured, |window| &window.median),
        p99_us: latency(&measured, |window| &window.slowest),
        record_bytes: request.size_bytes,
        memory_bytes: None,
        cpu_us: cpu_us.filter(|of| of.is_finite()),
    }))
}

/// Returns the mean of a latency over the windows and the kinds of operations, weighted by their numbers.
fn latency(windows: &[Window], of: fn(&Window) -> &[Option<f64>; KINDS]) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for window in windows {
        for (share, time) in window.mix.shares().iter().zip(of(window)) {
            let Some(time) = time else { continue };
            (sum, weights) = (sum + share * window.rate_s * time, weights + share * window.rate_s);
        }
    }
    (weights > 0.0).then(|| sum / weights)
}
