//! Slices of a job in the destination cluster: their leases, and the horizon.
//!
//! Work is claimed, not assigned: any process that can reach the destination leases the next slice
//! (`imago job work`). A job with a single process is the case of one worker.
//!
//! Invariants:
//! - A lease is won by one update that names the state it replaces, so two workers never both win.
//! - Leases expire by the destination's clock alone. A worker that has not renewed its lease for
//!   [`LEASED_WRITE_WITHIN`] sends no more writes, and a write runs at the server for at most [`WRITE_TIME_MAX`];
//!   both together end before the lease does. So no write of a worker whose lease expired is applied after its
//!   slice was leased again. Two cases are excluded, which `imago verify` detects: a process that is frozen between
//!   reading the clock and its write, and a network that delivers later than the margin of 4 s.
//! - A slice that was leased once is never counted as untouched again.
//! - A worker leases a slice and then reads the horizon ([`Leases::horizon`]); a coordinator advances the horizon
//!   and then reads the slices ([`Leases::states_after`]). Each read is at or after the preceding write, by the
//!   cluster's own time.
//! - The horizon is a low watermark and never moves back: no worker reads at a horizon earlier than that at which
//!   an owner dropped dirty keys, even if a suspended predecessor resumes and writes an earlier one.
//! - Slices are persisted until their job is done or cancelled ([`Leases::remove`]).

use std::time::Duration;

use bson::{Bson, DateTime, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use imago_job::id::JobId;
use imago_plan::copy::slice_picker;

use crate::STATE_DB;
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::collection::{Handle, number};
use crate::server::endpoint::{Endpoint, answer, operation_time};
use crate::server::timing::{LEASED_WRITE_WITHIN, WRITE_TIME_MAX};

mod snapshot;

pub use snapshot::SliceSnapshot;

/// Duration of a slice's lease that is not renewed, by the destination's clock.
pub const LEASE: Duration = Duration::from_secs(24);
/// Interval at which the holder of a slice's lease renews it.
pub const RENEW_EVERY: Duration = Duration::from_secs(3);
/// Most `_id`s of one slice that may be left to the applier because a unique index rejected their documents.
pub const LEFTOVERS_MAX: usize = 10_000;

const _: () =
    assert!(LEASED_WRITE_WITHIN.as_secs() + WRITE_TIME_MAX.as_secs() + 4 <= LEASE.as_secs());

/// One slice of one collection: a range of `_id`s that is copied as one unit.
#[derive(Clone, Debug)]
pub struct Slice {
    /// Number of the slice's collection in the job, from 0.
    pub ns: usize,
    /// Number of the slice in its collection, from 0, in the order of the ranges.
    pub n: usize,
    /// Lower bound of the `_id`s, inclusive; `None` if the range is open.
    pub min: Option<Id>,
    /// Upper bound of the `_id`s, exclusive; `None` if the range is open.
    pub max: Option<Id>,
}

/// Lease of a slice, which permits this process to copy the slice.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The leased slice.
    pub slice: Slice,
    /// Number of times that the slice was leased by any process, including this lease.
    pub attempt: i32,
}

/// Access to the slices, the leases and the horizon of one job, for one process.
#[derive(Clone, Debug)]
pub struct Leases {
    at: Endpoint,
    job: JobId,
    owner: String,
}

const SLICES: &str = "slices";
const HORIZONS: &str = "horizons";

impl Leases {
    /// Returns access to the slices of `job` in the cluster `at`. The process leases them under the name `owner`,
    /// which no other process uses.
    #[must_use]
    pub fn new(at: Endpoint, job: JobId, owner: String) -> Self {
        Self { at, job, owner }
    }

