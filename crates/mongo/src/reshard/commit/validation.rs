//! The write block of one collection: a validator that no document satisfies.
//!
//! The validator rejects inserts and updates, with an error (121) that drivers do not retry, in this collection only,
//! with or without authorisation. It rejects neither deletes nor writes that bypass validation (privilege
//! `bypassDocumentValidation`): those between the drain and the rename are brought over afterwards
//! ([`crate::reshard::commit::late_writes`]).
//!
//! Invariants:
//! - The collection's own validator is in the job's record before the rejecting one is set, and stays there until
//!   it is restored.
//! - The shadow gets the rejecting validator first, so the renamed collection rejects writes too until the deletes
//!   are brought over: no `_id` is inserted again whose delete is still to be applied.
//! - A validator is restored only if it replaces this job's rejecting one, which is recognised by its text. A
//!   validator that another user set meanwhile stays.

use bson::raw::RawBsonRef;
use bson::{Bson, Document, RawDocumentBuf, doc};
use imago_job::control::Control;
use imago_job::id::JobId;
use imago_job::run::Run;

use crate::bson::ext_json::{ExtJson, parse_document};
use crate::copy::{Commit, CopyJob};
use crate::error::{Error, Result};
use crate::reshard::commit::wait_for_ddl;
use crate::reshard::spec::Spec;
use crate::server::block;
use crate::server::collection::{Definition, Handle};
use crate::server::endpoint::Endpoint;
use crate::server::timing::retry_transient;
use crate::verify::{index_differences, options_differences};

/// Names of the collection options that make up a collection's validation.
const FIELDS: [&str; 3] = ["validator", "validationLevel", "validationAction"];

/// Returns the options of the collection on each shard that owns a part of it. The database's primary shard, which
/// answers `listCollections`, does not receive a `collMod` unless it is one of them (6.0).
async fn on_owners(of: &Handle) -> Result<Vec<Document>> {
    let pipeline = [doc! {"$listCatalog": {}}];
    let ask = doc! {"aggregate": &of.ns.coll, "pipeline": &pipeline[..], "cursor": {}};
    let reply = of.endpoint.run(&of.ns.db, ask).await?;
    let doing = "reading a collection's options on its shards";
    let cursor = reply.get_document("cursor").map_err(|e| Error::malformed(doing, e))?;
    let batch = cursor.get_array("firstBatch").map_err(|e| Error::malformed(doing, e))?;
    let options = |entry: &Bson| {
        let found = entry.as_document()?.get_document("md").ok()?.get_document("options").ok()?;
        Some(found.clone())
    };
    let all: Option<Vec<Document>> = batch.iter().map(options).collect();
    all.filter(|all| !all.is_empty()).ok_or_else(|| Error::malformed(doing, &reply))
}

/// Returns the validator of the write block, which no document satisfies. Its text is in the details of the error
/// that clients get.
fn refusing(job: &JobId) -> Document {
    let why =
        format!("imago job {job} changes the shape of this collection: try again in a moment");
    doc! {"$expr": {"$eq": ["writes are refused", why]}}
}

fn is_refusing(options: &Document, job: &JobId) -> bool {
    options.get_document("validator").is_ok_and(|found| *found == refusing(job))
}

/// Returns the collection's own validation, from its options, as extended JSON for the job's record.
fn text_of(options: &Document) -> Result<String> {
    let option = |name: &str| Some((name.to_owned(), options.get(name)?.clone()));
    let own: Document = FIELDS.into_iter().filter_map(option).collect();
    let failed = |cause: String| Error::malformed("a validator", cause);
    let raw = RawDocumentBuf::try_from(&own).map_err(|e| failed(e.to_string()))?;
    serde_json::to_string(&ExtJson(RawBsonRef::Document(&raw))).map_err(|e| failed(e.to_string()))
}

/// Returns the `collMod` command that gives a collection this validation.
fn command(of: &Handle, validation: &Document) -> Document {
    let or = |name: &str, none: Bson| validation.get(name).cloned().unwrap_or(none);
    doc! {
        "collMod": &of.ns.coll,
        "validator": or("validator", doc! {}.into()),
        "validationLevel": or("validationLevel", "strict".into()),
        "validationAction": or("validationAction", "error".into()),
        "writeConcern": {"w": "majority"},
    }
}

async fn refuse(of: &Handle, job: &JobId) -> Result<()> {
    of.check_owner("collMod")?;
    let command = command(of, &doc! {"validator": refusing(job)});
    of.endpoint.run_at_length(&of.ns.db, command).await.map(|_| ())
}

/// Records the collection's validation in the job's record, and makes the shadow reject all writes except this job's.
/// Clients are not affected yet.
///
/// # Errors
/// Fails if the cluster rejects the change, or if the job belongs to another process.
pub(in crate::reshard) async fn prepare(run: &Run, copying: &mut CopyJob<'_>) -> Result<()> {
    let (job, pair) = (&run.record().id, copying.pairs[0].clone());
    let look = || on_owners(&pair.source);
    let found = retry_transient("look at the collection", run.control(), look).await?;
    let own = match is_refusing(&found[0], job) {
        false => found.into_iter().next(),
        // A block that an earlier attempt requested took effect after it was lifted. The shadow has the
        // collection's own validation.
        true => {
            let look = || on_owners(&pair.destination);
            let found = retry_transient("look at the shadow", run.control(), look).await?;
            found.into_iter().find(|options| !is_refusing(options, job))
        }
    };
    let own = own.ok_or_else(|| {
        Error::precondition(
            format!(
                "{} and its shadow both refuse writes, and their own validator is not known",
                pair.source.ns
            ),
            "give the collection its validator by collMod, then `imago reshard resume`",
        )
    })?;
    copying.state.commit_mut().validation = Some(text_of(&own)?);
    copying.save().await?;
    copying.pairs = copying.coordinator.bypass_validation(0).await?;
    retry_transient("have the shadow refuse writes", run.control(), || {
        refuse(&pair.destination, job)
    })
    .await
}

