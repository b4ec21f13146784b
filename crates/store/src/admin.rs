//! The administration of a store over HTTP: its design with sizes and rates, changes of it, and metrics.
//!
//! | request | |
//! |---|---|
//! | `GET /design` | [`DesignReport`] |
//! | `POST /split`, `/merge`, `/unpin` | [`ChangeRequest`] without a site |
//! | `POST /add-replica`, `/remove-replica`, `/remaster`, `/pin` | [`ChangeRequest`] with a site |
//! | `GET /adapt` | [`AdaptReport`] |
//! | `POST /explain` | the same, but only decisions about the partition of a [`ChangeRequest`]'s key |
//! | `POST /adapt/pause`, `/adapt/resume` | lets adaptation change nothing, or again what pays |
//! | `GET /metrics` | for Prometheus |
//!
//! A change is answered when the log has it. An impossible change gets 409 and a reason, one that did not
//! complete in time or whose site died gets 503, and a malformed request 400; all as `{"error": TEXT}`.
//!
//! With a [`Token`] a request without it gets 401, except `GET /metrics`, which has numbers and no keys.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use metrics::{counter, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::adapt::{AdaptReport, Adaptation};
use crate::engine::Store;
use crate::engine::site::epoch::count;
use crate::key::Key;
use crate::log::CutTail;
use crate::record::{Operator, Site};
use crate::transaction::Abort;

mod token;

pub use token::{NoToken, Token};

/// How long rates are means of, at least.
const RATES_OVER: Duration = Duration::from_secs(1);

/// A change that is to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeRequest {
    /// A key, as [`Key`]'s text: where a partition is cut, or one that the partition has.
    pub key: String,
    /// Which site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<u16>,
}

/// The design of a store now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DesignReport {
    /// The place in the log of its last change.
    pub changed_at: u64,
    /// In the order of their keys.
    pub partitions: Vec<PartitionReport>,
    /// From 0 on.
    pub sites: Vec<SiteReport>,
    /// Why nothing can be written now, if so.
    pub trouble: Option<String>,
    /// How it stands with checkpoints; none without a log.
    pub checkpoints: Option<CheckpointsReport>,
    /// The end of the log that was cut off when the store began, if there was one.
    pub cut_tail: Option<CutTailReport>,
    /// Replies that clients have not received.
    pub clients: ClientsReport,
}

/// The end of a log that was no whole group of commits: the process or the machine stopped while it was
/// written, or the disk has damaged it since.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CutTailReport {
    /// The file that it was cut off.
    pub path: PathBuf,
    /// Where it was cut, in bytes.
    pub at: u64,
    /// How many bytes were behind that.
    pub bytes: u64,
}

/// The clients' replies that wait to be received.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientsReport {
    /// Their bytes.
    pub output_bytes: u64,
    /// Connections that were closed because their clients did not receive.
    pub closed: u64,
}

/// The checkpoints of a store's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckpointsReport {
    /// The place in the log that the newest is of; 0 before the first.
    pub newest: u64,
    /// Why the last one that was due was not written, if so: the log before it is kept meanwhile.
    pub failure: Option<String>,
}

/// A partition. What only its master can tell is missing where that is not alive, and rates until it
/// has been looked at for a second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartitionReport {
    /// Its first key; empty for the least of all.
    pub start: String,
    /// The first key behind it; none for the last partition.
    pub end: Option<String>,
    /// The site that writes it.
    pub master: u16,
    /// The sites with replicas.
    pub replicas: Vec<u16>,
    /// The site that it is pinned to.
    pub pin: Option<u16>,
    /// Its rows.
    pub rows: Option<u64>,
    /// Bytes of their keys and values.
    pub bytes: Option<u64>,
    /// Transactions that write to it, a second.
    pub writes_per_s: Option<f64>,
    /// Transactions that read it, a second, at all sites.
    pub reads_per_s: Option<f64>,
}

