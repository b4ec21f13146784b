//! The journal of jobs in the cluster that they write to, so that losing a process loses nothing.
//!
//! The idea: a record is one document; a change reads it, applies the record's own pure method, and
//! replaces it on condition that its revision is still the one that was read. An answered change is
//! durable on a majority. Records need `find`, `insert` and `update` alone, so that any router
//! serves.
//!
//! Invariants:
//! - A change is made once, however often it is sent. Each sending carries a random id, which the
//!   document keeps: when an answer was lost, the next reading shows whether it took effect.
//! - A refusal is never founded on an outdated reading. After an election, a majority read may for
//!   a moment show less than what was acknowledged before; so a refusal of a change is first
//!   confirmed by a conditional write.
//! - Ages are told by the servers' clock alone: it comes with each reading.
//! - A job that is done or cancelled leaves its record and no slices ([`crate::state::leases`]).

use std::sync::Mutex;
use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use imago_job::control::Control;
use imago_job::id::JobId;
use imago_job::journal::{Answer, Asked, Claimed, Journal, JournalError, Request, Update};
use imago_job::record::Record;
use imago_job::retry::{Bound, Budget, RetryError, retry};
use imago_job::state::State;
use imago_plan::backoff::Backoff;
use mongodb::Collection;
use mongodb::options::{
    Acknowledgment, CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};

use crate::STATE_DB;
use crate::error::{Error, code, said};
use crate::server::endpoint::Endpoint;
use crate::server::write::DUPLICATE_KEY;
use crate::state::leases::Leases;

/// The collection of records in [`STATE_DB`].
pub const JOBS: &str = "jobs";

/// Sendings that a document remembers. A change whose answer is lost while more than so many others
/// are made is not recognised any more, and is judged anew.
const SENDINGS_MAX: usize = 32;
/// Longest wait for a majority to confirm a write.
const MAJORITY_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time of one round; longer than the driver looks for a primary, so that the driver's own
/// error is heard.
const ROUND_MAX: Duration = Duration::from_secs(25);
/// Enough for a replica set that elects a new primary, and for many processes that change one job
/// at once.
const BUDGET: Budget = Budget {
    attempts_max: 100,
    elapsed_max: Duration::from_secs(20),
    backoff: Backoff { first_ms: 5, max_ms: 1_000 },
};
/// The server's code for a missing privilege.
const UNAUTHORIZED: i32 = 13;

/// Keeps records in the collection [`JOBS`] of the database [`STATE_DB`].
#[derive(Clone, Debug)]
pub struct MongoJournal {
    endpoint: Endpoint,
    jobs: Collection<Document>,
    place: String,
}

/// The facts of a reading.
struct Reading {
    record: Record,
    sendings: Vec<String>,
    /// The server's clock, in milliseconds since the Unix epoch.
    now_ms: u64,
}

/// A change that was sent, and the answer if it took effect.
struct Sent<T> {
    sending: String,
    answer: T,
}

/// Why a round did not end with an answer.
#[derive(Debug, thiserror::Error)]
enum Miss {
    #[error("others changed the job at the same time")]
    Raced,
    #[error("{0}")]
    Passing(String),
    #[error(transparent)]
    Refused(#[from] JournalError),
}

/// The purpose of a round, in the words of an error, and the privilege that it needs.
#[derive(Clone, Copy)]
struct Doing {
    what: &'static str,
    action: &'static str,
}

const CREATE: Doing = Doing { what: "keep the new job", action: "insert" };
const LOAD: Doing = Doing { what: "read the job", action: "find" };
const LIST: Doing = Doing { what: "list the jobs", action: "find" };
const ASK_TIME: Doing = Doing { what: "ask for the time", action: "hello" };

impl MongoJournal {
    /// The journal in this cluster, which is a job's destination.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        let majority = WriteConcern::builder()
            .w(Acknowledgment::Majority)
            .w_timeout(MAJORITY_WAIT_MAX)
            .build();
        let options = CollectionOptions::builder()
            .read_concern(ReadConcern::majority())
            .write_concern(majority)
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .build();
        let jobs = endpoint.client().database(STATE_DB).collection_with_options(JOBS, options);
        let place = format!("{STATE_DB}.{JOBS} of {}", endpoint.redacted());
        Self { endpoint, jobs, place }
    }

