//! Maintains a minimum number of replicas of each partition: those that a dead or drained site had, and those of new
//! partitions, are made at other sites, whether the store adapts or not.
//!
//! The sites of new replicas are chosen by [`imago_plan::store::replicas`]. Replicas are made one after the other, so
//! that the copying takes a bounded share of the network. Neither commands nor adaptation remove a replica that would
//! be made again.

use std::collections::BTreeMap;
use std::time::Duration;

use imago_plan::store::layout::{Layout, Operator as Planned};
use imago_plan::store::replicas::{Wanted, missing};

use super::unused::is_live;
use super::{Map, Store};
use crate::design::Partition;
use crate::key::Key;
use crate::record::{Position, Site};
use crate::sync::atomic::Ordering;
use crate::sync::sleep;
use crate::transaction::Abort;

/// Interval at which partitions are checked for missing replicas.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Delay after a failed attempt to make a replica.
const AGAIN_WAIT: Duration = Duration::from_secs(1);

/// The state on which the set of missing replicas depends. While it is unchanged and no replica is missing, none are
/// planned.
#[derive(PartialEq)]
struct Seen {
    /// Position of the log whose design the map has.
    known: Position,
    /// The live sites in use, in the order of their numbers.
    used: Vec<Site>,
    /// The rack of each site whose process named one, by site number.
    racks: BTreeMap<u16, String>,
}

impl Store {
    /// Sets the minimum number of replicas of each partition, its master not counted; [`Store::maintain_replicas`]
    /// makes the missing ones.
    pub fn require_replicas(&self, least: u16) {
        self.shared.replicas_min.store(least.into(), Ordering::Relaxed);
    }

    /// Returns the minimum number of replicas of each partition, its master not counted; 0 for no minimum.
    #[must_use]
    pub fn replicas_min(&self) -> usize {
        self.shared.replicas_min.load(Ordering::Relaxed) as usize
    }

    /// Returns the racks of the sites whose processes named one, by site number.
    #[must_use]
    pub fn racks(&self) -> BTreeMap<u16, String> {
        let racks = (0..).zip(&self.shared.presence);
        racks.filter_map(|(site, presence)| Some((site, presence.rack()?))).collect()
    }

    /// Returns the number of partitions that have fewer replicas at live sites than required.
    #[must_use]
    pub fn below_replicas_min(&self) -> usize {
        let (least, map) = (self.replicas_min(), self.map());
        map.design.partitions().filter(|one| live_replicas(&map, one) < least).count()
    }

    /// Makes the replicas that partitions lack, for as long as the future is polled.
    pub async fn maintain_replicas(&self) {
        let mut complete: Option<Seen> = None;
        let mut told = String::new();
        loop {
            sleep(LOOK_EVERY).await;
            let map = self.map();
            let seen =
                Seen { known: map.known, used: self.live_and_used(&map), racks: self.racks() };
            if self.replicas_min() == 0 || complete.as_ref() == Some(&seen) {
                continue;
            }
            match self.make_replicas(&map, &seen.racks).await {
                Ok(true) => {}
                Ok(false) => complete = Some(seen),
                Err(abort) => {
                    // A lasting reason is logged once.
                    let reason = abort.to_string();
                    if reason != told {
                        tracing::warn!(reason, "a replica for --replicas-min is not made yet");
                        told = reason;
                    }
                    sleep(AGAIN_WAIT).await;
                }
            }
        }
    }

    /// Makes the replicas that are missing now, with sites in the given racks; returns false if none are missing.
    async fn make_replicas(&self, map: &Map, racks: &BTreeMap<u16, String>) -> Result<bool, Abort> {
        let layout = self.layout().await;
        let live = (0..self.sites() as u16).filter(|site| is_live(&map.design, Site(*site)));
        let wanted = Wanted { replicas: self.replicas_min(), alive: live.collect(), racks };
        let operators = missing(&layout, &wanted);
        for operator in &operators {
            match self.execute(operator).await {
                Ok(()) => {}
                // The design was changed meanwhile: the next round plans again.
                Err(Abort::Elsewhere | Abort::Deposed) => break,
                Err(abort) => return Err(abort),
            }
        }
        Ok(!operators.is_empty())
    }

    /// Returns an error if the replica at `site` of the partition that contains `key` must stay, because it would be
    /// made again. A replica at a site that is not in use may be removed.
    ///
    /// # Errors
    /// Returns an error that names the minimum number of replicas.
    pub(crate) fn check_removal(&self, key: &Key, site: Site) -> Result<(), Abort> {
        let (least, map) = (self.replicas_min(), self.map());
        let partition = map.design.of(key);
        let is_needed = partition.replicas.contains(&site) && self.is_used(site);
        if least == 0 || !is_needed || live_replicas(&map, partition) > least {
            return Ok(());
        }
        Err(Abort::Refused(format!(
            "the partition has no more replicas than --replicas-min {least}: add another one first"
        )))
    }

    /// Returns why an operator must not be chosen regardless of its savings, or `None` if it may be: the partition's
    /// master is not running, or too few replicas would be left.
    pub(crate) fn forbids(&self, layout: &Layout<Key>, operator: &Planned<Key>) -> Option<String> {
        if !self.has_live_master(operator.key()) {
            return Some("its master is not running".to_owned());
        }
        let Planned::RemoveReplica(start, site) = operator else { return None };
        let (least, replicas) = (self.replicas_min(), layout.of(start).1.replicas);
        // If the partition's master moves and leaves its copy, the same plan makes another replica.
        let is_one_less = replicas.contains(*site) && replicas.len() <= least;
        is_one_less
            .then(|| format!("the partition would have fewer replicas than --replicas-min {least}"))
    }

    /// Returns why a site cannot be drained if only `others` sites stay in use: the required replicas would not fit.
    /// `None` if they fit.
    pub(crate) fn needs_more_sites(&self, others: usize) -> Option<String> {
        let least = self.replicas_min();
        (least > 0 && others <= least).then(|| {
            format!(
                "--replicas-min {least} needs {} sites in use, and {others} would be left: add a site first, or start \
                 the router with a lower --replicas-min",
                least + 1
            )
        })
    }
}

/// Returns the number of a partition's replicas at live sites.
fn live_replicas(map: &Map, partition: &Partition) -> usize {
    partition.replicas.iter().filter(|site| is_live(&map.design, **site)).count()
}
