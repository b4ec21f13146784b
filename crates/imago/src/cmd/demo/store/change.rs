//! The five kinds of changes to a store's design, each made a number of times, whenever the current design allows it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use imago_store::design::{Design, Partition};
use imago_store::engine::Store;
use imago_store::key::{Key, Table};
use imago_store::record::{Epoch, Operator, Site};
use imago_store::transaction::Abort;
use imago_workload::lists::{LISTS, List};
use serde::Serialize;

use super::SITES;
use crate::exit::{Exit, Failure};

/// Delay between two changes of the store's design.
const PAUSE: Duration = Duration::from_millis(20);
/// Number of partitions at which no partition is split until others are merged.
const PARTITIONS_MAX: usize = 16;

/// How often one kind of change was made, and the median of its durations in ms.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Times {
    pub times: usize,
    pub median_ms: f64,
}

/// A sequence of changes to a store's design, which makes each of the five kinds a requested number of times.
pub struct Changes<'s> {
    store: &'s Store,
    wanted: usize,
    /// Durations of the changes that were made, in ms, by the name of their kind.
    made: BTreeMap<&'static str, Vec<f64>>,
    /// Number of attempts so far, which determines the kind of the next change and its partition.
    turn: usize,
}

const NAMES: [&str; 5] = ["split", "add_replica", "remaster", "remove_replica", "merge"];

impl<'s> Changes<'s> {
    pub fn new(store: &'s Store, times: u32) -> Self {
        let made = NAMES.map(|name| (name, Vec::new())).into();
        Self { store, wanted: times as usize, made, turn: 0 }
    }

    /// Makes all requested changes; fails if they are not done at the time `until`. Returns the number and the
    /// durations of the changes, by the name of their kind.
    pub async fn make(mut self, until: Instant) -> Result<BTreeMap<&'static str, Times>, Failure> {
        while self.made.values().any(|made| made.len() < self.wanted) {
            if Instant::now() >= until {
                let message = "the changes of the design did not come to an end in their time";
                return Err(Failure::new(Exit::Failed, "demo", message)
                    .help("ask for fewer (--times), or try a machine that does less besides"));
            }
            self.turn += 1;
            self.next().await?;
            tokio::time::sleep(PAUSE).await;
        }
        let median = |made: &mut Vec<f64>| {
            made.sort_unstable_by(f64::total_cmp);
            Times { times: made.len(), median_ms: made[made.len() / 2] }
        };
        Ok(self.made.iter_mut().map(|(name, made)| (*name, median(made))).collect())
    }

    async fn next(&mut self) -> Result<(), Failure> {
        let map = self.store.map();
        let name = NAMES[self.turn % NAMES.len()];
        let Some((key, operator)) = self.chosen(name, &map.design) else { return Ok(()) };
        let began = Instant::now();
        let done = match operator {
            // The site itself determines the epoch of its copy.
            Operator::AddReplica(site, _) => self.store.add_replica(&key, site).await,
            operator => self.store.change(&key, operator).await,
        };
        match done {
            Ok(()) => {
                let took_ms = began.elapsed().as_secs_f64() * 1000.0;
                self.made.entry(name).or_default().push(took_ms);
                Ok(())
            }
            // A transaction has changed the design meanwhile.
            Err(Abort::Refused(_) | Abort::Elsewhere | Abort::Late | Abort::Busy) => Ok(()),
            Err(error) => Err(Failure::from_error(Exit::Failed, "demo", &error)),
        }
    }

    /// Returns a change of the kind `name` that the design allows, with a key of its partition; `None` if there is
    /// none.
    fn chosen(&self, name: &str, design: &Design) -> Option<(Key, Operator)> {
        let partitions: Vec<&Partition> = design.partitions().collect();
        let begin = |partition: &Partition| partition.range.start.clone();
        // Each attempt starts with another partition.
        let turned = partitions.iter().cycle().skip(self.turn).take(partitions.len());
        let site_but = |taken: &dyn Fn(Site) -> bool| {
            let sites = (0..SITES).cycle().skip(self.turn / 5 % 4).take(SITES.into()).map(Site);
            sites.into_iter().find(|site| !taken(*site))
        };
        match name {
            "split" if partitions.len() < PARTITIONS_MAX => {
                let number = u32::try_from(self.turn * 7).ok()? % LISTS;
                let key = Key::new(Table(0), List(number).name().as_bytes());
                let is_new = design.beginning_at(&key).is_none();
                is_new.then(|| (key.clone(), Operator::Split(key)))
            }
            "split" => None,
            "add_replica" => {
                let found =
                    turned.filter_map(|it| Some((it, site_but(&|site| it.is_at(site))?))).next();
                found.map(|(it, site)| (begin(it), Operator::AddReplica(site, Epoch(0))))
            }
            "remove_replica" | "remaster" => {
                let found = turned.filter_map(|it| Some((it, *it.replicas.first()?))).next();
                found.map(|(it, site)| match name {
                    "remaster" => (begin(it), Operator::Remaster(site)),
                    _ => (begin(it), Operator::RemoveReplica(site)),
                })
            }
            _ => {
                let mut pairs = partitions.windows(2);
                let is_alike = |pair: &&[&Partition]| {
                    pair[0].master == pair[1].master && pair[0].replicas == pair[1].replicas
                };
                pairs.rfind(is_alike).map(|pair| (begin(pair[0]), Operator::Merge))
            }
        }
    }
}
