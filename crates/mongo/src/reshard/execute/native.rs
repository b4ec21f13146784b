//! The native engine: the server's own `reshardCollection`, with Imago's placement.
//!
//! The server copies, follows and commits by itself. Imago passes the plan's chunks as ranges of zones, one zone for
//! each shard, watches the operation, and removes the zones afterwards. Nothing here depends on the reply to the
//! command: the operation continues if the requesting process dies.
//!
//! Invariants:
//! - The state of the operation is read from the cluster, never remembered: its entry in
//!   `config.reshardingOperations` while it is under way, the collection's UUID before and after.
//! - The zones exist while the operation is under way, and none is left after it.

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use imago_job::control::{Control, Stop};
use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::record::Record;
use imago_job::run::{Run, RunError};
use tokio_util::task::AbortOnDropHandle;

use crate::bson::input::parse_document;
use crate::copy;
use crate::error::{Error, Result, code};
use crate::reshard::commit::{Block, ms, uuid_of};
use crate::reshard::execute::balance;
use crate::reshard::execute::watch::Watch;
use crate::reshard::execute::zones::Zones;
use crate::reshard::plan::{Engine, Finding, Plan, Weight};
use crate::reshard::spec::{KIND, LateWrites, Outcome, Spec};
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;
use crate::server::shard_key::Key;
use crate::server::timing::retry_transient;
use crate::state::journal::MongoJournal;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time after a request for which a stop of the job waits, since the server may still begin the requested resharding.
const BEGINS_WITHIN: Duration = Duration::from_secs(30);
/// Maximum number of requests to begin the resharding.
const REQUESTS_MAX: usize = 20;
/// Longest duration of an abort of the resharding, which has to reach all shards.
const ABORTED_WITHIN: Duration = Duration::from_secs(600);
/// Server error code `Unauthorized`: the user lacks a privilege.
const UNAUTHORIZED: i32 = 13;

/// Code of the finding about the minimum duration of the server's resharding.
const MINIMUM: &str = "server_minimum";
/// Code of the finding that the new shard key equals the present one, which the server rejects.
const SAME_KEY: &str = "same_key";

/// Adds the findings about the server's own resharding to `plan`, and removes the plan's paced duration.
///
/// # Errors
/// Fails if the plan's keys are invalid.
pub fn add_native_findings(plan: &mut Plan) -> Result<()> {
    // A plan that was read from a file may have been made for this engine.
    plan.findings.retain(|finding| ![MINIMUM, SAME_KEY].contains(&&*finding.code));
    if let Some(what) = same_key(plan)? {
        let (code, help) = (SAME_KEY.to_owned(), SAME_KEY_HELP.to_owned());
        plan.findings.insert(0, Finding { weight: Weight::Obstacle, code, what, help });
    }
    plan.findings.push(Finding {
        weight: Weight::Warning,
        code: MINIMUM.into(),
        what: "the server's own resharding takes five minutes at least, however small the \
               collection, and compares nothing; the predicted time is that of the shadow"
            .into(),
        help: "wait, or choose --engine shadow; reshardingMinimumOperationDurationMillis of the \
               config server changes the minimum"
            .into(),
    });
    // The server's resharding has no pace that spares clients.
    plan.paced_s = None;
    Ok(())
}

const SAME_KEY_HELP: &str =
    "name another key, or use --engine shadow, which can change chunks and shards alone";

fn same_key(plan: &Plan) -> Result<Option<String>> {
    let old = Key::parse(&plan.old_key)?;
    let is_same = old.is_same(&Key::parse(&plan.key)?.pattern);
    let what = || format!("the server does not reshard {} by the key that it has", plan.ns);
    Ok(is_same.then(what))
}

/// Returns the engine of the reshard job `id`, and the way in which its last process was to block writes at the
/// commit (the default if none has run).
///
/// # Errors
/// Fails if there is no such job, or if the job is of another kind.
#[crate::boxed]
pub async fn engine_and_block(cluster: &Endpoint, id: &JobId) -> Result<(Engine, Block)> {
    let record = MongoJournal::new(cluster.clone()).load(id).await?;
    let block = copy::state_of(&record)?.commit_mut().block.unwrap_or_default();
    Ok((Spec::of(&record)?.engine, block))
}

/// Refuses further processes that want to copy slices of a job that has none to share.
///
/// # Errors
/// Returns a precondition error for a job of the native engine, which the server performs.
pub(crate) fn refuse_help(record: &Record) -> Result<()> {
    if record.kind != KIND || Spec::of(record)?.engine != Engine::Native {
        return Ok(());
    }
    Err(Error::precondition(
        format!("job {} is done by the server itself: there is nothing to share", record.id),
        "wait for it; `imago job status` shows how far it is",
    ))
}

