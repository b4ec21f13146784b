//! The journal of jobs, stored in the cluster that the jobs change, and the lock that allows one of them at a time.
//!
//! A record is one row. A change reads the row, applies the record's own pure method, and replaces the row by a
//! lightweight transaction on condition that its revision is unchanged. An acknowledged change is on a quorum of
//! replicas.
//!
//! Invariants:
//! - A change is applied once, even if it is sent repeatedly: each attempt carries a random number, which the row
//!   stores, so that the next read shows whether an unacknowledged change was applied.
//! - The lock belongs to a job, not to a process: it survives the process, and is released when the job ends.
//! - Ages are measured by the nodes' clocks only. If these differ, a job may be taken over too early; its old owner is
//!   then refused at its next save, and stops.

use std::sync::Arc;
use std::time::Duration;

use imago_job::control::Control;
use imago_job::id::JobId;
use imago_job::journal::{
    Answer, Claimed, Journal, JournalError, OperatorRequests, Request, Update,
};
use imago_job::record::Record;
use imago_job::retry::{Bound, Budget, RetryError, retry};
use imago_plan::pacing::backoff::Backoff;
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::statement::{Consistency, Statement};
use scylla::value::{CqlValue, Row};
use serde_json::Value;

use super::Uri;
use super::connection::{self, rows};
use super::error::{Error, Result, failed};
use crate::cluster::job::{Action, needs_lock};

/// Name of the keyspace of Imago's own tables.
pub const KEYSPACE: &str = "imago";
/// Maximum number of replicas of [`KEYSPACE`] in each data center.
const REPLICAS_MAX: usize = 3;
/// Key, in the table `locks`, of the lock on the cluster's configuration.
const LOCK: &str = "configuration";
/// Columns and options of the table of decisions: one partition per day, one row per entry, a time to live of 90
/// days.
const DECISIONS: &str = "decisions (day text, at timeuuid, kind text, what text, detail text, \
                                PRIMARY KEY (day, at)) WITH default_time_to_live = 7776000";
/// Limits of retries of one operation of the journal, sufficient for a node's restart and for many processes that
/// change one job at the same time.
const BUDGET: Budget = Budget {
    attempts_max: 100,
    elapsed_max: Duration::from_secs(20),
    backoff: Backoff { first_ms: 20, max_ms: 1_000 },
};

/// Journal that stores the records of jobs in the table `jobs` of the keyspace [`KEYSPACE`].
#[derive(Clone, Debug)]
pub struct CassandraJournal {
    session: Arc<Session>,
    /// Name of the table and of the cluster, for errors.
    place: String,
}

/// A row of the table `jobs`, as one statement read it.
struct Reading {
    record: Record,
    /// Random number of the last change of the row, by which a process recognizes its own change.
    sending: i64,
    /// Time of the reading by the coordinating node's clock, in milliseconds since the Unix epoch.
    now_ms: u64,
}

