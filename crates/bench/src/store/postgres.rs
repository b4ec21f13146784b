//! Comparison of the store with PostgreSQL, both with stored procedures, on disk, and acknowledged when the disk has
//! them: read-modify-writes of three adjacent rows of uniformly drawn users.
//!
//! Each is loaded from outside, by its own protocol and in turns: the store by the sessions of `imago load ycsb`,
//! PostgreSQL by its own `pgbench` with prepared statements. PostgreSQL runs a function of one UPDATE of the three rows
//! by their primary key, under REPEATABLE READ, which is snapshot isolation as the store's. The CPU time is that of the
//! servers, with all their processes.
//!
//! Most of a server's CPU time for so short a transaction is that of its connections. So both are also measured without
//! them, by as many sessions inside the server: the store's in its process, PostgreSQL's as procedures that call the
//! function and COMMIT in a loop (under READ COMMITTED, because a procedure that fails to serialize would end).
//!
//! Each has the number of sessions at which it needs least CPU time for a transaction: the store more, since they share
//! waits for the disk, PostgreSQL fewer, since each is a process.
//!
//! Beside both runs one Redis server with the same transaction as a Lua script ([`RedisScript`]), which its single
//! thread executes one after the other.
//!
//! Invariant: a measurement counts only if the rows have every acknowledged increment afterwards.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use imago_load::store::transactions::{self, Benchmark, Options};
use imago_store::engine::{self, LogOptions, Store};
use imago_store::log::Sync;
use imago_store::transaction::View;
use imago_testbed::{Single, SingleSpec, find_postgres};
use imago_workload::procedures::{Answer, Next, Procedure, ycsb};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;

use super::redis::{Absent, Server};
use super::redis_script::RedisScript;
use crate::Header;
use crate::error::{Error, Result, process};
use crate::process::{cpu_of_tree_s, cpu_s};
use crate::statistics::Figure;

/// Number of rows that one transaction writes while a store in this process is filled.
const ROWS_AT_ONCE: usize = 500;
/// Number of users whose rows one transaction reads.
const USERS_AT_ONCE: u32 = 10_000;
/// Number of transactions of one request, where PostgreSQL's sessions loop.
const CALLS_AT_ONCE: u32 = 100;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of users, each with three rows of about 100 bytes.
    pub users: u32,
    /// Duration of each measurement, in seconds.
    pub seconds: u32,
    /// Number of the store's sessions, each with one transaction in progress.
    pub sessions: u32,
    /// Number of PostgreSQL's sessions.
    pub postgres_sessions: u32,
    /// Number of Redis's connections.
    pub redis_sessions: u32,
    /// Number of measurements of each; figures are medians.
    pub runs: u32,
}

/// Figures of one of the servers.
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
    /// Redis, with a Lua script and `appendfsync always`.
    pub redis: Figures,
    /// The store's transactions per second of CPU time, divided by Redis's.
    pub ratio_per_core_to_redis: f64,
    /// The store, by sessions in its process.
    pub store_inside: Figures,
    /// PostgreSQL, by sessions that loop in the server.
    pub postgres_inside: Figures,
    /// The same ratio of transactions per second of CPU time, by sessions inside the servers.
    pub ratio_per_core_inside: f64,
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
    let server = server.map_err(Absent::required)?;
    let parameters = ycsb::Parameters {
        users: size.users,
        scans: 0.0,
        exponent: 0.0,
        ..ycsb::Parameters::default()
    };
    let store = StoreServer { benchmark: Benchmark::Ycsb(parameters), server, size };
    let filled = tokio::task::block_in_place(|| {
        transactions::fill(&store.benchmark, &store.options(0), |_| {})
    });
    filled.map_err(|error| Error::Wrong(error.to_string()))?;
    let postgres = Postgres::start(size).await?;
    let redis =
        tokio::task::block_in_place(|| RedisScript::start(size.users, size.redis_sessions))?;
    let inside = InProcess::start(size).await?;
    let (mut of_store, mut of_postgres, mut of_redis) = (Vec::new(), Vec::new(), Vec::new());
    let (mut store_inside, mut postgres_inside) = (Vec::new(), Vec::new());
    for run in 0..size.runs {
        // In turns, so that a machine that becomes slower does not favour one of the two.
        for is_store in [run % 2 == 0, run % 2 == 1] {
            tokio::task::block_in_place(|| {
                if is_store {
                    of_store.push(store.measure(run)?);
                    store_inside.push(inside.measure(run)?);
                    let last = of_store.last().map_or(0.0, |one: &Measured| one.txn_per_s);
                    // Redis lasts about as long as the store does.
                    let transactions = (last * f64::from(size.seconds)).max(1.0) as u64;
                    let (txn_per_s, txn_per_core_s) = redis.measure(transactions)?;
                    of_redis.push(Measured { txn_per_s, txn_per_core_s });
                } else {
                    of_postgres.push(postgres.measure(Mode::Calls)?);
                    postgres_inside.push(postgres.measure(Mode::Loops)?);
                }
                Ok::<_, Error>(())
            })?;
        }
    }
    let pair =
        |(store, postgres): (&Measured, &Measured)| store.txn_per_core_s / postgres.txn_per_core_s;
    let pairs: Vec<f64> = of_store.iter().zip(&of_postgres).map(pair).collect();
    let pairs_inside = store_inside.iter().zip(&postgres_inside).map(pair);
    let ratio_per_core_inside = Figure::of(pairs_inside).median;
    let to_redis = of_store.iter().zip(&of_redis).map(pair);
    let ratio_per_core_to_redis = Figure::of(to_redis).median;
    let (store, postgres) = (Figures::of(&of_store), Figures::of(&of_postgres));
    Ok(Report {
        header: Header::of("store-postgres", size),
        store,
        postgres,
        ratio_per_core: Figure::of(pairs.iter().copied()).median,
        pairs,
        ratio_per_s: store.txn_per_s.median / postgres.txn_per_s.median,
        redis: Figures::of(&of_redis),
        ratio_per_core_to_redis,
        store_inside: Figures::of(&store_inside),
        postgres_inside: Figures::of(&postgres_inside),
        ratio_per_core_inside,
    })
}

