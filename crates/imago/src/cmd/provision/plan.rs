//! `imago provision plan`: the shape that meets a deadline, from a trace and the costs of a probe.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use imago_chart::job_times::{self, Curve};
use imago_plan::provision::reuse::Start;
use imago_plan::provision::{CacheAt, Errors, Job, Prices, Reads, Shares};
use imago_provision::advice::{
    Advice, AsRecorded, Error, InBatches, Origin, PolicyReport, RecordedShape, Report, Settings,
    UnevenReport, advise,
};
use imago_provision::probe::Probe;
use imago_provision::trace::{self, Trace};

use super::values::{self, CacheAtArg, PolicyArg, ReadsArg};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::table::table;
use crate::values::duration;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
TRACE is a file of `imago provision record`, a CSV with the columns phase,key,bytes or time,key,bytes, or libCacheSim's \
oracleGeneral. PROBE is a file of `imago provision probe`; without one the costs are those of a machine that the output \
names. Prices are for an hour of one processor and of 10^9 bytes of memory.

Each combination of the values is a shape; the one that meets the deadline at the least price is advised, or without \
prices the one with the fewest processors and then the least memory. Of the front no shape is beaten by another in time \
and cost. A time is a prediction: confirm it by `imago provision measure`.

Examples:
  imago provision plan chain.imt --deadline 60s --probe here.json --price core=0.04,gb=0.005
  imago provision plan chain.imt --deadline 5m --shards 1,2,4 --cache 0,128MiB,1GiB --share 14,14,39,33 --picture plan.svg")]
pub struct Args {
    /// The keys that the job reads.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// The time that the job may take; for example 60s, 5m.
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Duration,
    /// The costs of a request at each station, from `imago provision probe`.
    #[arg(long, value_name = "PROBE")]
    probe: Option<PathBuf>,
    /// Prices for an hour, as core=0.04,gb=0.005.
    #[arg(long, value_name = "PRICES", value_parser = values::prices)]
    price: Option<Prices>,
    /// Numbers of shards to compare.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4", value_parser = clap::value_parser!(u32).range(1..=1_024))]
    shards: Vec<u32>,
    /// Numbers of members of each shard to compare.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u32).range(1..=50))]
    replicas: Vec<u32>,
    /// Sizes of the storage cache of each member of a shard to compare (wiredTigerCacheSizeGB), 0 for as much as its documents
    /// and indexes take; without it the probe's, twice and four times as much where the collection exceeds it.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = values::size)]
    storage_cache: Vec<u64>,
    /// Sizes of the cache to compare, 0 for none; without it 0, and an eighth, a quarter, a half and all of what one
    /// without a limit would hold.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = values::size)]
    cache: Vec<u64>,
    /// Places of the cache to compare.
    #[arg(long, value_enum, value_name = "PLACE", value_delimiter = ',', default_value = "worker")]
    cache_at: Vec<CacheAtArg>,
    /// Members to read from, to compare.
    #[arg(
        long,
        value_enum,
        value_name = "WHICH",
        value_delimiter = ',',
        default_value = "primary,nearest"
    )]
    reads: Vec<ReadsArg>,
    /// The shares of keys of the shards, in percent, as 44,56; without it the probe's for as many shards as it saw, and even
    /// ones for other numbers. Repeatable.
    #[arg(long, value_name = "PERCENT,…", value_parser = values::shares)]
    share: Vec<Percent>,
    /// Batches that the job reads at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=512))]
    workers: u32,
    /// Keys of a batch.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,
    /// Processors of stations, as client=2,shard=0.3; those that are not given are the probe's.
    #[arg(long, value_name = "CORES", value_parser = values::cores)]
    cores: Option<values::Cores>,
    /// Irregularity of a request's processor time beyond its number of keys: 0 constant, 1 exponential.
    #[arg(long, value_name = "CV²", default_value_t = 0.1, value_parser = values::fraction)]
    variation: f64,
    /// Documents of the collection, for its memory; without it as many as the probe saw, else as the trace reads.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    documents: Option<u64>,
    /// The cache's eviction policy: those of Redis, as its maxmemory-policy names them, or another one to compare with.
    #[arg(long, value_enum, value_name = "POLICY", default_value_t = PolicyArg::AllkeysLru)]
    policy: PolicyArg,
    /// Assume a warm cache: the whole job has run once before.
    #[arg(long)]
    warm: bool,
    /// Times without reads that end a phase, for imported traces with times.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    gap: Option<Duration>,
    /// Use the whole phases of a trace that is torn.
    #[arg(long)]
    torn: bool,
    /// Draw the job's time over the size of the cache, as SVG.
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
}

