//! Three shards that the tests of this binary share, each test with a database of its own.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bson::{Document, doc};
use imago_job::control::Control;
use imago_mongo::error::{Error, Result, code};
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::plan;
use imago_mongo::reshard::plan::{Flowing, Placing, Plan, Request, Weight};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::wait::Wait;
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::{Client, Collection};
use tokio::runtime::Runtime;

pub const SHARDS: i32 = 3;
pub const DOCUMENTS: i32 = 3_000;
/// A shard takes part in one move at a time, those of other tests included.
const BUSY: i32 = 117;

/// Fields drop in order: the servers while their runtime still runs.
pub struct World {
    pub cluster: Cluster,
    runtime: Runtime,
}

static SHARED: Mutex<Weak<World>> = Mutex::new(Weak::new());

fn start(name: &str) -> Arc<World> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // With points at which servers can be held up; and a shard can take back at once the chunks
    // that it gave away.
    let spec = ClusterSpec::sharded(name, 3)
        .with_parameter("enableTestCommands", "1")
        .with_parameter("orphanCleanupDelaySecs", "0");
    let cluster = runtime.block_on(Box::pin(Cluster::start(spec))).unwrap();
    Arc::new(World { cluster, runtime })
}

/// Runs a test in a database of its own.
pub fn run<F: Future<Output = ()> + Send + 'static>(db: &str, test: impl FnOnce(Place) -> F) {
    let world = {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let world = start("plan");
            *shared = Arc::downgrade(&world);
            world
        })
    };
    run_in(world, db, test);
}

/// Runs a test that holds servers up, on servers of its own.
pub fn run_alone<F: Future<Output = ()> + Send + 'static>(db: &str, test: impl FnOnce(Place) -> F) {
    run_in(start("alone"), db, test);
}

fn run_in<F: Future<Output = ()> + Send + 'static>(
    world: Arc<World>,
    db: &str,
    test: impl FnOnce(Place) -> F,
) {
    let uri = world.cluster.uri();
    let router = world.runtime.block_on(Box::pin(Endpoint::connect(&uri, "cluster"))).unwrap();
    let place = Place { world: Arc::clone(&world), router, db: db.to_owned() };
    // As a task, so that a panic of the test does not unwind through the runtime. The runtime must
    // not end in its own thread, so the test's share of the world ends before this one's.
    let task = world.runtime.spawn(Box::pin(test(place)));
    let Err(error) = world.runtime.block_on(task) else { return };
    match error.into_panic().downcast::<String>() {
        Ok(said) => panic!("{said}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A database of the shared cluster.
pub struct Place {
    pub world: Arc<World>,
    pub router: Endpoint,
    pub db: String,
}

impl Place {
    pub async fn admin(&self, command: Document) {
        let what = format!("the shards are free for {command}");
        let wait = Wait::until(Duration::from_millis(100), &what);
        loop {
            match self.router.run_at_length("admin", command.clone()).await {
                Err(Error::Server { cause, .. }) if code(&cause) == Some(BUSY) => {
                    wait.again().await;
                }
                done => return drop(done.unwrap()),
            }
        }
    }

    pub fn ns(&self, coll: &str) -> String {
        format!("{}.{coll}", self.db)
    }

    pub fn shard(&self, number: i32) -> String {
        format!("{}-s{}", self.world.cluster.name(), number + 1)
    }

    pub fn documents(&self, coll: &str) -> Collection<Document> {
        self.router.client().database(&self.db).collection(coll)
    }

    /// A collection sharded by `{k: 1}`, a third of `k` on each shard.
    pub async fn create(&self, coll: &str) {
        let ns = self.ns(coll);
        self.admin(doc! {"shardCollection": &ns, "key": {"k": 1}}).await;
        for shard in 1..SHARDS {
            let at = DOCUMENTS / SHARDS * shard;
            self.admin(doc! {"split": &ns, "middle": {"k": at}}).await;
        }
        for shard in 0..SHARDS {
            let find = doc! {"k": DOCUMENTS / SHARDS * shard};
            self.admin(doc! {"moveChunk": &ns, "find": find, "to": self.shard(shard)}).await;
        }
    }

    /// Documents of different sizes: `k` in turn, `r` from the other end, `u` as if by chance.
    pub async fn fill(&self, coll: &str) {
        let document = |n: i32| {
            let filler = "x".repeat(usize::try_from(100 + n % 7 * 50).unwrap());
            doc! {"_id": n, "k": n, "r": DOCUMENTS - n, "u": chance(n), "filler": filler}
        };
        self.documents(coll).insert_many((0..DOCUMENTS).map(document)).await.unwrap();
    }

    pub async fn filled(&self, coll: &str) {
        self.create(coll).await;
        self.fill(coll).await;
    }

    /// The default request of a test.
    pub fn request(&self, coll: &str, key: Option<&str>) -> Request {
        Request {
            ns: Namespace::new(&self.db, coll),
            key: key.map(str::to_owned),
            chunks: None,
            chunk_bytes: None,
            add_shards: Vec::new(),
            drain_shards: Vec::new(),
            placing: Placing::Balanced,
            flowing: Flowing::Wfs,
            sockets: 0,
            sample: 100_000,
        }
    }

    pub async fn plan(&self, request: &Request) -> Result<Plan> {
        Box::pin(plan(&self.router, request, &Control::default())).await
    }

    pub async fn find(&self, coll: &str, key: &str) -> Vec<(Weight, String)> {
        codes(&self.plan(&self.request(coll, Some(key))).await.unwrap())
    }

    /// A replica set, behind the router's back.
    pub async fn client(&self, set: &str) -> Client {
        let node = self.world.cluster.nodes().into_iter().find(|node| node.set == set).unwrap();
        let uri = format!("mongodb://127.0.0.1:{}/?directConnection=true", node.port);
        Client::with_uri_str(uri).await.unwrap()
    }

    /// The collection as one shard itself holds it.
    pub async fn on_shard(&self, shard: i32, coll: &str) -> Collection<Document> {
        self.client(&self.shard(shard)).await.database(&self.db).collection(coll)
    }
}

fn chance(n: i32) -> i32 {
    i32::try_from((u64::try_from(n).unwrap() * 2_654_435_761) % 1_000_003).unwrap()
}

pub fn codes(plan: &Plan) -> Vec<(Weight, String)> {
    plan.findings.iter().map(|finding| (finding.weight, finding.code.clone())).collect()
}

pub fn obstacle(code: &str) -> Vec<(Weight, String)> {
    vec![(Weight::Obstacle, code.to_owned())]
}

pub fn warning(code: &str) -> Vec<(Weight, String)> {
    vec![(Weight::Warning, code.to_owned())]
}