/// Checks that the server's own resharding can execute the plan: another key, and no zone ranges of the collection.
pub(in crate::reshard) async fn check(cluster: &Endpoint, plan: &Plan) -> Result<()> {
    if let Some(what) = same_key(plan)? {
        return Err(Error::precondition(what, SAME_KEY_HELP));
    }
    let tags = doc! {"ns": plan.ns.to_string()};
    if find(cluster, "tags", tags).await?.is_none() {
        return Ok(());
    }
    Err(Error::precondition(
        format!("{} has zone ranges, which are defined by the old key", plan.ns),
        "record them and remove them first: sh.removeRangeFromZone",
    ))
}

/// State of the server's resharding of a job's collection.
enum OperationState {
    /// The collection has its new shape; contains the collection's UUID.
    Done(String),
    /// The resharding is under way; contains its entry in `config.reshardingOperations`.
    UnderWay(Document),
    /// No resharding of the collection is under way, and its shape is the old one.
    Nothing,
}

async fn operation_state(cluster: &Endpoint, spec: &Spec) -> Result<OperationState> {
    let ns = &spec.reshard.ns;
    let key = Key::parse(&spec.reshard.key)?;
    // The operation's entry is read first: if the operation ends between the two reads, the second finds its
    // result.
    let entry = find(cluster, "reshardingOperations", doc! {"ns": ns.to_string()}).await?;
    if let Some(entry) = entry {
        let its = entry.get_document("reshardingKey").cloned().unwrap_or_default();
        if key.is_same(&its) {
            return Ok(OperationState::UnderWay(entry));
        }
        return Err(Error::precondition(
            format!("the server is resharding {ns} by {its}, which is not this job's"),
            "wait for its end, or end it with sh.abortReshardCollection()",
        ));
    }
    let of = Handle::new(cluster.clone(), ns.clone());
    match uuid_of(cluster, &of).await? {
        Some(uuid) if uuid == spec.known.uuid => Ok(OperationState::Nothing),
        Some(uuid) if of.shard_key().await?.is_some_and(|now| key.is_same(&now)) => {
            Ok(OperationState::Done(uuid))
        }
        _ => Err(Error::precondition(
            format!("{ns} was dropped, renamed or resharded by another user"),
            "look at it; `imago job cancel` gives the job up",
        )),
    }
}

/// Returns the first document of the collection `config.{coll}` that matches `filter`, by a majority read, or `None`.
async fn find(cluster: &Endpoint, coll: &str, filter: Document) -> Result<Option<Document>> {
    let find = doc! {
        "find": coll, "filter": filter, "limit": 1, "singleBatch": true,
        "readConcern": {"level": "majority"},
    };
    let reply = cluster.run("config", find).await?;
    let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch.map_err(|error| Error::malformed(format!("reading config.{coll}"), error))?;
    Ok(batch.first().and_then(Bson::as_document).cloned())
}

/// Runs the server's resharding to its end, removes the zones, restores the balancer flag, and returns the outcome.
pub(in crate::reshard) async fn work(
    cluster: &Endpoint,
    run: &Run,
    spec: &Spec,
) -> Result<Outcome> {
    let began = Instant::now();
    let ns = &spec.reshard.ns;
    let zones = Zones { cluster, ns, id: &run.record().id };
    let always = Control::default();
    // A pause or a cancellation comes too late if the server has committed.
    let found =
        retry_transient("look at the resharding", &always, || operation_state(cluster, spec))
            .await?;
    let uuid = match found {
        OperationState::Done(uuid) => uuid,
        OperationState::UnderWay(_) | OperationState::Nothing => {
            prepare(cluster, run, spec, &zones).await?;
            drive(cluster, run, spec, &zones).await?
        }
    };
    retry_transient("take the zones away", &always, || zones.clear(&spec.reshard)).await?;
    let restore = || balance::set_off(cluster, ns, spec.known.was_off);
    retry_transient("give the collection back to the balancer", &always, restore).await?;
    match run.enter("commit").await {
        Ok(()) | Err(RunError::Stopped(Stop::Cancelled | Stop::Interrupted)) => {}
        Err(error) => return Err(error.into()),
    }
    let mut state = copy::state_of(run.record())?;
    state.commit_mut().becomes = Some(uuid);
    copy::save_final(run, &state).await?;
    Ok(Outcome {
        job: run.record().id.clone(),
        engine: Engine::Native,
        write_block_ms: None,
        drain_ms: None,
        rename_ms: None,
        block_steps: Vec::new(),
        predicted_block_ms: None,
        bare_rename_ms: None,
        majority_write_ms: None,
        verified: 0,
        last_verified: None,
        late_writes: LateWrites::default(),
        seconds: Duration::from_millis(ms(began)).as_secs_f64(),
    })
}

async fn prepare(cluster: &Endpoint, run: &Run, spec: &Spec, zones: &Zones<'_>) -> Result<()> {
    let (ns, control) = (&spec.reshard.ns, run.control());
    run.enter("prepare").await?;
    run.reporter().decision(
        "the server's own reshardCollection changes the shape",
        "--engine native: each shard temporarily has a zone, so that chunks are placed as planned",
    );
    let leave = || balance::set_off(cluster, ns, true);
    retry_transient("keep the balancer from the collection", control, leave).await?;
    retry_transient("give the shards their zones", control, || zones.tag(&spec.reshard)).await
}