    /// Persists these slices of the job. Slices that exist already are unchanged.
    ///
    /// # Errors
    /// Fails if the destination rejects the writes.
    #[crate::boxed]
    pub async fn create(&self, slices: &[Slice]) -> Result<()> {
        self.index().await?;
        for group in slices.chunks(500) {
            let documents: Vec<Bson> =
                group.iter().map(|slice| self.document(slice).into()).collect();
            let reply = self
                .run(doc! {
                    "insert": SLICES, "documents": documents, "ordered": false,
                    "writeConcern": {"w": "majority"},
                })
                .await?;
            for error in reply.get_array("writeErrors").into_iter().flatten() {
                let error = error.as_document().cloned().unwrap_or_default();
                if number(&error, "code") != 11_000 {
                    return Err(Error::malformed("keeping the slices", error));
                }
            }
        }
        Ok(())
    }

    /// Creates the index of the collection of slices for queries by job. Jobs share the collection, and the slices of
    /// a running job are read every second.
    async fn index(&self) -> Result<()> {
        let slices = Handle::new(self.at.clone(), Namespace::new(STATE_DB, SLICES));
        let index = doc! {"key": {"job": 1, "ns": 1, "n": 1}, "name": "job_ns_n"};
        answer("indexing the slices", slices.create_indexes(&[index])).await?
    }

    /// Leases a free slice of the collections with a number below `collections`: the best one for a worker that
    /// copied `last` before ([`imago_plan::copy::slice_picker`]). Returns `None` if no slice is free at the moment.
    /// Further collections may have joined the job after the caller read the list of its collections.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    #[crate::boxed]
    pub async fn lease(&self, last: Option<&Slice>, collections: usize) -> Result<Option<Lease>> {
        let collections = i64::try_from(collections).expect("few collections");
        let last = last.map(|slice| (slice.ns, slice.n));
        // Each lost race was won by another worker. More losses than there are workers are not races.
        for _ in 0..64 {
            let free = doc! {
                "job": self.job.to_string(),
                "ns": {"$lt": collections},
                "$or": [
                    {"state": "untouched"},
                    {"state": "leased", "$expr": {"$lt": ["$lease_until", "$$NOW"]}},
                ],
            };
            let number_of = |found: &Document, field| {
                usize::try_from(number(found, field)).unwrap_or(usize::MAX)
            };
            let found = self.find_in(SLICES, free, doc! {"ns": 1, "n": 1}, 0, None).await?;
            let free: Vec<(usize, usize)> =
                found.iter().map(|f| (number_of(f, "ns"), number_of(f, "n"))).collect();
            let Some((ns, n)) = slice_picker::next(&free, last) else { return Ok(None) };
            let chosen = doc! {"_id": self.id(ns, n)};
            let Some(found) = self.find(chosen, 1, None).await?.pop() else { continue };
            let attempt = i32::try_from(number(&found, "attempt")).unwrap_or(i32::MAX - 1);
            let still_free = doc! {"$or": [
                {"$ne": ["$state", "leased"]}, {"$lt": ["$lease_until", "$$NOW"]},
            ]};
            let won = self
                .update(
                    doc! {
                        "_id": self.id(ns, n), "attempt": attempt, "state": {"$ne": "copied"},
                        "$expr": still_free,
                    },
                    doc! {
                        "state": "leased", "attempt": attempt + 1,
                        "owner": {"$literal": &self.owner}, "lease_until": lease_end(),
                    },
                )
                .await?;
            if won {
                let slice = parse_slice(&found)?;
                return Ok(Some(Lease { slice, attempt: attempt + 1 }));
            }
        }
        Ok(None)
    }

    /// Renews a lease; returns false if it was lost.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    #[crate::boxed]
    pub async fn renew(&self, lease: &Lease) -> Result<bool> {
        self.update(self.held(lease), doc! {"lease_until": lease_end()}).await
    }

