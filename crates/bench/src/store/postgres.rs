//! Comparison of the store with PostgreSQL, both with stored procedures, on disk, and acknowledged when the disk has
//! them: read-modify-writes of three adjacent rows of uniformly drawn users.
//!
//! Each is loaded from outside, by its own protocol and in turns: the store by the sessions of `imago load ycsb`,
//! PostgreSQL by its own `pgbench` with prepared statements. PostgreSQL runs a function of one UPDATE of the three rows
//! by their primary key, under REPEATABLE READ, which is snapshot isolation as the store's. The CPU time is that of the
//! servers, with all their processes.
//!
//! Invariant: a measurement counts only if the rows have every acknowledged increment afterwards.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use imago_load::store::transactions::{self, Benchmark, Options};
use imago_testbed::{Single, SingleSpec, find_postgres};
use imago_workload::procedures::ycsb;
use serde::Serialize;

use super::redis::{Absent, Server};
use crate::Header;
use crate::error::{Error, Result, process};
use crate::process::{cpu_of_tree_s, cpu_s};
use crate::statistics::Figure;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of users, each with three rows of about 100 bytes.
    pub users: u32,
    /// Duration of each measurement, in seconds.
    pub seconds: u32,
    /// Number of sessions, each with one transaction in progress.
    pub sessions: u32,
    /// Number of measurements of each; figures are medians.
    pub runs: u32,
}

/// Figures of one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// Acknowledged transactions per second.
    pub txn_per_s: Figure,
    /// Acknowledged transactions per second of the server's CPU time.
    pub txn_per_core_s: Figure,
}

/// The measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// The store, `imago store serve --sync always`.
    pub store: Figures,
    /// PostgreSQL.
    pub postgres: Figures,
    /// The store's transactions per second of CPU time, divided by PostgreSQL's.
    pub ratio_per_core: f64,
    /// The same ratio of each pair of runs that followed each other.
    pub pairs: Vec<f64>,
    /// The store's transactions per second, divided by PostgreSQL's.
    pub ratio_per_s: f64,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Measured {
    txn_per_s: f64,
    txn_per_core_s: f64,
}

impl Figures {
    fn of(all: &[Measured]) -> Self {
        let figure = |of: fn(&Measured) -> f64| Figure::of(all.iter().map(of));
        Self {
            txn_per_s: figure(|one| one.txn_per_s),
            txn_per_core_s: figure(|one| one.txn_per_core_s),
        }
    }
}

/// Runs the benchmark and returns its report. `program` serves the store.
///
/// # Errors
/// Returns an error if a server cannot be started, or if rows lack acknowledged increments.
#[crate::boxed]
pub async fn run(size: Size, program: &Path) -> Result<Report> {
    let folder = tempfile::tempdir().map_err(process("make a folder"))?;
    let data = folder.path().join("store").display().to_string();
    let server = Server::store(program, &["--data", &data, "--sync", "always"]);
    let server = server.map_err(|absent| match absent {
        Absent::Missing(name) => Error::Wrong(format!("{name} is not there")),
        Absent::Failed(error) => error,
    })?;
    let parameters = ycsb::Parameters { users: size.users, scans: 0.0, exponent: 0.0 };
    let store = Loaded { benchmark: Benchmark::Ycsb(parameters), server, size };
    let filled = tokio::task::block_in_place(|| {
        transactions::fill(&store.benchmark, &store.options(0), |_| {})
    });
    filled.map_err(|error| Error::Wrong(error.to_string()))?;
    let postgres = Postgres::start(size).await?;
    let (mut of_store, mut of_postgres) = (Vec::new(), Vec::new());
    for run in 0..size.runs {
        // In turns, so that a machine that becomes slower does not favour one of the two.
        for is_store in [run % 2 == 0, run % 2 == 1] {
            tokio::task::block_in_place(|| {
                if is_store {
                    of_store.push(store.measure(run)?);
                } else {
                    of_postgres.push(postgres.measure()?);
                }
                Ok::<_, Error>(())
            })?;
        }
    }
    let pair =
        |(store, postgres): (&Measured, &Measured)| store.txn_per_core_s / postgres.txn_per_core_s;
    let pairs: Vec<f64> = of_store.iter().zip(&of_postgres).map(pair).collect();
    let (store, postgres) = (Figures::of(&of_store), Figures::of(&of_postgres));
    Ok(Report {
        header: Header::of("store-postgres", size),
        store,
        postgres,
        ratio_per_core: Figure::of(pairs.iter().copied()).median,
        pairs,
        ratio_per_s: store.txn_per_s.median / postgres.txn_per_s.median,
    })
}

/// A store that has the rows.
struct Loaded {
    benchmark: Benchmark,
    server: Server,
    size: Size,
}

impl Loaded {
    fn options(&self, run: u32) -> Options {
        Options {
            address: ([127, 0, 0, 1], self.server.port).into(),
            password: None,
            sessions: self.size.sessions,
            rate_s: None,
            lasts: Duration::from_secs(self.size.seconds.into()),
            seed: run.into(),
        }
    }

