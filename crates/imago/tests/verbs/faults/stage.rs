//! Two clusters, a collection under a recorded load, and the proof at the end.

use std::path::{Path, PathBuf};

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, Leased, replica_set};
use imago_testbed::{ClusterSpec, wait};

use crate::faults::program::{Program, run};

/// A source and a destination.
pub struct Stage {
    /// The cluster of the load.
    pub source: Leased,
    /// The cluster to which the copy goes.
    pub destination: Leased,
    folder: tempfile::TempDir,
}

impl Stage {
    /// Two replica sets of so many members.
    pub async fn new(members: u32) -> Self {
        // The timeout means nothing to a set of one; with the default, tests of other topics share it.
        let spec = match members {
            1 => replica_set(1),
            _ => ClusterSpec { election_timeout_ms: 2_000, ..replica_set(members) },
        };
        Self::of(spec.clone(), spec).await
    }

    /// Clusters like these.
    pub async fn of(source: ClusterSpec, destination: ClusterSpec) -> Self {
        let [source, destination] = Box::pin(pool::lease_all([source, destination])).await.unwrap();
        Self { source, destination, folder: tempfile::tempdir().unwrap() }
    }

    /// A collection at the source, with indexes, filled and under load.
    pub async fn collection(&self, ns: &str, documents: u32, size_bytes: u32) -> Subject {
        let uri = self.source.uri();
        let load = Load::start(&uri, ns, documents, size_bytes, self.folder.path());
        let subject = Subject {
            ns: ns.to_owned(),
            from: self.source.uri(),
            to: self.destination.uri(),
            load: load.await,
        };
        let source = subject.source().await;
        let (db, coll) = ns.split_once('.').unwrap();
        let indexes = doc! {
            "createIndexes": coll,
            "indexes": [
                {"key": {"productID": 1, "time": -1}, "name": "by_product"},
                {"key": {"userID": 1, "_id": 1}, "name": "by_user", "unique": true},
            ],
        };
        source.run(db, indexes).await.unwrap();
        subject
    }
}

/// A collection that is to be copied.
pub struct Subject {
    /// Its name, at both sides.
    pub ns: String,
    /// The source's address for the copy; the load goes there directly.
    pub from: String,
    /// The destination's address for all clients.
    pub to: String,
    /// The load on it meanwhile.
    pub load: Load,
}

impl Subject {
    /// `imago copy` of it.
    pub fn copy(&self, further: &[&str]) -> Program {
        let arguments = ["copy", "--from", &self.from, "--to", &self.to, "--ns", &self.ns];
        Program::start(&[&arguments, further].concat())
    }

    /// `imago job resume`, until it has caught up.
    pub fn resume(&self, job: &str) -> Program {
        self.job("resume", job, &["--from", &self.from, "--until", "caught-up"])
    }

    /// `imago job work`.
    pub fn work(&self, job: &str) -> Program {
        self.job("work", job, &["--from", &self.from, "--workers", "1"])
    }

    fn job(&self, verb: &str, job: &str, further: &[&str]) -> Program {
        Program::start(&[&["job", verb, job, "--to", &self.to], further].concat())
    }

    /// `imago job VERB`, which must succeed; its result.
    pub async fn steer(&self, verb: &str, job: &str, further: &[&str]) -> serde_json::Value {
        let ended = self.job(verb, job, further).ended().await;
        ended.with(0).result
    }

    /// The source, for questions.
    pub async fn source(&self) -> Endpoint {
        Box::pin(Endpoint::connect(&self.from, "source")).await.unwrap()
    }

    /// The destination, for questions.
    pub async fn destination(&self) -> Endpoint {
        Box::pin(Endpoint::connect(&self.to, "destination")).await.unwrap()
    }

    /// The job's slices as they are kept.
    pub async fn slices(&self, job: &str) -> Vec<Document> {
        let find = doc! {"find": "slices", "filter": {"job": job}, "batchSize": 1_000};
        let reply = self.destination().await.run("imago", find).await.unwrap();
        let batch = reply.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        batch.iter().map(|slice| slice.as_document().unwrap().clone()).collect()
    }

    /// Ends the load, lets the job catch up with its last write, and compares all there is.
    pub async fn prove(mut self, job: &str) {
        self.load.stop().await;
        self.resume(job).ended().await.with(0);
        run(&["verify", "--from", &self.from, "--to", &self.to, "--ns", &self.ns], 0).await;
        self.load.check(&self.to).await;
    }
}

/// A recorded load.
pub struct Load {
    running: Option<Program>,
    history: PathBuf,
}

impl Load {
    async fn start(uri: &str, ns: &str, documents: u32, size_bytes: u32, folder: &Path) -> Self {
        let (history, socket) = (folder.join(ns), folder.join(format!("{ns}.sock")));
        let running = Program::start(&[
            "load",
            "--uri",
            uri,
            "--ns",
            ns,
            "--documents",
            &documents.to_string(),
            "--size-bytes",
            &size_bytes.to_string(),
            "--rate",
            "60",
            "--mix",
            "read=10,update=40,insert=25,delete=25",
            "--reinsert",
            "0.5",
            "--until-stopped",
            "--no-timeline",
            "--record",
            history.to_str().unwrap(),
            "--control",
            socket.to_str().unwrap(),
        ]);
        let mut load = Self { running: Some(running), history };
        // The socket is there when the collection is filled.
        wait::until(&format!("the load has filled {ns}"), async || {
            assert!(load.running.as_mut().unwrap().is_running(), "the load ended at once");
            socket.exists()
        })
        .await;
        load
    }

    /// Ends it; every operation has been answered, or never will be.
    pub async fn stop(&mut self) {
        let running = self.running.take().expect("it is stopped once");
        running.terminate();
        running.ended().await.with(0);
    }

    /// Every acknowledged write must be there, and nothing that was not asked for.
    pub async fn check(&self, uri: &str) {
        let history = self.history.to_str().unwrap();
        let verdict = run(&["load", "check", "--uri", uri, "--history", history], 0).await;
        let writes = verdict.result["writes_acknowledged"].as_u64();
        assert!(writes.is_some_and(|writes| writes > 0), "no write was made: {}", verdict.result);
    }
}
