//! The clusters that the tests of this binary share, each test with databases of its own, and a
//! copy that runs beside a test.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc};
use imago_job::id::JobId;
use imago_job::journal::Journal;
use imago_job::record::Limits;
use imago_job::reporter::Events;
use imago_job::state::State;
use imago_mongo::copy::preflight::{self, Plan, Request};
use imago_mongo::copy::{self, Clusters, Options, StopWhen};
use imago_mongo::error::{Error, Result};
use imago_mongo::namespace::Namespace;
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;
use imago_mongo::verify::{Retries, Spec, Unwatched, verify};
use imago_testbed::wait::Wait;
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::Collection;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Longest time for anything before its test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fields drop in order: the servers while their runtime still runs.
struct World {
    source: Cluster,
    destination: Cluster,
    runtime: Runtime,
}

/// Which clusters a test copies between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// A replica set and another.
    ReplicaSets,
    /// Two shards and three.
    Sharded,
}

static REPLICA_SETS: Mutex<Weak<World>> = Mutex::new(Weak::new());
static SHARDED: Mutex<Weak<World>> = Mutex::new(Weak::new());

fn world(between: Between) -> Arc<World> {
    let shared = match between {
        Between::ReplicaSets => &REPLICA_SETS,
        Between::Sharded => &SHARDED,
    };
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(world) = shared.upgrade() {
        return world;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let start = |spec: ClusterSpec| {
        // Expired documents are looked for every second instead of every minute.
        let spec = spec.with_parameter("ttlMonitorSleepSecs", "1");
        let spec = spec.with_parameter("enableTestCommands", "1");
        runtime.block_on(Box::pin(Cluster::start(spec))).unwrap()
    };
    let (source, destination) = match between {
        Between::ReplicaSets => {
            (ClusterSpec::replica_set("from", 1), ClusterSpec::replica_set("to", 1))
        }
        Between::Sharded => (ClusterSpec::sharded("two", 2), ClusterSpec::sharded("three", 3)),
    };
    let (source, destination) = (start(source), start(destination));
    let world = Arc::new(World { source, destination, runtime });
    *shared = Arc::downgrade(&world);
    world
}

/// The two ends of one test, and the database that is its own at both.
#[derive(Clone)]
pub struct Ends {
    pub clusters: Clusters,
    pub db: String,
}

/// Runs a test between shared clusters, in databases named after it.
pub fn run<F: Future<Output = ()> + Send + 'static>(
    between: Between,
    db: &str,
    test: impl FnOnce(Ends) -> F,
) {
    let world = world(between);
    run_in(&world.runtime, &world.source.uri(), &world.destination.uri(), db, test);
}

/// Runs a test from the replica set to the three shards, or from the two shards to the replica set.
pub fn run_across<F: Future<Output = ()> + Send + 'static>(
    is_to_shards: bool,
    db: &str,
    test: impl FnOnce(Ends) -> F,
) {
    let (sets, shards) = (world(Between::ReplicaSets), world(Between::Sharded));
    let (source, destination) = if is_to_shards {
        (sets.source.uri(), shards.destination.uri())
    } else {
        (shards.source.uri(), sets.destination.uri())
    };
    run_in(&shards.runtime, &source, &destination, db, test);
}

