//! One load on one design: starts the store, fills it, places partitions, runs the clients, and checks all rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use imago_job::prediction::Prediction;
use imago_load::store::transactions::{Benchmark, Drawing, key};
use imago_plan::store::guardrails::Limits;
use imago_plan::store::parameters::Parameters;
use imago_store::adapt::{Adaptation, Mode, Options};
use imago_store::engine::{self, Store};
use imago_store::key::{Key, KeyRange};
use imago_store::record::{Operator, Site};
use imago_store::router::{DesignPolicy, MostMastered};
use imago_store::sampler::Sampler;
use imago_store::transaction::{Abort, View};
use imago_workload::procedures::Kind;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::clients::{self, Clients, OfKind, declare};
use super::designs::{self, Design, Remastering, Shared};
use super::schism;
use crate::adapt::Quality;
use crate::error::{Error, Result, process};

/// Number of rows that one transaction writes while a store is filled.
const FILLED_AT_ONCE: usize = 500;
/// Number of transactions from which Schism learns the workload.
const TRACED: usize = 4_000;
/// Number of partitions that are placed at once.
const PLACED_AT_ONCE: usize = 16;
/// Maximum number of attempts of a step of the placement, which another step may be in the way of.
const ATTEMPTS_MAX: u32 = 200;
/// Delay before a step of the placement is tried again.
const AGAIN_WAIT: Duration = Duration::from_millis(5);
/// Number of rows that are read at once after a load.
const READ_AT_ONCE: usize = 5_000;

/// The parameters of a load.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// The benchmark.
    pub benchmark: Benchmark,
    /// Number of sites.
    pub sites: u16,
    /// Share of a core that each site may use.
    pub site_cpu: f64,
    /// Time that a message takes from a site to another one and back.
    pub round_trip: Duration,
    /// Number of partitions at the start, of all designs.
    pub partitions: usize,
    /// Number of clients, each with one transaction under way.
    pub clients: u64,
    /// Transactions per second of all clients together; `None` for a closed loop.
    pub rate_s: Option<f64>,
    /// Duration of the load before it is measured.
    pub warm: Duration,
    /// Duration of the measured load.
    pub lasts: Duration,
    /// Seed of the clients and of random placements.
    pub seed: u64,
    /// Limit on the changes of the design a second that MorphoSys makes.
    pub changes_s_max: f64,
}

/// The result of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Transactions per second, over the measured time.
    pub throughput_s: f64,
    /// Transactions per second in each second of the load, the time before it is measured included.
    pub seconds: Vec<f64>,
    /// Latencies of each type of transaction in the measured time.
    pub kinds: BTreeMap<Kind, OfKind>,
    /// Share (0..1) of the transactions that were executed by two-phase commit.
    pub two_phase: f64,
    /// Share (0..1) of the transactions for which the design was changed first.
    pub design_changed: f64,
    /// Number of changes of the design by its strategy.
    pub changes: u64,
    /// Number of partitions at the end.
    pub partitions: usize,
    /// Number of copies of a row at the end, as a mean.
    pub copies: f64,
    /// CPU time that each site used in the measured time, as a share of what it may use.
    pub site_shares: Vec<f64>,
    /// Number of attempts that had no effect and were repeated.
    pub retried: u64,
    /// Number of rows that were checked after the load.
    pub rows: u64,
    /// Contradictions between the rows, and between them and the acknowledged transactions.
    pub contradictions: Vec<String>,
    /// The partitions at the end, in key order.
    #[serde(skip)]
    pub at_end: Vec<PartitionAtEnd>,
    /// The decisions of the strategy, and the accuracy of the predictions; `None` if nothing changes the design.
    #[serde(skip)]
    pub quality: Option<Quality>,
    /// What the executed plans of adaptation predicted, and what was measured.
    #[serde(skip)]
    pub predictions: Vec<Prediction>,
}

/// A partition at the end of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionAtEnd {
    /// Number of its rows.
    pub rows: u64,
    /// Number of its copies, the master's included.
    pub copies: usize,
}

