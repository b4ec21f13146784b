//! The preconditions of a copy, and its plan.
//!
//! Invariant: nothing here writes. Planning returns a complete plan, or an error that names the first unmet
//! precondition and its remedy.

use bson::{Document, doc};
use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::bson::input::parse_filter;
use crate::copy::{Clusters, INSPECTIONS_MAX};
use crate::error::{Error, Result};
use crate::namespace::{Namespace, Selector};
use crate::replicate::pair::Pair;
use crate::server::block;
use crate::server::collection::{
    Definition, FUNCTIONS, Handle, Kind, LeftOut, Listed, Size, left_out_by, list_all,
};
use crate::server::endpoint::{Endpoint, is_same_cluster};
use crate::server::retention::Suspension;

mod clocks;
mod destination;
pub(in crate::copy) mod functions;

/// A user's request for a copy.
#[derive(Clone, Debug)]
pub struct Request {
    /// The collections to copy.
    pub selectors: Vec<Selector>,
    /// Condition that a document must match to be copied, in extended JSON; `None` for all documents.
    pub filter: Option<String>,
    /// True if collections at the destination may hold documents before the copy.
    pub into_existing: bool,
    /// Key by which the job shards the collections at the destination, in extended JSON; `None` if it shards none.
    pub shard_key: Option<String>,
    /// True if collections that are created later do not join, even if a pattern matches them.
    pub no_new: bool,
}

/// The objects that a job copies, and the way in which it copies them. It is stored with the job and holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Connection string of the source, without user, password and options.
    pub source: String,
    /// The cluster identity that the source must still have when the job is resumed.
    pub source_identity: String,
    /// Connection string of the destination, without user, password and options.
    pub destination: String,
    /// The cluster identity that the destination must still have when the job is resumed.
    pub destination_identity: String,
    /// The texts of the request's selectors. A pattern also matches collections that are created later.
    #[serde(default)]
    pub selectors: Vec<String>,
    /// True if collections that are created later do not join, even if a selector matches them.
    #[serde(default)]
    pub no_new: bool,
    /// The collections to copy.
    pub collections: Vec<Planned>,
    /// The views to define.
    pub views: Vec<Planned>,
    /// The collections of stored functions (`system.js`) that the request named.
    #[serde(default)]
    pub functions: Vec<Planned>,
    /// Condition that a document must match to be copied, in extended JSON; `None` for all documents.
    pub filter: Option<String>,
    /// True if the request admits destination collections that hold documents already.
    pub into_existing: bool,
    /// Key by which the job shards the collections at the destination, in extended JSON; `None` if it shards none.
    pub shard_key: Option<String>,
    /// Collections whose names match a pattern and that the job leaves out, with the reason, as reported when the plan
    /// was made.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
    /// True for a reverse job, whose destination (the old cluster) follows the new one after a cut-over.
    #[serde(default)]
    pub is_reverse: bool,
    /// Notes about the source and the clusters for the operator; none of them prevents the job.
    pub notes: Vec<String>,
}

/// A collection or view of a plan, or a collection of stored functions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Planned {
    /// The name of the object at the source.
    pub from: Namespace,
    /// The name of the object at the destination.
    pub to: Namespace,
    /// Number and size of the collection's documents at the source when it was planned; zero for other objects.
    pub size: Size,
    /// Number of the collection's indexes at the source when it was planned, without the index of `_id`.
    pub indexes: usize,
    /// The collection's shard key at the source, as extended JSON; `None` if it is not sharded.
    pub sharded_by: Option<String>,
    /// True if the job creates the object at the destination; false if it existed there before.
    pub creates: bool,
    /// The event that ended the collection at the source, as a past participle; `None` while the source has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<String>,
    /// True if the source no longer has the collection, but its copy still has the name at the destination.
    #[serde(skip)]
    pub holds_name: bool,
}