    /// Marks the slice of `lease` as copied, once its last write is durable, with the number of its documents, their
    /// size in bytes, and the `_id`s that are left to the applier. Returns false if the lease was lost.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    #[crate::boxed]
    pub async fn copied(
        &self,
        lease: &Lease,
        documents: u64,
        bytes: u64,
        leftovers: &[Id],
    ) -> Result<bool> {
        let leftovers: Result<Vec<Bson>> = leftovers.iter().map(value_of).collect();
        let done = doc! {
            "state": "copied",
            "documents": i64::try_from(documents).unwrap_or(i64::MAX),
            "bytes": i64::try_from(bytes).unwrap_or(i64::MAX),
            "leftovers": {"$literal": leftovers?},
        };
        self.update(self.held(lease), done).await
    }

    /// Expires the leases of every owner whose name begins with `owner_prefix`: those processes are known to be
    /// gone.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    #[crate::boxed]
    pub async fn expire(&self, owner_prefix: &str) -> Result<()> {
        let prefix = format!("^{}", regex::escape(owner_prefix));
        let q = doc! {
            "job": self.job.to_string(), "state": "leased", "owner": {"$regex": prefix},
        };
        self.run(doc! {
            "update": SLICES,
            "updates": [{
                "q": q, "u": {"$set": {"lease_until": DateTime::from_millis(0)}}, "multi": true,
            }],
            "writeConcern": {"w": "majority"},
        })
        .await
        .map(|_| ())
    }

    /// Persists the source's cluster time `time` as the horizon, if it is later than the persisted one. Slices that
    /// are leased after this returns are read from a state that includes all changes up to `time`. Returns the
    /// destination's cluster time of the write.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    #[crate::boxed]
    pub async fn set_horizon(&self, time: Timestamp) -> Result<Timestamp> {
        let reply = self
            .run(doc! {
                "update": HORIZONS,
                "updates": [{
                    "q": {"_id": self.job.to_string()}, "u": {"$max": {"time": time}},
                    "upsert": true,
                }],
                "writeConcern": {"w": "majority"},
            })
            .await?;
        refuse_errors(&reply, "keeping the horizon")?;
        operation_time(&reply).ok_or_else(|| Error::malformed("update", "no operationTime"))
    }

    /// Returns the persisted horizon, a cluster time of the source. A worker calls this after it won a lease.
    ///
    /// # Errors
    /// Fails if the destination does not answer; a precondition error if the job has ended.
    #[crate::boxed]
    pub async fn horizon(&self) -> Result<Timestamp> {
        let job = doc! {"_id": self.job.to_string()};
        let found = self.find_in(HORIZONS, job, doc! {"time": 1}, 1, None).await?;
        let found = found.first().and_then(|found| found.get_timestamp("time").ok());
        found.ok_or_else(|| {
            Error::precondition(
                format!("job {} has no slices any more", self.job),
                "`imago job status ID` shows whether it is done or cancelled",
            )
        })
    }

    /// Returns every slice of the job with its bounds, ordered by collection and slice.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    #[crate::boxed]
    pub async fn slices(&self) -> Result<Vec<Slice>> {
        let all = self.find(doc! {"job": self.job.to_string()}, 0, None).await?;
        let mut slices = all.iter().map(parse_slice).collect::<Result<Vec<_>>>()?;
        slices.sort_by_key(|slice| (slice.ns, slice.n));
        Ok(slices)
    }