/// Relative standard error of costs that were measured on another machine: processors and disks of a few years differ about
/// twofold.
const OTHER_MACHINE: f64 = 0.5;

/// The shares of the keys on each shard, in percent, for one number of shards. It is a separate type, since clap
/// takes a list for repeated values.
type Percent = Vec<f64>;

/// Parses a deadline, a time span that must be longer than zero.
fn deadline(text: &str) -> Result<Duration, String> {
    let deadline = duration(text)?;
    if deadline.is_zero() { Err("the deadline must be above 0".into()) } else { Ok(deadline) }
}

impl Args {
    /// Returns the settings of the plan. Shares and numbers of processors that no flag gives are those of the probe.
    fn settings(&self, probe: &Probe) -> Result<Settings, Failure> {
        let mut shares = Shares::even();
        if self.probe.is_some() && probe.shards.len() > 1 {
            let keys: Vec<f64> = probe.shards.iter().map(|shard| shard.keys * 100.0).collect();
            shares = shares.with_percent(&keys).map_err(|error| {
                let told =
                    format!("the shares of {} shards in the probe are not valid", keys.len());
                Failure::new(Exit::Usage, "probe", told).because(&error)
            })?;
        }
        for percent in &self.share {
            shares = shares
                .with_percent(percent)
                .map_err(|error| Failure::from_error(Exit::Usage, "share", &error))?;
        }
        for percent in &self.share {
            if !self.shards.iter().any(|shards| *shards as usize == percent.len()) {
                let told = format!(
                    "--share gives {} shares, and no shape has so many shards",
                    percent.len()
                );
                return Err(Failure::new(Exit::Usage, "share", told).help(
                    "give the number to --shards too, or as many shares as there are shards",
                ));
            }
        }
        let reads = self.reads.iter().map(|which| match which {
            ReadsArg::Primary => Reads::Primary,
            ReadsArg::Nearest => Reads::Nearest,
        });
        let cache_at = self.cache_at.iter().map(|at| match at {
            CacheAtArg::Worker => CacheAt::Worker,
            CacheAtArg::Router => CacheAt::Router,
        });
        Ok(Settings {
            deadline_s: self.deadline.as_secs_f64(),
            prices: self.price,
            shards: self.shards.clone(),
            replicas: self.replicas.clone(),
            storage_bytes: (!self.storage_cache.is_empty()).then(|| self.storage_cache.clone()),
            cache_bytes: (!self.cache.is_empty()).then(|| self.cache.clone()),
            reads: reads.collect(),
            cache_at: cache_at.collect(),
            shares,
            machine: self.cores.unwrap_or_default().over(probe.machine()),
            job: Job { workers: self.workers, batch: self.batch, variation: self.variation },
            policy: self.policy.into(),
            start: if self.warm { Start::Warm } else { Start::Cold },
            documents: self.documents,
        })
    }
}

/// Runs `imago provision plan`: computes the plan, draws it if requested, and prints it.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let probe = probe(args.probe.as_deref())?;
    let settings = args.settings(&probe)?;
    let origin = Origin {
        costs: probe.costs(),
        errors: Errors {
            all: if args.probe.is_some() { 0.0 } else { OTHER_MACHINE },
            ..probe.errors()
        },
        from: probe.about.clone(),
        is_own: args.probe.is_some(),
        shards: args.probe.as_ref().and_then(|_| u32::try_from(probe.shards.len()).ok()),
        storage_bytes: probe.sizes.storage_cache_bytes.filter(|_| args.probe.is_some()),
        page_bytes: probe.page_bytes(),
        has_pages: probe.costs.page.is_some(),
        borrowed: probe.borrowed(),
    };
    let torn = if args.torn { trace::Torn::UseWholePhases } else { trace::Torn::Refuse };
    let options = trace::Options { torn, gap: args.gap };
    let trace = Trace::read_with(&args.trace, options).map_err(|error| torn_help(&error))?;
    let mut advice = advise(&trace, &origin, &settings).map_err(|error| refused(&error))?;
    if let Some(uneven) = &mut advice.uneven {
        uneven.command = Some(reshard(uneven, &trace.header.namespace));
    }
    if let Some(file) = &args.picture {
        picture(file, &advice)?;
    }
    context.output.result(&advice, text)
}

