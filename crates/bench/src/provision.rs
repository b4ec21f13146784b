//! Shards × members × cache for a chained job, measured on real servers beside what was predicted (Wong and others, §5).
//!
//! A [`cell::Cell`] is one shape of the servers with one size of the cache. Each shape is started and filled once, and each
//! run begins with restarted servers and an empty cache. A chain runs as a process of its own; its phases are timed, and a
//! chain of one, two or four phases is the beginning of one of eight. All cells must yield the same keys, byte for byte.
//!
//! What is predicted comes from a probe of the first shape and from the keys that its first run read: all other shapes are
//! held out.

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

/// The storage cache of members, in MiB: the least that mongod takes.
pub const CACHE_MB: u32 = 256;

/// Where and how cells are measured.
pub struct Setup<'a> {
    /// The program whose `chain` and `provision` are run.
    pub program: &'a Path,
    /// The file of runs.
    pub out: &'a Path,
    /// What all runs have in common.
    pub common: Common,
    /// Runs of each cell.
    pub runs: u32,
    /// Seconds that the probe measures.
    pub probe_s: u32,
    /// Ends it; what was measured stays in the file.
    pub cancel: &'a CancellationToken,
    /// Is told what is done.
    pub say: &'a (dyn Fn(String) + Sync),
}

/// What was measured, and the files beside it.
#[derive(Debug)]
pub struct Measured {
    /// All runs.
    pub runs: Vec<Run>,
    /// The keys that the chain read.
    pub trace: PathBuf,
    /// What requests cost.
    pub probe: PathBuf,
    /// The shape that was probed: the shares of its shards, and the members of each.
    pub probed: (Vec<u32>, u32),
    /// Why members were not held to their shares of the processors, if they were not.
    pub unshared: Option<String>,
}

/// Measures what the file does not have yet.
///
/// # Errors
/// Servers cannot be started, a chain fails, or cells yield different keys.
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
    /// What the files have.
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

    /// True if the probe looked at this shape; shares are known to a percent.
    fn is_probed(&self, cell: &Cell) -> bool {
        let (shares, members) = &self.probed;
        *members == cell.members
            && shares.len() == cell.shares.len()
            && shares.iter().zip(&cell.shares).all(|(one, other)| one.abs_diff(*other) <= 1)
    }
}

/// Runs, each cell beside its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// How good the predictions are, of shapes that were not probed.
    pub accuracy: Option<Accuracy>,
    /// Why members were not held to their shares of the processors, if they were not.
    pub unshared: Option<String>,
    /// Keys that were recorded, in all phases.
    pub keys: u64,
    /// All cells, with whole chains.
    pub cells: Vec<Compared>,
}

/// Measures what the file does not have yet, and puts what is predicted beside all of it.
///
/// # Errors
/// As [`measure`].
#[crate::boxed]
pub async fn predicted(cells: &[Cell], setup: &Setup<'_>) -> Result<Outcome> {
    let measured = measure(cells, setup).await?;
    let predictor = Predictor::read(&measured.trace, &measured.probe, &setup.common)?;
    let length = setup.common.length as usize;
    let (cells, accuracy) = compare(&measured, &predictor, &[length])?;
    Ok(Outcome { accuracy, unshared: measured.unshared, keys: predictor.keys(), cells })
}

/// Records the keys of a chain without a cache, and probes what requests cost.
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
        // Of a run that died in the middle.
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
    // The run without a cache has left it without memory.
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
