//! The set of collections of a copy, while the source's catalog changes.
//!
//! A pattern means every match, also later ones: a collection that the source creates or renames into
//! the plan's patterns while the job follows joins it; one that the source drops or renames away is
//! gone, and the job goes on with the others. Views are kept as they are at the source.
//!
//! The set changes only between two coordinators: the first ends at a checkpoint, the set is
//! recorded, and the next begins there, exactly as after a resume. So a death at any moment of a
//! change leaves a state that every resume handles.
//!
//! Invariants:
//! - A collection keeps its number for the whole job: those of the plan come first, then those that
//!   joined, in order. A collection that was dropped and created again gets another number.
//! - A joining collection is recorded before anything is made at the destination, and copied from a
//!   state that is not older than [`Joined::since`]; a drop or rename up to that time ended another
//!   collection of this name.
//! - The copy of a collection that is gone is dropped if the job created it: documents that the
//!   source's users deleted must not come back when clients move. If all collections are gone,
//!   nothing is dropped and the job fails: that is more likely an accident.
//! - At most [`JOINED_MAX`] collections join one job.

use std::time::{Duration, Instant};

use bson::doc;
use imago_job::record::Record;
use imago_job::run::Run;
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;

use super::functions::{differing, sync_functions};
use super::{Clusters, Copying, KIND, State, retry_transient, save};
use crate::copy::preflight::{Plan, Planned, plan_one};
use crate::error::{Error, Result};
use crate::namespace::{Namespace, Selector};
use crate::replicate::changes::DROPPED_WITH_ITS_DATABASE;
use crate::server::collection::{Handle, Kind, Listed, list_all};

/// A collection that came within the plan's patterns after the plan was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Joined {
    /// The planned collection.
    pub planned: Planned,
    /// The source's time before anything of it was read: seconds and increment.
    pub since: (u32, u32),
    /// True once its slices are made.
    pub is_prepared: bool,
}

/// The end of a collection that the source does not have any more.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Gone {
    /// The event, as a past participle.
    pub what: String,
    /// True once its copy is dropped, or left because the job had not created it.
    pub is_done: bool,
}

/// Most collections that join one job: patterns that match collections which are made and dropped
/// all the time are better written another way.
pub const JOINED_MAX: usize = 1_000;

/// Differences between a job's collections and those of its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CatalogChanges {
    /// Collections and views that joined, by their names at the source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<Namespace>,
    /// Collections that are gone, by their names at the source.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<GoneCollection>,
}

/// A collection that the source does not have any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GoneCollection {
    /// Its name at the source.
    pub ns: Namespace,
    /// The event.
    pub what: String,
}

impl CatalogChanges {
    /// The changes of a job.
    ///
    /// # Errors
    /// Fails if the record is not one of a copy.
    pub fn of(record: &Record) -> Result<Self> {
        Self::with(record, &super::state_of(record)?)
    }

    /// Those of a job whose state is newer than its record.
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

    /// In words, a line each.
    #[must_use]
    pub fn in_words(&self) -> Vec<String> {
        let joined = self.joined.iter().map(|ns| format!("{ns} joined the job"));
        let gone = self.gone.iter().map(|of| format!("{} is gone: it was {}", of.ns, of.what));
        joined.chain(gone).collect()
    }
}

/// Differences between the source's catalog and the job's.
#[derive(Debug, Default)]
pub struct News {
    /// Collections and views that the job takes in.
    pub new: Vec<(Kind, Planned)>,
    /// Matching collections that are not taken in, with the reason.
    pub left_out: Vec<(Namespace, String)>,
    /// Views that are not at the destination as they are at the source.
    pub views: Vec<Namespace>,
    /// Collections of stored functions that differ at the destination.
    pub functions: Vec<Namespace>,
}

impl News {
    /// True if the job need not change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.new.is_empty() && self.views.is_empty() && self.functions.is_empty()
    }
}

impl Plan {
    /// The plan with the collections that came and went since.
    #[must_use]
    pub(super) fn changed_by(mut self, state: &State) -> Self {
        self.collections.extend(state.joined.iter().map(|joined| joined.planned.clone()));
        self.views.extend(state.joined_views.iter().cloned());
        for (&n, gone) in &state.gone {
            self.collections[n].gone = Some(gone.what.clone());
        }
        self
    }

