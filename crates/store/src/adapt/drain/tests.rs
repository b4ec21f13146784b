//! Drains of a store of this process: late arrivals, drains that cannot end, and adaptation beside them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_plan::store::guardrails::Limits;
use imago_plan::store::parameters::Parameters;

use super::{DrainReport, DrainState, Drains};
use crate::adapt::{Adaptation, LimitsRequest, Mode, Options};
use crate::engine::{self, Store};
use crate::key::{Key, Table};
use crate::record::{Operator, Site};
use crate::sampler::Sampler;

fn key(row: &str) -> Key {
    Key::new(Table(0), row.as_bytes())
}

/// A store of three sites, all of it at the first, whose drains are looked after.
struct Drained {
    store: Arc<Store>,
    drains: Arc<Drains>,
    looked_after: tokio::task::JoinHandle<()>,
}

impl Drop for Drained {
    fn drop(&mut self) {
        self.looked_after.abort();
    }
}

fn start(adaptation: impl FnOnce(&Arc<Store>) -> Option<Arc<Adaptation>>) -> Drained {
    let store = Arc::new(Store::start(&engine::Options { sites: 3, log: None }).unwrap());
    let drains = Arc::new(Drains::new(Arc::clone(&store), adaptation(&store)));
    let runs = Arc::clone(&drains);
    let looked_after = tokio::spawn(async move { runs.run().await });
    Drained { store, drains, looked_after }
}

impl Drained {
    async fn until(&self, state: DrainState) -> DrainReport {
        let began = Instant::now();
        loop {
            let report = self.drains.reports().into_iter().next();
            if let Some(report) = report.filter(|report| report.state == state) {
                return report;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", self.drains.reports());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn copies(&self, site: Site) -> usize {
        self.store.map().design.partitions().filter(|one| one.is_at(site)).count()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_that_arrive_late_are_given_away_again() {
    let it = start(|_| None);
    it.store.change(&key("m"), Operator::Split(key("m"))).await.unwrap();
    it.drains.begin(Site(0)).await.unwrap();
    it.until(DrainState::Drained).await;
    assert_eq!(it.copies(Site(0)), 0);
    // As if they had been on their way.
    it.store.set_used(Site(0), true).unwrap();
    it.store.add_replica(&key("m"), Site(0)).await.unwrap();
    it.store.change(&key("m"), Operator::Remaster(Site(0))).await.unwrap();
    it.store.set_used(Site(0), false).unwrap();
    let began = Instant::now();
    while it.copies(Site(0)) > 0 {
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", it.drains.reports());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    it.until(DrainState::Drained).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_without_progress_ends_and_says_why_until_it_is_asked_for_again() {
    let it = start(|_| None);
    it.store.change(&key("m"), Operator::Split(key("m"))).await.unwrap();
    it.store.pin(&key("z"), Site(0)).await.unwrap();
    // The pin came when the site was not in use already.
    it.store.set_used(Site(0), false).unwrap();
    let stuck = it.until(DrainState::Stuck).await;
    assert!(stuck.failure.unwrap().contains("pinned to site 0: 0:m"), "{:?}", it.drains.reports());
    it.store.change(&key("z"), Operator::Unpin).await.unwrap();
    it.drains.begin(Site(0)).await.unwrap();
    it.until(DrainState::Drained).await;
    assert_eq!(it.copies(Site(0)), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_is_added_while_it_is_drained_keeps_the_rest() {
    let it = start(|_| None);
    for n in 0..40 {
        let at = key(&format!("k{n:02}"));
        it.store.change(&at, Operator::Split(at.clone())).await.unwrap();
    }
    it.drains.begin(Site(0)).await.unwrap();
    it.drains.add(Site(0)).await.unwrap();
    assert_eq!(it.drains.reports(), []);
    let kept = it.copies(Site(0));
    tokio::time::sleep(Duration::from_millis(700)).await;
    // An operator may have been under way.
    assert!(it.copies(Site(0)) + 1 >= kept, "{kept}");
    it.store.add_replica(&key("k00"), Site(2)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memory_limit_of_adaptation_holds_for_drains() {
    let adapts = |store: &Arc<Store>| {
        let options = Options {
            mode: Mode::Advise,
            parameters: Parameters::default(),
            limits: Limits::default(),
            seed: 1,
        };
        Some(Adaptation::new(Arc::clone(store), Arc::new(Sampler::new(3, None)), options))
    };
    let it = start(adapts);
    let large = key("large");
    let writes = vec![large.clone()];
    let put = move |view: &mut crate::transaction::View<'_>| {
        view.put(&large, vec![b'x'; 900_000].into())?;
        Ok::<_, crate::transaction::Abort>(Vec::new())
    };
    it.store.session().run(Vec::new(), writes, Box::new(put)).await.unwrap();
    let adaptation = it.drains.adaptation.clone().unwrap();
    let limit = LimitsRequest {
        memory_max_mb: Some(crate::adapt::AtMost::Some(1)),
        ..LimitsRequest::default()
    };
    adaptation.limit(&limit).await.unwrap();
    it.store.change(&key("m"), Operator::Split(key("m"))).await.unwrap();
    it.drains.begin(Site(0)).await.unwrap();
    it.until(DrainState::Drained).await;
    // The same rows twice do not fit into one site.
    let only = it.store.live_and_used(&it.store.map());
    assert_eq!(only, [Site(1), Site(2)]);
    let held: Vec<u64> = it
        .store
        .usage()
        .await
        .iter()
        .map(|(_, copies)| copies.iter().map(|copy| copy.size.bytes).sum())
        .collect();
    assert!(held.iter().all(|bytes| *bytes < 1_000_000) && held[0] == 0, "{held:?}");
}
