//! A probe of what operations cost the shards of the testbed: the costs by which advice judges keys, and the work of the testbed's router,
//! which shards carry in turns where the program `mongos` is missing.
//!
//! Operations of one kind go to one shard or to two, and the processor time of all is measured. A shard that an operation does not reach works
//! for the router alone; the time of a reached one beyond that is the operation's own. Router work is taken to grow evenly with the number of
//! shards that an operation reaches.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt as _;
use futures_util::future::try_join_all;
use imago_mongo::namespace::Namespace;
use serde::Serialize;

use super::{Bench, SHARDS};
use crate::error::{Error, Result};

/// Number of documents on each shard.
const DOCUMENTS: i64 = 1_000;
/// Largest number of operations of one measurement.
const OPERATIONS: i64 = 1_200;
/// Number of operations under way at once.
const AT_ONCE: i64 = 4;
/// Number of documents that a long read returns.
const LONG: i64 = 40;

/// What operations cost the shards.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProbedCosts {
    /// Processor time of a shard for a request, in µs.
    pub request_us: f64,
    /// Processor time of a shard for each document that is returned, in µs.
    pub document_us: f64,
    /// Processor time of a shard for each document that is written, in µs.
    pub write_us: f64,
    /// Processor time of the router for a read, on shards, in µs: of one that reaches one shard, and for each further one.
    pub router_read_us: (f64, f64),
    /// The same for a write.
    pub router_write_us: (f64, f64),
}

/// A kind of operation of the probe.
#[derive(Clone, Copy, Debug)]
enum Probe {
    Read,
    LongRead,
    ReadOfTwo,
    Write,
    LongWrite,
    WriteOfTwo,
}

/// Processor times for each operation, in µs: of a shard that it reaches, and of one that it does not.
type Times = (f64, f64);

impl ProbedCosts {
    /// Returns the costs by which keys are judged, in ns: of a request, a returned and a written document.
    pub(super) fn in_ns(&self) -> [u64; 3] {
        [self.request_us, self.document_us, self.write_us].map(|us| (1_000.0 * us) as u64)
    }

    /// Returns the router's work for `reads` reads that reach `read_requests` shards in all, and the same of writes, in µs.
    pub(super) fn router_us(
        &self,
        (reads, read_requests): (f64, f64),
        (writes, write_requests): (f64, f64),
    ) -> f64 {
        let of = |(first, further): (f64, f64), operations: f64, requests: f64| {
            first * operations + further * (requests - operations).max(0.0)
        };
        of(self.router_read_us, reads, read_requests)
            + of(self.router_write_us, writes, write_requests)
    }

    /// Derives the costs from what was measured.
    fn of([read, long, two, write, long_write, writes]: [Times; 6]) -> Self {
        let shards = f64::from(SHARDS);
        let own = |(on, off): Times| (on - off).max(0.0);
        let document_us = ((own(long) - own(read)) / (LONG - 1) as f64).max(0.0);
        let request_us = (own(read) - document_us).max(1.0);
        let router =
            |one: Times, two: Times| (shards * one.1.max(0.0), shards * (two.1 - one.1).max(0.0));
        Self {
            request_us,
            document_us,
            write_us: ((own(long_write) - own(write)) / (LONG - 1) as f64).max(0.0),
            router_read_us: router(read, two),
            router_write_us: router(write, writes),
        }
    }
}