    /// True if collections may join.
    #[must_use]
    pub fn takes_in(&self) -> bool {
        let is_pattern =
            |text: &String| !matches!(text.parse::<Selector>(), Ok(Selector::One { .. }) | Err(_));
        !self.no_new && self.selectors.iter().any(is_pattern)
    }

    /// True if a job of this kind goes on without a collection that ends.
    pub(super) fn is_open(&self, kind: &str) -> bool {
        kind == KIND && (self.collections.len() > 1 || self.takes_in())
    }
}

/// Notes that a collection ended. False when nothing is left that the job could go on with.
pub(super) fn lose(state: &mut State, plan: &mut Plan, n: usize, what: &str) -> bool {
    plan.collections[n].gone = Some(what.to_owned());
    let none_left = plan.collections.iter().all(|planned| planned.gone.is_some());
    if none_left && (!plan.takes_in() || what == DROPPED_WITH_ITS_DATABASE) {
        return false;
    }
    let is_done = state.gone.get(&n).is_some_and(|gone| gone.is_done);
    state.gone.insert(n, Gone { what: what.to_owned(), is_done });
    true
}

/// Says that the job goes on without a collection.
pub(super) fn tell_gone(run: &Run, planned: &Planned, what: &str) {
    let copy = if planned.creates {
        format!("its copy {} is dropped as well once the bulk is copied", planned.to)
    } else {
        format!("its copy {} stays, because it was there before the job", planned.to)
    };
    run.reporter().warning(
        "collection_gone",
        format!("{} was {what} at the source; the job goes on with the others", planned.from),
        copy,
    );
}

/// Shortest pause between two looks at the source's catalog.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The pause is at least this many times the duration of the last look, which takes seconds for a
/// large catalog.
const LOOK_RESTS: u32 = 20;

impl Copying<'_> {
    /// Goes on without the collections that ended, or fails if none is left.
    pub(super) async fn lose_ended(&mut self) -> Result<()> {
        let ended = self.coordinator.take_ended();
        if ended.is_empty() {
            return Ok(());
        }
        self.end_save().await?;
        for (n, what) in ended {
            if !lose(&mut self.state, &mut self.plan, n, &what) {
                let ns = self.plan.collections[n].from.to_string();
                return Err(Error::Disrupted { ns, what });
            }
            tell_gone(self.run, &self.plan.collections[n], &what);
        }
        save(self.run, &self.state).await
    }

    /// Looks at the source's catalog from time to time, beside everything else.
    pub(super) async fn look_at_catalog(&mut self) {
        if self.looking.as_ref().is_some_and(AbortOnDropHandle::is_finished) {
            let looked = self.looking.take().expect("it is there");
            self.look_took = self.looked.elapsed();
            match looked.await.expect("a look neither panics nor is aborted") {
                Ok(news) => self.note_news(news),
                Err(error) => tracing::debug!(%error, "the source's collections were not listed"),
            }
        }
        let rest = LOOK_EVERY.max(self.look_took * LOOK_RESTS);
        let is_due = self.state.is_indexed && self.looked.elapsed() > rest;
        if is_due && self.looking.is_none() && self.has_catalog() {
            self.looked = Instant::now();
            let (clusters, plan) = (self.clusters.clone(), self.plan.clone());
            let look = tokio::spawn(async move { news(&clusters, &plan).await });
            self.looking = Some(AbortOnDropHandle::new(look));
        }
    }

    /// True if the job depends on entries of the catalog other than the plan's own collections.
    fn has_catalog(&self) -> bool {
        let is_open = self.plan.is_open(&self.run.record().kind);
        let has_compared = !(self.plan.views.is_empty() && self.plan.functions.is_empty());
        is_open || (self.run.record().kind == KIND && has_compared)
    }

    fn note_news(&mut self, news: News) {
        for (ns, why) in &news.left_out {
            if self.told.insert(ns.clone()) {
                self.run.reporter().warning(
                    "left_out",
                    format!("{ns} is new at the source and does not join the job: {why}"),
                    "mend that, or leave it behind: `imago cutover --ignore-new`",
                );
            }
        }
        self.news = news;
    }

    /// Changes that must precede a cut-over, as far as the last look knows.
    pub(super) fn catalog_obstacles(&self) -> Vec<String> {
        let new = self.news.new.iter().map(|(_, of)| format!("{} is yet to be copied", of.from));
        let left_out = self.news.left_out.iter();
        let left_out = left_out.map(|(ns, why)| format!("{ns} is new and does not join: {why}"));
        let views = self.news.views.iter().map(|ns| format!("the view {ns} is yet to follow"));
        let functions = self.news.functions.iter();
        let functions = functions.map(|ns| format!("functions of {ns} are yet to follow"));
        new.chain(left_out).chain(views).chain(functions).collect()
    }

    /// True if the last look found that the job has to change.
    pub(super) fn is_catalog_changed(&self) -> bool {
        !self.news.is_empty() || self.state.gone.values().any(|gone| !gone.is_done)
    }

    /// The same by a look now.
    pub(super) async fn has_news(&mut self) -> Result<bool> {
        if !self.has_catalog() {
            return Ok(false);
        }
        let look = || news(self.clusters, &self.plan);
        let found =
            retry_transient("look at the source's collections", self.run.control(), look).await?;
        self.note_news(found);
        Ok(self.is_catalog_changed())
    }
}