fn wrong(abort: &Abort) -> Error {
    Error::Wrong(abort.to_string())
}

fn runtime() -> Result<Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    built.map_err(process("start threads"))
}

/// Runs a load on a design, and checks all rows. Blocks.
///
/// # Errors
/// Fails if the store refuses an operation.
pub fn run(design: Design, scene: &Scene) -> Result<Outcome> {
    let options = engine::Options { sites: scene.sites, log: None };
    let remastering = (design == Design::Dynamast).then(Arc::<Remastering>::default);
    let policy: Box<dyn DesignPolicy> = match &remastering {
        Some(counted) => Box::new(Shared(Arc::clone(counted))),
        None => Box::new(MostMastered),
    };
    let store = Store::start_as(&options, policy, design.execution(scene.round_trip));
    let store = Arc::new(store.map_err(|error| Error::Wrong(error.to_string()))?);
    // The planner has a thread of its own, so that clients do not delay it.
    let (client_threads, planner) = (runtime()?, runtime()?);
    client_threads.block_on(prepare(&store, design, scene))?;
    let sampler = Arc::new(Sampler::new(scene.sites, Some(scene.site_cpu)));
    let adaptation = adapt(&store, design, &sampler, scene, &planner);
    let parameters = clients::Parameters {
        clients: scene.clients,
        rate_s: scene.rate_s,
        warm: scene.warm,
        seed: scene.seed,
    };
    let began = Instant::now();
    let clients = client_threads.block_on(async {
        Clients::start(&store, &scene.benchmark, parameters, remastering.clone())
    });
    let (before, distributed_before) = (store.brought_together(), store.distributed());
    let used = || (0..scene.sites).map(|site| sampler.cpu(Site(site))).collect::<Vec<_>>();
    let (mut seconds, mut last) = (Vec::new(), 0);
    let warm_s = scene.warm.as_secs();
    let (mut measured_from, mut used_before) = ((began, 0), used());
    for second in 1..=warm_s + scene.lasts.as_secs() {
        let until = began + Duration::from_secs(second);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        let done = clients.done();
        seconds.push((done - last) as f64);
        last = done;
        if second == warm_s {
            (measured_from, used_before) = ((Instant::now(), done), used());
        }
    }
    let (from, done_before) = measured_from;
    let measured_s = from.elapsed().as_secs_f64();
    let throughput_s = (clients.done() - done_before) as f64 / measured_s;
    let may_use_s = measured_s * scene.site_cpu;
    let share = |(now, before): (Duration, Duration)| (now - before).as_secs_f64() / may_use_s;
    let site_shares = used().into_iter().zip(used_before).map(share).collect();
    let (kinds, retried) = (clients.latencies(), clients.retried());
    let all = clients.done().max(1) as f64;
    let mut check = client_threads.block_on(clients.finish())?;
    let report = adaptation.as_ref().map(|adaptation| adaptation.report());
    let changes = report.as_ref().map_or(0, |report| report.changes);
    drop(planner);
    let mut of_partition: BTreeMap<Key, u64> = BTreeMap::new();
    let mut contradictions = Vec::new();
    let rows = client_threads.block_on(read_all(&store, |start, name, value| {
        *of_partition.entry(start.clone()).or_default() += 1;
        contradictions.extend(check.row(name, value).err());
    }))?;
    contradictions.extend(check.contradictions(&scene.benchmark));
    let map = store.map();
    let at_end: Vec<PartitionAtEnd> = map
        .design
        .partitions()
        .map(|partition| PartitionAtEnd {
            rows: of_partition.get(&partition.range.start).copied().unwrap_or(0),
            copies: partition.sites().count(),
        })
        .collect();
    let copies: u64 = at_end.iter().map(|one| one.rows * one.copies as u64).sum();
    Ok(Outcome {
        throughput_s,
        seconds,
        kinds,
        two_phase: (store.distributed() - distributed_before) as f64 / all,
        design_changed: (store.brought_together() - before) as f64 / all,
        changes,
        partitions: map.design.partitions().count(),
        copies: copies as f64 / rows.max(1) as f64,
        site_shares,
        retried,
        rows,
        contradictions,
        at_end,
        quality: report.as_ref().map(Quality::of),
        predictions: report.map(|report| report.predictions()).unwrap_or_default(),
    })
}

