//! `imago job …`: inspects and controls jobs, from any machine that reaches the destination cluster, where jobs
//! are persisted.
//!
//! A request is recorded there and executed by the process that runs the job, so every answer reports whether
//! there is one.

mod changes;
mod view;

use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_job::control::Control;
use imago_job::id::JobId;
use imago_job::journal::{Journal, JournalError, Request, Update};
use imago_job::record::{Limits, Record, Requested};
use imago_job::state::State;
use imago_mongo::copy::preflight;
use imago_mongo::copy::{self, CutOver, SourceBlock};
use imago_mongo::reshard;
use imago_mongo::reshard::worker_route;
use imago_mongo::server::block;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;
use serde::Serialize;

use crate::cmd;
use crate::cmd::copy::{Ends, WorkArgs, connect, options, work};
use crate::context::Context;
use crate::exit::{Exit, Failure};

use crate::cmd::process::process;
use changes::Changes;
use view::View;

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List the jobs stored in a cluster, the oldest first.
    List(JournalArgs),
    /// Show a job's activity, progress, obstacles and possible next steps.
    Status(JobArgs),
    /// Show what a job predicted, with 90 % intervals, and what came of it.
    Report(JobArgs),
    /// Resume a job that no process works at: it died, was interrupted, or was paused.
    Resume(Resume),
    /// Share the bulk copy of a job that another process leads: copy slices until none is left.
    Work(Work),
    /// Pause a job; its progress is kept.
    Pause(JobArgs),
    /// Cancel a job, and lift a write block that it left at the source; nothing else changes there.
    Cancel(Cancel),
    /// Change the speed limits of a job while it runs.
    Set(Set),
    /// Remove a job that is done or cancelled from the list, permanently.
    Remove(JobArgs),
}

/// The cluster that keeps the jobs.
#[derive(Debug, clap::Args)]
pub struct JournalArgs {
    /// The cluster that the jobs write to; it stores their state.
    #[arg(long, value_name = "URI")]
    pub to: String,
}

/// One job.
#[derive(Debug, clap::Args)]
pub struct JobArgs {
    /// The job's id; `imago job list` shows them.
    #[arg(value_name = "ID")]
    pub id: JobId,
    /// The place that keeps it.
    #[command(flatten)]
    pub kept: JournalArgs,
}

#[derive(Debug, clap::Args)]
struct Cancel {
    #[command(flatten)]
    one: JobArgs,
    /// The source of the job: needed if its cut-over died while writes there were blocked, to lift the
    /// block.
    #[arg(long, value_name = "URI")]
    from: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Set {
    #[command(flatten)]
    one: JobArgs,
    #[command(flatten)]
    limits: Changes,
}

#[derive(Debug, clap::Args)]
struct Resume {
    /// The job's id; `imago job list` shows them.
    #[arg(value_name = "ID")]
    id: JobId,
    /// The clusters of the job: its record holds no passwords.
    #[command(flatten)]
    ends: Ends,
    /// The work of this process at it.
    #[command(flatten)]
    work: WorkArgs,
}

#[derive(Debug, clap::Args)]
struct Work {
    /// The job's id; `imago job list` shows them.
    #[arg(value_name = "ID")]
    id: JobId,
    /// The clusters of the job: its record holds no passwords.
    #[command(flatten)]
    ends: Ends,
    /// Slices that this process copies at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    workers: u8,
}

/// Returns the journal of jobs in the cluster that `--to` names.
pub async fn journal(kept: &JournalArgs) -> Result<Arc<MongoJournal>, Failure> {
    let endpoint = Endpoint::connect(&kept.to, "destination").await?;
    Ok(Arc::new(MongoJournal::new(endpoint)))
}

/// Runs the chosen verb of `imago job`. An interrupt ends it, except for a job that runs in this process.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    // A job that runs in this process handles an interrupt itself.
    let action = match args.action {
        Action::Resume(resume) => return go_on(&resume, context).await,
        Action::Work(work) => return run_worker(&work, context).await,
        action => action,
    };
    let work = async {
        match action {
            Action::Resume(_) | Action::Work(_) => unreachable!("dealt with above"),
            Action::List(kept) => list(&kept, context).await,
            Action::Status(one) => status(&one, context).await,
            Action::Report(one) => cmd::foresight::report(&one, context).await,
            Action::Pause(one) => pause(&one, context).await,
            Action::Cancel(it) => cancel(&it, context).await,
            Action::Set(set) => change(&set, context).await,
            Action::Remove(one) => remove(&one, context).await,
        }
    };
    tokio::select! {
        done = work => done,
        () = context.cancel.cancelled() => Err(interrupted()),
    }
}

