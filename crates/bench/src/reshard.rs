//! Changing a shard key: Imago, the exact optimum of what has to move, and the server's own
//! `reshardCollection`, with its floor of five minutes and without; and what clients notice.
//!
//! Both begin with the same documents on the same shards, by a new collection each time. What moved
//! is not what anybody says of himself: every shard is asked which documents it holds, before and
//! afterwards. The optimum is that of all documents, not of a sample, for the chunks of the plan.
//!
//! The clients' part is measured by loads of their own: one at a rate at which an interval without
//! a success is the cut-over's and not the load's, through several changes of the key there and
//! back; and one at a rate that leaves the servers room, for latencies before and during.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use bson::doc;
use imago_mongo::collection::Handle;
use imago_mongo::endpoint::Endpoint;
use imago_mongo::load::{MongoTarget, Schema, preload};
use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::plan::Plan;
use imago_mongo::shard::spread;
use imago_testbed::{Cluster, ClusterSpec};
use imago_workload::history::IdForm;
use imago_workload::review::Reviews;
use serde::Serialize;

use crate::Machine;
use crate::error::{Error, Result, process};
use crate::ground::{CACHE_MB, COLL, DB};
use crate::process::{Ended, Measured};
use crate::statistics::Figure;
use crate::subject::{Commands, Ends, Subject};

mod clients;
mod native;
mod places;

pub use clients::{Clients, Noticed};
use places::Places;

/// The fields that take turns as shard key.
pub(crate) const KEYS: [&str; 2] = ["productID", "userID"];

/// How large it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Size {
    /// Documents.
    pub documents: u64,
    /// The size of one as stored.
    pub size_bytes: u32,
    /// Shards, of one member each.
    pub shards: u32,
    /// The share of documents whose new key follows from the old one, in reverse order.
    pub correlation: f64,
    /// How often both are measured; figures are medians.
    pub runs: u32,
    /// Changes of the key under the clients' load.
    pub cutovers: u32,
    /// How long clients are watched before a change, in s.
    pub idle_s: u64,
    /// Whether the server is also measured as it is shipped, once: five minutes and more.
    pub as_shipped: bool,
}

/// What was measured; seconds are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `reshard`.
    pub benchmark: &'static str,
    /// How large it was.
    #[serde(flatten)]
    pub size: Size,
    /// Where it ran.
    #[serde(flatten)]
    pub machine: Machine,
    /// The servers' cache, each.
    pub cache_mb: u32,
    /// Planning, copying, comparing every document and the cut-over, by two processes.
    pub imago_s: f64,
    /// The server's own, as shipped.
    pub native_s: Option<f64>,
    /// The server's own without its floor. It compares no documents.
    pub native_no_floor_s: f64,
    /// Imago's time, of the server's without its floor.
    pub ratio_to_native_no_floor: f64,
    /// Bytes of documents that Imago moved to another shard.
    pub moved_bytes: u64,
    /// The least that can be moved to where the plan's chunks are evenly spread.
    pub moved_bytes_optimum: u64,
    /// Bytes that the server moved.
    pub moved_bytes_native: u64,
    /// What the plan said would move.
    pub predicted_bytes: u64,
    /// How long the plan said that it would take.
    pub predicted_s: f64,
    /// How long what was predicted took: all but planning.
    pub run_s: f64,
    /// The seconds of each phase of it.
    pub phases: BTreeMap<String, f64>,
    /// What the clients noticed.
    #[serde(flatten)]
    pub clients: Clients,
    /// How far the runs lie apart.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Report::imago_s`].
    pub imago_s: Figure,
    /// See [`Report::native_no_floor_s`].
    pub native_no_floor_s: Figure,
    /// See [`Report::moved_bytes`].
    pub moved_bytes: Figure,
    /// See [`Report::moved_bytes_native`].
    pub moved_bytes_native: Figure,
}

/// A sharded cluster, and what is in it.
pub(crate) struct Bed {
    pub cluster: Cluster,
    pub router: Endpoint,
    pub ns: Namespace,
    pub schema: Schema,
}

struct OneRun {
    plan: Plan,
    plan_s: f64,
    run_s: f64,
    phases: Vec<(String, f64)>,
    moved: u64,
    optimum: u64,
    native_s: f64,
    native_moved: u64,
}

