//! The same copy by other programs, if they are on `PATH`.
//!
//! A competitor that is absent or fails has no figure, and the report gives the reason. The benchmark does not fail
//! then.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Size;
use crate::cluster_pair::{ClusterPair, DB, count};
use crate::error::{Error, Result, process};
use crate::process::Measured;
use crate::subject::Ends;

/// Maximum duration of the copy by a competitor.
const PEER_MAX: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The same copy by another program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Competitor {
    /// Name of the competitor.
    pub name: &'static str,
    /// Elapsed time of the copy, in seconds.
    pub seconds: Option<f64>,
    /// Time of the copy divided by the time of only inserting.
    pub ratio_to_floor: Option<f64>,
    /// Reason why there is no figure.
    pub note: Option<String>,
}

/// Makes the copy with each competitor that is installed. Returns an entry for every competitor.
pub(crate) async fn copy(
    clusters: &ClusterPair,
    size: Size,
    floor_s: f64,
) -> Result<Vec<Competitor>> {
    let ends = clusters.ends();
    let mut competitors = Vec::new();
    for name in ["mongodump | mongorestore", "Percona ClusterSync"] {
        clusters.clear(DB).await?;
        let measured = if name.starts_with("mongodump") {
            dump_and_restore(&ends).await
        } else {
            cluster_sync(&ends).await
        };
        let measured = match measured {
            Ok(seconds) => match count(&clusters.destination, DB).await? {
                found if found == size.documents => Ok(seconds),
                found => Err(format!("it copied {found} of {} documents", size.documents)),
            },
            Err(Absent::Missing(program)) => Err(format!("{program} is not on PATH")),
            Err(Absent::Failed(error)) => Err(error.to_string()),
        };
        competitors.push(Competitor {
            name,
            seconds: measured.as_ref().ok().copied(),
            ratio_to_floor: measured.as_ref().ok().map(|seconds| seconds / floor_s),
            note: measured.err(),
        });
    }
    clusters.clear(DB).await?;
    Ok(competitors)
}

/// The reason why a competitor has no figure.
enum Absent {
    Missing(&'static str),
    Failed(Error),
}

impl From<Error> for Absent {
    fn from(error: Error) -> Self {
        Absent::Failed(error)
    }
}

fn on_path(name: &'static str) -> Result<PathBuf, Absent> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = std::env::split_paths(&path).map(|folder| folder.join(name));
    candidates.find(|file| file.is_file()).ok_or(Absent::Missing(name))
}

async fn dump_and_restore(ends: &Ends) -> Result<f64, Absent> {
    let (dump, restore) = (on_path("mongodump")?, on_path("mongorestore")?);
    let (db, coll) = ends.ns.split_once('.').expect("db.coll");
    let began = Instant::now();
    let mut dumping = Command::new(dump);
    dumping
        .args(["--quiet", "--archive", "--uri", &ends.from, "--db", db, "--collection", coll])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut dumping = imago_testbed::process::spawn(dumping).map_err(process("start mongodump"))?;
    let archive = dumping.stdout.take().expect("stdout is piped");
    let mut restoring = Command::new(restore);
    restoring
        .args(["--quiet", "--archive", "--uri", &ends.to, "--numInsertionWorkersPerCollection=4"])
        .stdin(Stdio::from(archive))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let restoring = imago_testbed::process::spawn(restoring);
    let ended = match restoring {
        Ok(restoring) => wait("mongorestore", restoring).await,
        Err(cause) => Err(process("start mongorestore")(cause)),
    };
    let seconds = began.elapsed().as_secs_f64();
    // mongodump has ended if its whole archive was read. Otherwise its reader, mongorestore, has ended.
    let _ = dumping.kill();
    let _ = dumping.wait();
    ended?;
    Ok(seconds)
}

async fn wait(name: &'static str, mut child: std::process::Child) -> Result<()> {
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(process(format!("wait for {name}")))? {
            Some(status) => break status,
            None if began.elapsed() > PEER_MAX => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::TimedOut {
                    what: format!("the end of {name}"),
                    bound_s: PEER_MAX.as_secs(),
                });
            }
            None => tokio::time::sleep(POLL_INTERVAL).await,
        }
    };
    if status.success() {
        return Ok(());
    }
    Err(Error::Ended {
        what: name.into(),
        status: status.to_string(),
        wanted: "exit code 0".into(),
        said: String::new(),
    })
}

/// Starts the competitor's server, starts a copy in it, and polls its status until the first copy is complete.
/// Returns the time of the copy, in seconds.
async fn cluster_sync(ends: &Ends) -> Result<f64, Absent> {
    let program = on_path("pcsm")?;
    let port = free_port()?.to_string();
    let mut serving = Command::new(&program);
    serving.args(["--source", &ends.from, "--target", &ends.to, "--port", &port, "--no-color"]);
    let _server = Measured::start("Percona ClusterSync", serving)?;
    let deadline = Instant::now() + PEER_MAX;
    let ask = |arguments: &[&str]| {
        let output = Command::new(&program).args(arguments).args(["--port", &port]).output();
        output
            .ok()
            .and_then(|output| serde_json::from_slice::<serde_json::Value>(&output.stdout).ok())
    };
    let include = format!("--include-namespaces={}", ends.ns);
    let mut began = Instant::now();
    let mut has_started = false;
    while Instant::now() < deadline {
        if has_started {
            let status = ask(&["status"]).unwrap_or_default();
            if status["initialSync"]["completed"] == true {
                return Ok(began.elapsed().as_secs_f64());
            }
            if status["state"] == "failed" {
                return Err(Error::Wrong(format!("Percona ClusterSync failed: {status}")).into());
            }
        } else {
            began = Instant::now();
            has_started = ask(&["start", &include]).is_some_and(|reply| reply["ok"] == true);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let what = "the first copy of Percona ClusterSync".to_owned();
    Err(Error::TimedOut { what, bound_s: PEER_MAX.as_secs() }.into())
}

fn free_port() -> Result<u16, Absent> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address.map_err(process("find a free port"))?.port())
}
