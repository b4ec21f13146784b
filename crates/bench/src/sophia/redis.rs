//! Jobs of several sizes on a real Redis with little memory: what fits by default, what fits compact only, and what fits
//! neither way (SOPHIA, §5, Fig. 10).
//!
//! The paper switched Redis's virtual memory on and off, which is gone since 2.6: what did not fit into memory was swapped. What
//! is left is that hashes up to a threshold are kept compact, with less memory and more processor time. So a job loads its
//! records into hashes, and reads and updates them; one that is refused a write for want of memory has failed, and is a missing
//! bar. Ways are the default threshold, one that keeps all hashes compact, and the tuner: it knows a job's size from the queue,
//! measures a sample once, decides before each job, and changes the setting as `imago tune roll` does.
//!
//! Each way has a server for itself. A job's requests are encoded before, and each way is sent the same; ways take turns, forth
//! and back from round to round. In each round all jobs are done, so that the tuner has to change the setting in each. The time of
//! a job includes the load, and the change if there is one.

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

/// The setting, its default, and a value by which every hash is compact.
const THRESHOLD: &str = "hash-max-listpack-entries";
const VALUES: [&str; 2] = ["512", "1024"];
/// The ways: the first two keep the value of that number.
const WAYS: [&str; 3] = ["default", "compact", "tuned"];
const TUNED: usize = 2;
/// Hashes of the sample, of each master.
const SAMPLED: u64 = 24;
/// The share of memory that the tuner leaves free: buffers of clients count, too.
const HEADROOM: f64 = 0.03;
const GAIN_MIN: f64 = 0.05;
/// The skew of keys that are not uniform, as in YCSB.
const ZIPF: Distribution = Distribution::Zipf { shape: 0.99 };

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Rounds in which each way does each job.
    pub rounds: u32,
    /// `maxmemory` of each master, in MiB.
    pub memory_mb: u32,
    /// Operations of a job, behind its load.
    pub operations: u64,
    /// Masters: one stands alone.
    pub masters: u8,
    /// Replicas of each master; none of one that stands alone.
    pub replicas: u8,
    /// The seed of all draws.
    pub seed: u64,
    /// True: two of the four kinds of jobs, and three of the six sizes.
    pub is_quick: bool,
}

/// How many records a job has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extent {
    /// A share of what fits by default.
    OfDefault(f64),
    /// In the middle between what fits by default and what fits compact.
    Between,
    /// A tenth more than fits compact.
    Beyond,
}

/// All sizes, with their names, and whether the quick ones are among them. The paper's are 0.28, 0.56 and 1.11 of what fits.
const EXTENTS: [(&str, Extent, bool); 6] = [
    ("0.28", Extent::OfDefault(0.28), true),
    ("0.56", Extent::OfDefault(0.56), false),
    ("0.95", Extent::OfDefault(0.95), false),
    ("1.11", Extent::OfDefault(1.11), true),
    ("between", Extent::Between, false),
    ("beyond", Extent::Beyond, true),
];

impl Extent {
    /// Whole hashes, where so many fit by default and compact.
    fn hashes(self, [default, compact]: [f64; 2]) -> u64 {
        let hashes = match self {
            Self::OfDefault(share) => share * default,
            Self::Between => f64::midpoint(default, compact),
            Self::Beyond => 1.1 * compact,
        };
        (hashes as u64).max(1)
    }
}

/// A kind of jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    keys: (&'static str, Distribution),
    /// Its name, and the share of reads; the rest updates.
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

/// What came of a job by a way.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Served {
        /// With the change and the load.
        job_s: f64,
        /// Of the operations alone.
        operations_s: f64,
        encoding: String,
        /// Of the change of the setting; zero if there was none.
        change_s: f64,
    },
    /// A request was refused.
    Failed(String),
    /// The tuner said before that no configuration holds it.
    Declined,
}

/// What the tuner knows.
struct Known {
    /// By configuration.
    costs: Vec<Costs>,
    measured: Vec<Measured>,
    probe_s: f64,
}

/// Does all jobs by all ways.
///
/// # Errors
/// No server can be started, or one does not do what it should; the picture cannot be drawn.
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
    // Names differ only where clusters have given slots to their masters in other orders.
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

/// All jobs, those of one kind one after the other, the small ones first.
fn jobs(is_quick: bool, hold: [f64; 2]) -> Vec<Job> {
    let kinds = KINDS.into_iter().filter(move |kind| kind.is_quick || !is_quick);
    let of_kind = |kind: Kind| {
        let extents = EXTENTS.into_iter().filter(move |(_, _, of_quick)| *of_quick || !is_quick);
        extents.map(move |(name, extent, _)| Job { name, hashes: extent.hashes(hold), kind })
    };
    kinds.flat_map(of_kind).collect()
}

/// A job.
struct Job {
    name: &'static str,
    hashes: u64,
    kind: Kind,
}

/// The tuner between jobs.
struct Tuner<'k> {
    known: &'k Known,
    limits: Limits,
    /// The number of the value that its server has.
    current: usize,
}

/// The servers of all ways.
struct Servers {
    databases: Vec<Database>,
    /// What loads the largest job, of each way, or of all where the names are the same.
    loads: Vec<Vec<Vec<Batch>>>,
}

/// What all jobs share.
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

    /// Measures both values by a sample, as `imago tune fit` does; and what a change takes, forth and back.
    async fn probe(&self, database: &Database) -> Result<Known> {
        let begin = Instant::now();
        // First of all, as a change leaves something in a server's memory, such as the latencies of its commands.
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
        let server = Server::look(&database.masters[0]).await?;
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
        // Masters have equally many hashes, and work at the same time.
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

    /// Memory of all masters without any data, in bytes.
    async fn base_bytes(&self, database: &Database) -> Result<f64> {
        let mut most = 0;
        for master in &database.masters {
            most = most.max(Server::look(master).await?.base_bytes);
        }
        // The fullest of them refuses first.
        Ok(most as f64 * f64::from(self.size.masters))
    }

    /// Does a job by these ways, one after the other. Returns the outcomes of each way.
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

    /// A job as its queue tells of it. Its entries are hashes.
    fn planned(&self, job: &Job) -> Planned {
        Planned {
            present: 0.0,
            loaded: job.hashes as f64,
            operations: self.size.operations as f64,
            mix: Mix::of_reads(job.kind.mix.1),
        }
    }

    /// Has the tuner decide, and changes the setting if it says so. Returns how long the change took; nothing if the tuner
    /// declines the job.
    async fn prepare(
        &self,
        job: &Job,
        database: &Database,
        tuner: &mut Tuner<'_>,
    ) -> Result<Option<f64>> {
        let (planned, mut costs) = (self.planned(job), tuner.known.costs.clone());
        // What a server needs without any data grows with the time that it runs.
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

    /// Loads, and does the operations.
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
        // Other tasks than this one have nothing to do meanwhile.
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

/// What is told of both configurations, by their names.
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