/// Measures.
///
/// # Errors
/// When the cluster cannot be started, or the work that is measured fails or is wrong.
pub async fn run(size: Size, commands: &Commands) -> Result<Report> {
    if size.documents < 1_000 || size.runs == 0 || size.shards < 2 {
        return Err(Error::Size(
            "a change of the shard key needs at least 1,000 documents, 2 shards and 1 run".into(),
        ));
    }
    let bed = Box::pin(Bed::start(size)).await?;
    let mut runs = Vec::new();
    for _ in 0..size.runs {
        runs.push(Box::pin(one(&bed, size, commands)).await?);
    }
    let native_s = match size.as_shipped {
        true => Some(Box::pin(bed.as_shipped(size)).await?),
        false => None,
    };
    let clients = Box::pin(clients::measure(&bed, size, commands)).await?;
    let figure = |of: fn(&OneRun) -> f64| Figure::of(runs.iter().map(of));
    let spread = Spread {
        imago_s: figure(|run| run.plan_s + run.run_s),
        native_no_floor_s: figure(|run| run.native_s),
        moved_bytes: figure(|run| run.moved as f64),
        moved_bytes_native: figure(|run| run.native_moved as f64),
    };
    let ratio = figure(|run| (run.plan_s + run.run_s) / run.native_s);
    let whole = |figure: Figure| figure.median.round() as u64;
    Ok(Report {
        benchmark: "reshard",
        size,
        machine: Machine::here(),
        cache_mb: CACHE_MB,
        imago_s: spread.imago_s.median,
        native_s,
        native_no_floor_s: spread.native_no_floor_s.median,
        ratio_to_native_no_floor: ratio.median,
        moved_bytes: whole(spread.moved_bytes),
        moved_bytes_optimum: whole(figure(|run| run.optimum as f64)),
        moved_bytes_native: whole(spread.moved_bytes_native),
        predicted_bytes: whole(figure(|run| run.plan.moved.bytes as f64)),
        predicted_s: figure(|run| run.plan.predicted_s).median,
        run_s: figure(|run| run.run_s).median,
        phases: phases(&runs),
        clients,
        spread,
    })
}

async fn one(bed: &Bed, size: Size, commands: &Commands) -> Result<OneRun> {
    Box::pin(bed.fill(size.documents)).await?;
    let before = Box::pin(Places::look(bed)).await?;
    let (plan, plan_s) = Box::pin(bed.plan(commands)).await?;
    let changed = Box::pin(bed.change(&plan, commands)).await?;
    let (run_s, phases) = (changed.wall_s, changed.phases);
    let after = Box::pin(Places::look(bed)).await?;
    let (moved, optimum) = (before.moved(&after)?, before.optimum(&plan)?);

    Box::pin(bed.fill(size.documents)).await?;
    let before = Box::pin(Places::look(bed)).await?;
    let native_s = Box::pin(native::change(bed, KEYS[1])).await?;
    let after = Box::pin(Places::look(bed)).await?;
    let native_moved = before.moved(&after)?;
    tracing::info!(plan_s, run_s, moved, optimum, native_s, native_moved, "one change of the key");
    Ok(OneRun { plan, plan_s, run_s, phases, moved, optimum, native_s, native_moved })
}

/// The median of each phase.
fn phases(runs: &[OneRun]) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, seconds) in runs.iter().flat_map(|run| &run.phases) {
        all.entry(name.clone()).or_default().push(*seconds);
    }
    all.into_iter().map(|(name, seconds)| (name, Figure::of(seconds).median)).collect()
}

impl Bed {
    async fn start(size: Size) -> Result<Self> {
        let spec = ClusterSpec { cache_mb: CACHE_MB, ..ClusterSpec::sharded("bench", size.shards) };
        let spec = spec.with_parameter(native::FLOOR, "0");
        // A block of writes stops only users, and there are none without authorisation.
        let cluster = Box::pin(Cluster::start(spec.with_auth())).await?;
        let router = Box::pin(Endpoint::connect(&cluster.admin_uri(), "cluster")).await?;
        // What it moves of its own accord would be counted as theirs.
        router.run("admin", doc! {"balancerStop": 1}).await?;
        let reviews = Reviews {
            size_bytes: size.size_bytes,
            correlation: size.correlation,
            ..Reviews::default()
        };
        reviews.validate().map_err(|error| Error::Size(error.to_string()))?;
        let schema = Schema { id_form: IdForm::Integer, reviews };
        let ns = Namespace::new(DB, COLL);
        Ok(Self { cluster, router, ns, schema })
    }

