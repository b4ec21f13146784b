//! The benchmark `sophia-redis`: jobs of several sizes on a real Redis with little memory. Their data fits with the
//! default setting, only in the compact encoding, or not at all (SOPHIA, §5, Fig. 10).
//!
//! The paper switched Redis's virtual memory on and off, which swapped data that did not fit into memory; Redis has
//! not had it since version 2.6. The remaining trade-off is a threshold up to which hashes have a compact encoding,
//! with less memory and more processor time. A job loads its records into hashes, and reads and updates them. A job
//! with a write that is rejected for lack of memory has failed, and has no bar in the picture. The methods are the
//! default threshold, one that makes all hashes compact, and the tuner. The tuner knows the size of a job from the
//! queue, measures a sample once, decides before each job, and changes the setting as `imago tune roll` does.
//!
//! Each method has a server of its own. The requests of a job are encoded in advance, and are the same for all
//! methods. Methods take turns, with alternating order from round to round. Each round runs all jobs, so the tuner
//! has to change the setting in each round. The time of a job includes its load, and the change if there is one.

mod client;
mod database;
mod report;
mod requests;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use imago_plan::tune::capacity::{Costs, Job as Planned, Limits, choose, entries_max, job_s};
use imago_plan::tune::sampling::order;
use imago_plan::tune::workload::Mix;
use imago_testbed::{Single, SingleSpec};
use imago_tune::redis::fit::{Measured, Sample, Scratch, Server, costs};
use imago_workload::keys::Distribution;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use database::{Database, send};
use requests::{Batch, FIELDS};

pub use report::{JobReport, Report, WayReport};

/// The setting that is changed.
const THRESHOLD: &str = "hash-max-listpack-entries";
/// Values of the setting: the default, and one with which every hash is compact.
const VALUES: [&str; 2] = ["512", "1024"];
/// Names of the methods. The first two use the value of [`VALUES`] with the same index.
const WAYS: [&str; 3] = ["default", "compact", "tuned"];
const TUNED: usize = 2;
/// Number of hashes that are loaded into each master for the sample, which is taken from the first master.
const SAMPLED: u64 = 24;
/// Share of the memory that the tuner leaves free: client buffers take memory too.
const HEADROOM: f64 = 0.03;
/// Minimum relative gain at which the tuner changes the setting.
const GAIN_MIN: f64 = 0.05;
/// Distribution of keys that are not uniform, with the skew of YCSB.
const ZIPF: Distribution = Distribution::Zipf { shape: 0.99 };

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of rounds; in each, every method runs each job.
    pub rounds: u32,
    /// `maxmemory` of each master, in MiB.
    pub memory_mb: u32,
    /// Number of operations of a job, after its load.
    pub operations: u64,
    /// Number of masters; 1 is a server without a cluster.
    pub masters: u8,
    /// Number of replicas of each master; 0 for a server without a cluster.
    pub replicas: u8,
    /// Seed of all random choices.
    pub seed: u64,
    /// If true, only two of the four kinds of jobs and three of the six sizes are run.
    pub is_quick: bool,
}

/// Number of records of a job, relative to those that fit into memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    /// A share of the records that fit with the default setting.
    OfDefault(f64),
    /// The middle between the records that fit with the default setting and those that fit in the compact encoding.
    Between,
    /// Ten percent more than fit in the compact encoding.
    Beyond,
}

/// All sizes, each with its name and whether [`Size::is_quick`] includes it. The paper has 0.28, 0.56 and 1.11 of the
/// records that fit.
const EXTENTS: [(&str, Extent, bool); 6] = [
    ("0.28", Extent::OfDefault(0.28), true),
    ("0.56", Extent::OfDefault(0.56), false),
    ("0.95", Extent::OfDefault(0.95), false),
    ("1.11", Extent::OfDefault(1.11), true),
    ("between", Extent::Between, false),
    ("beyond", Extent::Beyond, true),
];

impl Extent {
    /// Returns the number of hashes, at least 1, if `default` hashes fit with the default setting and `compact` ones
    /// in the compact encoding.
    fn hashes(self, [default, compact]: [f64; 2]) -> u64 {
        let hashes = match self {
            Self::OfDefault(share) => share * default,
            Self::Between => f64::midpoint(default, compact),
            Self::Beyond => 1.1 * compact,
        };
        (hashes as u64).max(1)
    }
}

/// A kind of job: its key distribution and its mix of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    keys: (&'static str, Distribution),
    /// Name of the mix, and its share of reads; the other operations are updates.
    mix: (&'static str, f64),
    is_quick: bool,
}

