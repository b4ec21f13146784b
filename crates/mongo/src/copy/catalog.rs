//! The set of a copy's collections, while the source's catalog changes.
//!
//! A pattern stands for all its matches, later ones included. A collection that the source creates under a matching
//! name, or renames to one, while the job follows joins the job. A collection that the source drops or renames away is
//! gone, and the job continues with the others. Views at the destination are kept equal to those at the source.
//!
//! A name is known together with its present kind: a view, a collection and a time series may succeed each other under
//! one name while the job follows, is paused, or has no process.
//!
//! The set changes only between two coordinators: the first one ends at a checkpoint, the new set is recorded, and the
//! next coordinator starts there, exactly as after a resume. So if the process dies at any moment of a change, the
//! state that it leaves is one that every resume handles.
//!
//! Invariants:
//! - A collection keeps its number for the whole job: first come those of the plan, then those that joined, in order.
//!   A collection that was dropped and created again gets another number.
//! - A joining collection is recorded before anything is created at the destination, and copied from a state that is
//!   not older than [`Joined::since`]. A drop or rename up to that time ended an earlier collection of this name.
//! - The copy of a collection that is gone is dropped if the job created it: documents that the source's users deleted
//!   must not reappear when clients move. If all collections are gone, that is more likely an accident, and nothing is
//!   dropped: a job that admits later matches waits for one, and cannot be cut over until then; another job fails.
//! - At most [`JOINED_MAX`] collections join one job.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use imago_job::record::Record;
use imago_job::run::Run;
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::differences::{Differences, all_differences};
use super::functions::differing;
use super::{Clusters, CopyJob, KIND, State, retry_transient, save};
use crate::copy::preflight::{Plan, Planned, plan_one, replaced_by};
use crate::error::{Error, Result};
use crate::namespace::{Namespace, Selector};
use crate::server::collection::{Kind, Listed, list_all};
use crate::verify::StructureDifference;

mod reconcile;
mod recover;

use reconcile::is_same_view;
pub(super) use reconcile::reconcile;
pub(crate) use reconcile::sync_views;
pub(super) use recover::recover;

/// A collection that joined the job because it came to match the plan's patterns after the plan was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// The names, the size and the properties of the collection, as in the plan.
    pub planned: Planned,
    /// The source's cluster time before any document of the collection was read: seconds since 1970, and increment.
    pub since: (u32, u32),
    /// True once the collection is created at the destination and its slices are persisted.
    pub is_prepared: bool,
}

/// The end of a collection of the job that the source no longer has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gone {
    /// The event that ended the collection, as a past participle ("dropped").
    pub what: String,
    /// True once the collection's copy was dropped, or was left in place because the job had not created it.
    pub is_done: bool,
}

/// Most collections that join one job in its whole life. A pattern whose matches are created and dropped all the time
/// should be written another way.
pub const JOINED_MAX: usize = 1_000;

/// The collections that have joined a job, or ended at the source, since the job was planned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CatalogChanges {
    /// Collections and views that joined the job, by their names at the source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<Namespace>,
    /// Collections that are gone, by their names at the source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<GoneCollection>,
}

/// A collection of a job that the source no longer has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GoneCollection {
    /// The name of the collection at the source.
    pub ns: Namespace,
    /// The event that ended the collection, as a past participle ("dropped").
    pub what: String,
}

impl CatalogChanges {
    /// Returns the collections that have joined or ended, according to a job's record.
    ///
    /// # Errors
    /// Fails if the record is not one of a copy.
    pub fn of(record: &Record) -> Result<Self> {
        Self::with(record, &super::state_of(record)?)
    }

    /// Returns the collections that have joined or ended, for a job whose `state` is newer than its record.
    pub(crate) fn with(record: &Record, state: &State) -> Result<Self> {
        let plan = super::plan_with(record, state)?;
        let name = |planned: &Planned| planned.from.clone();
        let joined = state.joined.iter().map(|joined| &joined.planned);
        let gone = |planned: &Planned| {
            let what = planned.gone.clone()?;
            Some(GoneCollection { ns: planned.from.clone(), what })
        };
        Ok(Self {
            joined: joined.chain(&state.joined_views).map(name).collect(),
            gone: plan.collections.iter().filter_map(gone).collect(),
        })
    }

