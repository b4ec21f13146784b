//! The journal of jobs, stored in the cluster that the jobs write to, so that the loss of a process loses no state.
//!
//! A record is one document. A change reads it, applies the record's own pure method, and replaces the document on
//! condition that its revision is still the one that was read. A change that was answered is durable on a majority.
//! Records need the privileges `find`, `insert` and `update` alone, so any router serves; `remove` is needed only
//! to delete the record of a job that has ended.
//!
//! Invariants:
//! - A change is applied once, however often it is sent. Each request carries a random id, which the document
//!   stores: after a lost reply, the next read shows whether the request took effect.
//! - A change is never rejected because of a stale read. After an election, a majority read may for a moment return
//!   less than was acknowledged before, so a rejection is first confirmed by a conditional write.
//! - Ages are computed from the servers' clock alone, which is part of each read.
//! - A job that is done or cancelled leaves its record and no slices ([`crate::state::leases`]).

use std::sync::Mutex;
use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use imago_job::control::Control;
use imago_job::id::JobId;
use imago_job::journal::{
    Answer, Claimed, Journal, JournalError, OperatorRequests, Request, Update,
};
use imago_job::record::Record;
use imago_job::retry::{Bound, Budget, RetryError, retry};
use imago_job::state::State;
use imago_plan::pacing::backoff::Backoff;
use mongodb::Collection;
use mongodb::options::{
    Acknowledgment, CollectionOptions, ReadConcern, ReadPreference, SelectionCriteria, WriteConcern,
};

use crate::STATE_DB;
use crate::error::{Error, code, redacted_message};
use crate::server::endpoint::Endpoint;
use crate::server::write::DUPLICATE_KEY;
use crate::state::leases::Leases;

/// Name of the collection of records in [`STATE_DB`].
pub const JOBS: &str = "jobs";

/// Most request ids that the document of one job stores. If a reply is lost and more than this many other changes
/// follow, the change is no longer recognised as applied, and is evaluated again.
const SENDINGS_MAX: usize = 32;
/// Longest time that the server waits for a majority to confirm a write.
const MAJORITY_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time of one round, the commands of one attempt at an operation. It is longer than the driver's server
/// selection, so that the driver's own error is reported.
const ROUND_MAX: Duration = Duration::from_secs(25);
/// Limits of the retries of one operation on the journal: enough for the election of a primary, and for many
/// processes that change one job concurrently.
const BUDGET: Budget = Budget {
    attempts_max: 100,
    elapsed_max: Duration::from_secs(20),
    backoff: Backoff { first_ms: 5, max_ms: 1_000 },
};
/// Server error code of a missing privilege.
const UNAUTHORIZED: i32 = 13;

/// The journal of a cluster's jobs, in the collection [`JOBS`] of the database [`STATE_DB`].
#[derive(Clone, Debug)]
pub struct MongoJournal {
    endpoint: Endpoint,
    jobs: Collection<Document>,
    /// The collection and the cluster, as errors name them.
    place: String,
}

/// Result of a read of a job's record.
struct Reading {
    record: Record,
    /// The request ids that the document stores.
    sendings: Vec<String>,
    /// The server's clock at the read, in milliseconds since the Unix epoch.
    now_ms: u64,
}

/// A change of a record that was sent, and its result if it took effect.
struct Sent<T> {
    /// The random id of the request.
    sending: String,
    /// The result that the change returned.
    answer: T,
}

/// Reason why a round (one attempt at an operation) ended without a result.
#[derive(Debug, thiserror::Error)]
enum Miss {
    #[error("others changed the job at the same time")]
    Raced,
    #[error("{0}")]
    Transient(String),
    #[error(transparent)]
    Refused(#[from] JournalError),
}

/// Purpose of a round, in the words of its error (`what`), and the server privilege that it needs (`action`).
#[derive(Clone, Copy)]
struct Doing {
    what: &'static str,
    action: &'static str,
}

const CREATE: Doing = Doing { what: "keep the new job", action: "insert" };
const LOAD: Doing = Doing { what: "read the job", action: "find" };
const LIST: Doing = Doing { what: "list the jobs", action: "find" };
const REMOVE: Doing = Doing { what: "remove the job", action: "remove" };
const ASK_TIME: Doing = Doing { what: "ask for the time", action: "hello" };

impl MongoJournal {
    /// Returns the journal in the cluster `endpoint`, which is a job's destination.
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