/// Starts what changes the design while the load runs; `None` if nothing does.
fn adapt(
    store: &Arc<Store>,
    design: Design,
    sampler: &Arc<Sampler>,
    scene: &Scene,
    planner: &Runtime,
) -> Option<Arc<Adaptation>> {
    let strategy = design.strategy();
    if design != Design::Morphosys && strategy.is_none() {
        store.sample(Arc::clone(sampler));
        return None;
    }
    // The other systems have no guardrails.
    let limits = match strategy {
        None => Limits { changes_s_max: scene.changes_s_max, ..Limits::default() },
        Some(_) => Limits {
            cool_down_ms: 0,
            reversal_ms: 0,
            sustained: 1,
            changes_s_max: 1_000.0,
            slowdown_max: f64::INFINITY,
            ..Limits::default()
        },
    };
    let (mode, parameters) = (Mode::On, Parameters::default());
    let options = Options { mode, parameters, limits, seed: scene.seed };
    let adaptation = Adaptation::new(Arc::clone(store), Arc::clone(sampler), options);
    if let Some(strategy) = strategy {
        adaptation.set_strategy(strategy);
    }
    planner.spawn(Arc::clone(&adaptation).run());
    Some(adaptation)
}

/// Fills the store and places the partitions of a design.
async fn prepare(store: &Arc<Store>, design: Design, scene: &Scene) -> Result<()> {
    let rows: Vec<(String, Vec<u8>)> = scene.benchmark.rows(scene.seed).collect();
    let mut session = store.session();
    for some in rows.chunks(FILLED_AT_ONCE) {
        let keys: Vec<Key> = some.iter().map(|(name, _)| key(name)).collect();
        let values: Vec<Vec<u8>> = some.iter().map(|(_, value)| value.clone()).collect();
        let names = keys.clone();
        let procedure = move |view: &mut View<'_>| {
            for (key, value) in names.iter().zip(&values) {
                view.put(key, value.as_slice().into())?;
            }
            Ok(Vec::new())
        };
        let done = session.run(Vec::new(), keys, Box::new(procedure)).await;
        done.map_err(|abort| wrong(&abort))?;
    }
    let group = |name: &str| match scene.benchmark {
        // The rows of a table that belong to one warehouse; items belong to none.
        Benchmark::TpcC(_) if !name.starts_with('i') => name[..5].to_owned(),
        // Tables are told apart by the first letter of a row's key.
        _ => name[..1].to_owned(),
    };
    let names = rows.iter().map(|(name, _)| name.as_str());
    let starts = designs::starts(names, scene.partitions, group);
    let placed = match design {
        Design::MultiMaster | Design::Adr => {
            let traced = trace(store, &starts, scene).await?;
            schism::place(&traced, starts.len(), scene.sites)?
        }
        _ => Vec::new(),
    };
    for start in starts.iter().skip(1) {
        let start = key(start);
        let split = store.change(&start, Operator::Split(start.clone())).await;
        split.map_err(|abort| wrong(&abort))?;
    }
    let masters = design.masters(starts.len(), scene.sites, &placed, scene.seed);
    let all: Vec<Site> = (0..scene.sites).map(Site).collect();
    let place = |(number, start): (usize, &String)| {
        let start = if number == 0 { Key::least() } else { key(start) };
        let sites = if design.is_replicated() { all.clone() } else { vec![masters[number]] };
        let (store, master) = (Arc::clone(store), masters[number]);
        async move { place(&store, &start, master, &sites).await }
    };
    let placing = stream::iter(starts.iter().enumerate().map(place).collect::<Vec<_>>());
    placing.buffer_unordered(PLACED_AT_ONCE).try_collect::<Vec<()>>().await?;
    Ok(())
}