    /// The servers' clock, in milliseconds since the Unix epoch, by which ages are told.
    ///
    /// # Errors
    /// Fails if the cluster does not answer.
    pub async fn now_ms(&self) -> Result<u64, JournalError> {
        self.rounds(ASK_TIME, async || {
            let admin = self.endpoint.client().database("admin");
            let hello = admin.run_command(doc! {"hello": 1}).await;
            let hello = hello.map_err(|error| self.miss(ASK_TIME, &error))?;
            self.time(&hello, "localTime").map_err(Miss::from)
        })
        .await
    }

    /// Makes one change: reads, applies, and replaces the document that was read, until no other
    /// change comes between.
    async fn change<T: Send>(
        &self,
        id: &JobId,
        what: &'static str,
        apply: impl Fn(&mut Record, u64) -> Result<T, JournalError> + Send + Sync,
    ) -> Result<T, JournalError> {
        let sent = Mutex::new(Vec::new());
        let doing = Doing { what, action: "update" };
        self.rounds(doing, || Box::pin(self.change_round(id, doing, &apply, &sent))).await
    }

    async fn change_round<T>(
        &self,
        id: &JobId,
        doing: Doing,
        apply: &(impl Fn(&mut Record, u64) -> Result<T, JournalError> + Send + Sync),
        sent: &Mutex<Vec<Sent<T>>>,
    ) -> Result<T, Miss> {
        let Some(reading) = self.read(id, doing).await? else {
            let missing = self.unknown(id);
            return Err(self.confirm(doc! {"_id": id.as_str()}, false, missing, doing).await);
        };
        if let Some(answer) = took_effect(sent, &reading.sendings) {
            return Ok(answer);
        }
        let read = doc! {"_id": id.as_str(), "revision": revision(&reading.record)};
        let mut record = reading.record;
        let answer = match apply(&mut record, reading.now_ms) {
            Ok(answer) => answer,
            Err(refusal) => return Err(self.confirm(read, true, refusal, doing).await),
        };
        let sending = new_sending();
        let changed = self.document(&record, reading.sendings, &sending)?;
        remember(sent, Sent { sending: sending.clone(), answer });
        let replaced = self.jobs.replace_one(read, changed).await;
        if replaced.map_err(|error| self.miss(doing, &error))?.matched_count == 0 {
            return Err(Miss::Raced);
        }
        // It was put there above, and no other code takes it.
        took_effect(sent, &[sending]).ok_or(Miss::Raced)
    }

    /// Confirms a refusal by a conditional write: if it matches (or, unless it `must_match`, does
    /// not match) the document that was read, the reading was up to date.
    async fn confirm(
        &self,
        read: Document,
        must_match: bool,
        refusal: JournalError,
        doing: Doing,
    ) -> Miss {
        let looked = doc! {"$currentDate": {"refused_at": true}};
        match self.jobs.update_one(read, looked).await {
            Ok(done) if (done.matched_count > 0) == must_match => Miss::Refused(refusal),
            Ok(_) => Miss::Raced,
            Err(error) => self.miss(doing, &error),
        }
    }

    /// Removes the slices of a job that has ended: they are not read any more. The end stands
    /// whether or not that succeeds.
    async fn clear(&self, id: &JobId) {
        let leases = Leases::new(self.endpoint.clone(), id.clone(), String::new());
        if let Err(error) = leases.remove().await {
            tracing::warn!(%error, job = %id, "the slices of a job that has ended are still kept");
        }
    }