const UNIFORM: (&str, Distribution) = ("uniform", Distribution::Uniform);
const ZIPFIAN: (&str, Distribution) = ("zipf", ZIPF);
const READS: (&str, f64) = ("read-heavy", 0.95);
const WRITES: (&str, f64) = ("write-heavy", 0.05);
const KINDS: [Kind; 4] = [
    Kind { keys: UNIFORM, mix: READS, is_quick: true },
    Kind { keys: UNIFORM, mix: WRITES, is_quick: false },
    Kind { keys: ZIPFIAN, mix: READS, is_quick: false },
    Kind { keys: ZIPFIAN, mix: WRITES, is_quick: true },
];

/// Outcome of a job with a method.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Served {
        /// Time of the job with the change and the load, in seconds.
        job_s: f64,
        /// Operations per second, without the load.
        operations_s: f64,
        encoding: String,
        /// Time of the change of the setting, in seconds; 0 without a change.
        change_s: f64,
    },
    /// Redis rejected a write; with its error message.
    Failed(String),
    /// The tuner declined the job in advance, because no configuration holds its data.
    Declined,
}

/// Measurements of the tuner.
struct Known {
    /// Costs of each configuration.
    costs: Vec<Costs>,
    measured: Vec<Measured>,
    probe_s: f64,
}

/// Runs all jobs with all methods.
///
/// # Errors
/// Fails if a single master has replicas, if a server cannot be started or reached, if it gives an unexpected reply,
/// or if the picture cannot be drawn.
#[crate::boxed(?Send)]
pub async fn run(
    size: Size,
    process: &str,
    pictures: Option<&Path>,
    cancel: &CancellationToken,
    say: &(dyn Fn(String) + Sync),
) -> Result<Report> {
    if size.masters == 1 && size.replicas > 0 {
        return Err(Error::Size("one master stands alone, and has no replicas".into()));
    }
    let folder = tempfile::tempdir()
        .map_err(crate::error::process("make a temporary folder for the jobs of rolls"))?;
    let scene = Scene { size, folder: folder.path(), process, cancel };
    let mut databases = Vec::new();
    for way in WAYS {
        databases.push(Database::start(&format!("{way}-{}", std::process::id()), &size).await?);
    }
    scene.roll(&databases[1], VALUES[1]).await?;
    let known = scene.probe(&databases[TUNED]).await?;
    let memory = f64::from(size.memory_mb) * f64::from(1_u32 << 20) * f64::from(size.masters);
    let hold = [0, 1].map(|number| entries_max(&known.costs[number], memory));
    say(format!(
        "{:.0} hashes of {FIELDS} records fit by default, {:.0} compact",
        hold[0], hold[1]
    ));
    let limits = Limits { memory_bytes: memory, headroom: HEADROOM, gain_min: GAIN_MIN };
    let mut tuner = Tuner { known: &known, limits, current: 0 };
    let jobs = jobs(size.is_quick, hold);
    let most = jobs.iter().map(|job| job.hashes).max().unwrap_or(0);
    // The names differ only if clusters have assigned their slots to the masters in different orders.
    let is_shared = databases.iter().all(|one| one.names == databases[0].names);
    let of = if is_shared { &databases[..1] } else { &databases[..] };
    let loads = of.iter().map(|database| requests::load(&database.names, most)).collect();
    let servers = Servers { databases, loads };
    let mut outcomes = vec![vec![Vec::new(); WAYS.len()]; jobs.len()];
    let rounds = order(WAYS.len(), size.rounds as usize);
    for (round, ways) in (1..).zip(rounds.chunks(WAYS.len())) {
        for (job, outcomes) in jobs.iter().zip(&mut outcomes) {
            let ways: Vec<usize> = ways.iter().map(|(_, way)| *way).collect();
            let of_round = scene.job(job, &ways, &servers, &mut tuner).await?;
            say(format!("round {round}, {}", report::line(job, &of_round)));
            for (all, one) in outcomes.iter_mut().zip(of_round) {
                all.extend(one);
            }
        }
    }
    let told = jobs.iter().zip(&outcomes).map(|(job, outcomes)| {
        let planned = scene.planned(job);
        let predicted_s = [0, 1].map(|number: usize| job_s(&known.costs[number], &planned));
        report::job(job, size.operations, predicted_s, outcomes)
    });
    report::report(size, &known, hold, told.collect(), pictures)
}