impl Plan {
    /// Iterates over all collections, views and collections of stored functions of the plan.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Planned> {
        self.collections.iter().chain(&self.views).chain(&self.functions)
    }

    /// Returns the plan of the reverse job, which makes the source follow the destination. `back` has the clusters of
    /// that job: its source is this plan's destination.
    #[must_use]
    pub fn reversed(&self, back: &Clusters) -> Self {
        let turned = |planned: &Planned| Planned {
            from: planned.to.clone(),
            to: planned.from.clone(),
            creates: false,
            ..planned.clone()
        };
        Self {
            source: back.source.redacted().to_owned(),
            source_identity: back.source.identity().to_owned(),
            destination: back.destination.redacted().to_owned(),
            destination_identity: back.destination.identity().to_owned(),
            selectors: Vec::new(),
            no_new: true,
            collections: self
                .collections
                .iter()
                .filter(|of| of.gone.is_none())
                .map(turned)
                .collect(),
            views: Vec::new(),
            functions: Vec::new(),
            filter: self.filter.clone(),
            into_existing: false,
            shard_key: None,
            left_out: Vec::new(),
            is_reverse: !self.is_reverse,
            notes: Vec::new(),
        }
    }
}

/// Oldest version of MongoDB, as major, minor and patch, that a source or a destination may have.
const SOURCE_VERSION_MIN: [i32; 3] = [4, 4, 0];

/// Checks the preconditions of the copy that `request` describes, from `source` to `destination`, and returns its
/// plan.
///
/// # Errors
/// Returns a usage or precondition error that names the first obstacle, or a server's error.
#[crate::boxed]
pub async fn plan(source: &Endpoint, destination: &Endpoint, request: &Request) -> Result<Plan> {
    check_versions(source, destination)?;
    request.filter.as_deref().map(parse_filter).transpose()?;
    let shard_key = destination::key_of(request.shard_key.as_deref())?;
    if shard_key.is_some() && !destination.is_sharded() {
        return Err(Error::precondition(
            "a shard key was given, but the destination is a replica set",
            "leave out --shard-key, or name a sharded cluster's router with --to",
        ));
    }
    let selected = select(source, &request.selectors).await?;
    let mut left_out = Vec::new();
    for selector in &request.selectors {
        left_out.extend(left_out_by(source, selector).await?);
    }
    left_out.sort();
    left_out.dedup();
    let mut plan = Plan {
        source: source.redacted().to_owned(),
        source_identity: source.identity().to_owned(),
        destination: destination.redacted().to_owned(),
        destination_identity: destination.identity().to_owned(),
        selectors: request.selectors.iter().map(ToString::to_string).collect(),
        no_new: request.no_new,
        collections: Vec::new(),
        views: Vec::new(),
        functions: Vec::new(),
        filter: request.filter.clone(),
        into_existing: request.into_existing,
        shard_key: request.shard_key.clone(),
        is_reverse: false,
        left_out,
        notes: Vec::new(),
    };
    let of = &plan;
    let looks = selected.iter().map(|(listed, to)| async move {
        Ok::<_, Error>((listed, plan_one(source, destination, of, listed, to).await?))
    });
    let looks: Vec<_> = looks.collect();
    let all: Vec<_> = stream::iter(looks).buffered(INSPECTIONS_MAX).try_collect().await?;
    let suspension = Suspension::between(source, destination);
    for (listed, planned) in all {
        if listed.options.get_bool("capped").unwrap_or(false) && !suspension.capped {
            plan.notes.push(format!(
                "{} is capped: documents that are written while it is copied may arrive in another \
                 order, and each side drops its oldest by itself, so the oldest few may differ",
                listed.ns
            ));
        }
        if listed.kind == Kind::View {
            plan.views.push(planned)
        } else {
            plan.collections.push(planned)
        }
    }
    plan.functions = functions::plan(source, destination, request).await?;
    let is_named = |ns: &Namespace| plan.functions.iter().any(|planned| planned.from == *ns);
    plan.left_out.retain(|left_out| !is_named(&left_out.ns));
    check_distinct(&plan)?;
    destination::check_names(destination, &plan).await?;
    destination::check_rights(destination, &plan).await?;
    if plan.collections.is_empty() && plan.views.is_empty() && plan.functions.is_empty() {
        return Err(Error::precondition(
            "no collection of the source matches",
            "look at the names: `--ns all --dry-run` lists every collection",
        ));
    }
    if source.version() < [6, 0, 0] {
        plan.notes.push(
            "the source is older than 6.0: index and option changes are not seen while it is \
             copied"
                .into(),
        );
    }
    if !source.has_last_writes().await? {
        plan.notes.push(
            "the source is a single member of its replica set and not the primary: it can be copied and followed, and \
             for the cut-over name the whole replica set with --from"
                .into(),
        );
    }
    plan.notes.extend(clocks::note(source, destination).await?);
    plan.notes.extend(block::obstacle(source).await);
    Ok(plan)
}