    async fn create_round(&self, record: &Record, sending: &str) -> Result<(), Miss> {
        let document = self.document(record, Vec::new(), sending)?;
        match self.jobs.insert_one(document).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(DUPLICATE_KEY) => {
                let found = self.read(&record.id, CREATE).await?;
                match found {
                    // Inserted, but not yet by a majority as this primary knows it.
                    None => Err(Miss::Raced),
                    Some(found) if found.sendings.iter().any(|kept| kept == sending) => Ok(()),
                    Some(_) => {
                        let (id, place) = (record.id.clone(), self.place.clone());
                        Err(JournalError::Exists { id, place }.into())
                    }
                }
            }
            Err(error) => Err(self.miss(CREATE, &error)),
        }
    }

    async fn read(&self, id: &JobId, doing: Doing) -> Result<Option<Reading>, Miss> {
        let doing = Doing { action: "find", ..doing };
        let found = self
            .jobs
            .find_one(doc! {"_id": id.as_str()})
            .projection(doc! {"record": 1, "sendings": 1, "now": "$$NOW"})
            .await
            .map_err(|error| self.miss(doing, &error))?;
        let Some(found) = found else { return Ok(None) };
        let sendings = found.get_array("sendings").into_iter().flatten();
        Ok(Some(Reading {
            record: self.record(&found)?,
            sendings: sendings.filter_map(Bson::as_str).map(str::to_owned).collect(),
            now_ms: self.time(&found, "now")?,
        }))
    }

    async fn list_round(&self) -> Result<Vec<Record>, Miss> {
        let miss = |error| self.miss(LIST, &error);
        let all = self.jobs.find(doc! {}).projection(doc! {"record": 1}).sort(doc! {"_id": 1});
        let mut found = all.await.map_err(miss)?;
        let mut records = Vec::new();
        while let Some(document) = found.try_next().await.map_err(miss)? {
            records.push(self.record(&document)?);
        }
        // Ids sort by the time at which they were made, to the millisecond of their maker.
        records.sort_by_key(|record| record.created_at_ms);
        Ok(records)
    }

    /// Rounds of one operation, within the budget.
    async fn rounds<T, F: Future<Output = Result<T, Miss>>>(
        &self,
        doing: Doing,
        round: impl Fn() -> F,
    ) -> Result<T, JournalError> {
        let bounded = |_| async {
            match tokio::time::timeout(ROUND_MAX, round()).await {
                Ok(ended) => ended,
                Err(_) => Err(Miss::Passing(format!("no answer for {} s", ROUND_MAX.as_secs()))),
            }
        };
        let again = |miss: &Miss| !matches!(miss, Miss::Refused(_));
        // A caller stops by no longer waiting.
        let tried = retry(doing.what, &BUDGET, &Control::default(), again, bounded).await;
        tried.map_err(|error| match error {
            RetryError::Failed {
                bound: Bound::Permanent, last: Miss::Refused(refusal), ..
            } => refusal,
            exhausted => JournalError::Unavailable {
                doing: doing.what,
                place: self.place.clone(),
                source: Box::new(exhausted),
            },
        })
    }

    /// The meaning of a driver's error for the round.
    fn miss(&self, doing: Doing, error: &mongodb::error::Error) -> Miss {
        if Error::server(doing.what, error.clone()).is_transient() {
            return Miss::Passing(said(error));
        }
        let reason = match code(error) {
            Some(UNAUTHORIZED) => format!(
                "the user lacks the privilege {:?} on the database {STATE_DB:?}; \
                 grant it the role readWrite there",
                doing.action
            ),
            _ => said(error),
        };
        Miss::Refused(JournalError::Refused {
            doing: doing.what,
            place: self.place.clone(),
            reason,
        })
    }

    /// The document of a record: the fields that people search by, and the record as text, in which
    /// no name of a field can be taken for an operator or a path.
    fn document(
        &self,
        record: &Record,
        mut sendings: Vec<String>,
        sending: &str,
    ) -> Result<Document, JournalError> {
        let text = serde_json::to_string(record)
            .map_err(|error| self.damaged(record.id.as_str(), error.to_string()))?;
        sendings.push(sending.to_owned());
        sendings.drain(..sendings.len().saturating_sub(SENDINGS_MAX));
        let updated_ms = i64::try_from(record.updated_at_ms).unwrap_or(i64::MAX);
        Ok(doc! {
            "_id": record.id.as_str(),
            "revision": revision(record),
            "kind": &record.kind,
            "state": record.state.word(),
            "updated_at": DateTime::from_millis(updated_ms),
            "sendings": sendings,
            "record": text,
        })
    }

    fn record(&self, document: &Document) -> Result<Record, JournalError> {
        let id = document.get_str("_id").unwrap_or("without an _id");
        let text = document.get_str("record").map_err(|e| self.damaged(id, e.to_string()))?;
        serde_json::from_str(text).map_err(|error| self.damaged(id, error.to_string()))
    }

    fn time(&self, document: &Document, field: &str) -> Result<u64, JournalError> {
        let time = document.get_datetime(field).map_err(|error| JournalError::Refused {
            doing: "tell the time",
            place: self.place.clone(),
            reason: format!("the server's answer has no {field}: {error}"),
        })?;
        Ok(u64::try_from(time.timestamp_millis()).unwrap_or(0))
    }

    fn damaged(&self, id: &str, reason: String) -> JournalError {
        JournalError::Damaged { id: id.to_owned(), place: self.place.clone(), reason }
    }

    fn unknown(&self, id: &JobId) -> JournalError {
        JournalError::Unknown { id: id.clone(), place: self.place.clone(), list: "imago job list" }
    }
}

