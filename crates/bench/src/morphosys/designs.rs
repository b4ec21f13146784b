//! The compared designs: the initial placement of each, how it executes transactions, and what changes it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use imago_plan::store::strategy::dynamast::WriteCounts;
use imago_plan::store::strategy::{Periodic, Strategy};
use imago_store::design;
use imago_store::engine::Execution;
use imago_store::key::{Key, KeyRange};
use imago_store::record::{Change, Operator, Site};
use imago_store::router::{DesignPolicy, MostMastered, Step};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;

/// Number of rounds of the planner in a second.
const ROUNDS_S: u32 = 4;
/// Limit on the number of transactions for which DynaMast's choice of a site is kept: more than there are clients.
const CHOSEN_MAX: usize = 256;
/// Clay's period, in seconds (§7.1).
const CLAY_PERIOD_S: u32 = 10;

/// A design that is compared (§7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
    /// Random masters without replicas, which the store changes by learned costs.
    Morphosys,
    /// One site masters everything, and all others have replicas.
    SingleMaster,
    /// Masters by Schism, replicas of everything everywhere, two-phase commit.
    MultiMaster,
    /// Masters spread evenly, replicas of everything everywhere; a transaction's partitions get one master.
    Dynamast,
    /// Masters by Schism, two-phase commit; replicas are added and removed by reads and writes.
    Adr,
    /// Masters spread evenly, no replicas, two-phase commit; partitions move to balance the load.
    Clay,
}

impl Design {
    /// All designs, MorphoSys first.
    pub const ALL: [Self; 6] = [
        Self::Morphosys,
        Self::SingleMaster,
        Self::MultiMaster,
        Self::Dynamast,
        Self::Adr,
        Self::Clay,
    ];

    /// Returns the name of the design.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Morphosys => "MorphoSys",
            Self::SingleMaster => "single-master",
            Self::MultiMaster => "multi-master",
            Self::Dynamast => "DynaMast",
            Self::Adr => "ADR",
            Self::Clay => "Clay",
        }
    }

    /// Returns how the design executes transactions.
    pub(super) fn execution(self, round_trip: Duration) -> Execution {
        let is_two_phase = matches!(self, Self::MultiMaster | Self::Adr | Self::Clay);
        Execution { is_two_phase, round_trip }
    }

    /// Returns the strategy that changes the design; `None` if its placement stays, or for MorphoSys, whose strategy is
    /// the store's own.
    pub(super) fn strategy(self) -> Option<Box<dyn Strategy<Key>>> {
        match self {
            Self::Adr => Some(Box::new(Periodic::adr(ROUNDS_S))),
            Self::Clay => Some(Box::new(Periodic::clay(CLAY_PERIOD_S * ROUNDS_S))),
            _ => None,
        }
    }

    /// True if every site has a replica of every partition.
    pub(super) fn is_replicated(self) -> bool {
        matches!(self, Self::SingleMaster | Self::MultiMaster | Self::Dynamast)
    }

    /// Returns the master of each of `partitions` partitions at the start. `placed` has those that Schism chose.
    pub(super) fn masters(
        self,
        partitions: usize,
        sites: u16,
        placed: &[u16],
        seed: u64,
    ) -> Vec<Site> {
        let mut rng = StdRng::seed_from_u64(seed);
        let master = |number: usize| match self {
            Self::SingleMaster => 0,
            Self::MultiMaster | Self::Adr => placed.get(number).copied().unwrap_or(0),
            // Each site gets a contiguous part of the keys.
            Self::Dynamast | Self::Clay => (number * usize::from(sites) / partitions.max(1)) as u16,
            Self::Morphosys => rng.random_range(0..sites),
        };
        (0..partitions).map(master).map(Site).collect()
    }
}

/// The policy of DynaMast for transactions whose written partitions have several masters.
#[derive(Default)]
pub(super) struct Remastering(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    counts: WriteCounts<Key>,
    /// The written keys of the last transactions, and the site that was chosen for each.
    chosen: VecDeque<(Vec<Key>, Site)>,
}