/// Checks the preconditions of the copy of `listed`, a collection or view of the source, to the name `to`, and
/// returns its entry in the plan.
///
/// # Errors
/// Returns a precondition error that names the first obstacle, or a server's error.
pub(crate) async fn plan_one(
    source: &Endpoint,
    destination: &Endpoint,
    plan: &Plan,
    listed: &Listed,
    to: &Namespace,
) -> Result<Planned> {
    check_kind(listed)?;
    check_not_itself(source, destination, &listed.ns, to)?;
    let from = Handle::new(source.clone(), listed.ns.clone());
    let into = Handle::new(destination.clone(), to.clone());
    if let (Some(filter), Kind::Collection) = (&plan.filter, listed.kind) {
        crate::verify::check_filter(&from, &parse_filter(filter)?).await?;
    }
    let existing = into.definition().await?;
    destination::check_existing(&into, existing.as_ref(), listed, plan).await?;
    if listed.kind == Kind::Collection {
        destination::check_indexes_are_even(&from).await?;
        if let Some(key) = destination::key_of(plan.shard_key.as_deref())? {
            destination::check_key(&key, listed, &from.indexes().await?)?;
        }
    }
    planned(&from, to, listed.kind, existing.is_none()).await
}

fn check_versions(source: &Endpoint, destination: &Endpoint) -> Result<()> {
    for endpoint in [source, destination] {
        if endpoint.version() < SOURCE_VERSION_MIN {
            let [major, minor, patch] = endpoint.version();
            return Err(Error::precondition(
                format!(
                    "the {} {} is MongoDB {major}.{minor}.{patch}",
                    endpoint.role(),
                    endpoint.redacted()
                ),
                "Imago needs 4.4 or newer on both sides; 6.0 or newer is recommended",
            ));
        }
    }
    Ok(())
}

async fn select(source: &Endpoint, selectors: &[Selector]) -> Result<Vec<(Listed, Namespace)>> {
    let all = list_all(source).await?;
    for selector in selectors {
        if let Selector::One { from, .. } = selector
            && from.coll.starts_with("system.")
        {
            if from.coll == FUNCTIONS {
                continue;
            }
            return Err(Error::precondition(
                format!("{from} is a system collection, which belongs to the server"),
                "leave it out of --ns; of system collections only stored functions (system.js) are copied",
            ));
        }
        if !all.iter().any(|listed| selector.select(&listed.ns).is_some()) {
            return Err(Error::precondition(
                format!("the source has no collection {selector}"),
                "look at the names: `--ns all --dry-run` lists every collection",
            ));
        }
    }
    // A time series is refused if it is named. Patterns leave it out, and the plan reports that.
    let selects = |selector: &&Selector, listed: &Listed| {
        listed.kind != Kind::TimeSeries || matches!(selector, Selector::One { .. })
    };
    let to = |listed: &Listed| {
        let selectors = selectors.iter().filter(|selector| selects(selector, listed));
        selectors.filter_map(|selector| selector.select(&listed.ns)).next()
    };
    Ok(all.into_iter().filter_map(|listed| to(&listed).map(|to| (listed, to))).collect())
}

fn check_kind(listed: &Listed) -> Result<()> {
    if listed.kind == Kind::TimeSeries {
        return Err(Error::precondition(
            format!("{} is a time series collection, which cannot be copied live", listed.ns),
            "leave it out of --ns, and move it with mongodump and mongorestore",
        ));
    }
    Ok(())
}

fn check_not_itself(
    source: &Endpoint,
    destination: &Endpoint,
    from: &Namespace,
    to: &Namespace,
) -> Result<()> {
    if is_same_cluster(source.identity(), destination.identity()) && from == to {
        return Err(Error::precondition(
            format!("{from} would be copied onto itself"),
            "name another cluster with --to, or another collection with --ns a.b=c.d",
        ));
    }
    Ok(())
}

fn check_distinct(plan: &Plan) -> Result<()> {
    let mut names: Vec<&Namespace> = plan.all().map(|planned| &planned.to).collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::usage(
            format!("two collections would become {}", pair[0]),
            "give each its own name with --ns a.b=c.d",
        )),
        None => Ok(()),
    }
}

async fn planned(from: &Handle, to: &Namespace, kind: Kind, creates: bool) -> Result<Planned> {
    let (mut size, mut indexes, mut sharded_by) = (Size::default(), 0, None);
    if kind == Kind::Collection {
        size = from.size().await?;
        indexes = from.indexes().await?.len().saturating_sub(1);
        sharded_by = from.shard_key().await?.map(|key| key.to_string());
    }
    Ok(Planned {
        from: from.ns.clone(),
        to: to.clone(),
        size,
        indexes,
        sharded_by,
        creates,
        gone: None,
        holds_name: false,
    })
}

