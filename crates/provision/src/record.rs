//! Recording the reads of a job that is any program: it runs with a proxy of the wire protocol between it and the
//! database.
//!
//! The proxy passes every message unchanged and in order, and looks at them: reads by `_id` (equality or `$in`) and the
//! documents of their replies become the trace, other reads are counted. The job is told the proxy's address by the
//! environment and in its arguments ([`target`]). It is a direct connection: a driver that looked for the other members
//! of a replica set would read past the proxy.
//!
//! Invariants: a failure to record never disturbs the job; a read is in the trace once, after the server answered it; a
//! trace that does not have the whole job says so.

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

/// The variable of the job's environment that has the URI of the proxy.
pub const URI_VARIABLE: &str = "IMAGO_RECORD_URI";
/// Each occurrence in the job's arguments is replaced by the URI of the proxy.
pub const URI_ARGUMENT: &str = "{uri}";
/// The reads so far are handed to the operating system so often at least.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// A recording.
#[derive(Debug, Clone)]
pub struct Request {
    /// The database.
    pub uri: String,
    /// The file to make.
    pub out: PathBuf,
    /// The collection whose reads are recorded, as `database.collection`; none: the first that is read by `_id`.
    pub namespace: Option<String>,
    /// The time without reads that ends a phase, where the job does not name its phases.
    pub gap: Duration,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Whether the job's output goes to stderr, because stdout has the report.
    pub output_to_stderr: bool,
    /// The present time (RFC 3339, UTC).
    pub when: String,
}

/// The outcome of a recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The trace.
    pub trace: PathBuf,
    /// The collection that was recorded; empty if nothing was read by `_id`.
    pub namespace: String,
    /// Numbers of all that passed.
    #[serde(flatten)]
    pub totals: Totals,
    /// The time from the job's start to its end, in seconds.
    pub seconds: f64,
    /// The job's exit code; none if a signal ended it.
    pub exit_code: Option<i32>,
    /// Why the trace does not have the whole job; none if it does.
    pub incomplete: Option<String>,
}

/// Runs the job and records its reads. A trace is left behind in every case in which the job was started.
///
/// # Errors
/// [`Error`]: the database cannot be recorded or reached, the job cannot be started, or the trace cannot be written. That
/// the job fails is no error: the report has its exit code.
pub async fn run(request: &Request, cancel: &CancellationToken) -> Result<Report, Error> {
    if request.out.exists() {
        return Err(Error::Exists(request.out.clone()));
    }
    let target = Target::find(&request.uri).await?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(Error::Port)?;
    let port = listener.local_addr().map_err(Error::Port)?.port();
    let uri = target.uri_at(port);
    let header = Header {
        source: format!("recorded from {}", target.addresses().join(",")),
        namespace: request.namespace.clone().unwrap_or_default(),
        when: request.when.clone(),
        phases_by: PhasesBy::CommentOrGap {
            gap_ms: u64::try_from(request.gap.as_millis()).unwrap_or(u64::MAX),
        },
    };
    let recorder = Arc::new(Recorder::new(&request.out, header, request.gap));
    let stop = CancellationToken::new();
    let taps = {
        let recorder = Arc::clone(&recorder);
        move || tap::Tap::new(Arc::clone(&recorder))
    };
    let serving =
        tokio::spawn(wire::serve(listener, target.addresses().to_vec(), taps, stop.clone()));
    let started = Instant::now();
    let outcome = watch(request, &uri, &recorder, cancel).await;
    let seconds = started.elapsed().as_secs_f64();
    stop.cancel();
    // It ends when it is told to; a panic there has been reported.
    let _ = serving.await;
    let ended = outcome?;
    let incomplete = ended.incomplete();
    let ending = incomplete.clone().map_or(Ending::Complete, Ending::Incomplete);
    let (namespace, totals) = recorder.finish(&ending)?;
    let exit_code = ended.status.code();
    Ok(Report { trace: request.out.clone(), namespace, totals, seconds, exit_code, incomplete })
}

/// Runs the job to its end, which `cancel` asks it for.
async fn watch(
    request: &Request,
    uri: &str,
    recorder: &Recorder,
    cancel: &CancellationToken,
) -> Result<Ended, Error> {
    let mut child = Child::start(&request.command, uri, request.output_to_stderr)?;
    let mut flush = tokio::time::interval(FLUSH_EVERY);
    flush.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            ended = child.wait(cancel) => return ended,
            _ = flush.tick() => recorder.flush(),
        }
    }
}