    /// Returns one line of text for each collection that has joined or ended.
    #[must_use]
    pub fn in_words(&self) -> Vec<String> {
        let joined = self.joined.iter().map(|ns| format!("{ns} joined the job"));
        let gone = self.gone.iter().map(|of| format!("{} is gone: it was {}", of.ns, of.what));
        joined.chain(gone).collect()
    }
}

/// Differences between the source's catalog and the job's collections, views and functions.
#[derive(Debug, Default)]
pub struct CatalogDiff {
    /// Collections and views of the source that are to join the job, with their kinds.
    pub new: Vec<(Kind, Planned)>,
    /// Source collections that match the plan's patterns and cannot join the job, with the reason.
    pub left_out: Vec<(Namespace, String)>,
    /// Views of the job that differ between the source and the destination, by their names at the source.
    pub views: Vec<Namespace>,
    /// Collections of stored functions (`system.js`) that differ between the source and the destination, by their
    /// names at the source.
    pub functions: Vec<Namespace>,
    /// Collections of the job, by number, whose name at the source now belongs to a view or a time series, with the
    /// event as a past participle.
    pub replaced: Vec<(usize, String)>,
    /// Source names that match the plan's patterns and under which the destination still has another object of this
    /// job. They join once that object is dropped.
    pub freed: Vec<Namespace>,
}

impl CatalogDiff {
    /// Returns true if the job need not change. Collections in `left_out` do not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.new.is_empty()
            && self.views.is_empty()
            && self.functions.is_empty()
            && self.replaced.is_empty()
            && self.freed.is_empty()
    }
}

impl Plan {
    /// Returns the plan with the changes in `state`: collections and views that joined are added, ended ones are
    /// marked.
    #[must_use]
    pub(super) fn changed_by(mut self, state: &State) -> Self {
        self.collections.extend(state.joined.iter().map(|joined| joined.planned.clone()));
        self.views.extend(state.joined_views.iter().cloned());
        for (&n, gone) in &state.gone {
            let planned = &mut self.collections[n];
            planned.gone = Some(gone.what.clone());
            planned.holds_name = planned.creates && !gone.is_done;
        }
        self
    }

    /// Returns true if collections that the source creates later may join the job: the selectors contain a pattern,
    /// and `no_new` is not set.
    #[must_use]
    pub fn accepts_new_collections(&self) -> bool {
        let is_pattern =
            |text: &String| !matches!(text.parse::<Selector>(), Ok(Selector::One { .. }) | Err(_));
        !self.no_new && self.selectors.iter().any(is_pattern)
    }

    /// Returns true if the source has none of the job's collections any more; false for a plan without collections.
    #[must_use]
    pub fn is_all_gone(&self) -> bool {
        !self.collections.is_empty() && self.collections.iter().all(|of| of.gone.is_some())
    }

    /// Returns true if a job of the kind `kind` with this plan continues when one of its collections ends at the
    /// source.
    pub(super) fn is_open(&self, kind: &str) -> bool {
        kind == KIND && (self.collections.len() > 1 || self.accepts_new_collections())
    }
}

/// Records in `state` and `plan` that the event `what` ended collection `n` at the source. Returns false if the job
/// has no collection left and can get no other.
pub(super) fn lose(state: &mut State, plan: &mut Plan, n: usize, what: &str) -> bool {
    let planned = &mut plan.collections[n];
    (planned.gone, planned.holds_name) = (Some(what.to_owned()), planned.creates);
    if plan.is_all_gone() && !plan.accepts_new_collections() {
        return false;
    }
    let is_done = state.gone.get(&n).is_some_and(|gone| gone.is_done);
    state.gone.insert(n, Gone { what: what.to_owned(), is_done });
    true
}

