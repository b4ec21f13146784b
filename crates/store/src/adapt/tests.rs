//! A store that adapts, under transactions of this process: its sites stand for machines of a tenth of a core.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use imago_plan::store::guardrails::Limits;
use imago_plan::store::parameters::Parameters;

mod apart;
mod strategy;

use super::{AdaptReport, Adaptation, Mode, Options, Verdict};
use crate::engine::{self, Store};
use crate::key::{Key, Table};
use crate::record::Site;
use crate::sampler::Sampler;
use crate::transaction::{Abort, View};

const ACCOUNTS: u64 = 600;
const CLIENTS: u64 = 12;

fn account(n: u64) -> Key {
    Key::new(Table(0), format!("account:{:06}", n % ACCOUNTS).as_bytes())
}

/// A store of two sites, all of it at the first, whose clients count accounts up.
struct Busy {
    store: Arc<Store>,
    adaptation: Arc<Adaptation>,
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<tokio::task::JoinHandle<()>>,
    adapts: tokio::task::JoinHandle<()>,
}

impl Busy {
    fn start(mode: Mode) -> Self {
        Self::start_with(mode, 2, false)
    }

    /// The same with so many sites; clients read a few accounts only, if they read.
    fn start_with(mode: Mode, sites: u16, is_read: bool) -> Self {
        let options = engine::Options { sites, log: None };
        let store = Arc::new(Store::start(&options).unwrap());
        let sampler = Arc::new(Sampler::new(sites, Some(0.1)));
        let (parameters, limits) = (Parameters::default(), Limits::default());
        let options = Options { mode, parameters, limits, seed: 7 };
        let adaptation = Adaptation::new(Arc::clone(&store), sampler, options);
        let adapts = tokio::spawn(Arc::clone(&adaptation).run());
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |n: u64| {
            let (store, is_over, done) =
                (Arc::clone(&store), Arc::clone(&is_over), Arc::clone(&done));
            tokio::spawn(async move {
                let (mut session, mut at) = (store.session(), n * 53);
                while !is_over.load(Ordering::Relaxed) {
                    at = at
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let key = account(at >> 33);
                    if is_read {
                        let reads = vec![crate::key::KeyRange::only(&key)];
                        let read = move |view: &mut View<'_>| {
                            view.get(&key)?;
                            Ok::<_, Abort>(Vec::new())
                        };
                        session.run(reads, Vec::new(), Box::new(read)).await.unwrap();
                        continue;
                    }
                    let writes = vec![key.clone()];
                    let count_up = move |view: &mut View<'_>| {
                        let old = view.get(&key)?.map_or(0, |seen| number(&seen.value));
                        view.put(&key, (old + 1).to_be_bytes().to_vec().into())?;
                        Ok::<_, Abort>(Vec::new())
                    };
                    session.run(Vec::new(), writes, Box::new(count_up)).await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { store, adaptation, is_over, done, clients, adapts }
    }

    fn masters(&self) -> BTreeSet<Site> {
        self.store.map().design.partitions().map(|partition| partition.master).collect()
    }

    /// Waits until adaptation tells something.
    async fn until(&self, what: &str, is_so: impl Fn(&Self, &AdaptReport) -> bool) -> AdaptReport {
        let began = Instant::now();
        loop {
            let report = self.adaptation.report();
            if is_so(self, &report) {
                return report;
            }
            assert!(began.elapsed() < Duration::from_secs(240), "{what}: {report:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends it; every transaction that was acknowledged counted an account up.
    async fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
        self.adapts.abort();
        let sum = Arc::new(AtomicU64::new(0));
        for n in 0..ACCOUNTS {
            let (key, into) = (account(n), Arc::clone(&sum));
            let read = move |view: &mut View<'_>| {
                let value = view.get(&key)?.map_or(0, |seen| number(&seen.value));
                into.fetch_add(value, Ordering::Relaxed);
                Ok::<_, Abort>(Vec::new())
            };
            let reads = vec![crate::key::KeyRange::only(&account(n))];
            self.store.session().run(reads, Vec::new(), Box::new(read)).await.unwrap();
        }
        assert_eq!(sum.load(Ordering::Relaxed), self.done.load(Ordering::Relaxed));
    }
}

fn number(value: &[u8]) -> u64 {
    u64::from_be_bytes(value.try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_has_all_the_work_gives_some_away() {
    let busy = Busy::start(Mode::On);
    let is_shared =
        |busy: &Busy, report: &AdaptReport| busy.masters().len() == 2 && report.changes >= 3;
    let report = busy.until("both sites master something", is_shared).await;
    let done = report.decisions.iter().find(|one| one.verdict == Verdict::Done);
    let done = done.unwrap_or_else(|| panic!("{report:#?}"));
    assert!(done.operators[0].starts_with("split 0:account:"), "{done:?}");
    assert!(done.predicted_us.1 < done.predicted_us.0, "{done:?}");
    assert!(done.benefit_us > done.cost_us, "{done:?}");
    let is_used = |_: &Busy, report: &AdaptReport| report.sites.iter().all(|site| site.cpu > 0.2);
    busy.until("the second site does its part", is_used).await;
    busy.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_reads_of_one_partition_spread_over_idle_sites() {
    let busy = Busy::start_with(Mode::On, 4, true);
    let copies = |busy: &Busy| {
        let map = busy.store.map();
        let sites = map
            .design
            .partitions()
            .flat_map(|one| one.replicas.iter().copied().chain([one.master]).collect::<Vec<_>>());
        sites.collect::<BTreeSet<Site>>().len()
    };
    // The design changes before the plan is reported as done.
    let is_done =
        |report: &AdaptReport| report.decisions.iter().any(|one| one.verdict == Verdict::Done);
    let spread = |busy: &Busy, report: &AdaptReport| copies(busy) >= 3 && is_done(report);
    let report = busy.until("three sites have copies", spread).await;
    let done = report.decisions.iter().find(|one| one.verdict == Verdict::Done);
    let done = done.unwrap_or_else(|| panic!("{report:#?}"));
    assert!(done.predicted_work_us.0 > 0.0 && done.work_weight > 0.0, "{done:?}");
    // A round that is longer than the one before it may be beyond the share for a moment.
    let within =
        |_: &Busy, report: &AdaptReport| report.planner_cpu <= super::driver::CPU_SHARE_PAYING;
    busy.until("the planner keeps to its share of a core", within).await;
    busy.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn advice_changes_nothing() {
    let busy = Busy::start(Mode::Advise);
    let advises = |one: &super::DecisionReport| matches!(one.verdict, Verdict::Advised(_));
    let is_advised = |_: &Busy, report: &AdaptReport| report.decisions.iter().any(advises);
    let report = busy.until("something pays", is_advised).await;
    assert_eq!((report.changes, busy.store.map().design.partitions().count()), (0, 1));
    busy.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_holds() {
    let busy = Busy::start(Mode::On);
    busy.adaptation.pause(true);
    let paused = Verdict::Advised("adaptation is paused".to_owned());
    let is_told =
        |_: &Busy, report: &AdaptReport| report.decisions.iter().any(|one| one.verdict == paused);
    let report = busy.until("something would pay", is_told).await;
    assert_eq!((report.changes, busy.store.map().design.partitions().count()), (0, 1));
    busy.adaptation.pause(false);
    busy.until("it goes on", |_, report| report.changes > 0).await;
    busy.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planner_that_panics_ends_nothing_but_itself() {
    let busy = Busy::start(Mode::On);
    busy.until("it has begun", |_, report| report.transactions_s > 0.0).await;
    busy.adaptation.panics.store(true, Ordering::SeqCst);
    let report = busy.until("it has ended", |_, report| report.has_ended).await;
    assert!(report.failure.unwrap().contains("the store serves on"));
    let before = busy.done.load(Ordering::Relaxed);
    let goes_on = |busy: &Busy, _: &AdaptReport| busy.done.load(Ordering::Relaxed) > before + 100;
    busy.until("transactions run", goes_on).await;
    busy.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_is_not_in_use_gets_nothing_until_it_is_added() {
    let busy = Busy::start(Mode::On);
    busy.store.set_used(Site(1), false).unwrap();
    let learned = |_: &Busy, report: &AdaptReport| report.distrust.is_none();
    busy.until("it has learned enough to decide", learned).await;
    // As long as it takes otherwise until the other site does its part, and longer.
    let began = Instant::now();
    let passed = |_: &Busy, _: &AdaptReport| began.elapsed() > Duration::from_secs(8);
    let report = busy.until("it could have decided", passed).await;
    let is_there = |one: &crate::design::Partition| one.is_at(Site(1));
    assert!(!busy.store.map().design.partitions().any(is_there), "{report:#?}");
    assert!(report.decisions.iter().all(|one| one.site == 0), "{report:#?}");
    busy.store.set_used(Site(1), true).unwrap();
    busy.until("the site that was added does its part", |busy, _| busy.masters().len() == 2).await;
    busy.end().await;
}