    fn measure(&self, run: u32) -> Result<Measured> {
        let cpu = || cpu_s(self.server.child.id()).unwrap_or_default();
        let before = cpu();
        // The CPU time ends with the load: reading all rows for the check does not count.
        let mut after = before;
        let lasts = u64::from(self.size.seconds);
        let see = |second, _| {
            if second >= lasts {
                after = cpu();
            }
        };
        let never = AtomicBool::new(false);
        let report = transactions::run(&self.benchmark, &self.options(run), &never, see);
        let report = report.map_err(|error| Error::Wrong(error.to_string()))?;
        if let Some(contradiction) = report.contradictions.first() {
            return Err(Error::Wrong(format!("the store: {contradiction}")));
        }
        let done: u64 = report.kinds.values().map(|kind| kind.done).sum();
        Ok(Measured {
            txn_per_s: report.throughput_s,
            txn_per_core_s: done as f64 / (after - before).max(0.01),
        })
    }
}

/// A PostgreSQL server that has the rows and the procedure.
struct Postgres {
    server: Single,
    programs: PathBuf,
    size: Size,
    script: tempfile::NamedTempFile,
}

/// The rows, as many as the store's, and the procedure.
fn schema(users: u32) -> String {
    format!(
        "CREATE TABLE ycsb (account int, place int, count bigint NOT NULL, filler text NOT NULL,
             PRIMARY KEY (account, place)) WITH (fillfactor = 50);
         INSERT INTO ycsb SELECT account, place, 0, repeat('x', 92)
             FROM generate_series(0, {users} - 1) AS account, generate_series(0, 2) AS place;
         CREATE FUNCTION count_up(which int) RETURNS bigint LANGUAGE plpgsql AS $$
             DECLARE counted bigint;
             BEGIN
                 UPDATE ycsb SET count = count + 1 WHERE account = which AND place IN (0, 1, 2);
                 SELECT count INTO counted FROM ycsb WHERE account = which AND place = 0;
                 RETURN counted;
             END $$;
         ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read';
         VACUUM ANALYZE ycsb;
         CHECKPOINT;"
    )
}

impl Postgres {
    async fn start(size: Size) -> Result<Self> {
        let programs = find_postgres()?;
        let programs = programs.parent().map(Path::to_owned).unwrap_or_default();
        let spec = SingleSpec { memory_mb: 512, ..SingleSpec::postgres("compared") };
        let server = Single::start(spec).await?;
        let doing = || "write the script of pgbench";
        let mut script = tempfile::NamedTempFile::new().map_err(process(doing()))?;
        let users = size.users - 1;
        writeln!(script, "\\set which random(0, {users})\nSELECT count_up(:which);")
            .map_err(process(doing()))?;
        let postgres = Self { server, programs, size, script };
        tokio::task::block_in_place(|| postgres.ask(&schema(size.users)))?;
        Ok(postgres)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &self.server.port().to_string()]);
        command.env("PGDATABASE", "postgres").stderr(Stdio::piped()).stdin(Stdio::null());
        command
    }

    /// Runs statements, and returns what the last one prints.
    fn ask(&self, statements: &str) -> Result<String> {
        let mut command = self.command("psql");
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
        let mut input = tempfile::tempfile().map_err(process("write statements"))?;
        input.write_all(statements.as_bytes()).map_err(process("write statements"))?;
        std::io::Seek::rewind(&mut input).map_err(process("write statements"))?;
        ended("psql", command.stdin(input))
    }

    /// Returns the sum of all counts.
    fn counts(&self) -> Result<u64> {
        let said = self.ask("SELECT sum(count) FROM ycsb;")?;
        said.trim().parse().map_err(|_| Error::Wrong(format!("PostgreSQL counts {said:?}")))
    }

    fn measure(&self) -> Result<Measured> {
        let Size { sessions, seconds, .. } = self.size;
        let pid = self.server.node().process.map(|process| process.pid);
        let pid = pid.ok_or_else(|| Error::Wrong("PostgreSQL has ended".into()))?;
        let counts_before = self.counts()?;
        let cpu_before = cpu_of_tree_s(pid);
        let mut command = self.command("pgbench");
        command.args(["-n", "-M", "prepared", "--max-tries", "1000", "-j", "2"]);
        command.args(["-c", &sessions.to_string(), "-T", &seconds.to_string(), "-f"]);
        let said = ended("pgbench", command.arg(self.script.path()))?;
        let used_s = (cpu_of_tree_s(pid) - cpu_before).max(0.01);
        let figure = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            number.ok_or_else(|| Error::Wrong(format!("pgbench says no `{name}`: {said}")))
        };
        let done = figure("number of transactions actually processed: ")?;
        if self.counts()? - counts_before != 3 * done as u64 {
            return Err(Error::Wrong("PostgreSQL's rows lack increments".into()));
        }
        Ok(Measured { txn_per_s: figure("tps = ")?, txn_per_core_s: done / used_s })
    }
}

/// Runs a program of PostgreSQL to its end, and returns what it printed.
fn ended(what: &str, command: &mut Command) -> Result<String> {
    let output = command.output().map_err(process(format!("start {what}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Ended {
        what: what.to_owned(),
        status: output.status.to_string(),
        wanted: "success".into(),
        said: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