async fn go_on(resume: &Resume, context: &Context) -> Result<(), Failure> {
    let clusters = connect(&resume.ends).await?;
    let journal = MongoJournal::new(clusters.destination.clone());
    let record = journal.load(&resume.id).await?;
    let kind = record.kind.clone();
    if record.control == Requested::Pause {
        journal.request(&resume.id, &Request::Control(Requested::Run)).await?;
        let view = await_heartbeat(&journal, &resume.id).await?;
        let id = &resume.id;
        if view.living_owner().is_some() {
            let message = format!("job {id} runs again, where it was paused");
            return print(view, "resume", message, context);
        }
        if view.state().is_final() {
            let message = format!("job {id} ran again, and is {} now", view.state());
            return print(view, "resume", message, context);
        }
    }
    if kind == reshard::KIND {
        let options = cmd::reshard::run::WorkArgs::usual();
        let cluster = &clusters.destination;
        return cmd::reshard::run::work(cluster, &resume.id, &options, context).await;
    }
    work(&clusters, &resume.id, &options(&resume.work), context).await
}

/// The result of a worker process: the job that it worked at, and the documents and bytes that it copied.
#[derive(Serialize)]
struct WorkerSummary {
    job: JobId,
    documents: u64,
    bytes: u64,
}

async fn run_worker(work: &Work, context: &Context) -> Result<(), Failure> {
    let clusters = connect(&work.ends).await?;
    let control = Control::new(Limits::default(), context.cancel.clone())
        .map_err(|error| Failure::from_error(Exit::Usage, "limit", &error))?;
    let workers = usize::from(work.workers);
    let process = process();
    let done = copy::run_worker(&clusters, &work.id, workers, control, &process, worker_route);
    let (documents, bytes) = done.await?;
    let helped = WorkerSummary { job: work.id.clone(), documents, bytes };
    context.output.result(&helped, |helped| {
        format!("copied {} documents, {} bytes of {}\n", helped.documents, helped.bytes, helped.job)
    })
}

fn interrupted() -> Failure {
    Failure::new(Exit::Interrupted, "interrupted", "interrupted before the cluster replied")
        .help("`imago job status ID` shows whether the job was changed; repeating it is safe")
}

async fn list(kept: &JournalArgs, context: &Context) -> Result<(), Failure> {
    let journal = journal(kept).await?;
    let (records, now_ms) = (journal.list().await?, journal.now_ms().await?);
    let views: Vec<View> =
        records.into_iter().map(|record| View::new(record, now_ms, stale_after_ms())).collect();
    context.output.result(&views, |views| view::table(views))
}

async fn status(one: &JobArgs, context: &Context) -> Result<(), Failure> {
    let journal = journal(&one.kept).await?;
    let view = load_view(&journal, &one.id).await?;
    context.output.result(&view, View::in_words)
}

async fn load_view(journal: &MongoJournal, id: &JobId) -> Result<View, Failure> {
    let record = journal.load(id).await?;
    Ok(View::new(record, journal.now_ms().await?, stale_after_ms()))
}

/// Waits for the next heartbeat of the job's owner, or until the owner is certainly dead, and returns the job as of
/// then. An owner that died just before a request does not execute it, and the job may end before its owner reads the
/// request.
async fn await_heartbeat(journal: &MongoJournal, id: &JobId) -> Result<View, Failure> {
    let mut view = load_view(journal, id).await?;
    let beat = view.beat();
    // A silent owner counts as dead by the servers' clock; the bound is for a clock that stands still.
    let deadline = Instant::now() + copy::owner_timing().stale_after + Duration::from_secs(5);
    while view.living_owner().is_some() && view.beat() == beat && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(200)).await;
        view = load_view(journal, id).await?;
    }
    Ok(view)
}