/// Returns all jobs, grouped by kind, in ascending order of size.
fn jobs(is_quick: bool, hold: [f64; 2]) -> Vec<Job> {
    let kinds = KINDS.into_iter().filter(move |kind| kind.is_quick || !is_quick);
    let of_kind = |kind: Kind| {
        let extents = EXTENTS.into_iter().filter(move |(_, _, of_quick)| *of_quick || !is_quick);
        extents.map(move |(name, extent, _)| Job { name, hashes: extent.hashes(hold), kind })
    };
    kinds.flat_map(of_kind).collect()
}

/// A job: a size and a kind.
struct Job {
    name: &'static str,
    hashes: u64,
    kind: Kind,
}

/// State of the tuner between jobs.
struct Tuner<'k> {
    known: &'k Known,
    limits: Limits,
    /// Index in [`VALUES`] of the present setting of its server.
    current: usize,
}

/// The servers of all methods.
struct Servers {
    databases: Vec<Database>,
    /// Batches that load the largest job, for each method; a single entry if the names of the hashes are the same for
    /// all.
    loads: Vec<Vec<Vec<Batch>>>,
}

/// Inputs that all jobs share.
struct Scene<'s> {
    size: Size,
    folder: &'s Path,
    process: &'s str,
    cancel: &'s CancellationToken,
}

impl Scene<'_> {
    async fn roll(&self, database: &Database, value: &str) -> Result<f64> {
        database.roll((THRESHOLD, value), self.folder, self.process, self.cancel).await
    }

    /// Measures a sample with both values, as `imago tune fit` does, and the mean time of a change of the setting.
    async fn probe(&self, database: &Database) -> Result<Known> {
        let begin = Instant::now();
        // The changes come first, because a change leaves data in the server's memory, such as latencies of its
        // commands.
        let mut change_s = 0.0;
        for value in [VALUES[1], VALUES[0]] {
            change_s += self.roll(database, value).await? / 2.0;
        }
        let masters = self.size.masters;
        let load = requests::load(&database.names, SAMPLED * u64::from(masters));
        let mut clients = database.clients()?;
        if let Some(why) = send(&mut clients, load.iter().map(Vec::as_slice))? {
            return Err(Error::Wrong(format!("a sample does not fit: {why}")));
        }
        drop(clients);
        let sample = Sample::take(&database.masters[0], SAMPLED as usize).await?;
        database.flush().await?;
        let base_bytes = self.base_bytes(database).await?;
        let server = Server::inspect(&database.masters[0]).await?;
        let place =
            Single::start(SingleSpec::redis(&format!("probe-{}", std::process::id()))).await?;
        let mut scratch = Scratch::open(&place.uri().parse()?).await?;
        scratch.take(&sample).await?;
        let settings = VALUES.map(|value| {
            let mut settings = server.settings.clone();
            settings.insert(THRESHOLD.into(), value.into());
            settings
        });
        let measured = scratch.measure(&settings).await?;
        // Masters have the same number of hashes, and work in parallel.
        let of_all = f64::from(masters);
        let costs = measured.iter().map(|measured| {
            let one = costs(base_bytes, measured);
            Costs {
                load_s: one.load_s / of_all,
                operation_s: one.operation_s.map(|s| s / of_all),
                change_s,
                ..one
            }
        });
        let costs = costs.collect();
        Ok(Known { costs, measured, probe_s: begin.elapsed().as_secs_f64() })
    }

    /// Returns the memory of all masters without any data, in bytes.
    async fn base_bytes(&self, database: &Database) -> Result<f64> {
        let mut most = 0;
        for master in &database.masters {
            most = most.max(Server::inspect(master).await?.base_bytes);
        }
        // The fullest master is the first to reject writes, so its memory counts for all.
        Ok(most as f64 * f64::from(self.size.masters))
    }

    /// Runs a job with these methods, one after the other. Returns the outcomes of each method.
    async fn job(
        &self,
        job: &Job,
        ways: &[usize],
        servers: &Servers,
        tuner: &mut Tuner<'_>,
    ) -> Result<Vec<Vec<Outcome>>> {
        let (keys, reads) = (job.kind.keys.1, job.kind.mix.1);
        let operations = |database: &Database| {
            let count = (self.size.operations, reads);
            requests::operations(&database.names, job.hashes, count, keys, self.size.seed)
        };
        let of = &servers.databases[..servers.loads.len()];
        let operations: Vec<Vec<Vec<Batch>>> = of.iter().map(operations).collect();
        let mut outcomes = vec![Vec::new(); WAYS.len()];
        for way in ways.iter().copied() {
            let database = &servers.databases[way];
            let shared = way.min(operations.len() - 1);
            let requests = (&*servers.loads[shared], &*operations[shared]);
            let begin = Instant::now();
            let change_s = match way {
                TUNED => match self.prepare(job, database, tuner).await? {
                    Some(change_s) => change_s,
                    None => {
                        outcomes[way].push(Outcome::Declined);
                        continue;
                    }
                },
                _ => 0.0,
            };
            outcomes[way].push(self.work(job, database, requests, (begin, change_s)).await?);
            database.flush().await?;
        }
        Ok(outcomes)
    }

    /// Returns a job as its queue describes it. Its entries are hashes.
    fn planned(&self, job: &Job) -> Planned {
        Planned {
            present: 0.0,
            loaded: job.hashes as f64,
            operations: self.size.operations as f64,
            mix: Mix::of_reads(job.kind.mix.1),
        }
    }

    /// Lets the tuner decide, and changes the setting if the decision requires it. Returns the time of the change in
    /// seconds, or None if the tuner declines the job.
    async fn prepare(
        &self,
        job: &Job,
        database: &Database,
        tuner: &mut Tuner<'_>,
    ) -> Result<Option<f64>> {
        let (planned, mut costs) = (self.planned(job), tuner.known.costs.clone());
        // The memory of a server without data grows with its uptime, so it is measured before each job.
        let base_bytes = self.base_bytes(database).await?;
        costs.iter_mut().for_each(|costs| costs.base_bytes = base_bytes);
        let decision = choose(&costs, tuner.current, &planned, &tuner.limits);
        let Some(choice) = decision.choice else { return Ok(None) };
        if choice == tuner.current {
            return Ok(Some(0.0));
        }
        let change_s = self.roll(database, VALUES[choice]).await?;
        tuner.current = choice;
        Ok(Some(change_s))
    }

    /// Loads the data, and runs the operations.
    async fn work(
        &self,
        job: &Job,
        database: &Database,
        (load, operations): (&[Vec<Batch>], &[Vec<Batch>]),
        (begin, change_s): (Instant, f64),
    ) -> Result<Outcome> {
        let mut clients = database.clients()?;
        let shares = database.names.shares(job.hashes);
        let load = load.iter().zip(shares).map(|(batches, share)| &batches[..share]);
        // Blocking is harmless: this process has no other tasks during a job.
        let done = tokio::task::block_in_place(|| -> Result<_> {
            if let Some(why) = send(&mut clients, load)? {
                return Ok(Err(why));
            }
            let loaded = Instant::now();
            if let Some(why) = send(&mut clients, operations.iter().map(Vec::as_slice))? {
                return Ok(Err(why));
            }
            Ok(Ok((begin.elapsed().as_secs_f64(), loaded.elapsed().as_secs_f64())))
        })?;
        let (job_s, worked_s) = match done {
            Ok(times) => times,
            Err(why) if why.starts_with("OOM") => return Ok(Outcome::Failed(why)),
            Err(why) => return Err(Error::Wrong(format!("a request was refused: {why}"))),
        };
        let count = database.count().await?;
        if count != job.hashes {
            return Err(Error::Wrong(format!("{count} hashes are there, not {}", job.hashes)));
        }
        let encoding = database.encoding(job.hashes - 1).await?;
        let operations_s = self.size.operations as f64 / worked_s;
        Ok(Outcome::Served { job_s, operations_s, encoding, change_s })
    }
}