    /// Returns the clock of the cluster's servers, in milliseconds since the Unix epoch. Ages of heartbeats are
    /// computed from it.
    ///
    /// # Errors
    /// Fails if the cluster does not answer.
    #[crate::boxed]
    pub async fn now_ms(&self) -> Result<u64, JournalError> {
        self.rounds(ASK_TIME, async || {
            let admin = self.endpoint.client().database("admin");
            let hello = admin.run_command(doc! {"hello": 1}).await;
            let hello = hello.map_err(|error| self.miss(ASK_TIME, &error))?;
            self.time(&hello, "localTime").map_err(Miss::from)
        })
        .await
    }

    /// Applies the change `apply` to the record of the job `id`: reads the document, applies the change with the
    /// server's time in ms since 1970, and replaces the document that was read. Repeats this until no concurrent
    /// change intervenes, and returns the result of `apply`.
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
        // `remember` added the request above, and no other code removes it.
        took_effect(sent, &[sending]).ok_or(Miss::Raced)
    }

    /// Confirms the rejection `refusal` by a conditional write. The read was current if the write matches the
    /// document `read`, or, without `must_match`, if it matches none.
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

    /// Removes the slices of the job `id`, which has ended, so that they are no longer read. A failure is logged and
    /// leaves the job ended.
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
                    // Inserted, but this primary does not know yet that a majority has it.
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

    async fn remove_round(&self, id: &JobId) -> Result<(), Miss> {
        // A final state never changes again. If an earlier round's reply was lost, its record is gone already.
        let ended = doc! {"$in": [State::Done.word(), State::Cancelled.word()]};
        let it = doc! {"_id": id.as_str(), "state": ended};
        self.jobs.delete_one(it).await.map_err(|error| self.miss(REMOVE, &error))?;
        Ok(())
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
        // The ids sort by creation time in milliseconds, by the clock of the process that created them.
        records.sort_by_key(|record| record.created_at_ms);
        Ok(records)
    }

    /// Runs rounds of one operation until one succeeds or the budget is exhausted.
    async fn rounds<T, F: Future<Output = Result<T, Miss>>>(
        &self,
        doing: Doing,
        round: impl Fn() -> F,
    ) -> Result<T, JournalError> {
        let bounded = |_| async {
            match tokio::time::timeout(ROUND_MAX, round()).await {
                Ok(ended) => ended,
                Err(_) => Err(Miss::Transient(format!("no answer for {} s", ROUND_MAX.as_secs()))),
            }
        };
        let again = |miss: &Miss| !matches!(miss, Miss::Refused(_));
        // A caller stops the rounds by dropping the future.
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

    /// Classifies an error of the driver in the round `doing`: retryable, or final for the operation.
    fn miss(&self, doing: Doing, error: &mongodb::error::Error) -> Miss {
        if Error::server(doing.what, error.clone()).is_transient() {
            return Miss::Transient(redacted_message(error));
        }
        let reason = match code(error) {
            Some(UNAUTHORIZED) => format!(
                "the user lacks the privilege {:?} on the database {STATE_DB:?}; \
                 grant it the role readWrite there",
                doing.action
            ),
            _ => redacted_message(error),
        };
        Miss::Refused(JournalError::Refused {
            doing: doing.what,
            place: self.place.clone(),
            reason,
        })
    }

    /// Returns the document that stores a record: the fields that people search by, the stored request ids with
    /// `sending` added, and the record as text, in which no field name can be interpreted as an operator or a path.
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

    fn save<'a>(
        &'a self,
        id: &'a JobId,
        epoch: u64,
        update: &'a Update,
    ) -> Answer<'a, OperatorRequests> {
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

    fn remove<'a>(&'a self, id: &'a JobId) -> Answer<'a, ()> {
        Box::pin(async move {
            // Removes slices whose removal failed when the job ended; without the record nothing refers to them.
            self.load(id).await?.check_final()?;
            self.clear(id).await;
            self.rounds(REMOVE, || Box::pin(self.remove_round(id))).await
        })
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

/// Takes from `sent` the result of the change whose request id is among the stored ids `kept`, or returns `None` if
/// there is none.
fn took_effect<T>(sent: &Mutex<Vec<Sent<T>>>, kept: &[String]) -> Option<T> {
    let mut sent = match sent.lock() {
        Ok(sent) => sent,
        Err(poisoned) => poisoned.into_inner(),
    };
    let found = sent.iter().position(|sent| kept.contains(&sent.sending))?;
    Some(sent.swap_remove(found).answer)
}