/// Requests the resharding unless it is under way, and watches it to its end. Returns the collection's new UUID.
async fn drive(cluster: &Endpoint, run: &Run, spec: &Spec, zones: &Zones<'_>) -> Result<String> {
    let control = run.control();
    let always = Control::default();
    let mut watch = Watch::new(cluster, &spec.reshard).await;
    let mut asking: Option<(Instant, AbortOnDropHandle<Result<Document>>)> = None;
    let (mut refused, mut asked) = (None, 0);
    loop {
        let done = asking.take_if(|(_, asking)| asking.is_finished());
        if let Some((_, done)) = done {
            refused = done.await.expect("the request neither panics nor is aborted").err();
        }
        let looked =
            retry_transient("look at the resharding", &always, || operation_state(cluster, spec))
                .await?;
        // A requested operation that has not begun may still begin, so returning now could leave it running.
        let begins = |(since, _): &(Instant, _)| since.elapsed() < BEGINS_WITHIN;
        let may_leave =
            !matches!(looked, OperationState::Nothing) || !asking.as_ref().is_some_and(begins);
        if may_leave && let Some(stop) = control.stopped() {
            return match looked {
                OperationState::Done(uuid) => Ok(uuid),
                _ => Err(Error::Stopped(stop)),
            };
        }
        match looked {
            OperationState::Done(uuid) => return Ok(uuid),
            OperationState::UnderWay(entry) => watch.report_progress(run, &entry).await?,
            OperationState::Nothing if asking.is_some() => {}
            OperationState::Nothing => {
                match refused.take() {
                    Some(error) if !error.is_transient() || asked >= REQUESTS_MAX => {
                        return Err(error);
                    }
                    _ => asked += 1,
                }
                let (command, cluster) = (command(cluster, spec, zones).await?, cluster.clone());
                let asks = async move { cluster.run_at_length("admin", command).await };
                asking = Some((Instant::now(), AbortOnDropHandle::new(tokio::spawn(asks))));
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn command(cluster: &Endpoint, spec: &Spec, zones: &Zones<'_>) -> Result<Document> {
    let plan = &spec.reshard;
    let key = parse_document(&plan.key, "the shard key")?;
    // With as many initial chunks as there are ranges the server does not split the ranges.
    let chunks = i32::try_from(plan.chunks.len()).unwrap_or(i32::MAX);
    let mut command = doc! {
        "reshardCollection": plan.ns.to_string(), "key": key.clone(), "numInitialChunks": chunks,
        "zones": zones.chunk_ranges(plan, &key)?,
    };
    let of = Handle::new(cluster.clone(), plan.ns.clone());
    let gone = || Error::Disrupted { ns: plan.ns.to_string(), what: "dropped".into() };
    if of.definition().await?.ok_or_else(gone)?.is_collated() {
        command.insert("collation", doc! {"locale": "simple"});
    }
    Ok(command)
}

/// Aborts the server's resharding, and leaves the collection as it was before the job.
pub(in crate::reshard) async fn clean_up(
    cluster: &Endpoint,
    record: &Record,
    spec: &Spec,
) -> Result<()> {
    let ns = &spec.reshard.ns;
    let deadline = Instant::now() + ABORTED_WITHIN;
    loop {
        match operation_state(cluster, spec).await {
            Ok(OperationState::Done(_)) => {
                return Err(Error::precondition(
                    format!("{ns} has its new shape already: the server had committed it"),
                    "`imago reshard resume` ends the job; then `imago reshard revert` goes back",
                ));
            }
            // Another user dropped the collection, so there is less to clean up.
            Ok(OperationState::Nothing) | Err(Error::Precondition { .. }) => break,
            Ok(OperationState::UnderWay(_)) => abort(cluster, spec).await?,
            Err(error) => return Err(error),
        }
        if Instant::now() > deadline {
            return Err(Error::precondition(
                format!("the server's resharding of {ns} has not ended after it was aborted"),
                "`imago job cancel` again once all shards answer",
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Zones { cluster, ns, id: &record.id }.clear(&spec.reshard).await?;
    balance::set_off(cluster, ns, spec.known.was_off).await
}

/// Asks the server to abort the resharding. If it has committed or ended meanwhile, the next check finds that.
async fn abort(cluster: &Endpoint, spec: &Spec) -> Result<()> {
    let command = doc! {"abortReshardCollection": spec.reshard.ns.to_string()};
    match cluster.run_at_length("admin", command).await {
        Err(Error::Server { doing, cause }) if code(&cause) == Some(UNAUTHORIZED) => {
            Err(Error::Server { doing, cause })
        }
        Err(error) => {
            tracing::info!(%error, "the resharding is looked at again");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}