/// Blocks writes to the collection. An insert or update that is acknowledged after this returns has bypassed
/// validation.
///
/// # Errors
/// Fails if the cluster rejects the change.
pub(in crate::reshard) async fn set(run: &Run, copying: &CopyJob<'_>) -> Result<()> {
    let mut of = copying.pairs[0].source.clone();
    of.owner = Some(run.ownership());
    let job = &run.record().id;
    retry_transient("refuse writes to the collection", run.control(), || refuse(&of, job)).await
}

/// Checks that the write block is in place and that nothing else of the collection's definition changed meanwhile. A
/// validator that is not this job's means that another user has lifted the write block.
///
/// # Errors
/// Returns a precondition error if the check fails; another error if the cluster does not reply.
pub(in crate::reshard) async fn check_unchanged(
    run: &Run,
    copying: &mut CopyJob<'_>,
) -> Result<()> {
    let pair = &copying.pairs[0];
    let mut is_blocked = true;
    for side in [&pair.source, &pair.destination] {
        let owners = on_owners(side).await?;
        is_blocked &= owners.iter().all(|options| is_refusing(options, &run.record().id));
    }
    let what = match (pair.source.definition().await?, pair.destination.definition().await?) {
        _ if !is_blocked => Some("its validator".to_owned()),
        (Some(from), Some(to)) => other_difference(&from, &to),
        _ => Some("whether it exists".to_owned()),
    };
    if let Some(what) = what {
        return Err(Error::precondition(
            format!("the collection changed while writes were being blocked: {what}"),
            "`imago reshard resume`: the job follows it first",
        ));
    }
    // The structural change in the change stream is the block itself.
    copying.coordinator.take_structure();
    Ok(())
}

/// Returns a difference, in words, between the collection and its shadow other than in validation, or `None`.
fn other_difference(from: &Definition, to: &Definition) -> Option<String> {
    let options = options_differences(from, to).into_iter().map(|found| ("option", found));
    let options = options.filter(|(_, found)| !FIELDS.contains(&found.name.as_str()));
    let indexes = index_differences(from, to).into_iter().map(|found| ("index", found));
    let mut all = options.chain(indexes.filter(|(_, found)| found.source.is_some()));
    all.next().map(|(what, found)| format!("its {what} {}", found.name))
}

/// Lifts the write block, if `commit` (from the job's record) says that one may be set: restores the validation of
/// the collection, and of the shadow if it still exists. The operation is idempotent.
///
/// # Errors
/// Fails if the cluster does not reply.
pub(in crate::reshard) async fn lift(
    cluster: &Endpoint,
    spec: &Spec,
    job: &JobId,
    commit: &Commit,
) -> Result<()> {
    let Some(own) = &commit.validation else { return Ok(()) };
    let own = parse_document(own).map_err(|e| Error::malformed("the recorded validator", e))?;
    let own = Document::try_from(own).map_err(|e| Error::malformed("the recorded validator", e))?;
    // The collection comes first, because clients wait for it.
    for ns in [&spec.reshard.ns, spec.shadow()] {
        let of = Handle::new(cluster.clone(), ns.clone());
        let restore = || restore(&of, &own, job);
        retry_transient("lift the write block", &Control::default(), restore).await?;
    }
    Ok(())
}

async fn restore(of: &Handle, own: &Document, job: &JobId) -> Result<()> {
    if of.definition().await?.is_none() {
        return Ok(());
    }
    // A requested block may still be under way, and must take effect before this.
    wait_for_ddl(&of.endpoint, &of.ns).await?;
    if !on_owners(of).await?.iter().any(|options| is_refusing(options, job)) {
        return Ok(());
    }
    of.endpoint.run_at_length(&of.ns.db, command(of, own)).await.map(|_| ())
}

/// Checks that the connected user has the privileges that a write block by a validator needs.
///
/// # Errors
/// Returns a precondition error that names the missing privileges.
pub(in crate::reshard) async fn check(cluster: &Endpoint) -> Result<()> {
    let lacking = block::lacking(cluster, &["collMod", "bypassDocumentValidation"]).await?;
    if lacking.is_empty() {
        return Ok(());
    }
    Err(Error::precondition(
        format!("the user may not {}, which --block validator needs", lacking.join(" and ")),
        "grant the role dbAdmin on the collection's database, or name another user",
    ))
}

/// Returns `error`, that users' writes cannot be blocked on a cluster, with `--block validator` added to the remedy.
pub(in crate::reshard) fn or_validator(error: Error) -> Error {
    match error {
        Error::Precondition { what, help } => Error::Precondition {
            what,
            help: format!("{help}; or use --block validator, which stops no deletes"),
        },
        other => other,
    }
}