/// Reads the result of a probe from a file; `None`: returns the built-in probe.
fn probe(file: Option<&Path>) -> Result<Probe, Failure> {
    let Some(file) = file else { return Ok(Probe::built_in()) };
    Probe::read(file).map_err(|error| {
        Failure::from_error(Exit::Usage, "probe", &error)
            .help("make one by `imago provision probe`, or leave --probe out")
    })
}

/// Converts an error of reading a trace into a failure, with a remedy for a torn file.
fn torn_help(error: &trace::Error) -> Failure {
    let failure = Failure::from_error(Exit::Usage, "trace", error);
    match error {
        trace::Error::Torn { .. } => {
            failure.help("record it again, or use its whole phases by --torn")
        }
        _ => failure,
    }
}

/// Converts an error of the advice into a failure.
fn refused(error: &Error) -> Failure {
    Failure::from_error(Exit::Usage, "plan", error)
}

/// Returns the shell command that makes shards even: a reshard to four chunks per shard of the advised shape.
fn reshard(uneven: &UnevenReport, namespace: &str) -> String {
    let ns = if namespace.is_empty() { "DATABASE.COLLECTION" } else { namespace };
    format!("imago reshard run --uri \"$ROUTER\" --ns {ns} --chunks {}", 4 * uneven.shape.shards)
}

/// Draws the job's predicted time over the size of the cache into the SVG file `file`, one curve per number of
/// shards. The curves have the replicas, the storage caches, the reads and the place of the cache of the
/// advised shape.
fn picture(file: &Path, advice: &Advice) -> Result<(), Failure> {
    let own = &advice.advised.shape;
    let mut by_shards: BTreeMap<u32, Vec<(f64, f64)>> = BTreeMap::new();
    for report in &advice.shapes {
        let its = &report.shape;
        let same_reads = its.reads == own.reads || its.replicas == 1;
        let same_place =
            its.cache_at == own.cache_at || its.cache_bytes == 0 || own.cache_bytes == 0;
        let same_storage = its.storage_bytes == own.storage_bytes;
        if its.replicas == own.replicas && same_reads && same_place && same_storage {
            let point = (its.cache_bytes as f64 / f64::from(1 << 20), report.time_s);
            by_shards.entry(its.shards).or_default().push(point);
        }
    }
    let name = |shards| if shards == 1 { "1 shard".into() } else { format!("{shards} shards") };
    let curves: Vec<Curve> = by_shards
        .into_iter()
        .map(|(shards, points)| Curve { name: name(shards), points })
        .collect();
    job_times::draw(file, &curves, advice.deadline_s)
        .map_err(|error| Failure::from_error(Exit::Failed, "picture", &error))
}

/// Formats the job as it reads now: its requests, and its time on each shape.
fn as_recorded(job: &AsRecorded) -> String {
    let mut text = format!(
        "As it reads now, the job took {}: {} requests of {:.1} keys in the mean, {} at once at most; {} of that time is the \
         job's own, between its requests.\n",
        time(job.took_s),
        job.requests,
        job.keys_per_request,
        job.at_once,
        time(job.own_s),
    );
    let row = |of: &RecordedShape| {
        let [low_s, high_s] = of.interval_s;
        [of.shape.name.clone(), time(of.time_s), format!("{} to {}", time(low_s), time(high_s))]
    };
    text.push_str(&table(&["SHAPE", "TIME", "90 % INTERVAL"], job.shapes.iter().map(row), &[1, 2]));
    let InBatches { batch, workers, time_s } = &job.in_batches;
    _ = writeln!(
        text,
        "\nThe same keys in batches of {batch}, {workers} at once (--batch, --workers), would take {}, as follows.\n",
        time(*time_s)
    );
    text
}

