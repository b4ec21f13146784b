//! The administration interface of a store over HTTP: the design (the bounds, masters and replicas of partitions) with
//! its sizes and rates, design changes, and metrics.
//!
//! | request | |
//! |---|---|
//! | `GET /design` | [`DesignReport`] |
//! | `POST /split`, `/merge`, `/unpin` | [`ChangeRequest`] without a site |
//! | `POST /add-replica`, `/remove-replica`, `/remaster`, `/pin` | [`ChangeRequest`] with a site |
//! | `GET /adapt` | `AdaptReport` |
//! | `GET /heat` | `HeatReport` |
//! | `POST /explain` | `AdaptReport` for the partition of a [`ChangeRequest`]'s key, and every site by every rule |
//! | `GET /adapt/limits` | [`LimitsReport`](crate::adapt::LimitsReport) |
//! | `POST /adapt/limits` | [`LimitsRequest`](crate::adapt::LimitsRequest); answered like `GET` |
//! | `POST /drain` | `{"site": N}`: moves all partitions and replicas away from a site, and assigns it no more |
//! | `POST /add` | `{"site": N}`: takes a site into use again |
//! | `GET /drain` | [`DrainReport`](crate::adapt::DrainReport)s of the sites that are not in use |
//! | `POST /adapt/pause`, `/adapt/resume` | stops and resumes changes of the design by adaptation |
//! | `GET /metrics` | metrics in the format of Prometheus |
//!
//! The reply to a change is sent after the log has the change. An impossible change gets 409 with the reason. A change
//! that did not complete in time, or whose site died, gets 503. A malformed request gets 400. Each error is
//! `{"error": TEXT}`.
//!
//! If the interface has a [`Token`], a request without it gets 401, except `GET /metrics`, which reveals
//! numbers but no keys.

use std::io;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use metrics::{counter, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::adapt::{Adaptation, Drains};
use crate::engine::Store;
use crate::key::Key;
use crate::record::{Operator, Site};
use crate::transaction::Abort;

mod adapting;
mod report;
mod token;

pub use report::{
    CheckpointsReport, ClientsReport, CutTailReport, DesignReport, LogTrafficReport,
    PartitionReport, SiteReport,
};
pub use token::{InvalidToken, Token};

/// The body of a request to change the design, or to explain a partition's placement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeRequest {
    /// A key, in the text form of [`Key`]: for `/split` the key at which the partition is split, for `/explain` the
    /// key to explain, otherwise any key of the partition.
    pub key: String,
    /// The number of the site that the change concerns; `None` for changes that concern no site.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<u16>,
}

struct Admin {
    store: Arc<Store>,
    adaptation: Option<Arc<Adaptation>>,
    drains: Drains,
    samples: Mutex<report::Samples>,
    recorder: PrometheusRecorder,
}

type Fault = (StatusCode, Json<serde_json::Value>);
type Answer<T> = Result<Json<T>, Fault>;

/// Serves the administration interface on `socket` for as long as the future is polled. With a `token`, all requests
/// but `GET /metrics` must carry it. `adaptation` is `None` for a store that does not adapt.
///
/// # Errors
/// Returns an error if the socket can no longer accept connections.
pub async fn serve(
    store: Arc<Store>,
    adaptation: Option<Arc<Adaptation>>,
    socket: TcpListener,
    token: Option<Token>,
) -> io::Result<()> {
    let recorder = PrometheusBuilder::new().build_recorder();
    let drains = Drains::new(Arc::clone(&store), adaptation.clone());
    let admin = Arc::new(Admin { store, adaptation, drains, samples: Mutex::default(), recorder });
    let mut routes = axum::Router::new()
        .route("/design", get(design))
        .route("/split", post(split))
        .route("/merge", post(merge))
        .route("/add-replica", post(add_replica))
        .route("/remove-replica", post(remove_replica))
        .route("/remaster", post(remaster))
        .route("/pin", post(pin))
        .route("/unpin", post(unpin))
        .route("/adapt", get(adapting::adapt))
        .route("/adapt/limits", get(adapting::limits).post(adapting::limit))
        .route("/adapt/pause", post(adapting::pause))
        .route("/adapt/resume", post(adapting::resume))
        .route("/heat", get(adapting::heat))
        .route("/explain", post(adapting::explain))
        .route("/drain", get(adapting::drains).post(adapting::drain))
        .route("/add", post(adapting::add));
    if let Some(token) = token {
        routes = routes.layer(from_fn_with_state(token, token::guard));
    }
    // Routes that are added after this layer are not guarded.
    let routes = routes.route("/metrics", get(metrics)).with_state(Arc::clone(&admin));
    tokio::select! {
        served = axum::serve(socket, routes).into_future() => served,
        () = admin.drains.run() => unreachable!("it looks after drained sites for ever"),
        () = admin.count_periodically() => unreachable!("it counts for ever"),
    }
}

impl Admin {
    async fn change(
        &self,
        request: ChangeRequest,
        operator: impl FnOnce(Key, Site) -> Operator,
    ) -> Answer<()> {
        let key = Self::key(&request)?;
        let operator = operator(key.clone(), Site(request.site.unwrap_or_default()));
        answer(self.store.change(&key, operator).await)
    }

    fn key(request: &ChangeRequest) -> Result<Key, Fault> {
        request.key.parse().map_err(|error: crate::key::InvalidKey| invalid_request(&error))
    }

    fn site(request: &ChangeRequest) -> Result<Site, Fault> {
        request.site.map(Site).ok_or_else(|| invalid_request(&"the site is missing: {\"site\": N}"))
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
            | Abort::Down(..)
            | Abort::OutOfMemory
            | Abort::LogFull
            | Abort::Unlogged,
        ) => StatusCode::SERVICE_UNAVAILABLE,
    };
    done.map(Json).map_err(|abort| (status, text(&abort)))
}

fn invalid_request(why: &dyn std::fmt::Display) -> Fault {
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
    let (site, key) = (Admin::site(&request)?, Admin::key(&request)?);
    if let Err(abort) = admin.store.check_removal(&key, site) {
        return answer(Err(abort));
    }
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

async fn metrics(State(admin): Shared) -> String {
    let report = admin.report().await;
    with_local_recorder(&admin.recorder, || {
        gauge!("imago_store_design_position").set(report.changed_at as f64);
        gauge!("imago_store_partitions").set(report.partitions.len() as f64);
        let unavailable = report.partitions.iter().filter(|one| !one.is_available).count();
        gauge!("imago_store_partitions_unavailable").set(unavailable as f64);
        gauge!("imago_store_partitions_below_replicas_min").set(report.below_replicas_min as f64);
        gauge!("imago_store_is_writable").set(if report.trouble.is_none() { 1.0 } else { 0.0 });
        if let Some(checkpoints) = &report.checkpoints {
            gauge!("imago_store_checkpoint_position").set(checkpoints.newest as f64);
            let is_written = checkpoints.failure.is_none();
            gauge!("imago_store_checkpoint_is_written").set(if is_written { 1.0 } else { 0.0 });
        }
        let cut = report.cut_tail.as_ref().map_or(0, |cut| cut.bytes);
        gauge!("imago_store_log_tail_cut_bytes").set(cut as f64);
        gauge!("imago_store_client_output_bytes").set(report.clients.output_bytes as f64);
        let memory = report.clients.output_memory_bytes;
        gauge!("imago_store_client_output_memory_bytes").set(memory as f64);
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
