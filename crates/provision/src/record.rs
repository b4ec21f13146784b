//! Recording of the reads of a job that can be any program: the job runs with a proxy of the wire protocol between it
//! and the database.
//!
//! The proxy forwards every message unchanged and in order, and inspects it: reads by `_id` (equality or `$in`) and the
//! documents of their replies become the trace, other reads are counted. The job receives the proxy's address in its
//! environment and its arguments ([`target`]). With a replica set, the job's connection is direct: a driver that
//! discovers the other members would read past the proxy.
//!
//! Invariants: a failure to record never disturbs the job; a read is in the trace once, after the server has replied; a
//! trace that does not contain the whole job is marked as incomplete.

mod child;
mod error;
mod filter;
mod recorder;
mod tap;
mod target;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use error::Error;
pub use target::Target;

use crate::trace::{Ending, Header, PhasesBy};
use crate::wire;
use child::{Child, Ended};
use recorder::{Recorder, Totals};

/// Name of the environment variable that gives the job the URI of the proxy.
pub const URI_VARIABLE: &str = "IMAGO_RECORD_URI";
/// Placeholder in the job's arguments; each occurrence is replaced by the URI of the proxy.
pub const URI_ARGUMENT: &str = "{uri}";
/// Interval at which the recorded reads are written to the operating system.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// The settings of the recording of a job's reads.
#[derive(Debug, Clone)]
pub struct Request {
    /// Connection string of the database that the job reads.
    pub uri: String,
    /// Path of the trace file to create.
    pub out: PathBuf,
    /// The collection whose reads are recorded, as `database.collection`; `None`: the first collection that the job
    /// reads by `_id`.
    pub namespace: Option<String>,
    /// Minimum interval without reads that ends a phase, for reads whose comment does not name a phase.
    pub gap: Duration,
    /// The job's program and its arguments.
    pub command: Vec<OsString>,
    /// True if the job's standard output goes to stderr, because stdout has the report.
    pub output_to_stderr: bool,
    /// The current time (RFC 3339, UTC), for the header of the trace.
    pub when: String,
}

/// The outcome of the recording of a job's reads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Path of the trace file.
    pub trace: PathBuf,
    /// The collection that was recorded, as `database.collection`; empty if nothing was read by `_id`.
    pub namespace: String,
    /// Numbers of phases, reads and documents that were recorded.
    #[serde(flatten)]
    pub totals: Totals,
    /// Time from the job's start to its end, in seconds.
    pub seconds: f64,
    /// Exit code of the job; `None` if a signal ended it.
    pub exit_code: Option<i32>,
    /// The reason why the trace does not contain the whole job; `None` if it does.
    pub incomplete: Option<String>,
}

/// Runs the job behind a proxy and records its reads; cancelling `cancel` signals the job to end. If the job was
/// started and recorded, the trace file exists afterwards.
///
/// # Errors
/// [`Error`]: the database cannot be recorded or reached, the job cannot be started, or the trace cannot be written. A
/// job that fails is not an error: the report has its exit code.
#[crate::boxed]
pub async fn run(request: &Request, cancel: &CancellationToken) -> Result<Report, Error> {
    if request.out.exists() {
        return Err(Error::Exists(request.out.clone()));
    }
    let target = Target::find(&request.uri).await?;
    let header = Header {
        source: format!("recorded from {}", target.addresses().join(",")),
        namespace: request.namespace.clone().unwrap_or_default(),
        when: request.when.clone(),
        phases_by: PhasesBy::CommentOrGap {
            gap_ms: u64::try_from(request.gap.as_millis()).unwrap_or(u64::MAX),
        },
    };
    let recorder = Arc::new(Recorder::new(&request.out, header, request.gap));
    let taps = {
        let recorder = Arc::clone(&recorder);
        move || tap::Tap::new(Arc::clone(&recorder))
    };
    let job = Job { command: &request.command, output_to_stderr: request.output_to_stderr };
    let JobEnd { seconds, exit_code, incomplete } =
        behind_proxy(&target, job, taps, || recorder.flush(), cancel).await?;
    let ending = incomplete.clone().map_or(Ending::Complete, Ending::Incomplete);
    let (namespace, totals) = recorder.finish(&ending)?;
    Ok(Report { trace: request.out.clone(), namespace, totals, seconds, exit_code, incomplete })
}

/// A job to run behind a proxy.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The job's program and its arguments.
    pub command: &'a [OsString],
    /// True if the job's standard output goes to stderr, because stdout has a report.
    pub output_to_stderr: bool,
}

/// The end of a job that ran behind a proxy.
#[derive(Debug, Clone)]
pub struct JobEnd {
    /// Time from the job's start to its end, in seconds.
    pub seconds: f64,
    /// Exit code of the job; `None` if a signal ended it.
    pub exit_code: Option<i32>,
    /// The reason why the job is not complete; `None` if it is.
    pub incomplete: Option<String>,
}

/// Runs a job with a proxy between it and the database `target`. `taps` makes the handler of each connection; `flush` is
/// called every second. Cancelling `cancel` signals the job to end.
///
/// # Errors
/// [`Error`]: there is no port for the proxy, or the job cannot be started.
pub async fn behind_proxy<H: wire::Handler>(
    target: &Target,
    job: Job<'_>,
    taps: impl Fn() -> H + Send + 'static,
    flush: impl Fn(),
    cancel: &CancellationToken,
) -> Result<JobEnd, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Error::Port)?;
    let port = listener.local_addr().map_err(Error::Port)?.port();
    let uri = target.uri_at(port);
    let stop = CancellationToken::new();
    let serving =
        tokio::spawn(wire::serve(listener, target.addresses().to_vec(), taps, stop.clone()));
    let started = Instant::now();
    let outcome = watch(job, &uri, flush, cancel).await;
    let seconds = started.elapsed().as_secs_f64();
    stop.cancel();
    // The proxy's task ends after `stop`; a panic in it has been reported already.
    let _ = serving.await;
    let ended = outcome?;
    let (exit_code, incomplete) = (ended.status.code(), ended.incomplete());
    Ok(JobEnd { seconds, exit_code, incomplete })
}

/// Runs the job to its end, with the proxy at `uri`, and calls `flush` meanwhile; cancelling `cancel` signals the job to
/// end early.
async fn watch(
    job: Job<'_>,
    uri: &str,
    flush: impl Fn(),
    cancel: &CancellationToken,
) -> Result<Ended, Error> {
    let mut child = Child::start(job.command, uri, job.output_to_stderr)?;
    let mut ticks = tokio::time::interval(FLUSH_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            ended = child.wait(cancel) => return ended,
            _ = ticks.tick() => flush(),
        }
    }
}
