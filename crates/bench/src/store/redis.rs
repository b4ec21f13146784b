//! Comparison of the store over RESP with a Redis server. Redis's own benchmark loads one after the other.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use imago_testbed::port::Port;
use serde::Serialize;

use super::Size;
use crate::error::{Error, Result, process};
use crate::process::cpu_s;
use crate::statistics::Figure;

/// Deadline for the Redis server to accept a connection.
const START_WAIT: Duration = Duration::from_secs(20);
/// Options of `redis-benchmark`: the number of keys from which each request draws, the size of values in bytes, the
/// number of connections, and the number of requests that each sends before it reads a reply.
const OPTIONS: [&str; 8] = ["-r", "100000", "-d", "100", "-c", "20", "-P", "16"];

/// Figures of one command over RESP, medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Name of the command. MSET and MGET have ten keys.
    pub command: &'static str,
    /// Throughput of the store, in requests per second by wall clock.
    pub store_per_s: f64,
    /// Throughput of Redis, in requests per second by wall clock.
    pub redis_per_s: f64,
    /// Requests per second of the store's CPU time.
    pub store_per_core_s: f64,
    /// Requests per second of Redis's CPU time.
    pub redis_per_core_s: f64,
    /// Ratio of `store_per_core_s` to `redis_per_core_s`.
    pub ratio: f64,
}

pub(super) enum Absent {
    Missing(&'static str),
    Failed(Error),
}

impl Absent {
    /// Returns the error for a benchmark that cannot do without the program.
    pub(super) fn required(self) -> Error {
        match self {
            Self::Missing(name) => Error::Wrong(format!("{name} is not installed")),
            Self::Failed(error) => error,
        }
    }
}

impl From<Error> for Absent {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A server process that ends when this is dropped.
pub(super) struct Server {
    pub(super) child: Child,
    pub(super) port: u16,
    /// Reservation of its port while it runs; `None` for a store, which finds a port itself.
    _reserved: Option<Port>,
}

impl Drop for Server {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn spawn(name: &'static str, command: &mut Command) -> Result<Child, Absent> {
    command.spawn().map_err(|cause| match cause.kind() {
        std::io::ErrorKind::NotFound => Absent::Missing(name),
        _ => Absent::Failed(process(format!("start {name}"))(cause)),
    })
}

impl Server {
    /// Starts a store, with further options.
    pub(super) fn store(program: &Path, more: &[&str]) -> Result<Self, Absent> {
        let mut command = Command::new(program);
        command.args(["store", "serve", "--json", "--listen", "127.0.0.1:0"]).args(more);
        command.args(["--admin", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut server = Self { child: spawn("imago", &mut command)?, port: 0, _reserved: None };
        let mut line = String::new();
        if let Some(output) = server.child.stdout.take() {
            let read = BufReader::new(output).read_line(&mut line);
            read.map_err(process("read what the store says"))?;
        }
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        let port = said["listen"].as_str().and_then(|at| at.rsplit(':').next()?.parse().ok());
        server.port = port.ok_or_else(|| Error::Wrong(format!("the store said {line:?}")))?;
        Ok(server)
    }

    /// Starts a Redis server with these options besides its address.
    pub(super) fn redis(options: &[&str]) -> Result<Self, Absent> {
        let reserved = Port::reserve().map_err(|error| Absent::Failed(error.into()))?;
        let port = reserved.number();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]);
        command.args(options).stdout(Stdio::null()).stderr(Stdio::null());
        let child = spawn("redis-server", &mut command)?;
        let server = Self { child, port, _reserved: Some(reserved) };
        let until = Instant::now() + START_WAIT;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > until {
                let bound_s = START_WAIT.as_secs();
                return Err(Error::TimedOut { what: "a Redis server".into(), bound_s }.into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Runs `redis-benchmark` with these options. Returns the requests per second by wall clock, and per second of the
    /// server's CPU time.
    pub(super) fn measure(
        &self,
        requests: u64,
        options: &[&str],
        command: &[&str],
    ) -> Result<(f64, f64), Absent> {
        let mut benchmark = Command::new("redis-benchmark");
        benchmark.args(["-h", "127.0.0.1", "-q", "-p", &self.port.to_string()]).args(options);
        benchmark.args(["-n", &requests.to_string()]);
        benchmark.args(command).stdout(Stdio::null()).stderr(Stdio::null());
        let cpu = || cpu_s(self.child.id()).unwrap_or_default();
        let (before, begin) = (cpu(), Instant::now());
        let status = spawn("redis-benchmark", &mut benchmark)?.wait();
        let (after, took_s) = (cpu(), begin.elapsed().as_secs_f64());
        let status = status.map_err(process("wait for redis-benchmark"))?;
        if !status.success() {
            return Err(Error::Ended {
                what: format!("redis-benchmark {}", command.join(" ")),
                status: status.to_string(),
                wanted: "success".into(),
                said: String::new(),
            }
            .into());
        }
        let cpu_s = (after - before).max(0.01);
        Ok((requests as f64 / took_s, requests as f64 / cpu_s))
    }
}

/// Runs each command once at both servers.
pub(super) fn run(size: Size, program: &Path) -> Result<Vec<Compared>, Absent> {
    let (store, redis) = (Server::store(program, &[])?, Server::redis(&["--appendonly", "no"])?);
    let mget = [&["MGET"][..], &["key:__rand_int__"; 10]].concat();
    // The reads find the values that the preceding writes stored.
    let commands: [(&'static str, &[&str]); 4] = [
        ("SET", &["-t", "set"]),
        ("GET", &["-t", "get"]),
        ("MSET", &["-t", "mset"]),
        ("MGET", &mget),
    ];
    let compare = |(command, arguments): (&'static str, &[&str])| {
        let requests = if arguments.len() > 2 || command == "MSET" {
            size.requests / 4
        } else {
            size.requests
        };
        let (store_per_s, store_per_core_s) = store.measure(requests, &OPTIONS, arguments)?;
        let (redis_per_s, redis_per_core_s) = redis.measure(requests, &OPTIONS, arguments)?;
        let ratio = store_per_core_s / redis_per_core_s;
        Ok(Compared {
            command,
            store_per_s,
            redis_per_s,
            store_per_core_s,
            redis_per_core_s,
            ratio,
        })
    };
    commands.into_iter().map(compare).collect()
}

/// Returns the medians of several runs.
pub(super) fn medians(runs: &[Vec<Compared>]) -> Vec<Compared> {
    let first = runs.first().into_iter().flatten();
    first
        .enumerate()
        .map(|(at, one)| {
            let median =
                |of: fn(&Compared) -> f64| Figure::of(runs.iter().map(|run| of(&run[at]))).median;
            Compared {
                command: one.command,
                store_per_s: median(|one| one.store_per_s),
                redis_per_s: median(|one| one.redis_per_s),
                store_per_core_s: median(|one| one.store_per_core_s),
                redis_per_core_s: median(|one| one.redis_per_core_s),
                ratio: median(|one| one.ratio),
            }
        })
        .collect()
}