    /// Makes the collection anew: the keys `0..documents`, evenly over the shards by the old key.
    async fn fill(&self, documents: u64) -> Result<()> {
        let drop = doc! {"dropDatabase": 1, "writeConcern": {"w": "majority"}};
        self.router.run_at_length(DB, drop).await?;
        let reviews = &self.schema.reviews;
        let sample = (0..documents.min(20_000)).map(|key| reviews.shard_keys(key).0).collect();
        let handle = Handle::new(self.router.clone(), self.ns.clone());
        Box::pin(spread(&handle, KEYS[0], sample)).await?;
        let target = MongoTarget::connect(&self.cluster.uri(), &self.ns, self.schema).await?;
        Box::pin(preload(&target, documents, |_| ())).await?;
        self.rest().await
    }

    /// Lets all shards write out what they owe.
    async fn rest(&self) -> Result<()> {
        for shard in self.shards().await? {
            shard.run("admin", doc! {"fsync": 1}).await?;
        }
        Ok(())
    }

    /// The shards, past the router, in the order of their names.
    async fn shards(&self) -> Result<Vec<Endpoint>> {
        let mut shards = Vec::new();
        for name in self.shard_names() {
            shards.push(Box::pin(self.set(&name)).await?);
        }
        Ok(shards)
    }

    /// One of the replica sets, past the router.
    async fn set(&self, name: &str) -> Result<Endpoint> {
        let missing = || Error::Wrong(format!("there is no {name}, or no administrator of it"));
        let seed = self.cluster.seed(name).ok_or_else(missing)?;
        let hosts = seed.split_once('/').map_or(seed.as_str(), |(_, hosts)| hosts);
        let admin = &self.cluster.credentials().ok_or_else(missing)?.admin;
        let login = format!("{}:{}", admin.name, admin.password);
        let uri = format!("mongodb://{login}@{hosts}/?replicaSet={name}&authSource=admin");
        Ok(Box::pin(Endpoint::connect(&uri, "shard")).await?)
    }

    fn shard_names(&self) -> Vec<String> {
        let mut sets: Vec<String> = self.cluster.set_names().map(str::to_owned).collect();
        // The last one is the config server's.
        sets.pop();
        sets
    }

    fn ends(&self) -> Ends {
        Ends { from: String::new(), to: self.cluster.admin_uri(), ns: self.ns.to_string() }
    }

    async fn plan(&self, commands: &Commands) -> Result<(Plan, f64)> {
        let subject = Subject::PlanReshard { key: KEYS[1].to_owned() };
        let command = commands(&subject, &self.ends());
        let planned = Box::pin(Measured::start("a plan", command)?.end(0)).await?;
        let plan = serde_json::from_slice(&planned.output)
            .map_err(|error| Error::Wrong(format!("the plan cannot be read: {error}")))?;
        Ok((plan, planned.wall_s))
    }

    async fn change(&self, plan: &Plan, commands: &Commands) -> Result<Ended> {
        let file = self.cluster.folder().join("plan.json");
        let text = serde_json::to_vec(plan).expect("a plan is plain data");
        write(&file, &text)?;
        let command = commands(&Subject::Reshard { plan: file }, &self.ends());
        Box::pin(Measured::start("a change of the key", command)?.end(0)).await
    }

    async fn as_shipped(&self, size: Size) -> Result<f64> {
        Box::pin(self.fill(size.documents)).await?;
        native::set_floor(self, native::SHIPPED_MS).await?;
        let took = Box::pin(native::change(self, KEYS[1])).await;
        native::set_floor(self, 0).await?;
        took
    }
}

fn write(file: &Path, text: &[u8]) -> Result<()> {
    std::fs::write(file, text).map_err(process(format!("write {}", file.display())))
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}
