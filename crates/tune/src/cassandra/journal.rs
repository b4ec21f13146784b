//! The journal of jobs in the cluster that they change, and the lock that lets only one of them work.
//!
//! The idea: a record is one row; a change reads it, applies the record's own pure method, and replaces it by a
//! lightweight transaction on condition that its revision is still the one that was read. An answered change is at a
//! quorum.
//!
//! Invariants:
//! - A change is made once, however often it is sent: each sending carries a random number, which the row keeps, so that
//!   a lost answer is known from the next reading.
//! - The lock is held by a job, not by a process: it outlives the death of a process, and is given up with the job's end.
//! - Ages are told by the nodes' clocks alone. Where they differ, a job may be taken over too early; its old owner is then
//!   refused at its next save, and stops.

use std::sync::Arc;
use std::time::Duration;

use imago_job::control::Control;
use imago_job::id::JobId;
use imago_job::journal::{Answer, Asked, Claimed, Journal, JournalError, Request, Update};
use imago_job::record::Record;
use imago_job::retry::{Bound, Budget, RetryError, retry};
use imago_plan::backoff::Backoff;
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::statement::{Consistency, Statement};
use scylla::value::{CqlValue, Row};
use serde_json::Value;

use super::Uri;
use super::connection::{self, rows};
use super::decisions;
use super::error::{Error, Result, failed};
use crate::cluster::job::{Action, holds_on};

/// The keyspace that Imago keeps its own tables in.
pub const KEYSPACE: &str = "imago";
/// Replicas of it in each data centre, as far as there are nodes.
const REPLICAS_MAX: usize = 3;
/// The lock's only row.
const LOCK: &str = "configuration";
/// Enough for a node that restarts, and for many processes that change one job at once.
const BUDGET: Budget = Budget {
    attempts_max: 100,
    elapsed_max: Duration::from_secs(20),
    backoff: Backoff { first_ms: 20, max_ms: 1_000 },
};

/// Keeps records in the table `jobs` of the keyspace [`KEYSPACE`].
#[derive(Clone, Debug)]
pub struct CassandraJournal {
    session: Arc<Session>,
    place: String,
}

/// The facts of a reading.
struct Reading {
    record: Record,
    sending: i64,
    /// The node's clock, in milliseconds since the Unix epoch.
    now_ms: u64,
}

/// Why a round did not end with an answer.
#[derive(Debug, thiserror::Error)]
enum Miss {
    #[error("others changed the job at the same time")]
    Raced,
    #[error(transparent)]
    Passing(#[from] Error),
    #[error(transparent)]
    Refused(#[from] JournalError),
}

impl CassandraJournal {
    /// The journal in this cluster; none if it has none yet.
    ///
    /// # Errors
    /// The cluster does not let us in.
    pub async fn find(uri: &Uri) -> Result<Option<Self>> {
        let session = connection::connect(uri, Consistency::Quorum).await?;
        let state = session.get_cluster_state();
        let is_there =
            state.get_keyspace(KEYSPACE).is_some_and(|of| of.tables.contains_key("jobs"));
        let place = format!("{KEYSPACE}.jobs of {uri}");
        Ok(is_there.then(|| Self { session: Arc::new(session), place }))
    }

    /// The journal in this cluster; its tables are made if they are not there.
    ///
    /// # Errors
    /// The cluster does not let us in, or the tables cannot be made.
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
            decisions::TABLE,
        ] {
            made(format!("CREATE TABLE IF NOT EXISTS {KEYSPACE}.{columns}")).await?;
        }
        Ok(Self { session: Arc::new(session), place: format!("{KEYSPACE}.jobs of {uri}") })
    }

    /// Has the job hold the lock on the cluster's configuration, unless another one holds it that has not ended.
    ///
    /// # Errors
    /// The other job, or what the cluster said.
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
                Ok(record) => Some(record).filter(holds_on),
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

    /// Gives the job's lock up, if it still holds it.
    ///
    /// # Errors
    /// What the cluster said.
    pub async fn unlock(&self, job: &JobId) -> Result<()> {
        let statement = format!("DELETE FROM {KEYSPACE}.locks WHERE name = ? IF job = ?");
        self.conditional(&statement, (LOCK, job.as_str())).await.map(drop)
    }

    /// Keeps what a job does next, and why.
    ///
    /// # Errors
    /// What the cluster said.
    pub async fn note(&self, job: &JobId, what: &str, why: &str) -> Result<()> {
        let statement =
            format!("INSERT INTO {KEYSPACE}.actions (job, at, what, why) VALUES (?, now(), ?, ?)");
        let noted = self.session.query_unpaged(statement, (job.as_str(), what, why)).await;
        noted.map_err(failed("keeping what the job does")).map(drop)
    }

    /// What a job did, in its order.
    ///
    /// # Errors
    /// What the cluster said.
    pub async fn actions(&self, job: &JobId) -> Result<Vec<Action>> {
        let statement =
            format!("SELECT toUnixTimestamp(at), what, why FROM {KEYSPACE}.actions WHERE job = ?");
        let doing = "reading what the job did";
        let all = rows::<(i64, String, String)>(&self.session, doing, &statement, (job.as_str(),));
        let action = |(at_ms, what, why)| Action { at_ms, what, why };
        Ok(all.await?.into_iter().map(action).collect())
    }

    /// The connection.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Runs a lightweight transaction.
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
        // A row without a record is what a failed transaction may leave.
        let Some((Some(text), sending, now_ms)) = row else { return Ok(None) };
        let record = self.record(id.as_str(), &text)?;
        let now_ms = u64::try_from(now_ms).unwrap_or(0);
        Ok(Some(Reading { record, sending: sending.unwrap_or(0), now_ms }))
    }

    /// Makes one change: reads, applies, and replaces what was read, until no other change comes between.
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

    /// Rounds of one operation, within the budget.
    async fn rounds<T, F: Future<Output = std::result::Result<T, Miss>>>(
        &self,
        what: &'static str,
        round: impl Fn() -> F,
    ) -> std::result::Result<T, JournalError> {
        let again = |miss: &Miss| !matches!(miss, Miss::Refused(_));
        // A caller stops by no longer waiting.
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

/// Whether a condition held.
pub(super) enum Applied {
    Yes,
    /// What is there instead.
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

    fn save<'a>(&'a self, id: &'a JobId, epoch: u64, update: &'a Update) -> Answer<'a, Asked> {
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

    fn amend<'a>(&'a self, id: &'a JobId, checkpoint: &'a Value) -> Answer<'a, ()> {
        Box::pin(self.change(id, "keep what became of the job", move |record, now_ms| {
            record.amend(checkpoint, now_ms);
            Ok(())
        }))
    }
}
