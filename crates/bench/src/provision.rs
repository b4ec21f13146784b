//! Benchmark of a chained job by shards, members and cache: measured on real servers, and compared with predictions
//! (Wong and others, §5).
//!
//! A [`cell::Cell`] is one shape of the servers with one size of the cache. Each shape is started and filled once,
//! and each run begins with restarted servers and an empty cache. A chain runs as a separate process, and its phases
//! are timed. A chain of one, two or four phases is the beginning of one of eight. All cells must yield the same
//! keys, byte for byte.
//!
//! Predictions are computed from a probe of the first shape, and from the keys that a chain without a cache read
//! there: all other shapes are held out.

pub mod advised;
mod awake;
pub mod cell;
pub mod compare;
mod drawing;
pub mod file;
pub mod findings;
pub mod grid;
pub mod present;
pub mod report;
mod run;
mod stand;
pub mod summary;
pub mod usage;

use std::path::{Path, PathBuf};
use std::process::Command;

use imago_provision::probe::Probe;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result, process};
use cell::{Cell, Run};
use compare::{Accuracy, Compared, Predictor, compare};
use file::{Common, File};
use stand::{Stand, StandSpec};

/// Default storage cache of each member, in MiB: the minimum that mongod accepts.
pub const CACHE_MB: u32 = 256;

/// Parameters of the measurement of cells.
pub struct Setup<'a> {
    /// The program whose `chain` and `provision` commands are run.
    pub program: &'a Path,
    /// The file of the runs.
    pub out: &'a Path,
    /// Parameters that all runs have in common.
    pub common: Common,
    /// Number of runs of each cell.
    pub runs: u32,
    /// Duration of the measurements of the probe, in seconds.
    pub probe_s: u32,
    /// Cancels the measurement before the next run; completed runs stay in the file.
    pub cancel: &'a CancellationToken,
    /// Receives messages about the progress.
    pub say: &'a (dyn Fn(String) + Sync),
}

/// The results of a measurement, and the files that belong to them.
#[derive(Debug)]
pub struct Measured {
    /// All runs.
    pub runs: Vec<Run>,
    /// The file of the keys that the chain read.
    pub trace: PathBuf,
    /// The file of the measured costs of requests.
    pub probe: PathBuf,
    /// The shape that was probed: the share of the documents on each shard in percent, and the number of members of
    /// each shard.
    pub probed: (Vec<u32>, u32),
    /// Reason why the members were not limited to their shares of the processors; `None` if they were.
    pub unshared: Option<String>,
}

/// Makes the runs that the file does not have yet.
///
/// # Errors
/// Returns an error if servers cannot be started, a chain fails, cells yield different keys, or the measurement is
/// cancelled.
#[crate::boxed]
pub async fn measure(cells: &[Cell], setup: &Setup<'_>) -> Result<Measured> {
    let mut file = File::open(setup.out, &setup.common)?;
    let (trace, probe_file) = (file::trace(setup.out), file::probe(setup.out));
    let _awake = awake::Awake::keep().map_err(|why| (setup.say)(why)).ok();
    for some in grid::by_servers(cells) {
        let has = |round: u32, cell: &Cell| {
            file.runs().iter().any(|run| run.run == round && run.cell == *cell)
        };
        let missing: Vec<(u32, Cell)> = grid::runs(&some, setup.runs)
            .into_iter()
            .filter(|(round, cell)| !has(*round, cell))
            .collect();
        let needs_probe = !probe_file.exists() || !trace.exists();
        if missing.is_empty() && !needs_probe {
            continue;
        }
        let spec = StandSpec {
            documents: setup.common.documents,
            shares: some[0].shares.clone(),
            members: some[0].members,
            cache_mb: setup.common.cache_mb.unwrap_or(CACHE_MB),
            cpu_percent: setup.common.cpu_percent.unwrap_or(100),
        };
        let (documents, shards) = (spec.documents, spec.shares.len());
        (setup.say)(format!(
            "starting {shards} shards and filling them with {documents} documents"
        ));
        let stand = Stand::start(spec).await?;
        if needs_probe {
            probe(&stand, setup, &trace, &probe_file).await?;
        }
        for (round, cell) in missing {
            if setup.cancel.is_cancelled() {
                return Err(Error::Wrong(
                    "interrupted: the same command goes on with what is missing".into(),
                ));
            }
            stand.renew().await?;
            let run = run::once(setup.program, &stand, &setup.common, &cell, round, None).await?;
            let job_s = run.job_s(usize::MAX);
            file.add(run)?;
            (setup.say)(format!("{cell}, run {}: {job_s:.2} s", round + 1));
        }
    }
    Measured::read(file.runs(), trace, probe_file)
}