impl Bench<'_> {
    /// Measures what operations cost the shards.
    pub(super) async fn probe(&self) -> Result<ProbedCosts> {
        let ns = Namespace::new(&self.ns.db, "probe");
        let client = self.client().await?;
        let admin = client.database("admin");
        let run = async |command: Document| {
            let ran = admin.run_command(command).await;
            ran.map_err(|cause| Error::Wrong(format!("preparing the probe: {cause}")))
        };
        run(doc! {"shardCollection": ns.to_string(), "key": {"user": 1}}).await?;
        let shards = client.database("config").collection::<Document>("shards");
        let named = async { shards.find(doc! {}).await?.try_collect::<Vec<_>>().await }.await;
        let named: Vec<Document> = named.map_err(wrong)?;
        let mut shards: Vec<String> = { named.iter() }
            .filter_map(|shard| shard.get_str("_id").ok().map(str::to_owned))
            .collect();
        shards.sort();
        for shard in 1..i64::from(SHARDS) {
            run(doc! {"split": ns.to_string(), "middle": {"user": user(shard * DOCUMENTS)}})
                .await?;
        }
        for (shard, name) in (0..).zip(&shards) {
            let find = doc! {"user": user(shard * DOCUMENTS)};
            let command = doc! {"moveChunk": ns.to_string(), "find": find, "to": name};
            // One of them is there already.
            if let Err(cause) = run(command).await {
                tracing::info!(%cause, "a chunk was not moved");
            }
        }
        let documents = client.database(&ns.db).collection::<Document>(&ns.coll);
        let filler = "x".repeat(500);
        let all = (0..i64::from(SHARDS) * DOCUMENTS)
            .map(|id| doc! {"_id": id, "user": user(id), "text": &filler});
        documents.insert_many(all).await.map_err(wrong)?;
        let mut times = Vec::new();
        for probe in [
            Probe::Read,
            Probe::LongRead,
            Probe::ReadOfTwo,
            Probe::Write,
            Probe::LongWrite,
            Probe::WriteOfTwo,
        ] {
            times.push(self.times(probe, &ns).await?);
        }
        documents.drop().await.map_err(wrong)?;
        let times: [Times; 6] = times.try_into().expect("six kinds");
        Ok(ProbedCosts::of(times))
    }

    /// Measures one kind of operation, by turns at each shard, or at each two.
    async fn times(&self, probe: Probe, ns: &Namespace) -> Result<Times> {
        let client = self.client().await?;
        let documents = client.database(&ns.db).collection::<Document>(&ns.coll);
        let documents = &documents;
        let reached = |first: i64| match probe {
            Probe::ReadOfTwo | Probe::WriteOfTwo => vec![first, (first + 1) % i64::from(SHARDS)],
            _ => vec![first],
        };
        let operations = OPERATIONS.min(self.size.operations as i64);
        let (mut on, mut off) = (Vec::new(), Vec::new());
        for first in 0..i64::from(SHARDS) {
            let reached = reached(first);
            // Connections are made, and the router learns where chunks are.
            one(documents, probe, &reached, 0).await?;
            let before = self.work.snapshot(ns).await?;
            try_join_all((0..AT_ONCE).map(async |client| {
                for n in 0..operations / AT_ONCE {
                    one(documents, probe, &reached, n * AT_ONCE + client).await?;
                }
                Ok::<(), Error>(())
            }))
            .await?;
            let after = self.work.snapshot(ns).await?;
            for (shard, used_s) in (0..).zip(self.work.used_s(&before, &after)) {
                let used_us = 1e6 * used_s / operations as f64;
                if reached.contains(&shard) { &mut on } else { &mut off }.push(used_us);
            }
        }
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len().max(1) as f64;
        Ok((mean(&on), mean(&off)))
    }
}

/// Executes one operation that reaches these shards.
async fn one(
    documents: &mongodb::Collection<Document>,
    probe: Probe,
    reached: &[i64],
    number: i64,
) -> Result<()> {
    let at = (number * 37) % (DOCUMENTS - LONG);
    let users = reached.iter().map(|shard| Bson::from(user(shard * DOCUMENTS + at)));
    let users: Vec<Bson> = users.collect();
    let first = reached[0] * DOCUMENTS + at;
    let range = doc! {"user": {"$gte": user(first), "$lt": user(first + LONG)}};
    let seen = doc! {"$set": {"seen": number}};
    match probe {
        Probe::Read => {
            drop(documents.find_one(doc! {"user": users[0].clone()}).await.map_err(wrong)?)
        }
        Probe::LongRead => {
            let found = documents.find(range).await.map_err(wrong)?;
            found.try_collect::<Vec<_>>().await.map_err(wrong)?;
        }
        Probe::ReadOfTwo => {
            let found = documents.find(doc! {"user": {"$in": users}}).await.map_err(wrong)?;
            found.try_collect::<Vec<_>>().await.map_err(wrong)?;
        }
        Probe::Write => {
            documents.update_one(doc! {"user": users[0].clone()}, seen).await.map_err(wrong)?;
        }
        Probe::LongWrite => {
            documents.update_many(range, seen).await.map_err(wrong)?;
        }
        Probe::WriteOfTwo => {
            documents.update_many(doc! {"user": {"$in": users}}, seen).await.map_err(wrong)?;
        }
    }
    Ok(())
}

/// The values by which operations select documents: of an index other than that of `_id`, as most conditions are.
fn user(number: i64) -> String {
    format!("user{number:05}@example.org")
}

fn wrong(cause: mongodb::error::Error) -> Error {
    Error::Wrong(format!("an operation of the probe failed: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_what_a_reached_shard_works_beyond_the_router() {
        // A read takes 80 µs and 2 µs for a document, a write 20 µs for each; the router 90 µs for a read and 30 µs for each further shard.
        let (read, long, two) = ((112.0, 30.0), (190.0, 30.0), (122.0, 40.0));
        let (write, long_write) = ((200.0, 0.0), (980.0, 0.0));
        let costs = ProbedCosts::of([read, long, two, write, long_write, write]);
        assert!((costs.document_us - 2.0).abs() < 1e-9 && (costs.request_us - 80.0).abs() < 1e-9);
        assert!((costs.write_us - 20.0).abs() < 1e-9, "{costs:?}");
        let router = costs.router_us((100.0, 300.0), (50.0, 50.0));
        assert!((router - (90.0 * 100.0 + 30.0 * 200.0)).abs() < 1e-6, "{router}");
        // Noise makes no cost negative.
        let noise = [(5.0, 9.0), (5.0, 9.0), (5.0, 1.0), (1.0, 9.0), (0.5, 1.0), (1.0, 2.0)];
        let costs = ProbedCosts::of(noise);
        assert!(costs.request_us > 0.0 && costs.write_us == 0.0 && costs.router_read_us.1 == 0.0);
    }
}