/// Fails if the job has ended: then it ended before its owner read the request, which is not executed.
fn refuse_ended(view: &View) -> Result<(), JournalError> {
    match view.state() {
        state if state.is_final() => {
            Err(JournalError::Final { id: view.record.id.clone(), state: state.clone() })
        }
        _ => Ok(()),
    }
}

/// Returns the time since its last heartbeat after which the owner of a job counts as dead, in ms.
fn stale_after_ms() -> u64 {
    u64::try_from(copy::owner_timing().stale_after.as_millis()).unwrap_or(u64::MAX)
}

/// The result of a request to a job: to pause, resume, cancel or change limits.
#[derive(Debug, Serialize)]
struct Outcome {
    job: JobId,
    /// Name of the request: `pause`, `resume`, `cancel` or `set`.
    asked: &'static str,
    /// Process that runs the job and will execute the request; `None` if no live process runs it.
    owner: Option<String>,
    #[serde(flatten)]
    state: State,
    limits: Limits,
    /// The outcome of the request in words, for a person.
    message: String,
}

async fn pause(one: &JobArgs, context: &Context) -> Result<(), Failure> {
    let journal = journal(&one.kept).await?;
    journal.request(&one.id, &Request::Control(Requested::Pause)).await?;
    let view = await_heartbeat(&journal, &one.id).await?;
    refuse_ended(&view)?;
    let message = match view.living_owner() {
        Some(owner) => format!(
            "pause requested for job {id}; {owner} pauses it at its next heartbeat, within seconds",
            id = one.id
        ),
        None => format!(
            "recorded: job {id} is to pause. No process works at it now; `imago job resume {id}` \
             resumes it",
            id = one.id
        ),
    };
    print(view, "pause", message, context)
}

async fn cancel(cancel: &Cancel, context: &Context) -> Result<(), Failure> {
    let one = &cancel.one;
    let journal = journal(&one.kept).await?;
    let id = &one.id;
    let view = await_heartbeat(&journal, id).await?;
    let block = match view.living_owner() {
        // The process that runs the job lifts its own block.
        Some(_) => None,
        None => block_to_lift(&view.record, cancel.from.as_deref(), &one.kept).await?,
    };
    // Requested first: a process that takes the job over in between then sees the request.
    journal.request(id, &Request::Control(Requested::Cancel)).await?;
    let before = load_view(&journal, id).await?;
    let at_once = before.living_owner().is_none()
        && end_unowned(&one.kept, &journal, id, block.as_ref(), context).await?;
    let view = load_view(&journal, id).await?;
    let message = match view.living_owner() {
        _ if at_once && block.is_some() => {
            format!("job {id} is cancelled; the source accepts the writes of its users again")
        }
        _ if at_once => format!("job {id} is cancelled; the source was left untouched"),
        Some(owner) => format!("cancel requested for job {id}; {owner} ends it within seconds"),
        None => format!("cancel requested for job {id}; it is {} now", view.state()),
    };
    print(view, "cancel", message, context)
}

/// Returns the source if the job, which has no owner, may have left writes blocked there; cancelling lifts the block.
async fn block_to_lift(
    record: &Record,
    from: Option<&str>,
    kept: &JournalArgs,
) -> Result<Option<Endpoint>, Failure> {
    if record.kind != copy::KIND || record.state.is_final() || record.checkpoint.is_null() {
        return Ok(None);
    }
    let state = copy::state_of(record)?;
    state.refuse_undecided(&record.id)?;
    if !state.cut_over().is_some_and(CutOver::is_blocked) {
        return Ok(None);
    }
    let Some(from) = from else {
        let id = &record.id;
        let source = copy::plan_of(record)?.source;
        return Err(Failure::new(
            Exit::Precondition,
            "precondition",
            format!("job {id} died and may have left writes at {source} blocked"),
        )
        .help(format!(
            "name the source, so that the block is lifted: imago job cancel {id} --from URI"
        )));
    };
    let ends = Ends { from: from.to_owned(), to: kept.to.clone() };
    let clusters = connect(&ends).await?;
    preflight::check_identity(&copy::plan_of(record)?, &clusters.source, &clusters.destination)?;
    Ok(Some(clusters.source))
}