/// Maps the names of the methods to these values, which are in the order of [`WAYS`].
fn by_name<T>(of: impl Iterator<Item = T>) -> BTreeMap<&'static str, T> {
    WAYS.into_iter().zip(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_lie_where_their_names_say() {
        let hold = [380.0, 1_100.0];
        let hashes = EXTENTS.map(|(_, extent, _)| extent.hashes(hold));
        assert_eq!(hashes, [106, 212, 361, 421, 740, 1_210]);
        assert!(hashes.is_sorted());
        assert_eq!(Extent::OfDefault(0.28).hashes([1.0, 2.0]), 1);
    }

    #[test]
    fn all_jobs_of_all_kinds_are_done_or_a_part_of_them() {
        let hold = [380.0, 1_100.0];
        assert_eq!((jobs(false, hold).len(), jobs(true, hold).len()), (4 * 6, 2 * 3));
        assert_eq!(jobs(true, hold)[1].name, "1.11");
    }

    #[test]
    fn every_kind_differs_and_the_quick_ones_have_all_there_is() {
        let quick: Vec<Kind> = KINDS.into_iter().filter(|kind| kind.is_quick).collect();
        assert_ne!(quick[0].keys, quick[1].keys);
        assert_ne!(quick[0].mix, quick[1].mix);
        for (place, kind) in KINDS.iter().enumerate() {
            assert!(!KINDS[..place].contains(kind));
        }
    }
}
