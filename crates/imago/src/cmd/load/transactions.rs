//! `imago load tpcc`, `smallbank`, `twitter` and `ycsb`: transactional benchmarks on a running `imago store`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use imago_load::store::transactions::{
    Benchmark, LoadError, Options, Report, SESSIONS_MAX, fill, run as run_load,
};
use imago_workload::procedures::{smallbank, tpcc, twitter, ycsb};

use super::view;
use crate::cmd::secret;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::table::table;
use crate::values::{duration, share};

/// Options that the benchmarks have in common.
#[derive(Debug, clap::Args)]
struct Common {
    /// The store: the address at which `imago store serve` or `store router` listens for Redis's clients. It must be
    /// empty.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:6379")]
    store: SocketAddr,
    /// The file of the store's password, if it has one.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Number of sessions, each with one transaction in progress.
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(SESSIONS_MAX)))]
    sessions: u32,
    /// Transactions per second of all sessions together, by which latencies count from when a transaction was due; by
    /// default a session begins its next transaction as soon as the last one has ended.
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// Duration, as 90s, 5m or 1h; 0s: fill the store, check its rows, and end.
    #[arg(long, value_parser = duration, default_value = "60s", value_name = "TIME")]
    duration: Duration,
    /// The store already has the rows, of the same benchmark with the same parameters.
    #[arg(long)]
    preloaded: bool,
    /// Seed of the rows and of the transactions.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// TPC-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills the store, runs the load, then reads all rows and checks TPC-C's consistency conditions (clause 3.3.2), and that \
every acknowledged order and payment is there. Exit code 3: a condition does not hold.

Example: imago store serve --sites 4
         imago load tpcc --warehouses 2 --mix five --duration 5m")]
pub struct TpcC {
    /// Number of warehouses, the scale factor: about 650,000 rows, or 300 MB, each.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=9_999))]
    warehouses: u16,
    /// Number of items; the specification demands 100,000.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=999_998))]
    items: u32,
    /// Number of customers, and of orders at the start, of each of a warehouse's ten districts; the specification demands
    /// 3,000.
    #[arg(long, value_name = "N", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(30..=99_999))]
    customers: u32,
    /// The mix: three (45 % New-Order, 45 % Payment, 10 % Stock-Level), as MorphoSys was evaluated by, or the
    /// specification's five.
    #[arg(long, value_enum, default_value = "three")]
    mix: MixArg,
    /// Share of the New-Order and Payment transactions that access a second warehouse, 0 to 1; by default the
    /// specification's (1 % of the lines of orders, 15 % of the payments).
    #[arg(long, value_name = "SHARE", value_parser = share)]
    cross_warehouse: Option<f64>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum MixArg {
    Three,
    Five,
}

/// SmallBank.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills the store, runs the load, then reads all rows and checks that the accounts have the money that the acknowledged \
transactions leave. Exit code 3: they have not.

Example: imago store serve --sites 4
         imago load smallbank --sessions 32")]
pub struct SmallBank {
    /// Number of customers, each with a checking and a savings account.
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u32).range(2..=100_000_000))]
    customers: u32,
    #[command(flatten)]
    common: Common,
}

/// Twitter.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills the store, runs the load (89 % reads), then reads all rows and checks that each user has the tweets that its \
profile counts, and that every acknowledged one is there. Exit code 3: one is missing.

Example: imago store serve --sites 4
         imago load twitter --users 20000")]
pub struct Twitter {
    /// Number of users, with ten tweets each at the start; each follows 20 others.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=99_999_999))]
    users: u32,
    /// Exponent of Zipf's law by which users have followers, and are accessed.
    #[arg(long, value_name = "X", default_value_t = 0.99, value_parser = exponent)]
    exponent: f64,
    #[command(flatten)]
    common: Common,
}

/// YCSB.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills the store, runs read-modify-writes of three rows and scans of 200 to 1,000, then reads all rows and checks that \
those of a user were always written together, and that every acknowledged increment is there. Exit code 3: one is \
missing.

Example: imago store serve --sites 4
         imago load ycsb --scans 0.1")]
pub struct Ycsb {
    /// Number of users, each with three rows.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=99_999_999))]
    users: u32,
    /// Share of the transactions that are scans, 0 to 1.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    scans: f64,
    /// Exponent of Zipf's law by which users are accessed; 0: all alike.
    #[arg(long, value_name = "X", default_value_t = 0.99, value_parser = exponent)]
    exponent: f64,
    #[command(flatten)]
    common: Common,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    if rate > 0.0 && rate <= 1e7 {
        Ok(rate)
    } else {
        Err("it is a number above 0, at most 1e7".into())
    }
}

fn exponent(text: &str) -> Result<f64, String> {
    let exponent: f64 = text.parse().map_err(|_| "it is no number".to_owned())?;
    if (0.0..=10.0).contains(&exponent) { Ok(exponent) } else { Err("it is from 0 to 10".into()) }
}

impl TpcC {
    /// Runs `imago load tpcc`.
    pub async fn run(self, context: &Context) -> Result<(), Failure> {
        let Self { warehouses, items, customers, mix, cross_warehouse, common } = self;
        let mix = match mix {
            MixArg::Three => tpcc::Mix::Three,
            MixArg::Five => tpcc::Mix::Five,
        };
        let parameters = tpcc::Parameters { warehouses, items, customers, mix, cross_warehouse };
        run(Benchmark::TpcC(parameters), common, context).await
    }
}