/// A store that has the rows.
struct StoreServer {
    benchmark: Benchmark,
    server: Server,
    size: Size,
}

impl StoreServer {
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

/// A store in this process that has the rows.
struct InProcess {
    store: Arc<Store>,
    drawing: Arc<ycsb::Drawing>,
    size: Size,
    _folder: tempfile::TempDir,
}

impl InProcess {
    async fn start(size: Size) -> Result<Self> {
        let folder = tempfile::tempdir().map_err(process("make a folder"))?;
        let log = LogOptions::Files {
            folder: folder.path().to_owned(),
            sync: Sync::Always,
            segment_bytes: 256 << 20,
        };
        let store = Store::start(&engine::Options { sites: 1, log: Some(log) });
        let store = store.map_err(|error| Error::Wrong(error.to_string()))?;
        let parameters = ycsb::Parameters {
            users: size.users,
            scans: 0.0,
            exponent: 0.0,
            ..ycsb::Parameters::default()
        };
        let mut session = store.session();
        let mut rows = parameters.fill();
        loop {
            let some: Vec<_> = rows.by_ref().take(ROWS_AT_ONCE).collect();
            if some.is_empty() {
                break;
            }
            let some: Vec<_> =
                some.into_iter().map(|(name, value)| (transactions::key(&name), value)).collect();
            let writes = some.iter().map(|(key, _)| key.clone()).collect();
            let put = move |view: &mut View<'_>| {
                for (key, value) in &some {
                    view.put(key, value.clone().into())?;
                }
                Ok(Vec::new())
            };
            let done = session.run(Vec::new(), writes, Box::new(put)).await;
            done.map_err(|abort| Error::Wrong(abort.to_string()))?;
        }
        let drawing = Arc::new(parameters.drawing());
        Ok(Self { store: Arc::new(store), drawing, size, _folder: folder })
    }

    /// Runs the sessions on a thread of their own, whose CPU time counts as the store's.
    fn measure(&self, run: u32) -> Result<Measured> {
        let own = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let own = own.map_err(process("start a thread"))?;
        let cpu = || cpu_s(std::process::id()).unwrap_or_default();
        let counts_before = own.block_on(self.counts())?;
        let (cpu_before, began) = (cpu(), Instant::now());
        let until = began + Duration::from_secs(self.size.seconds.into());
        let done = std::thread::scope(|scope| {
            let sessions = || {
                own.block_on(async {
                    let session = |number| self.session(u64::from(run) << 32 | number, until);
                    let all = (0..u64::from(self.size.sessions)).map(session);
                    futures_util::future::join_all(all).await
                })
            };
            scope.spawn(sessions).join().expect("sessions end")
        });
        let (took_s, used_s) = (began.elapsed().as_secs_f64(), (cpu() - cpu_before).max(0.01));
        let done: u64 = done.into_iter().sum::<Result<u64>>()?;
        if own.block_on(self.counts())? - counts_before != done {
            return Err(Error::Wrong("the store's rows lack increments".into()));
        }
        Ok(Measured { txn_per_s: done as f64 / took_s, txn_per_core_s: done as f64 / used_s })
    }