impl Remastering {
    /// Counts a transaction's writes. `design` is the present design.
    pub fn observe(&self, design: &design::Design, writes: &[Key]) {
        if !writes.is_empty() {
            let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            counted.counts.count(&written(design, writes));
        }
    }
}

/// Returns the first keys of the partitions with these keys, each once.
fn written(design: &design::Design, writes: &[Key]) -> Vec<Key> {
    let starts: BTreeSet<Key> =
        writes.iter().map(|key| design.of(key).range.start.clone()).collect();
    starts.into_iter().collect()
}

/// The policy as the store's router has it; the clients count transactions by the same one.
pub(super) struct Shared(pub Arc<Remastering>);

impl DesignPolicy for Shared {
    fn next_step(
        &self,
        design: &design::Design,
        reads: &[KeyRange],
        writes: &[Key],
        home: Option<Site>,
    ) -> Step {
        let starts = written(design, writes);
        if starts.is_empty() {
            return MostMastered.next_step(design, reads, writes, home);
        }
        let mut counted = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Counted { counts, chosen } = &mut *counted;
        // The steps for one transaction lead to one site.
        let site = match chosen.iter().find(|(keys, _)| keys == writes) {
            Some((_, site)) => *site,
            None => {
                let sites: Vec<u16> = design.live_sites().map(|site| site.0).collect();
                let site = counts.site(&sites, &starts, |start| design.of(start).master.0);
                if chosen.len() == CHOSEN_MAX {
                    chosen.pop_front();
                }
                chosen.push_back((writes.to_vec(), Site(site)));
                Site(site)
            }
        };
        let foreign = starts.iter().find(|start| design.of(start).master != site);
        let Some(start) = foreign.filter(|start| design.of(start).is_at(site)) else {
            return MostMastered.next_step(design, reads, writes, home);
        };
        let (master, start) = (design.of(start).master, start.clone());
        Step::Change(master, Change { start, operator: Operator::Remaster(site) })
    }
}

/// Returns the first keys of the partitions with which all designs begin. The rows are cut into `partitions` parts of
/// equal numbers of rows; where `group` returns another group than for the row before, a partition begins as well.
pub(super) fn starts<'a>(
    rows: impl Iterator<Item = &'a str> + Clone,
    partitions: usize,
    group: impl Fn(&str) -> String,
) -> Vec<String> {
    let mut keys: Vec<&str> = rows.collect();
    keys.sort_unstable();
    let most = keys.len().div_ceil(partitions.max(1));
    let (mut starts, mut of_group) = (Vec::new(), (String::new(), usize::MAX));
    for key in keys {
        let named = group(key);
        if named != of_group.0 || of_group.1 >= most {
            starts.push(key.to_owned());
            of_group = (named, 0);
        }
        of_group.1 += 1;
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_begin_at_groups_and_have_equal_numbers_of_rows() {
        let rows: Vec<String> = (1..=2)
            .flat_map(|warehouse| {
                let stock = (0..50).map(move |item| format!("t{warehouse:04}{item:06}"));
                stock.chain([format!("w{warehouse:04}")])
            })
            .collect();
        let group = |key: &str| key[..5].to_owned();
        let starts = starts(rows.iter().map(String::as_str), 4, group);
        let expected =
            ["t0001000000", "t0001000026", "t0002000000", "t0002000026", "w0001", "w0002"];
        assert_eq!(starts, expected);
    }

    #[test]
    fn each_design_has_its_masters() {
        let placed = [3, 2, 1, 0, 3, 2, 1, 0];
        let masters = |design: Design| -> Vec<u16> {
            design.masters(8, 4, &placed, 7).into_iter().map(|site| site.0).collect()
        };
        assert_eq!(masters(Design::SingleMaster), [0; 8]);
        assert_eq!(masters(Design::MultiMaster), placed);
        assert_eq!(masters(Design::Clay), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_ne!(masters(Design::Morphosys), masters(Design::Clay));
    }
}