impl Measured {
    /// Returns the content of the files.
    fn read(runs: &[Run], trace: PathBuf, probe: PathBuf) -> Result<Self> {
        let read = Probe::read(&probe)
            .map_err(|cause| Error::Wrong(format!("{}: {cause}", probe.display())))?;
        Ok(Self {
            probed: grid::shape_of(&read),
            unshared: runs.iter().find_map(|run| run.unshared.clone()),
            runs: runs.to_vec(),
            trace,
            probe,
        })
    }

    /// Returns true if this shape was probed. Shares are known to one percentage point.
    fn is_probed(&self, cell: &Cell) -> bool {
        let (shares, members) = &self.probed;
        *members == cell.members
            && shares.len() == cell.shares.len()
            && shares.iter().zip(&cell.shares).all(|(one, other)| one.abs_diff(*other) <= 1)
    }
}

/// All cells, each with its measurements and its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Accuracy of the predictions for shapes that were not probed.
    pub accuracy: Option<Accuracy>,
    /// Reason why the members were not limited to their shares of the processors; `None` if they were.
    pub unshared: Option<String>,
    /// Number of recorded keys, in all phases.
    pub keys: u64,
    /// Measured and predicted figures of each cell, for whole chains.
    pub cells: Vec<Compared>,
}

/// Makes the runs that the file does not have yet, and compares all runs with predictions.
///
/// # Errors
/// Returns the errors of [`measure`], and an error if the predictions cannot be computed.
#[crate::boxed]
pub async fn predicted(cells: &[Cell], setup: &Setup<'_>) -> Result<Outcome> {
    let measured = measure(cells, setup).await?;
    let predictor = Predictor::read(&measured.trace, &measured.probe, &setup.common)?;
    let length = setup.common.length as usize;
    let (cells, accuracy) = compare(&measured, &predictor, &[length])?;
    Ok(Outcome { accuracy, unshared: measured.unshared, keys: predictor.keys(), cells })
}

/// Records the keys of a chain without a cache, and probes the costs of requests; each only if its file does not
/// exist.
async fn probe(stand: &Stand, setup: &Setup<'_>, trace: &Path, probe: &Path) -> Result<()> {
    let cell = Cell {
        shares: stand.spec.shares.clone(),
        members: stand.spec.members,
        cache_bytes: 0,
        cache_at: cell::CacheAt::Worker,
        reads: cell::Reads::Primary,
    };
    if !trace.exists() {
        (setup.say)("recording the keys of a chain".into());
        // A recording that was interrupted may have left this file.
        let unfinished = trace.with_extension("part.imt");
        remove(&unfinished)?;
        run::once(setup.program, stand, &setup.common, &cell, 0, Some(&unfinished)).await?;
        rename(&unfinished, trace)?;
    }
    if probe.exists() {
        return Ok(());
    }
    (setup.say)(format!("probing what requests cost, for {} s", setup.probe_s));
    let unfinished = probe.with_extension("part.json");
    remove(&unfinished)?;
    // The recording, which uses no cache, has set the memory limit of the cache so low that it holds no entries.
    run::limit(&stand.cache, stand::CACHE_BYTES).await?;
    let mut command = Command::new(setup.program);
    let cores = f64::from(setup.common.cpu_percent.unwrap_or(100)) / 100.0;
    command
        .args(["provision", "probe", "--uri", &stand.cluster.admin_uri()])
        .args(["--ns", &Stand::ns().to_string(), "--cache", &stand.cache.uri()])
        .args(["--seconds", &setup.probe_s.to_string(), "--cores", &format!("shard={cores}")])
        .arg("--out")
        .arg(&unfinished);
    crate::process::Measured::start("a probe", command)?.end(0).await?;
    rename(&unfinished, probe)
}

fn remove(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(process(format!("remove {}", file.display()))(cause))
        }
        _ => Ok(()),
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(process(format!("rename {}", from.display())))
}
