//! Requests about adaptation: its report, the heat of key ranges, limits and explanations; and requests to drain
//! sites and to take them into use again.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use super::{Admin, Answer, ChangeRequest, Fault, Shared, invalid_request, text};
use crate::adapt::{
    AdaptReport, Adaptation, DrainFault, DrainReport, HeatReport, LimitsFault, LimitsReport,
    LimitsRequest, NotExplained,
};
use crate::key::Key;
use crate::record::Site;

/// The body of a request that concerns one site: its number.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteRequest {
    site: u16,
}

fn conflict(why: &dyn std::fmt::Display) -> Fault {
    (StatusCode::CONFLICT, text(why))
}

impl Admin {
    fn adaptation(&self) -> Result<&Adaptation, Fault> {
        let off = "adaptation is off: start the store with --adapt advise or --adapt on";
        self.adaptation.as_deref().ok_or_else(|| conflict(&off))
    }
}

pub(super) async fn adapt(State(admin): Shared) -> Answer<AdaptReport> {
    Ok(Json(admin.adaptation()?.report()))
}

pub(super) async fn heat(State(admin): Shared) -> Answer<HeatReport> {
    let off = "nothing is sampled, since adaptation is off: start the store with --adapt advise, which changes nothing, \
               or --adapt on";
    let adaptation = admin.adaptation.as_ref().ok_or_else(|| conflict(&off))?;
    Ok(Json(adaptation.heat()))
}

pub(super) async fn limits(State(admin): Shared) -> Answer<LimitsReport> {
    Ok(Json(admin.adaptation()?.limits().await))
}

pub(super) async fn limit(
    State(admin): Shared,
    Json(request): Json<serde_json::Value>,
) -> Answer<LimitsReport> {
    let adaptation = admin.adaptation()?;
    let request: LimitsRequest =
        serde_json::from_value(request).map_err(|error| invalid_request(&error))?;
    let limited = adaptation.limit(&request).await;
    limited.map(Json).map_err(|fault| match fault {
        LimitsFault::Senseless(why) => invalid_request(&why),
        LimitsFault::Refused(why) => conflict(&why),
    })
}

pub(super) async fn explain(
    State(admin): Shared,
    Json(request): Json<ChangeRequest>,
) -> Answer<AdaptReport> {
    let adaptation = admin.adaptation()?;
    let asked = Admin::key(&request)?;
    let explanation = adaptation.explain(&asked).await.map_err(|why| match &why {
        NotExplained::NoRow(..) => conflict(&why),
        NotExplained::Unread(_) => (StatusCode::SERVICE_UNAVAILABLE, text(&why)),
    })?;
    let mut report = adaptation.report();
    let map = admin.store.map();
    let start = |key: &Key| map.design.of(key).range.start.clone();
    let is_it = |text: &String| text.parse::<Key>().is_ok_and(|key| start(&key) == start(&asked));
    report.decisions.retain(|one| one.partitions.iter().chain(&one.trigger).any(is_it));
    report.explanation = Some(explanation);
    Ok(Json(report))
}

pub(super) async fn pause(State(admin): Shared) -> Answer<()> {
    admin.adaptation()?.pause(true);
    Ok(Json(()))
}

pub(super) async fn resume(State(admin): Shared) -> Answer<()> {
    admin.adaptation()?.pause(false);
    Ok(Json(()))
}

pub(super) async fn drains(State(admin): Shared) -> Json<Vec<DrainReport>> {
    Json(admin.drains.reports())
}

fn site(request: serde_json::Value) -> Result<Site, Fault> {
    let request: SiteRequest =
        serde_json::from_value(request).map_err(|error| invalid_request(&error))?;
    Ok(Site(request.site))
}

pub(super) async fn drain(
    State(admin): Shared,
    Json(request): Json<serde_json::Value>,
) -> Answer<DrainReport> {
    let begun = admin.drains.begin(site(request)?).await;
    begun.map(Json).map_err(|why: DrainFault| conflict(&why))
}

pub(super) async fn add(
    State(admin): Shared,
    Json(request): Json<serde_json::Value>,
) -> Answer<()> {
    admin.drains.add(site(request)?).await.map(Json).map_err(|why| conflict(&why))
}