/// Cancels a job that has no owner, and lifts the write block at `blocked`; false if it was taken over or has ended.
async fn end_unowned(
    kept: &JournalArgs,
    journal: &MongoJournal,
    id: &JobId,
    blocked: Option<&Endpoint>,
    context: &Context,
) -> Result<bool, Failure> {
    let claimed = match journal.claim(id, &process(), stale_after_ms()).await {
        Ok(claimed) => claimed,
        Err(JournalError::Owned { .. } | JournalError::Final { .. }) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let tidied = async {
        if claimed.record.kind == reshard::KIND {
            let cluster = cmd::reshard::run::connect(&kept.to).await?;
            reshard::clean_up(&cluster, &claimed.record).await?;
        } else if claimed.record.kind == copy::KIND {
            let destination = Endpoint::connect(&kept.to, "destination").await?;
            let reporter = context.reporter(id.clone(), copy::KIND);
            copy::restore_retention(&destination, &claimed.record, &reporter).await?;
        }
        if let Some(source) = blocked {
            block::lift(source).await?;
        }
        Ok::<(), Failure>(())
    };
    if let Err(failure) = tidied.await {
        // Released so that the next process need not wait until this one counts as dead.
        journal.release(id, claimed.epoch).await?;
        return Err(failure);
    }
    let mut update = Update::of(State::Cancelled);
    if blocked.is_some() {
        let encoded = serde_json::to_value(copy::state_of(&claimed.record)?.with_block_lifted());
        update.checkpoint =
            Some(encoded.map_err(|error| Failure::from_error(Exit::Failed, "malformed", &error))?);
    }
    journal.save(id, claimed.epoch, &update).await?;
    journal.release(id, claimed.epoch).await?;
    Ok(true)
}

/// The result of removing a job from the journal.
#[derive(Serialize)]
struct Removed {
    removed: JobId,
}

async fn remove(one: &JobArgs, context: &Context) -> Result<(), Failure> {
    let (journal, id) = (journal(&one.kept).await?, &one.id);
    let record = journal.load(id).await?;
    let block = state_block(&record);
    if block.is_some_and(|cut_over| cut_over != SourceBlock::None) {
        return Err(Failure::new(
            Exit::Precondition,
            "precondition",
            format!("writes at the source of job {id} are blocked, and its record says so"),
        )
        .help(format!("lift the block first: imago cutover {id} --unblock")));
    }
    journal.remove(id).await.map_err(|error| {
        let is_unfinished = matches!(error, JournalError::Unfinished { .. });
        let failure = Failure::from(error);
        if is_unfinished {
            failure.help(format!("give it up: imago job cancel {id}"))
        } else {
            failure
        }
    })?;
    let removed = Removed { removed: id.clone() };
    context.output.result(&removed, |_| format!("job {id} is removed from the list\n"))
}

/// Returns the state of the write block at the source, for a copy that was cut over; `None` for any other job.
fn state_block(record: &Record) -> Option<SourceBlock> {
    let state = copy::state_of(record).ok()?;
    state.cut_over().map(|cut_over| cut_over.block)
}

async fn change(set: &Set, context: &Context) -> Result<(), Failure> {
    // An invalid limit is refused before any cluster is contacted.
    set.limits.applied_to(Limits::default()).check().map_err(JournalError::from)?;
    let journal = journal(&set.one.kept).await?;
    let id = &set.one.id;
    let limits = set.limits.applied_to(journal.load(id).await?.limits);
    journal.request(id, &Request::Limits(limits)).await?;
    let view = await_heartbeat(&journal, id).await?;
    refuse_ended(&view)?;
    let now = view::limits(&limits);
    let message = match view.living_owner() {
        Some(owner) => format!("limits of job {id}: {now}; {owner} applies them within seconds"),
        None => format!(
            "recorded: limits of job {id}: {now}. No process works at it now; the limits apply \
             once one does"
        ),
    };
    print(view, "set", message, context)
}

fn print(
    view: View,
    asked: &'static str,
    message: String,
    context: &Context,
) -> Result<(), Failure> {
    let owner = view.living_owner().map(str::to_owned);
    let record = view.record;
    let (job, state, limits) = (record.id, record.state, record.limits);
    let outcome = Outcome { job, asked, owner, state, limits, message };
    context.output.result(&outcome, |outcome| outcome.message.clone())
}