    /// Returns the sum of the counts of all users.
    async fn counts(&self) -> Result<u64> {
        let mut session = self.store.session();
        let mut sum = 0;
        for user in (0..self.size.users).step_by(USERS_AT_ONCE as usize) {
            let users = USERS_AT_ONCE.min(self.size.users - user);
            let scan = Procedure::Ycsb(ycsb::Transaction::Scan { user, users, rows: 3 }).next(&[]);
            let Next::Run(declared) = scan else { continue };
            let (reads, _) = transactions::declared(&declared);
            let range = reads[0].clone();
            let count = move |view: &mut View<'_>| {
                let rows = view.range(&range, usize::MAX)?;
                let counts = rows.iter().map(|(_, row)| ycsb::count(&row.value).unwrap_or(0));
                // The three rows of a user have the same count.
                Ok((counts.sum::<u64>() / 3).to_be_bytes().to_vec())
            };
            let counted = session.run(reads, Vec::new(), Box::new(count)).await;
            let counted = counted.map_err(|abort| Error::Wrong(abort.to_string()))?;
            sum += counted
                .answer
                .to_bytes()
                .first_chunk()
                .map_or(0, |bytes| u64::from_be_bytes(*bytes));
        }
        Ok(sum)
    }

    async fn session(&self, seed: u64, until: Instant) -> Result<u64> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut session = self.store.session();
        let mut done = 0;
        while Instant::now() < until {
            let mut procedure = Procedure::Ycsb(self.drawing.draw(&mut rng));
            let Next::Run(declared) = procedure.next(&[]) else { continue };
            let (reads, writes) = transactions::declared(&declared);
            let ran = session.run(reads, writes, transactions::in_process(procedure)).await;
            let ran = ran.map_err(|abort| Error::Wrong(abort.to_string()))?;
            match Answer::from_bytes(&ran.answer.to_bytes()) {
                Some(Answer::Done(_)) => done += 1,
                other => return Err(Error::Wrong(format!("the store answered {other:?}"))),
            }
        }
        Ok(done)
    }
}

/// How sessions of PostgreSQL call the function.
#[derive(Clone, Copy)]
enum Mode {
    /// Each call is a request of its own.
    Calls,
    /// A request is many calls, with a COMMIT after each.
    Loops,
}

/// A PostgreSQL server that has the rows and the procedure.
struct Postgres {
    server: Single,
    programs: PathBuf,
    size: Size,
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
         CREATE PROCEDURE count_many(many int) LANGUAGE plpgsql AS $$
             BEGIN
                 FOR n IN 1..many LOOP
                     PERFORM count_up(floor(random() * {users})::int);
                     COMMIT;
                 END LOOP;
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
        let postgres = Self { server, programs, size };
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

    fn measure(&self, mode: Mode) -> Result<Measured> {
        let Size { postgres_sessions, seconds, users, .. } = self.size;
        let (text, protocol, options) = match mode {
            Mode::Calls => {
                let text =
                    format!("\\set which random(0, {})\nSELECT count_up(:which);\n", users - 1);
                (text, "prepared", "")
            }
            Mode::Loops => {
                let text = format!("CALL count_many({CALLS_AT_ONCE});\n");
                (text, "simple", "-c default_transaction_isolation=read\\ committed")
            }
        };
        let doing = || "write the script of pgbench";
        let mut script = tempfile::NamedTempFile::new().map_err(process(doing()))?;
        script.write_all(text.as_bytes()).map_err(process(doing()))?;
        let pid = self.server.node().process.map(|process| process.pid);
        let pid = pid.ok_or_else(|| Error::Wrong("PostgreSQL has ended".into()))?;
        let counts_before = self.counts()?;
        let cpu_before = cpu_of_tree_s(pid);
        let mut command = self.command("pgbench");
        command.args(["-n", "-M", protocol, "--max-tries", "1000", "-j", "2"]);
        command.env("PGOPTIONS", options);
        command.args(["-c", &postgres_sessions.to_string(), "-T", &seconds.to_string(), "-f"]);
        let said = ended("pgbench", command.arg(script.path()))?;
        let used_s = (cpu_of_tree_s(pid) - cpu_before).max(0.01);
        let figure = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            number.ok_or_else(|| Error::Wrong(format!("pgbench says no `{name}`: {said}")))
        };
        let calls = match mode {
            Mode::Calls => 1.0,
            Mode::Loops => f64::from(CALLS_AT_ONCE),
        };
        let done = calls * figure("number of transactions actually processed: ")?;
        if self.counts()? - counts_before != 3 * done as u64 {
            return Err(Error::Wrong("PostgreSQL's rows lack increments".into()));
        }
        Ok(Measured { txn_per_s: calls * figure("tps = ")?, txn_per_core_s: done / used_s })
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