/// Returns the fields of a shard key that are neither `_id` nor within `_id`; none without a shard key.
#[must_use]
pub fn key_fields(shard_key: Option<&Document>) -> Vec<String> {
    let of_the_id = |field: &str| field == "_id" || field.starts_with("_id.");
    let fields = shard_key.into_iter().flat_map(Document::keys);
    fields.filter(|field| !of_the_id(field)).cloned().collect()
}

/// Checks that `source` and `destination` are the clusters with which `plan` was made.
///
/// # Errors
/// Returns a precondition error that names the cluster with another identity.
pub fn check_identity(plan: &Plan, source: &Endpoint, destination: &Endpoint) -> Result<()> {
    for (endpoint, identity) in
        [(source, &plan.source_identity), (destination, &plan.destination_identity)]
    {
        if !is_same_cluster(endpoint.identity(), identity) {
            return Err(Error::precondition(
                format!(
                    "the {} {} is {}, but the job was planned with {identity}",
                    endpoint.role(),
                    endpoint.redacted(),
                    endpoint.identity()
                ),
                "name the clusters that the job was planned with",
            ));
        }
    }
    Ok(())
}

/// A collection of a plan, with its handles and its definitions at both sides.
#[derive(Clone, Debug)]
pub struct Paired {
    /// Handles of the collection at the source and at the destination.
    pub pair: Pair,
    /// The collection's definition at the source; an empty one if the source no longer has it.
    pub definition: Definition,
    /// The collection's definition at the destination; `None` if it does not exist there.
    pub existing: Option<Definition>,
}

/// Reads the definitions of a plan's collections at both sides, and returns them with handles for reads and writes,
/// by the collection's number.
///
/// # Errors
/// Fails if a server does not reply or has another identity; [`Error::Disrupted`] if the source no longer has one of
/// the collections, or its name belongs to another kind.
#[crate::boxed]
pub async fn pairs(plan: &Plan, source: &Endpoint, destination: &Endpoint) -> Result<Vec<Paired>> {
    check_identity(plan, source, destination)?;
    let filter = plan.filter.as_deref().map(parse_filter).transpose()?;
    let filter = &filter;
    let looks = plan.collections.iter().map(|planned| async move {
        let source = Handle::new(source.clone(), planned.from.clone());
        let definition = if planned.gone.is_some() {
            Definition {
                kind: Kind::Collection,
                options: doc! {},
                indexes: vec![],
                building: vec![],
                shard_key: None,
            }
        } else {
            definition_of(&source).await?
        };
        let mut destination = Handle::new(destination.clone(), planned.to.clone());
        let existing = destination.definition().await?;
        destination.bypass_validation =
            definition.is_validated() || existing.as_ref().is_some_and(Definition::is_validated);
        let shard_key = existing.as_ref().and_then(|existing| existing.shard_key.as_ref());
        let pair = Pair {
            source,
            destination,
            filter: filter.clone(),
            is_collated: definition.is_collated(),
            shard_key: key_fields(shard_key),
            has_foreign: plan.into_existing,
        };
        Ok(Paired { pair, definition, existing })
    });
    let looks: Vec<_> = looks.collect();
    stream::iter(looks).buffered(INSPECTIONS_MAX).try_collect().await
}

/// Reads the definition of a collection at the source.
///
/// # Errors
/// Fails if the source does not reply; [`Error::Disrupted`] if the name does not exist, or is a view or a time series.
pub(crate) async fn definition_of(from: &Handle) -> Result<Definition> {
    let disrupted = |what: String| Error::Disrupted { ns: from.ns.to_string(), what };
    let definition = from.definition().await?.ok_or_else(|| disrupted("dropped".into()))?;
    match definition.kind {
        Kind::Collection => Ok(definition),
        other => Err(disrupted(replaced_by(other))),
    }
}

/// Returns, as a past participle, the event that ended a collection whose name at the source now belongs to `kind`.
pub(crate) fn replaced_by(kind: Kind) -> String {
    match kind {
        Kind::Collection => "replaced by another collection".into(),
        Kind::View => "replaced by a view".into(),
        Kind::TimeSeries => "replaced by a time series".into(),
    }
}
