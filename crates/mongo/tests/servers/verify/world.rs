//! One replica set that all tests of this binary share, each with collections of its own.
//!
//! Source and destination of a test are two databases of that replica set: to a verification they
//! are two sides like any other, and one server starts faster than two.

use std::sync::{Arc, Mutex, Weak};

use bson::{Document, RawDocumentBuf, doc};
use imago_job::control::Control;
use imago_mongo::namespace::Namespace;
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::verify::{Mismatch, Report, Retries, Spec, Unwatched, verify};
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::Collection;
use tokio::runtime::Runtime;

/// Fields drop in order: the servers while their runtime still runs.
struct World {
    cluster: Cluster,
    runtime: Runtime,
}

static SHARED: Mutex<Weak<World>> = Mutex::new(Weak::new());

fn world() -> Arc<World> {
    let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(world) = shared.upgrade() {
        return world;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let cluster =
        runtime.block_on(Box::pin(Cluster::start(ClusterSpec::replica_set("verify", 1)))).unwrap();
    let world = Arc::new(World { cluster, runtime });
    *shared = Arc::downgrade(&world);
    world
}

/// The two sides of one test.
pub struct Sides {
    pub source: Handle,
    pub destination: Handle,
}

/// Runs a test with two empty sides named after it.
pub fn with_sides<F: Future<Output = ()> + Send + 'static>(
    name: &str,
    test: impl FnOnce(Sides) -> F,
) {
    let world = world();
    let uri = world.cluster.uri();
    let sides = world.runtime.block_on(async {
        let source = Endpoint::connect(&uri, "source").await.unwrap();
        let destination = Endpoint::connect(&uri, "destination").await.unwrap();
        Sides {
            source: Handle::new(source, Namespace::new(format!("from_{name}"), "docs")),
            destination: Handle::new(destination, Namespace::new(format!("to_{name}"), "docs")),
        }
    });
    // As a task, so that a panic of the test does not unwind through the runtime.
    let task = world.runtime.spawn(Box::pin(test(sides)));
    if let Err(error) = world.runtime.block_on(task) {
        std::panic::resume_unwind(error.into_panic());
    }
}

pub fn collection(side: &Handle) -> Collection<RawDocumentBuf> {
    side.endpoint.client().database(&side.ns.db).collection(&side.ns.coll)
}

pub async fn create(side: &Handle, options: Document) {
    let mut command = doc! {"create": &side.ns.coll};
    command.extend(options);
    side.endpoint.run(&side.ns.db, command).await.unwrap();
}

pub async fn insert(side: &Handle, documents: impl IntoIterator<Item = Document>) {
    let raw: Vec<RawDocumentBuf> = documents
        .into_iter()
        .map(|document| RawDocumentBuf::try_from(&document).unwrap())
        .collect();
    collection(side).insert_many(raw).await.unwrap();
}

impl Sides {
    /// Puts the same documents at both sides.
    pub async fn fill(&self, documents: impl IntoIterator<Item = Document> + Clone) {
        insert(&self.source, documents.clone()).await;
        insert(&self.destination, documents).await;
    }

    pub async fn verify(&self, spec: &Spec) -> Report {
        verify(&self.source, &self.destination, spec, &control(), &mut Unwatched).await.unwrap()
    }
}

pub fn control() -> Control {
    Control::new(imago_job::record::Limits::default(), tokio_util::sync::CancellationToken::new())
        .unwrap()
}

/// Retries that end soon: for tests in which nothing changes.
pub fn quick() -> Spec {
    Spec { retries: Retries { rounds: 2, first_ms: 10, pause_ms_max: 20 }, ..Spec::default() }
}

/// `kind _id` of each listed difference.
pub fn listed(mismatches: &[Mismatch]) -> Vec<String> {
    mismatches.iter().map(|s| format!("{} {}", s.kind.word(), s.id)).collect()
}