/// Makes a partition, whose only copy is at site 0, one of the given sites with this master.
async fn place(store: &Store, start: &Key, master: Site, sites: &[Site]) -> Result<()> {
    for site in sites.iter().filter(|site| **site != Site(0)) {
        attempt(|| store.add_replica(start, *site)).await?;
    }
    if master != Site(0) {
        attempt(|| store.change(start, Operator::Remaster(master))).await?;
    }
    if !sites.contains(&Site(0)) {
        attempt(|| store.change(start, Operator::RemoveReplica(Site(0)))).await?;
    }
    Ok(())
}

/// Makes a change of the design, which another change at the same time may be in the way of.
async fn attempt<F: Future<Output = std::result::Result<(), Abort>>>(
    change: impl Fn() -> F,
) -> Result<()> {
    let mut last = None;
    for _ in 0..ATTEMPTS_MAX {
        match change().await {
            Ok(()) => return Ok(()),
            Err(abort @ (Abort::Late | Abort::Busy | Abort::Elsewhere | Abort::Refused(_))) => {
                last = Some(abort);
                tokio::time::sleep(AGAIN_WAIT).await;
            }
            Err(abort) => return Err(wrong(&abort)),
        }
    }
    Err(Error::Wrong(format!("the design cannot be made: {last:?}")))
}

/// Returns the numbers of the partitions that each of some drawn transactions accesses.
async fn trace(store: &Store, starts: &[String], scene: &Scene) -> Result<Vec<Vec<usize>>> {
    let starts: Vec<Key> = starts.iter().map(|name| key(name)).collect();
    let of = |key: &Key| starts.partition_point(|start| start <= key).saturating_sub(1);
    let drawing = Drawing::of(&scene.benchmark);
    let mut rng = StdRng::seed_from_u64(scene.seed ^ 0x7ace);
    let mut session = store.session();
    let mut traced = Vec::with_capacity(TRACED);
    for number in 0..TRACED as u64 {
        let mut procedure = drawing.draw(&mut rng, (1 << 60) + number);
        let declared = declare(&mut session, &mut procedure).await;
        let Some((reads, writes)) = declared.map_err(|abort| wrong(&abort))? else { continue };
        let mut accessed: Vec<usize> = writes.iter().map(of).collect();
        for KeyRange { start, end } in &reads {
            let behind = end
                .as_ref()
                .map_or(starts.len(), |end| starts.partition_point(|start| start < end));
            let first = of(start);
            accessed.extend(first..behind.max(first + 1));
        }
        accessed.sort_unstable();
        accessed.dedup();
        traced.push(accessed);
    }
    Ok(traced)
}

/// Reads all rows, and returns their number. `row` gets the first key of the row's partition, its key and its value.
async fn read_all(store: &Store, mut row: impl FnMut(&Key, &str, &[u8])) -> Result<u64> {
    let ranges: Vec<KeyRange> =
        store.map().design.partitions().map(|partition| partition.range.clone()).collect();
    let mut session = store.session();
    let mut all = 0;
    for range in ranges {
        let mut from = range.start.clone();
        loop {
            let part = KeyRange { start: from.clone(), end: range.end.clone() };
            let (sent, received) = std::sync::mpsc::channel();
            let wanted = part.clone();
            let procedure = move |view: &mut View<'_>| {
                _ = sent.send(view.range(&wanted, READ_AT_ONCE)?);
                Ok(Vec::new())
            };
            let done = session.run(vec![part], Vec::new(), Box::new(procedure)).await;
            done.map_err(|abort| wrong(&abort))?;
            let rows = received.recv().expect("a transaction that is answered has run");
            for (key, seen) in &rows {
                if let Some((_, name)) = key.row() {
                    row(&range.start, &String::from_utf8_lossy(name), &seen.value);
                }
            }
            all += rows.len() as u64;
            match rows.last() {
                Some((last, _)) if rows.len() == READ_AT_ONCE => from = last.successor(),
                _ => break,
            }
        }
    }
    Ok(all)
}