/// Reports, as a warning, that the job continues without a collection, which the event `what` ended.
pub(super) fn report_gone(run: &Run, planned: &Planned, what: &str) {
    let copy = if planned.creates {
        format!(
            "its copy {} is dropped as well once the bulk is copied, unless all are gone",
            planned.to
        )
    } else {
        format!("its copy {} stays, because it was there before the job", planned.to)
    };
    run.reporter().warning(
        "collection_gone",
        format!("{} was {what} at the source; the job goes on with the others", planned.from),
        copy,
    );
}

/// The result of one inspection of the catalogs of source and destination.
#[derive(Debug)]
pub(super) struct CatalogInspection {
    news: CatalogDiff,
    /// Indexes and options that differ between both clusters, or the error that prevented their comparison.
    differing: Result<Differences>,
}

/// The job's watch on the catalogs of both clusters: the differences found last, and the inspection that looks for the
/// next ones.
#[derive(Debug)]
pub(super) struct CatalogWatch {
    /// Differences between the plan and the source's catalog, as of the last inspection.
    pub(super) news: CatalogDiff,
    /// The inspection of both catalogs that runs in the background; `None` if none does.
    pub(super) inspection: Option<AbortOnDropHandle<Result<CatalogInspection>>>,
    pub(super) inspected_at: Instant,
    pub(super) inspection_took: Duration,
    /// Source collections that cannot join the job and about which a warning was reported.
    pub(super) reported_left_out: HashSet<Namespace>,
    /// Indexes and options that still differ after the job tried to make them equal, by the collection's number.
    pub(super) unmatched: BTreeMap<usize, Vec<StructureDifference>>,
    /// Descriptions of the indexes that are being built at the source.
    pub(super) building: Vec<String>,
}

impl CatalogWatch {
    pub fn new() -> Self {
        Self {
            news: CatalogDiff::default(),
            inspection: None,
            inspected_at: Instant::now(),
            inspection_took: Duration::ZERO,
            reported_left_out: HashSet::new(),
            unmatched: BTreeMap::new(),
            building: Vec::new(),
        }
    }
}

/// Shortest time between two periodic inspections of both clusters' catalogs.
const INSPECT_EVERY: Duration = Duration::from_secs(2);
/// Least ratio of the time between two inspections to the duration of the last one, which is seconds for a large
/// catalog.
const INSPECTION_REST_FACTOR: u32 = 20;