/// A site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteReport {
    /// Its number.
    pub site: u16,
    /// Which of its epochs this is, from 1 on; with the log in Kafka, since the router or the process with
    /// all sites was started. 0 if it has not come.
    pub epoch: u64,
    /// Whether it takes part.
    pub is_live: bool,
    /// Partitions that it masters.
    pub masters: u64,
    /// Partitions of which it has replicas.
    pub replicas: u64,
    /// Rows of its copies.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// What the router has sent it of the log; none of a site in the router's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogTrafficReport>,
}

/// What a router has sent to a site of the log since it started, in bytes of messages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LogTrafficReport {
    /// The part that the site has a use for.
    pub sent_bytes: u64,
    /// What the whole log would have been.
    pub whole_bytes: u64,
}

struct Admin {
    store: Arc<Store>,
    adaptation: Option<Arc<Adaptation>>,
    samples: Mutex<Samples>,
    recorder: PrometheusRecorder,
}

/// How often each partition was written and read, by its first key.
type Counts = HashMap<Key, (u64, u64)>;

/// Counts as they were some time ago, and rates since an earlier time.
#[derive(Default)]
struct Samples {
    last: Option<(Instant, Counts)>,
    rates: HashMap<Key, (f64, f64)>,
}

type Answer<T> = Result<Json<T>, (StatusCode, Json<serde_json::Value>)>;

/// Serves it for as long as it is polled, to clients with the token if there is one.
///
/// # Errors
/// When connections cannot be taken any more.
pub async fn serve(
    store: Arc<Store>,
    adaptation: Option<Arc<Adaptation>>,
    socket: TcpListener,
    token: Option<Token>,
) -> io::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let admin = Arc::new(Admin { store, adaptation, samples: Mutex::default(), recorder });
    let mut routes = axum::Router::new()
        .route("/design", get(design))
        .route("/split", post(split))
        .route("/merge", post(merge))
        .route("/add-replica", post(add_replica))
        .route("/remove-replica", post(remove_replica))
        .route("/remaster", post(remaster))
        .route("/pin", post(pin))
        .route("/unpin", post(unpin))
        .route("/adapt", get(adapt))
        .route("/explain", post(explain))
        .route("/adapt/pause", post(pause))
        .route("/adapt/resume", post(resume));
    if let Some(token) = token {
        routes = routes.layer(from_fn_with_state(token, token::guard));
    }
    // What is added behind the guard is not guarded.
    let routes = routes.route("/metrics", get(metrics)).with_state(admin);
    axum::serve(socket, routes).await
}

impl Admin {
    async fn report(&self) -> DesignReport {
        let usage = self.store.usage().await;
        let map = self.store.map();
        let mut counts = Counts::new();
        let mut sizes = HashMap::new();
        for copy in usage.iter().flat_map(|(_, copies)| copies) {
            let counted = counts.entry(copy.start.clone()).or_default();
            counted.1 += copy.reads;
            if copy.is_master {
                counted.0 = copy.version;
                sizes.insert(copy.start.clone(), copy.size);
            }
        }
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.take(counts, Instant::now());
        let partitions = map.design.partitions().map(|partition| {
            let start = &partition.range.start;
            let (size, rates) = (sizes.get(start), samples.rates.get(start));
            PartitionReport {
                start: start.to_string(),
                end: partition.range.end.as_ref().map(Key::to_string),
                master: partition.master.0,
                replicas: partition.replicas.iter().map(|site| site.0).collect(),
                pin: partition.pin.map(|site| site.0),
                rows: size.map(|size| size.rows),
                bytes: size.map(|size| size.bytes),
                writes_per_s: rates.map(|rates| rates.0),
                reads_per_s: rates.map(|rates| rates.1),
            }
        });
        let sites = usage.iter().map(|(site, copies)| {
            let masters = copies.iter().filter(|copy| copy.is_master).count() as u64;
            SiteReport {
                site: site.0,
                epoch: count(map.design.epoch(*site)),
                is_live: count(map.design.epoch(*site)) > 0 && !map.design.is_fenced(*site),
                masters,
                replicas: copies.len() as u64 - masters,
                rows: copies.iter().map(|copy| copy.size.rows).sum(),
                bytes: copies.iter().map(|copy| copy.size.bytes).sum(),
                log: self.store.log_traffic(*site).map(|traffic| LogTrafficReport {
                    sent_bytes: traffic.sent_bytes,
                    whole_bytes: traffic.whole_bytes,
                }),
            }
        });
        DesignReport {
            changed_at: map.known.0,
            partitions: partitions.collect(),
            sites: sites.collect(),
            trouble: self.store.trouble(),
            checkpoints: self
                .store
                .checkpoints()
                .map(|state| CheckpointsReport { newest: state.newest.0, failure: state.failure }),
            cut_tail: self.store.cut_tail().map(|CutTail { path, at, bytes }| CutTailReport {
                path: path.clone(),
                at: *at,
                bytes: *bytes,
            }),
            clients: self.store.output().map_or_else(ClientsReport::default, |output| {
                ClientsReport { output_bytes: output.bytes() as u64, closed: output.closed() }
            }),
        }
    }