fn run_in<F: Future<Output = ()> + Send + 'static>(
    runtime: &Runtime,
    source: &str,
    destination: &str,
    db: &str,
    test: impl FnOnce(Ends) -> F,
) {
    let clusters = runtime.block_on(async {
        Clusters {
            source: Box::pin(Endpoint::connect(source, "source")).await.unwrap(),
            destination: Box::pin(Endpoint::connect(destination, "destination")).await.unwrap(),
        }
    });
    let ends = Ends { clusters, db: db.to_owned() };
    // As a task, so that a panic of the test does not unwind through the runtime.
    let task = runtime.spawn(Box::pin(test(ends)));
    let Err(error) = runtime.block_on(task) else { return };
    // The runtime's threads print where the first test's output goes: said here again, it is found.
    match error.into_panic().downcast::<String>() {
        Ok(said) => panic!("{said}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// The default request of a test.
pub fn request(selectors: &[&str]) -> Request {
    Request {
        selectors: selectors.iter().map(|text| text.parse().unwrap()).collect(),
        filter: None,
        into_existing: false,
        no_new: false,
        shard_key: None,
    }
}

impl Ends {
    pub fn source(&self, coll: &str) -> Handle {
        Handle::new(self.clusters.source.clone(), Namespace::new(&self.db, coll))
    }

    pub fn destination(&self, coll: &str) -> Handle {
        Handle::new(self.clusters.destination.clone(), Namespace::new(&self.db, coll))
    }

    /// All collections of the test's own database.
    pub fn all(&self) -> Request {
        request(&[&format!("{}.*", self.db)])
    }

    pub async fn plan(&self, request: &Request) -> Result<Plan> {
        Box::pin(preflight::plan(&self.clusters.source, &self.clusters.destination, request)).await
    }

    /// Begins a copy of small slices that is slow enough to be written under.
    pub async fn copy(&self, request: &Request) -> Job {
        self.copy_at(request, Limits { documents_s: Some(2_000), ..Limits::default() }).await
    }

    /// Begins a copy of small slices with these limits.
    pub async fn copy_at(&self, request: &Request, limits: Limits) -> Job {
        let plan = self.plan(request).await.unwrap();
        let id = copy::create(&self.clusters, &plan, limits).await.unwrap();
        Job::go_on(self.clusters.clone(), id).await
    }

    /// The collection is the same at both sides.
    pub async fn assert_same(&self, coll: &str) {
        assert_same(&self.source(coll), &self.destination(coll), None).await;
    }
}

/// Asserts that both sides hold the same documents (of those that match) and are defined alike, but for the
/// retention rules that a job suspends.
pub async fn assert_same(source: &Handle, destination: &Handle, filter: Option<Document>) {
    let retries = Retries { rounds: 6, first_ms: 200, pause_ms_max: 1_000 };
    let is_retention_suspended = true;
    let spec = Spec { retries, filter, workers: 1, is_retention_suspended, ..Spec::default() };
    let control = imago_job::control::Control::new(Limits::default(), CancellationToken::new());
    let report =
        verify(source, destination, &spec, &control.unwrap(), &mut Unwatched).await.unwrap();
    assert!(report.is_clean(), "{report:#?}");
}

/// A copy that runs beside its test.
pub struct Job {
    pub clusters: Clusters,
    pub id: JobId,
    cancel: CancellationToken,
    task: Option<JoinHandle<Result<()>>>,
}

impl Job {
    /// Claims the job and works at it.
    pub async fn go_on(clusters: Clusters, id: JobId) -> Self {
        let cancel = CancellationToken::new();
        let events = Events::default();
        let run = Box::pin(copy::claim(&clusters, &id, "test/1", &events, &cancel)).await.unwrap();
        let options = Options {
            workers: 2,
            stop_when: StopWhen::HandedOver,
            process: "test/1".into(),
            await_max: Duration::from_millis(200),
            slice_bytes: 128 * 1024,
            route: None,
        };
        let ends = clusters.clone();
        let work = async move { Box::pin(copy::run(&ends, run, &options)).await };
        Self { clusters, id, cancel, task: Some(tokio::spawn(work)) }
    }

    /// Waits until the job's record satisfies `wanted`, while the job works.
    async fn wait(&mut self, what: &str, wanted: impl Fn(&State, &copy::State) -> bool) {
        let journal = MongoJournal::new(self.clusters.destination.clone());
        let wait = Wait::until(Duration::from_millis(50), what);
        loop {
            let record = journal.load(&self.id).await.unwrap();
            if wanted(&record.state, &copy::state_of(&record).unwrap()) {
                return;
            }
            if self.task.as_ref().unwrap().is_finished() {
                panic!("before {what}: {:?}", self.task.take().unwrap().await.unwrap());
            }
            wait.again().await;
        }
    }

    pub async fn reaches(&mut self, phase: &str) {
        let is_there =
            |state: &State| matches!(state, State::Running { phase: now } if now == phase);
        self.wait(phase, |state, _| is_there(state)).await;
    }

    /// Waits until everything that the source has acknowledged is at the destination.
    pub async fn catches_up(&mut self) {
        self.reaches("follow").await;
        let now = self.clusters.source.cluster_time().await.unwrap();
        let now = (now.time, now.increment);
        self.wait("caught up", |_, state| state.applied_to >= Some(now)).await;
    }

    /// Interrupts it, as Ctrl-C does.
    pub async fn stop(mut self) {
        self.interrupt().await;
    }

    async fn interrupt(&mut self) {
        self.cancel.cancel();
        let ended = self.task.take().unwrap().await.unwrap();
        assert!(matches!(ended, Err(Error::Stopped(_))), "{ended:?}");
    }

    /// Interrupts it, lets `meanwhile` happen while no process works at it, and goes on.
    pub async fn down(mut self, meanwhile: impl Future<Output = ()>) -> Self {
        self.interrupt().await;
        meanwhile.await;
        Self::go_on(self.clusters, self.id).await
    }

    /// Waits until it is caught up, and stops it.
    pub async fn finish(mut self) {
        self.catches_up().await;
        self.stop().await;
    }

    /// Waits until it fails, and returns why.
    pub async fn failure(mut self) -> Error {
        let ended = tokio::time::timeout(PATIENCE, self.task.take().unwrap()).await;
        ended.expect("it fails").unwrap().expect_err("it fails")
    }
}

pub fn collection(side: &Handle) -> Collection<RawDocumentBuf> {
    side.endpoint.client().database(&side.ns.db).collection(&side.ns.coll)
}

pub fn documents(side: &Handle) -> Collection<Document> {
    side.endpoint.client().database(&side.ns.db).collection(&side.ns.coll)
}

pub async fn create(side: &Handle, options: Document) {
    let mut command = doc! {"create": &side.ns.coll};
    command.extend(options);
    run_on(side, command).await;
}

/// Runs a command in the collection's database.
pub async fn run_on(side: &Handle, command: Document) {
    side.endpoint.run(&side.ns.db, command).await.unwrap();
}

/// Fills a collection with `count` documents of about 600 bytes, `_id`s from 0.
pub async fn fill(side: &Handle, count: i32) {
    let document = |n: i32| doc! {"_id": n, "n": n, "u": n, "filler": "x".repeat(550)};
    documents(side).insert_many((0..count).map(document)).await.unwrap();
}

/// Random numbers that a test can repeat.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, end: usize) -> usize {
        // SplitMix64 (Steele, Lea, Flood 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % end as u64).unwrap()
    }
}