impl CopyJob<'_> {
    /// Records the collections whose end the coordinator has read, and continues without them. Fails if none is left.
    pub(super) async fn lose_ended(&mut self) -> Result<()> {
        let ended = self.coordinator.take_ended();
        if ended.is_empty() {
            return Ok(());
        }
        self.checkpoints.finish().await?;
        for (n, what) in ended {
            if !lose(&mut self.state, &mut self.plan, n, &what) {
                let ns = self.plan.collections[n].from.to_string();
                return Err(Error::Disrupted { ns, what });
            }
            report_gone(self.run, &self.plan.collections[n], &what);
        }
        save(self.run, &self.state).await
    }

    /// Inspects both catalogs periodically in the background, once the indexes are built, and applies the result of
    /// the last inspection. Reshard jobs are excluded.
    pub(super) async fn inspect_catalog(&mut self) -> Result<()> {
        if self.catalog.inspection.as_ref().is_some_and(AbortOnDropHandle::is_finished) {
            let looked = self.catalog.inspection.take().expect("it is there");
            self.catalog.inspection_took = self.catalog.inspected_at.elapsed();
            match looked.await.expect("a look neither panics nor is aborted") {
                Ok(CatalogInspection { news, differing }) => {
                    self.record_catalog_diff(news);
                    match differing {
                        Ok(differing) => Box::pin(self.match_differing(differing)).await?,
                        Err(error) => {
                            tracing::debug!(%error, "indexes and options were not compared")
                        }
                    }
                }
                Err(error) => tracing::debug!(%error, "the catalogs were not compared"),
            }
        }
        let rest = INSPECT_EVERY.max(self.catalog.inspection_took * INSPECTION_REST_FACTOR);
        let is_due = self.state.is_indexed && self.catalog.inspected_at.elapsed() > rest;
        if is_due && self.catalog.inspection.is_none() && self.run.record().kind == KIND {
            self.catalog.inspected_at = Instant::now();
            self.catalog.inspection =
                Some(AbortOnDropHandle::new(tokio::spawn(self.inspect_both_catalogs()())));
        }
        Ok(())
    }

    /// Returns a function that inspects both catalogs and owns its data, so that it can run in the background.
    fn inspect_both_catalogs(
        &self,
    ) -> impl Fn() -> BoxFuture<'static, Result<CatalogInspection>> + Send + use<> {
        let (clusters, plan, pairs) =
            (self.clusters.clone(), self.plan.clone(), Arc::clone(&self.pairs));
        let (has_catalog, suspension) = (self.has_catalog(), self.suspension());
        move || {
            let (clusters, plan, pairs) = (clusters.clone(), plan.clone(), Arc::clone(&pairs));
            Box::pin(async move {
                let news = if has_catalog {
                    news(&clusters, &plan).await?
                } else {
                    CatalogDiff::default()
                };
                // For a reverse job, the new cluster's indexes and options are its own.
                let differing = match plan.is_reverse {
                    true => Ok(Differences::default()),
                    false => all_differences(&pairs, &plan, suspension).await,
                };
                Ok(CatalogInspection { news, differing })
            })
        }
    }

    /// Returns true if the source's catalog has to be compared with the job: its collections may join or end, or it
    /// has views or stored functions.
    fn has_catalog(&self) -> bool {
        let is_open = self.plan.is_open(&self.run.record().kind);
        let has_compared = !(self.plan.views.is_empty() && self.plan.functions.is_empty());
        is_open || (self.run.record().kind == KIND && has_compared)
    }

    fn record_catalog_diff(&mut self, news: CatalogDiff) {
        for (ns, why) in &news.left_out {
            if self.catalog.reported_left_out.insert(ns.clone()) {
                self.run.reporter().warning(
                    "left_out",
                    format!("{ns} is new at the source and does not join the job: {why}"),
                    "correct that, or cut over without the collection: `imago cutover \
                     --ignore-new`",
                );
            }
        }
        self.catalog.news = news;
    }

    /// Describes the differences that must be resolved before a cut-over, as of the last inspection.
    pub(super) fn catalog_obstacles(&self) -> Vec<String> {
        let new =
            self.catalog.news.new.iter().map(|(_, of)| format!("{} is yet to be copied", of.from));
        let left_out = self.catalog.news.left_out.iter();
        let left_out = left_out.map(|(ns, why)| format!("{ns} is new and does not join: {why}"));
        let views =
            self.catalog.news.views.iter().map(|ns| format!("the view {ns} is yet to follow"));
        let functions = self.catalog.news.functions.iter();
        let functions = functions.map(|ns| format!("functions of {ns} are yet to follow"));
        let replaced = self.catalog.news.replaced.iter();
        let replaced =
            replaced.map(|(n, what)| format!("{} was {what}", self.plan.collections[*n].from));
        let freed = self.catalog.news.freed.iter().map(|ns| format!("{ns} is yet to be copied"));
        let none = self.plan.is_all_gone().then(|| all_gone(&self.plan));
        let of_names = new.chain(left_out).chain(views).chain(functions).chain(replaced);
        of_names.chain(freed).chain(none).chain(self.structure_obstacles()).collect()
    }

    /// Returns true if, by the last inspection, the job's collections, views or functions have to change.
    pub(super) fn is_catalog_changed(&self) -> bool {
        let is_owed = self.state.gone.values().any(|gone| !gone.is_done);
        !self.catalog.news.is_empty() || (is_owed && !self.plan.is_all_gone())
    }

    /// Inspects both catalogs now, applying changes meanwhile, and returns true if the job's collections, views or
    /// functions have to change. Returns false at once for a reshard job.
    pub(super) async fn is_catalog_stale(&mut self) -> Result<bool> {
        if self.run.record().kind != KIND {
            return Ok(false);
        }
        let (look, control) = (self.inspect_both_catalogs(), self.run.control().clone());
        let look = async move {
            let whole = || async {
                let CatalogInspection { news, differing } = look().await?;
                Ok((news, differing?))
            };
            retry_transient("compare both catalogs", &control, whole).await
        };
        let look = AbortOnDropHandle::new(tokio::spawn(look));
        // With thousands of collections the inspection takes long. Changes are applied meanwhile.
        while !look.is_finished() {
            self.step().await?;
        }
        let (news, differing) = look.await.expect("a look neither panics nor is aborted")?;
        self.record_catalog_diff(news);
        Box::pin(self.match_differing(differing)).await?;
        Ok(self.is_catalog_changed())
    }
}

