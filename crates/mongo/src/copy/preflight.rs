//! The preconditions of a copy, and the plan that follows from them.
//!
//! Invariant: nothing here writes. A plan is either complete or an error that names the first unmet
//! precondition and its remedy.

use bson::{Document, doc};
use serde::{Deserialize, Serialize};

use crate::bson::input::parse_filter;
use crate::copy::Clusters;
use crate::error::{Error, Result};
use crate::namespace::{Namespace, Selector};
use crate::replicate::apply::Pair;
use crate::server::collection::{
    Definition, FUNCTIONS, Handle, Kind, LeftOut, Listed, Size, left_out_by, list_all,
};
use crate::server::endpoint::{Endpoint, is_same_cluster};

mod destination;
pub(in crate::copy) mod functions;

/// A user's request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Which collections.
    pub selectors: Vec<Selector>,
    /// Only documents that match it; extended JSON.
    pub filter: Option<String>,
    /// The destination may hold documents already.
    pub into_existing: bool,
    /// Shard the collections at the destination by this key; extended JSON.
    pub shard_key: Option<String>,
    /// Collections that are created later are left out, even if a pattern matches them.
    pub no_new: bool,
}

/// The steps of a job. It is stored with the job and holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The source, redacted.
    pub source: String,
    /// The identity that the source must still have when the job is resumed.
    pub source_identity: String,
    /// The destination, redacted.
    pub destination: String,
    /// The identity that the destination must still have when the job is resumed.
    pub destination_identity: String,
    /// The request: patterns match collections that come later too.
    #[serde(default)]
    pub selectors: Vec<String>,
    /// Collections that are created later are left out.
    #[serde(default)]
    pub no_new: bool,
    /// The collections to copy.
    pub collections: Vec<Planned>,
    /// The views to define.
    pub views: Vec<Planned>,
    /// The collections of stored functions (`system.js`) that were named.
    #[serde(default)]
    pub functions: Vec<Planned>,
    /// Only documents that match it; extended JSON.
    pub filter: Option<String>,
    /// The destination held documents before the job.
    pub into_existing: bool,
    /// The key to shard by at the destination; extended JSON.
    pub shard_key: Option<String>,
    /// Collections that the patterns match by name and the job leaves out; reported when the plan
    /// was made.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
    /// True for a job that leads back: the old cluster follows the new one after a cut-over.
    #[serde(default)]
    pub is_reverse: bool,
    /// Notes for the operator; none of them prevents the job.
    pub notes: Vec<String>,
}

/// One collection or view of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Planned {
    /// Its name at the source.
    pub from: Namespace,
    /// Its name at the destination.
    pub to: Namespace,
    /// Its size.
    pub size: Size,
    /// Indexes besides `_id`.
    pub indexes: usize,
    /// The source's shard key, as extended JSON.
    pub sharded_by: Option<String>,
    /// The destination must be created.
    pub creates: bool,
    /// The event that ended it at the source, if it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<String>,
}

impl Plan {
    /// Everything that the destination gets.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Planned> {
        self.collections.iter().chain(&self.views).chain(&self.functions)
    }

    /// The plan of the job that makes the source follow the destination.
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

const SOURCE_VERSION_MIN: [i32; 3] = [4, 4, 0];

/// Plans a copy from `source` to `destination`.
///
/// # Errors
/// A usage or precondition error that names the first thing in the way; a server's error.
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
    for (listed, to) in selected {
        let planned = plan_one(source, destination, &plan, &listed, &to).await?;
        if listed.options.get_bool("capped").unwrap_or(false) {
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
             copied, and writes cannot be blocked for the cut-over"
                .into(),
        );
    }
    Ok(plan)
}

/// Plans one collection or view that the source lists.
///
/// # Errors
/// A precondition that names the first thing in the way; a server's error.
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
    // A time series that is named is refused; patterns leave it out, and the operator is told.
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
    })
}

/// The fields of a shard key that an `_id` does not tell.
#[must_use]
pub fn key_fields(shard_key: Option<&Document>) -> Vec<String> {
    let of_the_id = |field: &str| field == "_id" || field.starts_with("_id.");
    let fields = shard_key.into_iter().flat_map(Document::keys);
    fields.filter(|field| !of_the_id(field)).cloned().collect()
}

/// Checks that these are the clusters of a plan.
///
/// # Errors
/// A precondition that names the cluster that is another one.
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

/// The collections of a plan, ready to be read and written, with their definitions at the source.
///
/// # Errors
/// Fails if a server does not answer, or a collection of the source is gone.
pub async fn pairs(
    plan: &Plan,
    source: &Endpoint,
    destination: &Endpoint,
) -> Result<Vec<(Pair, Definition)>> {
    check_identity(plan, source, destination)?;
    let filter = plan.filter.as_deref().map(parse_filter).transpose()?;
    let mut pairs = Vec::new();
    for planned in &plan.collections {
        let source = Handle::new(source.clone(), planned.from.clone());
        let definition = if planned.gone.is_some() {
            Definition {
                kind: Kind::Collection,
                options: doc! {},
                indexes: vec![],
                shard_key: None,
            }
        } else {
            source.definition().await?.ok_or_else(|| Error::Disrupted {
                ns: planned.from.to_string(),
                what: "dropped".into(),
            })?
        };
        let mut destination = Handle::new(destination.clone(), planned.to.clone());
        let existing = destination.definition().await?;
        destination.bypass_validation =
            definition.is_validated() || existing.as_ref().is_some_and(Definition::is_validated);
        let shard_key = existing.and_then(|existing| existing.shard_key);
        let pair = Pair {
            source,
            destination,
            filter: filter.clone(),
            is_collated: definition.is_collated(),
            shard_key: key_fields(shard_key.as_ref()),
            has_foreign: plan.into_existing,
        };
        pairs.push((pair, definition));
    }
    Ok(pairs)
}