    async fn change(
        &self,
        request: ChangeRequest,
        operator: impl FnOnce(Key, Site) -> Operator,
    ) -> Answer<()> {
        let key = Self::key(&request)?;
        let operator = operator(key.clone(), Site(request.site.unwrap_or_default()));
        answer(self.store.change(&key, operator).await)
    }

    fn adaptation(&self) -> Result<&Adaptation, (StatusCode, Json<serde_json::Value>)> {
        let off = "adaptation is off: start the store with --adapt advise or --adapt on";
        self.adaptation.as_deref().ok_or_else(|| (StatusCode::CONFLICT, text(&off)))
    }

    fn key(request: &ChangeRequest) -> Result<Key, (StatusCode, Json<serde_json::Value>)> {
        request.key.parse().map_err(|error: crate::key::NoKey| senseless(&error))
    }

    fn site(request: &ChangeRequest) -> Result<Site, (StatusCode, Json<serde_json::Value>)> {
        request
            .site
            .map(Site)
            .ok_or_else(|| senseless(&"it is to be said which site: {\"site\": N}"))
    }
}

impl Samples {
    fn take(&mut self, counts: Counts, now: Instant) {
        let Some((then, before)) = &self.last else {
            self.last = Some((now, counts));
            return;
        };
        let seconds = (now - *then).as_secs_f64();
        if seconds < RATES_OVER.as_secs_f64() {
            return;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let both = counts.iter().filter_map(|(start, now)| Some((start, now, before.get(start)?)));
        let rates = both.map(|(start, now, before)| {
            (start.clone(), (rate(now.0, before.0), rate(now.1, before.1)))
        });
        self.rates = rates.collect();
        self.last = Some((now, counts));
    }
}

fn answer(done: Result<(), Abort>) -> Answer<()> {
    let status = match &done {
        Ok(()) => return Ok(Json(())),
        Err(
            Abort::Refused(_) | Abort::Undeclared(_) | Abort::TooLarge(_) | Abort::PinnedApart(..),
        ) => StatusCode::CONFLICT,
        Err(
            Abort::Elsewhere
            | Abort::Late
            | Abort::Busy
            | Abort::Deposed
            | Abort::LogFull
            | Abort::Unlogged,
        ) => StatusCode::SERVICE_UNAVAILABLE,
    };
    done.map(Json).map_err(|abort| (status, text(&abort)))
}

fn senseless(why: &dyn std::fmt::Display) -> (StatusCode, Json<serde_json::Value>) {
    (StatusCode::BAD_REQUEST, text(why))
}

fn text(why: &dyn std::fmt::Display) -> Json<serde_json::Value> {
    Json(serde_json::json!({ "error": why.to_string() }))
}

type Shared = State<Arc<Admin>>;

async fn design(State(admin): Shared) -> Json<DesignReport> {
    Json(admin.report().await)
}

async fn split(State(admin): Shared, Json(request): Json<ChangeRequest>) -> Answer<()> {
    admin.change(request, |key, _| Operator::Split(key)).await
}

async fn merge(State(admin): Shared, Json(request): Json<ChangeRequest>) -> Answer<()> {
    admin.change(request, |_, _| Operator::Merge).await
}

async fn add_replica(State(admin): Shared, Json(request): Json<ChangeRequest>) -> Answer<()> {
    let site = Admin::site(&request)?;
    answer(admin.store.add_replica(&Admin::key(&request)?, site).await)
}

async fn remove_replica(State(admin): Shared, Json(request): Json<ChangeRequest>) -> Answer<()> {
    Admin::site(&request)?;
    admin.change(request, |_, site| Operator::RemoveReplica(site)).await
}

async fn remaster(State(admin): Shared, Json(request): Json<ChangeRequest>) -> Answer<()> {
    Admin::site(&request)?;
    admin.change(request, |_, site| Operator::Remaster(site)).await
}

async fn pin(State(admin): Shared, Json(request): Json<ChangeRequest>) -> Answer<()> {
    let site = Admin::site(&request)?;
    answer(admin.store.pin(&Admin::key(&request)?, site).await)
}

async fn unpin(State(admin): Shared, Json(request): Json<ChangeRequest>) -> Answer<()> {
    admin.change(request, |_, _| Operator::Unpin).await
}

async fn adapt(State(admin): Shared) -> Answer<AdaptReport> {
    Ok(Json(admin.adaptation()?.report()))
}

async fn explain(State(admin): Shared, Json(request): Json<ChangeRequest>) -> Answer<AdaptReport> {
    let mut report = admin.adaptation()?.report();
    let map = admin.store.map();
    let start = |key: &Key| map.design.of(key).range.start.clone();
    let asked = start(&Admin::key(&request)?);
    let is_it = |text: &String| text.parse::<Key>().is_ok_and(|key| start(&key) == asked);
    report.decisions.retain(|one| one.partitions.iter().chain(&one.trigger).any(is_it));
    Ok(Json(report))
}

async fn pause(State(admin): Shared) -> Answer<()> {
    admin.adaptation()?.pause(true);
    Ok(Json(()))
}

async fn resume(State(admin): Shared) -> Answer<()> {
    admin.adaptation()?.pause(false);
    Ok(Json(()))
}

async fn metrics(State(admin): Shared) -> String {
    let report = admin.report().await;
    with_local_recorder(&admin.recorder, || {
        gauge!("imago_store_design_position").set(report.changed_at as f64);
        gauge!("imago_store_partitions").set(report.partitions.len() as f64);
        gauge!("imago_store_is_writable").set(if report.trouble.is_none() { 1.0 } else { 0.0 });
        if let Some(checkpoints) = &report.checkpoints {
            gauge!("imago_store_checkpoint_position").set(checkpoints.newest as f64);
            let is_written = checkpoints.failure.is_none();
            gauge!("imago_store_checkpoint_is_written").set(if is_written { 1.0 } else { 0.0 });
        }
        let cut = report.cut_tail.as_ref().map_or(0, |cut| cut.bytes);
        gauge!("imago_store_log_tail_cut_bytes").set(cut as f64);
        gauge!("imago_store_client_output_bytes").set(report.clients.output_bytes as f64);
        counter!("imago_store_clients_closed_total").absolute(report.clients.closed);
        let sum = |of: fn(&PartitionReport) -> Option<f64>| -> f64 {
            report.partitions.iter().filter_map(of).sum()
        };
        gauge!("imago_store_writes_per_second").set(sum(|partition| partition.writes_per_s));
        gauge!("imago_store_reads_per_second").set(sum(|partition| partition.reads_per_s));
        for site in &report.sites {
            let label = site.site.to_string();
            let set = |name: &'static str, value: u64| {
                gauge!(name, "site" => label.clone()).set(value as f64)
            };
            set("imago_store_site_live", u64::from(site.is_live));
            set("imago_store_site_epoch", site.epoch);
            set("imago_store_site_mastered_partitions", site.masters);
            set("imago_store_site_replicas", site.replicas);
            set("imago_store_site_rows", site.rows);
            set("imago_store_site_bytes", site.bytes);
            let count = |name: &'static str, value: u64| {
                counter!(name, "site" => label.clone()).absolute(value);
            };
            if let Some(log) = site.log {
                count("imago_store_site_log_sent_bytes_total", log.sent_bytes);
                count("imago_store_site_log_whole_bytes_total", log.whole_bytes);
            }
        }
    });
    admin.recorder.handle().render()
}