/// Formats the advice as text.
fn text(advice: &Advice) -> String {
    let mut text = advice.as_recorded.as_ref().map_or_else(String::new, as_recorded);
    _ = writeln!(text, "{}", advice.advice);
    if let Some([low_s, high_s]) = advice.advised.interval_s {
        _ = writeln!(text, "  between {} and {} in 90 of 100 cases", time(low_s), time(high_s));
    }
    _ = writeln!(text, "  costs: {}", advice.costs_from);
    text.push_str("\nShapes that no other beats in time and cost:\n");
    text.push_str(&front(advice));
    text.push_str("\nThe advised shape, phase by phase:\n");
    let rows = advice.phases.iter().enumerate().map(|(number, phase)| {
        [
            (number + 1).to_string(),
            phase.keys.to_string(),
            format!("{:.0}", phase.hits),
            time(phase.time_s),
            phase.bottleneck.clone(),
        ]
    });
    text.push_str(&table(&["PHASE", "KEYS", "HITS", "TIME", "BOUND BY"], rows, &[0, 1, 2, 3]));
    if !advice.policies.is_empty() {
        _ = writeln!(text, "\nThe cache's eviction policy ({}), and others:\n", advice.policy);
        let row = |one: &PolicyReport| {
            let setting = one.setting.clone().unwrap_or_else(|| "Redis does not have it".into());
            [one.policy.to_string(), format!("{:.1} %", one.hit_ratio * 100.0), setting]
        };
        let headings = ["POLICY", "HITS", "SETTING"];
        text.push_str(&table(&headings, advice.policies.iter().map(row), &[1]));
    }
    if !advice.neighbours.is_empty() {
        text.push_str("\nWhy not\n");
    }
    for neighbour in &advice.neighbours {
        let apart = if neighbour.is_told_apart { "" } else { " (too near to be told apart)" };
        _ = writeln!(text, "  {}{apart}", neighbour.because);
    }
    if let Some(uneven) = &advice.uneven {
        _ = writeln!(text, "\n{}.", uneven.because);
        if let Some(command) = &uneven.command {
            _ = writeln!(text, "  {command}");
        }
    }
    if !advice.notes.is_empty() {
        text.push_str("\nNote\n");
    }
    for note in &advice.notes {
        _ = writeln!(text, "  {note}");
    }
    text
}

/// Formats a time in seconds with about three significant digits; from 100 s on, in whole seconds.
fn time(s: f64) -> String {
    let digits = match s {
        s if s >= 100.0 => 0,
        s if s >= 10.0 => 1,
        s if s >= 1.0 => 2,
        _ => 3,
    };
    format!("{s:.digits$} s")
}

/// Formats the Pareto front as a table, in which `*` marks the advised shape.
fn front(advice: &Advice) -> String {
    let priced = advice.ordered_by == "price";
    let row = |report: &Report| {
        let mark = if report.shape == advice.advised.shape { "*" } else { "" };
        let paid = match report.price_hour {
            Some(price) => format!("{price:.3}"),
            None => format!("{:.2}", report.processors),
        };
        [
            mark.to_owned(),
            report.shape.name.clone(),
            time(report.time_s),
            paid,
            format!("{:.2} GB", report.memory_bytes / 1e9),
            format!("{:.1} %", report.hit_ratio * 100.0),
            format!("{:.0} %", report.database_cpu_average * 100.0),
            format!("{:.0} %", report.database_cpu_max * 100.0),
            report.bottleneck.clone(),
        ]
    };
    let paid = if priced { "AN HOUR" } else { "PROCESSORS" };
    let headings = ["", "SHAPE", "TIME", paid, "MEMORY", "HITS", "DB CPU", "MOST", "BOUND BY"];
    table(&headings, advice.front.iter().map(row), &[2, 3, 4, 5, 6, 7])
}