impl Journal for MongoJournal {
    fn create<'a>(&'a self, record: &'a Record) -> Answer<'a, ()> {
        let sending = new_sending();
        Box::pin(async move {
            self.rounds(CREATE, || Box::pin(self.create_round(record, &sending))).await
        })
    }

    fn load<'a>(&'a self, id: &'a JobId) -> Answer<'a, Record> {
        let round = move || {
            Box::pin(async move {
                let found = self.read(id, LOAD).await?;
                found.map(|reading| reading.record).ok_or_else(|| self.unknown(id).into())
            })
        };
        Box::pin(self.rounds(LOAD, round))
    }

    fn list(&self) -> Answer<'_, Vec<Record>> {
        Box::pin(self.rounds(LIST, || Box::pin(self.list_round())))
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
        Box::pin(async move {
            let save = |record: &mut Record, now_ms| record.save(epoch, update, now_ms);
            let asked = self.change(id, "save the state of the job", save).await?;
            if update.state.as_ref().is_some_and(State::is_final) {
                self.clear(id).await;
            }
            Ok(asked)
        })
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

    fn amend<'a>(&'a self, id: &'a JobId, checkpoint: &'a serde_json::Value) -> Answer<'a, ()> {
        Box::pin(self.change(id, "keep what became of the job", move |record, now_ms| {
            record.amend(checkpoint, now_ms);
            Ok(())
        }))
    }
}

fn revision(record: &Record) -> i64 {
    i64::try_from(record.revision).expect("a record is not changed 2^63 times")
}

fn new_sending() -> String {
    format!("{:032x}", rand::random::<u128>())
}

fn remember<T>(sent: &Mutex<Vec<Sent<T>>>, sending: Sent<T>) {
    match sent.lock() {
        Ok(mut sent) => sent.push(sending),
        Err(poisoned) => poisoned.into_inner().push(sending),
    }
}

/// The answer to the change that is among those that the document remembers.
fn took_effect<T>(sent: &Mutex<Vec<Sent<T>>>, kept: &[String]) -> Option<T> {
    let mut sent = match sent.lock() {
        Ok(sent) => sent,
        Err(poisoned) => poisoned.into_inner(),
    };
    let found = sent.iter().position(|sent| kept.contains(&sent.sending))?;
    Some(sent.swap_remove(found).answer)
}