/// The differences between the source's catalog and the job's.
///
/// # Errors
/// Fails if a cluster does not answer.
pub async fn news(clusters: &Clusters, plan: &Plan) -> Result<News> {
    let mut news = News::default();
    let listed = list_all(&clusters.source).await?;
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
        match plan_one(&clusters.source, &clusters.destination, plan, &listed, &to).await {
            Ok(planned) => news.new.push((listed.kind, planned)),
            Err(Error::Precondition { what, .. }) => news.left_out.push((listed.ns, what)),
            Err(error) => return Err(error),
        }
    }
    Ok(news)
}

/// Collections that the plan's selectors match and the job does not have.
fn unknown(plan: &Plan, listed: Vec<Listed>) -> Result<Vec<(Listed, Namespace)>> {
    let selectors = plan.selectors.iter().map(|text| text.parse::<Selector>());
    let selectors = selectors.collect::<Result<Vec<Selector>>>()?;
    let has = |ns: &Namespace| {
        let collections = plan.collections.iter().filter(|planned| planned.gone.is_none());
        collections.chain(&plan.views).any(|known| known.from == *ns)
            || plan.left_out.iter().any(|left_out| left_out.ns == *ns)
    };
    let unknown = listed.into_iter().filter(|listed| !has(&listed.ns));
    let to = |ns: &Namespace| selectors.iter().find_map(|selector| selector.select(ns));
    Ok(unknown.filter_map(|listed| to(&listed.ns).map(|to| (listed, to))).collect())
}

fn is_same_view(at_source: &[Listed], at_destination: &[Listed], view: &Planned) -> bool {
    let options = |all: &[Listed], ns: &Namespace| {
        let is_it = |listed: &&Listed| listed.ns == *ns && listed.kind == Kind::View;
        all.iter().find(is_it).map(|listed| listed.options.clone())
    };
    options(at_source, &view.from) == options(at_destination, &view.to)
}