/// Returns the text of the obstacle that the source has none of the job's collections any more.
pub(super) fn all_gone(plan: &Plan) -> String {
    let names: Vec<String> = plan.collections.iter().map(|of| of.from.to_string()).collect();
    format!("the source has none of the job's collections any more ({})", names.join(", "))
}

/// Compares the catalogs of both clusters with `plan`, and returns the differences.
///
/// # Errors
/// Fails if a cluster does not answer.
#[crate::boxed]
pub async fn news(clusters: &Clusters, plan: &Plan) -> Result<CatalogDiff> {
    let listed = list_all(&clusters.source).await?;
    let mut news = CatalogDiff { replaced: replaced(plan, &listed), ..CatalogDiff::default() };
    if !plan.views.is_empty() {
        let copied = list_all(&clusters.destination).await?;
        let differs = |view: &&Planned| !is_same_view(&listed, &copied, view);
        news.views = plan.views.iter().filter(differs).map(|view| view.from.clone()).collect();
    }
    news.functions = differing(clusters, plan).await?;
    if plan.no_new {
        return Ok(news);
    }
    for (listed, to) in unknown(plan, listed)? {
        let is_copied = |of: &Planned| of.holds_name && of.to == to;
        let is_replaced = |(n, _): &(usize, String)| plan.collections[*n].from == listed.ns;
        if news.views.contains(&listed.ns)
            || news.replaced.iter().any(is_replaced)
            || plan.collections.iter().any(is_copied)
        {
            news.freed.push(listed.ns);
            continue;
        }
        match plan_one(&clusters.source, &clusters.destination, plan, &listed, &to).await {
            Ok(planned) => news.new.push((listed.kind, planned)),
            Err(Error::Precondition { what, .. }) => news.left_out.push((listed.ns, what)),
            Err(error) => return Err(error),
        }
    }
    Ok(news)
}

/// Returns the numbers of the job's collections whose names are views or time series in `listed`, the source's
/// catalog, with the event that ended each as a past participle.
fn replaced(plan: &Plan, listed: &[Listed]) -> Vec<(usize, String)> {
    let present = plan.collections.iter().enumerate().filter(|(_, of)| of.gone.is_none());
    let other = |of: &Planned| {
        let is_it = |listed: &&Listed| listed.ns == of.from && listed.kind != Kind::Collection;
        listed.iter().find(is_it).map(|listed| replaced_by(listed.kind))
    };
    present.filter_map(|(n, of)| Some((n, other(of)?))).collect()
}

/// Returns the entries of the source's catalog `listed` that the plan's selectors match, and that the job does not
/// have as their present kind, with their names at the destination.
fn unknown(plan: &Plan, listed: Vec<Listed>) -> Result<Vec<(Listed, Namespace)>> {
    let selectors = plan.selectors.iter().map(|text| text.parse::<Selector>());
    let selectors = selectors.collect::<Result<Vec<Selector>>>()?;
    let has = |listed: &Listed| match listed.kind {
        Kind::Collection => {
            plan.collections.iter().any(|of| of.gone.is_none() && of.from == listed.ns)
        }
        Kind::View => plan.views.iter().any(|view| view.from == listed.ns),
        Kind::TimeSeries => plan.left_out.iter().any(|left_out| left_out.ns == listed.ns),
    };
    let unknown = listed.into_iter().filter(|listed| !has(listed));
    let to = |ns: &Namespace| selectors.iter().find_map(|selector| selector.select(ns));
    Ok(unknown.filter_map(|listed| to(&listed.ns).map(|to| (listed, to))).collect())
}