impl SmallBank {
    /// Runs `imago load smallbank`.
    pub async fn run(self, context: &Context) -> Result<(), Failure> {
        let parameters = smallbank::Parameters { customers: self.customers };
        run(Benchmark::SmallBank(parameters), self.common, context).await
    }
}

impl Twitter {
    /// Runs `imago load twitter`.
    pub async fn run(self, context: &Context) -> Result<(), Failure> {
        let Self { users, exponent, common } = self;
        run(Benchmark::Twitter(twitter::Parameters { users, exponent }), common, context).await
    }
}

impl Ycsb {
    /// Runs `imago load ycsb`.
    pub async fn run(self, context: &Context) -> Result<(), Failure> {
        let Self { users, scans, exponent, common } = self;
        let parameters = ycsb::Parameters { users, scans, exponent, ..ycsb::Parameters::default() };
        run(Benchmark::Ycsb(parameters), common, context).await
    }
}

async fn run(benchmark: Benchmark, common: Common, context: &Context) -> Result<(), Failure> {
    let password = common.password_file.as_deref();
    let password = password.map(|file| secret::read(file, "password_file", "password"));
    let options = Options {
        address: common.store,
        password: password.transpose()?,
        sessions: common.sessions,
        rate_s: common.rate,
        lasts: common.duration,
        seed: common.seed,
    };
    let (filling, line) = (view::filling_rows(context), view::counting(context));
    let cancel = Arc::new(AtomicBool::new(false));
    let cancelled = Arc::clone(&cancel);
    let at_work = tokio::task::spawn_blocking(move || {
        if !common.preloaded {
            fill(&benchmark, &options, |rows| filling.set_position(rows))?;
            filling.finish_and_clear();
        }
        let mut before = 0;
        run_load(&benchmark, &options, &cancelled, |second, done| {
            line.set_message(format!("{second} s: {} transactions a second", done - before));
            before = done;
        })
    });
    tokio::pin!(at_work);
    let done = tokio::select! {
        done = &mut at_work => done,
        () = context.cancel.cancelled() => {
            cancel.store(true, Ordering::Relaxed);
            at_work.await
        }
    };
    let report = match done {
        Ok(report) => report.map_err(|error| failure(&error))?,
        Err(error) => return Err(Failure::from_error(Exit::Failed, "load", &error)),
    };
    context.output.result(&report, summary)?;
    let is_idle = report.kinds.values().all(|kind| kind.done + kind.rolled_back == 0);
    if let Some(error) = report.last_error.as_ref().filter(|_| is_idle) {
        let what = format!("no transaction was done; the last error: {error}");
        return Err(Failure::new(Exit::Failed, "load", what)
            .help("see to the store, and that it is of the same version as this program"));
    }
    if report.contradictions.is_empty() {
        return Ok(());
    }
    let what = format!(
        "the store contradicts the benchmark: {} contradictions, first: {}",
        report.contradictions.len(),
        report.contradictions[0]
    );
    Err(Failure::new(Exit::Differences, "differences", what))
}

fn failure(error: &LoadError) -> Failure {
    match error {
        LoadError::NotEmpty(_) => Failure::from_error(Exit::Precondition, "not_empty", error)
            .help("start an empty store, or give --preloaded if it has the rows of this benchmark"),
        LoadError::Unreachable { .. } => {
            Failure::from_error(Exit::Precondition, "unreachable", error)
                .help("start one with `imago store serve`, or name its address with --store")
        }
        LoadError::Password { .. } => Failure::from_error(Exit::Precondition, "password", error)
            .help("name the file of its password with --password-file"),
        LoadError::Store { .. } => Failure::from_error(Exit::Failed, "load", error)
            .help("see to the store, then run the load again, with --preloaded if it was filled"),
        LoadError::Thread(_) => Failure::from_error(Exit::Failed, "load", error),
    }
}

/// Formats the result as text.
fn summary(report: &Report) -> String {
    let name =
        |kind| serde_json::to_value(kind).ok().and_then(|name| name.as_str().map(str::to_owned));
    let rows = report.kinds.iter().map(|(kind, one)| {
        vec![
            name(kind).unwrap_or_default(),
            one.done.to_string(),
            one.rolled_back.to_string(),
            (one.unknown + one.gave_up).to_string(),
            format!("{:.2}", one.latency.p50_us as f64 / 1_000.0),
            format!("{:.2}", one.latency.p99_us as f64 / 1_000.0),
        ]
    });
    let headings = ["TRANSACTION", "DONE", "ROLLED BACK", "FAILED", "MEDIAN MS", "99 % MS"];
    let mut text = table(&headings, rows, &[1, 2, 3, 4, 5]);
    let _ = write!(
        text,
        "\n{:.0} transactions a second, {} sessions, {:.1} s. Attempts repeated: {} whose keys had \
         moved, {} that had not happened.\n",
        report.throughput_s, report.sessions, report.seconds, report.moved, report.retried
    );
    if let Some(error) = &report.last_error {
        let _ = writeln!(text, "The last error after which an outcome was unknown: {error}");
    }
    let _ = match report.contradictions.len() {
        0 => writeln!(text, "{} rows checked: consistent.", report.rows),
        _ => writeln!(text, "{} rows checked:", report.rows),
    };
    for contradiction in &report.contradictions {
        let _ = writeln!(text, "  {contradiction}");
    }
    text
}