/// Brings the set of the job's collections up to the source's catalog: drops the copies of
/// collections that are gone, records those that join, and makes views equal to the source's. No
/// other process writes for the job meanwhile.
///
/// # Errors
/// Fails if a cluster stays away, the job was taken over, or no collection is left.
pub(super) async fn take_in(clusters: &Clusters, run: &Run, mut state: State) -> Result<State> {
    let mut plan = super::plan_with(run.record(), &state)?;
    let look = || news(clusters, &plan);
    let mut found =
        retry_transient("look at the source's collections", run.control(), look).await?;
    refuse_empty(&plan, &found)?;
    if drop_copies(clusters, run, &mut state, &plan).await? {
        // A name may be free now.
        let look = || news(clusters, &plan);
        found = retry_transient("look at the source's collections", run.control(), look).await?;
    }
    let now = || clusters.source.cluster_time();
    let now = retry_transient("ask for the source's time", run.control(), now).await?;
    for (kind, planned) in found.new {
        if state.joined.len() == JOINED_MAX {
            return Err(Error::precondition(
                format!("{} would be the {JOINED_MAX}th collection to join", planned.from),
                "the patterns match collections that are made and dropped all the time: begin a job \
                 that names what is to move, or say --no-new",
            ));
        }
        run.reporter().decision(
            format!("{} joins the job as {}", planned.from, planned.to),
            "the source has got it since the plan was made, and a pattern matches it".to_owned(),
        );
        if kind == Kind::View {
            state.joined_views.push(planned.clone());
            plan.views.push(planned);
        } else {
            let since = (now.time, now.increment);
            state.joined.push(Joined { planned, since, is_prepared: false });
            state.is_indexed = false;
        }
    }
    if !state.joined.iter().all(|joined| joined.is_prepared) {
        // The stream may be another from now on: of a database instead of a collection.
        (state.t0, state.token) = (state.applied_to.or(state.t0), None);
    }
    save(run, &state).await?;
    let sync = || sync_views(clusters, run, &plan);
    retry_transient("define the views", run.control(), sync).await?;
    let sync = || sync_functions(clusters, run, &plan);
    retry_transient("copy the stored functions", run.control(), sync).await?;
    Ok(state)
}

fn refuse_empty(plan: &Plan, found: &News) -> Result<()> {
    let is_left = plan.collections.iter().any(|planned| planned.gone.is_none());
    let joins = found.new.iter().any(|(kind, _)| *kind == Kind::Collection);
    match plan.collections.iter().find_map(|planned| Some((planned, planned.gone.as_ref()?))) {
        Some((planned, what)) if !is_left && !joins => {
            Err(Error::Disrupted { ns: planned.from.to_string(), what: what.clone() })
        }
        _ => Ok(()),
    }
}

/// Drops the copies of collections that are gone; whether there were any.
async fn drop_copies(
    clusters: &Clusters,
    run: &Run,
    state: &mut State,
    plan: &Plan,
) -> Result<bool> {
    let mut any = false;
    for (&n, gone) in state.gone.iter_mut().filter(|(_, gone)| !gone.is_done) {
        let planned = &plan.collections[n];
        if planned.creates {
            let mut copy = Handle::new(clusters.destination.clone(), planned.to.clone());
            copy.owner = Some(run.ownership());
            retry_transient("drop a copy", run.control(), || copy.drop()).await?;
            run.reporter().decision(
                format!("{} is dropped", planned.to),
                format!("{} was {} at the source", planned.from, gone.what),
            );
        }
        (gone.is_done, any) = (true, true);
    }
    if any {
        save(run, state).await?;
    }
    Ok(any)
}

/// Makes the job's views at the destination equal to those at the source.
///
/// # Errors
/// Fails if a cluster does not answer or refuses.
pub(crate) async fn sync_views(clusters: &Clusters, run: &Run, plan: &Plan) -> Result<()> {
    for view in &plan.views {
        let from = Handle::new(clusters.source.clone(), view.from.clone());
        let mut to = Handle::new(clusters.destination.clone(), view.to.clone());
        to.owner = Some(run.ownership());
        let wanted = from.definition().await?.filter(|of| of.kind == Kind::View);
        let have = to.definition().await?;
        match (wanted, have) {
            (None, None) => {}
            (None, Some(have)) if have.kind == Kind::View => to.drop().await?,
            (Some(wanted), None) => to.create(&wanted.options).await?,
            (Some(wanted), Some(have)) if have.kind == Kind::View => {
                if wanted.options.get("collation") != have.options.get("collation") {
                    to.drop().await?;
                    to.create(&wanted.options).await?;
                } else if wanted.options != have.options {
                    let mut command = doc! {"collMod": &view.to.coll};
                    for part in ["viewOn", "pipeline"] {
                        command
                            .extend(wanted.options.get(part).map(|of| (part.into(), of.clone())));
                    }
                    to.check_owner("collMod")?;
                    to.endpoint.run(&view.to.db, command).await?;
                }
            }
            (_, Some(_)) => {
                return Err(Error::precondition(
                    format!("the destination has a collection where the view {} belongs", view.to),
                    "drop or rename it, then `imago job resume`",
                ));
            }
        }
    }
    Ok(())
}