/// Reason why one attempt of a journal operation did not succeed.
#[derive(Debug, thiserror::Error)]
enum Miss {
    /// Another process changed the record between the read and the write; the attempt is repeated.
    #[error("others changed the job at the same time")]
    Raced,
    /// A statement failed; the attempt is repeated.
    #[error(transparent)]
    Passing(#[from] Error),
    /// The record or the journal refuses the operation, which is not repeated.
    #[error(transparent)]
    Refused(#[from] JournalError),
}

impl CassandraJournal {
    /// Connects to the journal in the cluster at `uri`; returns None if the journal's tables do not exist.
    ///
    /// # Errors
    /// Fails if the connection is refused.
    #[crate::boxed]
    pub async fn find(uri: &Uri) -> Result<Option<Self>> {
        let session = connection::connect(uri, Consistency::Quorum).await?;
        let state = session.get_cluster_state();
        let is_there =
            state.get_keyspace(KEYSPACE).is_some_and(|of| of.tables.contains_key("jobs"));
        let place = format!("{KEYSPACE}.jobs of {uri}");
        Ok(is_there.then(|| Self { session: Arc::new(session), place }))
    }

    /// Connects to the journal in the cluster at `uri`, and creates the journal's tables if they do not exist.
    ///
    /// # Errors
    /// Fails if the connection is refused, or if the tables cannot be created.
    #[crate::boxed]
    pub async fn open(uri: &Uri) -> Result<Self> {
        let session = connection::connect(uri, Consistency::Quorum).await?;
        let made = async |statement: String| {
            let doing = format!("making the tables of the keyspace {KEYSPACE}");
            session.query_unpaged(statement, ()).await.map_err(failed(doing)).map(drop)
        };
        if session.get_cluster_state().get_keyspace(KEYSPACE).is_none() {
            let replication = connection::replication(&session, uri, REPLICAS_MAX).await;
            made(format!(
                "CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = {replication}"
            ))
            .await?;
        }
        for columns in [
            "jobs (id text PRIMARY KEY, revision bigint, sending bigint, record text)",
            "locks (name text PRIMARY KEY, job text)",
            "actions (job text, at timeuuid, what text, why text, PRIMARY KEY (job, at))",
            DECISIONS,
        ] {
            made(format!("CREATE TABLE IF NOT EXISTS {KEYSPACE}.{columns}")).await?;
        }
        Ok(Self { session: Arc::new(session), place: format!("{KEYSPACE}.jobs of {uri}") })
    }

    /// Acquires the lock on the cluster's configuration for this job, unless another unfinished job holds the lock.
    ///
    /// # Errors
    /// Fails if another job holds the lock, or if a statement fails.
    #[crate::boxed]
    pub async fn lock(&self, job: &JobId) -> Result<()> {
        let taken = format!("INSERT INTO {KEYSPACE}.locks (name, job) VALUES (?, ?) IF NOT EXISTS");
        let other = match self.conditional(&taken, (LOCK, job.as_str())).await? {
            Applied::Yes => return Ok(()),
            Applied::No(row) => row
                .iter()
                .rev()
                .flatten()
                .find_map(|value| value.as_text().filter(|text| *text != LOCK).cloned()),
        };
        let Some(other) = other.filter(|other| other != job.as_str()) else { return Ok(()) };
        let holds = match other.parse::<JobId>() {
            Ok(id) => match self.load(&id).await {
                Ok(record) => Some(record).filter(needs_lock),
                Err(JournalError::Unknown { .. }) => None,
                Err(error) => return Err(Error::Journal(error)),
            },
            Err(_) => None,
        };
        if let Some(record) = holds {
            let owner = record.owner.as_ref();
            let who = owner.map_or_else(String::new, |owner| format!(", by {}", owner.process));
            return Err(Error::precondition(
                format!("job {other} changes the cluster's configuration ({}{who})", record.state),
                format!(
                    "let it end; or go on with it (`imago tune roll --resume {other}`); or give it up (`imago tune \
                     cancel {other}`)"
                ),
            ));
        }
        let taken_over = format!("UPDATE {KEYSPACE}.locks SET job = ? WHERE name = ? IF job = ?");
        match self.conditional(&taken_over, (job.as_str(), LOCK, &*other)).await? {
            Applied::Yes => Ok(()),
            Applied::No(_) => Err(Error::precondition(
                "another process began to change the cluster's configuration at this moment",
                "look at `imago tune jobs`",
            )),
        }
    }

    /// Releases the lock on the cluster's configuration if this job holds the lock.
    ///
    /// # Errors
    /// Fails if the statement fails.
    #[crate::boxed]
    pub async fn unlock(&self, job: &JobId) -> Result<()> {
        let statement = format!("DELETE FROM {KEYSPACE}.locks WHERE name = ? IF job = ?");
        self.conditional(&statement, (LOCK, job.as_str())).await.map(drop)
    }

    /// Persists an action of a job or the action's result, usually before the job acts; `what` describes it, and
    /// `why` is its reason.
    ///
    /// # Errors
    /// Fails if the statement fails.
    #[crate::boxed]
    pub async fn note(&self, job: &JobId, what: &str, why: &str) -> Result<()> {
        let statement =
            format!("INSERT INTO {KEYSPACE}.actions (job, at, what, why) VALUES (?, now(), ?, ?)");
        let noted = self.session.query_unpaged(statement, (job.as_str(), what, why)).await;
        noted.map_err(failed("keeping what the job does")).map(drop)
    }

    /// Returns the persisted actions of a job, in chronological order.
    ///
    /// # Errors
    /// Fails if the statement fails.
    #[crate::boxed]
    pub async fn actions(&self, job: &JobId) -> Result<Vec<Action>> {
        let statement =
            format!("SELECT toUnixTimestamp(at), what, why FROM {KEYSPACE}.actions WHERE job = ?");
        let doing = "reading what the job did";
        let all = rows::<(i64, String, String)>(&self.session, doing, &statement, (job.as_str(),));
        let action = |(at_ms, what, why)| Action { at_ms, what, why };
        Ok(all.await?.into_iter().map(action).collect())
    }

    /// Returns the connection to the cluster that stores the journal.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Executes a lightweight transaction, and returns whether its condition held.
    pub(super) async fn conditional(
        &self,
        statement: &str,
        values: impl SerializeRow,
    ) -> Result<Applied> {
        let doing = "changing the journal";
        let answer = self.session.query_unpaged(Statement::new(statement), values).await;
        let rows = answer.map_err(failed(doing))?.into_rows_result().map_err(failed(doing))?;
        let row = rows
            .maybe_first_row::<Row>()
            .map_err(|error| Error::Statement { doing: doing.into(), source: Box::new(error) })?;
        let columns = row.map(|row| row.columns).unwrap_or_default();
        Ok(match columns.split_first() {
            Some((Some(CqlValue::Boolean(true)), _)) => Applied::Yes,
            Some((_, rest)) => Applied::No(rest.to_vec()),
            None => Applied::No(Vec::new()),
        })
    }

    /// Reads the record of a job; None if there is none.
    async fn read(&self, id: &JobId) -> std::result::Result<Option<Reading>, Miss> {
        let statement = format!(
            "SELECT record, sending, toUnixTimestamp(now()) FROM {KEYSPACE}.jobs WHERE id = ?"
        );
        let mut statement = Statement::new(statement);
        statement.set_consistency(Consistency::Serial);
        statement.set_is_idempotent(true);
        let doing = "reading the journal";
        let answer = self.session.query_unpaged(statement, (id.as_str(),)).await;
        let found = answer.map_err(failed(doing))?.into_rows_result().map_err(failed(doing))?;
        let row = found.maybe_first_row::<(Option<String>, Option<i64>, i64)>();
        let row =
            row.map_err(|error| Error::Statement { doing: doing.into(), source: Box::new(error) })?;
        // A failed transaction may leave a row without a record.
        let Some((Some(text), sending, now_ms)) = row else { return Ok(None) };
        let record = self.record(id.as_str(), &text)?;
        let now_ms = u64::try_from(now_ms).unwrap_or(0);
        Ok(Some(Reading { record, sending: sending.unwrap_or(0), now_ms }))
    }

    /// Changes a job's record once: reads the record, applies the change, and replaces the record; repeats that if
    /// another change came in between. `what` describes the operation in errors.
    async fn change<T: Send + Clone>(
        &self,
        id: &JobId,
        what: &'static str,
        apply: impl Fn(&mut Record, u64) -> std::result::Result<T, JournalError> + Send + Sync,
    ) -> std::result::Result<T, JournalError> {
        let sending: i64 = rand::random();
        let sent: std::sync::Mutex<Option<T>> = std::sync::Mutex::new(None);
        let lock = || sent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.rounds(what, async || {
            let reading = self.read(id).await?.ok_or_else(|| self.unknown(id))?;
            if reading.sending == sending
                && let Some(answer) = lock().clone()
            {
                return Ok(answer);
            }
            let read = revision(&reading.record);
            let mut record = reading.record;
            let answer = apply(&mut record, reading.now_ms)?;
            *lock() = Some(answer.clone());
            let statement = format!(
                "UPDATE {KEYSPACE}.jobs SET record = ?, revision = ?, sending = ? WHERE id = ? IF revision = ?"
            );
            let values = (self.text(&record)?, revision(&record), sending, id.as_str(), read);
            match self.conditional(&statement, values).await? {
                Applied::Yes => Ok(answer),
                Applied::No(_) => Err(Miss::Raced),
            }
        })
        .await
    }

    /// Repeats the attempts of one journal operation until one succeeds, within the limits of [`BUDGET`].
    async fn rounds<T, F: Future<Output = std::result::Result<T, Miss>>>(
        &self,
        what: &'static str,
        round: impl Fn() -> F,
    ) -> std::result::Result<T, JournalError> {
        let again = |miss: &Miss| !matches!(miss, Miss::Refused(_));
        // There is no stop request here: a caller cancels by dropping the future.
        let tried = retry(what, &BUDGET, &Control::default(), again, |_| round()).await;
        tried.map_err(|error| match error {
            RetryError::Failed {
                bound: Bound::Permanent, last: Miss::Refused(refusal), ..
            } => refusal,
            exhausted => JournalError::Unavailable {
                doing: what,
                place: self.place.clone(),
                source: Box::new(exhausted),
            },
        })
    }

    fn text(&self, record: &Record) -> std::result::Result<String, JournalError> {
        serde_json::to_string(record).map_err(|error| self.damaged(record.id.as_str(), &error))
    }

    fn record(&self, id: &str, text: &str) -> std::result::Result<Record, JournalError> {
        serde_json::from_str(text).map_err(|error| self.damaged(id, &error))
    }

    fn damaged(&self, id: &str, error: &serde_json::Error) -> JournalError {
        let (id, place, reason) = (id.to_owned(), self.place.clone(), error.to_string());
        JournalError::Damaged { id, place, reason }
    }

    fn unknown(&self, id: &JobId) -> JournalError {
        JournalError::Unknown { id: id.clone(), place: self.place.clone(), list: "imago tune jobs" }
    }
}

/// Outcome of a lightweight transaction (a conditional write).
pub(super) enum Applied {
    /// The condition held, and the write was applied.
    Yes,
    /// The condition was false, and nothing was written; contains the columns of the existing row.
    No(Vec<Option<CqlValue>>),
}

fn revision(record: &Record) -> i64 {
    i64::try_from(record.revision).expect("a record is not changed 2^63 times")
}

impl Journal for CassandraJournal {
    fn create<'a>(&'a self, record: &'a Record) -> Answer<'a, ()> {
        let sending: i64 = rand::random();
        Box::pin(self.rounds("keep the new job", move || async move {
            let statement = format!(
                "INSERT INTO {KEYSPACE}.jobs (id, revision, sending, record) VALUES (?, ?, ?, ?) IF NOT EXISTS"
            );
            let id = record.id.as_str();
            let values = (id, revision(record), sending, self.text(record)?);
            match self.conditional(&statement, values).await? {
                Applied::Yes => Ok(()),
                Applied::No(_) => match self.read(&record.id).await? {
                    Some(found) if found.sending == sending => Ok(()),
                    _ => {
                        let (id, place) = (record.id.clone(), self.place.clone());
                        Err(JournalError::Exists { id, place }.into())
                    }
                },
            }
        }))
    }

    fn load<'a>(&'a self, id: &'a JobId) -> Answer<'a, Record> {
        Box::pin(self.rounds("read the job", move || async move {
            let found = self.read(id).await?;
            found.map(|reading| reading.record).ok_or_else(|| self.unknown(id).into())
        }))
    }

    fn list(&self) -> Answer<'_, Vec<Record>> {
        Box::pin(self.rounds("list the jobs", move || async move {
            let statement = format!("SELECT id, record FROM {KEYSPACE}.jobs");
            let all =
                rows::<(String, Option<String>)>(&self.session, "listing the jobs", &statement, ());
            let mut records = Vec::new();
            for (id, text) in all.await? {
                if let Some(text) = text {
                    records.push(self.record(&id, &text)?);
                }
            }
            records.sort_by_key(|record| record.created_at_ms);
            Ok(records)
        }))
    }

    fn claim<'a>(
        &'a self,
        id: &'a JobId,
        process: &'a str,
        stale_after_ms: u64,
    ) -> Answer<'a, Claimed> {
        Box::pin(self.change(id, "claim the job", move |record, now_ms| {
            let epoch = record.claim(process, stale_after_ms, now_ms)?;
            Ok(Claimed { epoch, record: record.clone() })
        }))
    }

    fn save<'a>(
        &'a self,
        id: &'a JobId,
        epoch: u64,
        update: &'a Update,
    ) -> Answer<'a, OperatorRequests> {
        Box::pin(self.change(id, "save the state of the job", move |record, now_ms| {
            record.save(epoch, update, now_ms)
        }))
    }

    fn release<'a>(&'a self, id: &'a JobId, epoch: u64) -> Answer<'a, ()> {
        Box::pin(self.change(id, "end the ownership of the job", move |record, now_ms| {
            record.release(epoch, now_ms)
        }))
    }

    fn request<'a>(&'a self, id: &'a JobId, request: &'a Request) -> Answer<'a, ()> {
        Box::pin(self.change(id, "change what is asked of the job", move |record, now_ms| {
            record.request(request, now_ms)
        }))
    }

    fn remove<'a>(&'a self, id: &'a JobId) -> Answer<'a, ()> {
        Box::pin(async move {
            self.load(id).await?.check_final()?;
            let round = move || async move {
                // The row is gone: the reply to the previous attempt was lost.
                let Some(reading) = self.read(id).await? else { return Ok(()) };
                let of = format!("DELETE FROM {KEYSPACE}.jobs WHERE id = ? IF revision = ?");
                match self.conditional(&of, (id.as_str(), revision(&reading.record))).await? {
                    Applied::Yes => Ok(()),
                    Applied::No(_) => Err(Miss::Raced),
                }
            };
            self.rounds("remove the job", round).await
        })
    }

    fn amend<'a>(&'a self, id: &'a JobId, checkpoint: &'a Value) -> Answer<'a, ()> {
        Box::pin(self.change(id, "keep what became of the job", move |record, now_ms| {
            record.amend(checkpoint, now_ms);
            Ok(())
        }))
    }
}
