//! A load of clients during a measurement: the outcomes of its operations, and the check that acknowledged outcomes
//! are true.
//!
//! Each operation is recorded with the time at which it was due, so that its latency includes the wait for a slow
//! operation before it. At the end the content of the collection is compared with all acknowledged operations.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use imago_load::Schema;
use imago_load::mongo::{MongoTarget, show_content};
use imago_mongo::namespace::Namespace;
use imago_plan::statistics::percentile;
use imago_workload::check::{Checker, Verdict};
use imago_workload::driver::{self, Options, Running};
use imago_workload::history::{Fate, Header, History, Model, Op, Recorder};
use imago_workload::keys::Distribution;
use imago_workload::mix::{Kind, Mix};

use crate::error::{Error, Result};

/// The load of the clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub mix: Mix,
    pub keys: Distribution,
    pub rate_per_s: u32,
}

/// A running load.
pub(crate) struct Traffic {
    load: Running<MongoTarget>,
    uri: String,
    ns: Namespace,
    schema: Schema,
    history: PathBuf,
}

/// An interval of a load, in nanoseconds since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub from_ns: u64,
    pub to_ns: u64,
}

/// One operation as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Time at which the operation was due, in s since the start of the load.
    pub due_s: f64,
    /// Time from then until the reply, or until the operation was given up, in ms.
    pub latency_ms: f64,
    /// True if the operation was acknowledged. A reply that the document does not exist does not count.
    pub is_acknowledged: bool,
}

impl Window {
    pub(crate) fn seconds(self) -> f64 {
        (self.to_ns - self.from_ns) as f64 / 1e9
    }
}

/// The operations of all clients, and the verdict on the content of the collection.
pub(crate) struct TrafficResult {
    pub verdict: Verdict,
    ops: Vec<Op>,
}

fn wrong(what: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Error {
    move |cause| Error::Wrong(format!("{what}: {cause}"))
}

impl Traffic {
    /// Starts a load on a collection that holds the keys `0..documents`.
    pub(crate) async fn start(
        uri: &str,
        ns: &Namespace,
        schema: Schema,
        documents: u64,
        load: Load,
        folder: &Path,
    ) -> Result<Self> {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let header = Header {
            imago_history: Header::VERSION,
            preloaded: documents,
            reviews: schema.reviews,
            id_form: schema.id_form,
            model: Model::Documents,
            reads_are_current: false,
            namespace: ns.to_string(),
            started_unix_ms: u64::try_from(unix_ms).unwrap_or(0),
        };
        let failed = wrong("the load cannot start");
        let history = folder.join(format!("history-{unix_ms}"));
        let recorder = Recorder::file(&history, &header).map_err(|error| failed(&error))?;
        let options = Options {
            mix: load.mix,
            keys: load.keys,
            rate_per_s: f64::from(load.rate_per_s),
            duration: None,
            preloaded: documents,
            reviews: schema.reviews,
            ..Options::default()
        };
        let target = MongoTarget::connect(uri, ns, schema).await?;
        let load = driver::start(options, Arc::new(target), recorder);
        let load = load.map_err(|error| failed(&error))?;
        Ok(Self { load, uri: uri.to_owned(), ns: ns.clone(), schema, history })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.load.control().snapshot().elapsed_ms * 1_000_000
    }

    /// Waits for this many seconds, and returns the window.
    pub(crate) async fn pass(&self, seconds: u64) -> Window {
        let from_ns = self.now_ns();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        Window { from_ns, to_ns: self.now_ns() }
    }

    /// Does other work during the load. Returns the window of the work, and its result.
    pub(crate) async fn during<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<(Window, T)> {
        let from_ns = self.now_ns();
        let done = work.await?;
        Ok((Window { from_ns, to_ns: self.now_ns() }, done))
    }

    /// Stops the load, and checks the content of the collection against all acknowledged operations.
    pub(crate) async fn end(self) -> Result<TrafficResult> {
        self.load.control().stop();
        self.load.finish().await.map_err(|error| wrong("the load failed")(&error))?;
        let unreadable = wrong("the load's history cannot be read");
        let mut ops = Vec::new();
        History::scan(&self.history, |_, op| ops.push(op)).map_err(|error| unreadable(&error))?;
        let history = History::read(&self.history).map_err(|error| unreadable(&error))?;
        let mut checker = Checker::new(history);
        let target = MongoTarget::connect(&self.uri, &self.ns, self.schema).await?;
        show_content(&target, &mut checker).await?;
        Ok(TrafficResult { verdict: checker.finish(), ops })
    }
}

fn latency_ms(op: &Op) -> f64 {
    op.end_ns.saturating_sub(op.intended_ns) as f64 / 1e6
}

fn is_answered(op: &Op) -> bool {
    matches!(op.fate, Fate::Acked | Fate::NotFound)
}

impl TrafficResult {
    fn ops(&self, reads: bool) -> impl Iterator<Item = &Op> {
        self.ops.iter().filter(move |op| (op.kind == Kind::Read) == reads)
    }

    fn due(&self, reads: bool, within: Window) -> impl Iterator<Item = &Op> {
        let is_within = move |op: &&Op| (within.from_ns..within.to_ns).contains(&op.intended_ns);
        self.ops(reads).filter(is_within)
    }

    /// Returns the longest time within the window without an answered operation, in ms. A reply that the document
    /// does not exist counts as an answer.
    pub(crate) fn gap_ms(&self, reads: bool, within: Window) -> f64 {
        let ended = self.ops(reads).filter(|op| is_answered(op)).map(|op| op.end_ns);
        let mut ended: Vec<u64> = ended
            .filter(|at| (within.from_ns..within.to_ns).contains(at))
            .chain([within.from_ns, within.to_ns])
            .collect();
        ended.sort_unstable();
        let gap_ns = ended.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        gap_ns as f64 / 1e6
    }

    /// Returns the 99th percentile of the latencies of all operations that were due within the window, in ms; `None`
    /// if there were none. Latencies begin when an operation was due.
    pub(crate) fn p99_ms(&self, reads: bool, within: Window) -> Option<f64> {
        percentile(self.due(reads, within).map(latency_ms), 99)
    }

    /// Returns the operations that were due within the window, in the order in which they were due.
    pub(crate) fn samples(&self, reads: bool, within: Window) -> Vec<Sample> {
        let sample = |op: &Op| Sample {
            due_s: op.intended_ns as f64 / 1e9,
            latency_ms: latency_ms(op),
            is_acknowledged: op.fate == Fate::Acked,
        };
        let mut samples: Vec<Sample> = self.due(reads, within).map(sample).collect();
        samples.sort_by(|one, other| one.due_s.total_cmp(&other.due_s));
        samples
    }

    /// Returns the share of the operations due within the window that were answered, in percent; `None` if there were
    /// no operations. A reply that the document does not exist counts as an answer.
    pub(crate) fn succeeded_percent(&self, reads: bool, within: Window) -> Option<f64> {
        let all = self.due(reads, within).count();
        let answered = self.due(reads, within).filter(|op| is_answered(op)).count();
        (all > 0).then(|| 100.0 * answered as f64 / all as f64)
    }
}