    /// Removes the job's slices of all collections with the number `first` and above.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    pub async fn remove_from(&self, first: usize) -> Result<()> {
        let first = i64::try_from(first).expect("few collections");
        let q = doc! {"job": self.job.to_string(), "ns": {"$gte": first}};
        self.run(doc! {
            "delete": SLICES,
            "deletes": [{"q": q, "limit": 0}],
            "writeConcern": {"w": "majority"},
        })
        .await
        .map(|_| ())
    }

    /// Removes the job's slices and its horizon.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    #[crate::boxed]
    pub async fn remove(&self) -> Result<()> {
        for (coll, field) in [(SLICES, "job"), (HORIZONS, "_id")] {
            self.run(doc! {
                "delete": coll,
                "deletes": [{"q": {field: self.job.to_string()}, "limit": 0}],
                "writeConcern": {"w": "majority"},
            })
            .await?;
        }
        Ok(())
    }

    fn id(&self, ns: usize, n: usize) -> String {
        format!("{}/{ns}/{n}", self.job)
    }

    fn document(&self, slice: &Slice) -> Document {
        let mut document = doc! {
            "_id": self.id(slice.ns, slice.n),
            "job": self.job.to_string(),
            "ns": i64::try_from(slice.ns).expect("few collections"),
            "n": i64::try_from(slice.n).expect("few slices"),
            "state": "untouched",
            "attempt": 0,
        };
        for (name, bound) in [("min", &slice.min), ("max", &slice.max)] {
            if let Some(Ok(value)) = bound.as_ref().map(value_of) {
                document.insert(name, value);
            }
        }
        document
    }

    fn held(&self, lease: &Lease) -> Document {
        doc! {
            "_id": self.id(lease.slice.ns, lease.slice.n),
            "owner": &self.owner, "attempt": lease.attempt, "state": "leased",
        }
    }

    async fn update(&self, q: Document, set: Document) -> Result<bool> {
        let reply = self
            .run(doc! {
                "update": SLICES, "updates": [{"q": q, "u": [{"$set": set}]}],
                "writeConcern": {"w": "majority"},
            })
            .await?;
        refuse_errors(&reply, "leasing a slice")?;
        Ok(number(&reply, "n") == 1)
    }

    async fn find(
        &self,
        filter: Document,
        limit: i64,
        after: Option<Timestamp>,
    ) -> Result<Vec<Document>> {
        self.find_in(SLICES, filter, doc! {"leftovers": 0}, limit, after).await
    }

    async fn find_in(
        &self,
        coll: &str,
        filter: Document,
        projection: Document,
        limit: i64,
        after: Option<Timestamp>,
    ) -> Result<Vec<Document>> {
        let mut concern = doc! {"level": "majority"};
        if let Some(after) = after {
            concern.insert("afterClusterTime", after);
        }
        let mut command = doc! {
            "find": coll, "filter": filter, "projection": projection, "sort": {"ns": 1, "n": 1},
            "batchSize": 10_000, "readConcern": concern,
        };
        if limit > 0 {
            command.insert("limit", limit);
        }
        let doing = "reading the job's slices";
        let db = self.at.client().database(STATE_DB);
        let found = async { db.run_cursor_command(command).await?.try_collect().await };
        answer(doing, found).await?.map_err(|error| Error::server(doing, error))
    }

    async fn run(&self, command: Document) -> Result<Document> {
        self.at.run(STATE_DB, command).await
    }
}

fn lease_end() -> Document {
    doc! {"$add": ["$$NOW", i64::try_from(LEASE.as_millis()).expect("a short time")]}
}

fn refuse_errors(reply: &Document, doing: &str) -> Result<()> {
    let first = reply.get_array("writeErrors").ok().and_then(|errors| errors.first());
    match first.or(reply.get("writeConcernError")) {
        Some(error) => Err(Error::Transient { doing: doing.into(), cause: error.to_string() }),
        None => Ok(()),
    }
}

fn value_of(id: &Id) -> Result<Bson> {
    Bson::try_from(id.as_raw()).map_err(|e| Error::malformed(format!("the _id {id}"), e))
}

fn id_of(value: &Bson) -> Result<Id> {
    let raw = bson::RawBson::try_from(value.clone())
        .map_err(|e| Error::malformed("a slice's bound", e))?;
    Ok(Id::from_raw(raw.as_raw_bson_ref()))
}

fn parse_slice(document: &Document) -> Result<Slice> {
    let bound = |name| document.get(name).map(id_of).transpose();
    Ok(Slice {
        ns: usize::try_from(number(document, "ns")).unwrap_or(0),
        n: usize::try_from(number(document, "n")).unwrap_or(0),
        min: bound("min")?,
        max: bound("max")?,
    })
}
