//! The design with the sizes of partitions, as input to decisions; and the execution of the operators that decisions
//! choose.

use std::collections::HashMap;

use imago_plan::store::layout::{self, Layout, Partition};
use imago_plan::store::site_set::SiteSet;

use super::Store;
use super::unused::is_live;
use crate::key::{Key, KeyRange};
use crate::record::{Operator, Site};
use crate::router::Route;
use crate::transaction::Abort;

impl Store {
    /// Returns the design with the sizes of its partitions, and the set of sites that are live and in use. A
    /// partition without a live master has size 0.
    pub(crate) async fn layout(&self) -> Layout<Key> {
        let usage = self.usage().await;
        let map = self.map();
        let copies = usage.iter().flat_map(|(_, copies)| copies).filter(|copy| copy.is_master);
        let sizes: HashMap<&Key, _> = copies.map(|copy| (&copy.start, copy.size)).collect();
        let partition = |of: &crate::design::Partition| {
            let size = sizes.get(&of.range.start);
            let partition = Partition {
                master: of.master.0,
                replicas: of.replicas.iter().map(|site| site.0).collect(),
                rows: size.map_or(0, |size| size.rows),
                bytes: size.map_or(0, |size| size.bytes),
                pin: of.pin.map(|site| site.0),
            };
            (of.range.start.clone(), partition)
        };
        let used = self.live_and_used(&map).into_iter().map(|site| site.0);
        let mut sites: SiteSet = used.collect();
        if sites.is_empty() {
            // While no site is live, no transactions are sampled and no decision is made.
            sites.insert(0);
        }
        Layout::new(map.design.partitions().map(partition).collect(), sites)
    }

    /// Returns the site at which a transaction with these reads and writes would run now, or `None` if the design
    /// would have to be changed first or no site may run the transaction.
    #[must_use]
    pub fn site_for(&self, reads: &[KeyRange], writes: &[Key]) -> Option<Site> {
        match self.shared.route(reads, writes, None, false) {
            Route::Run(site) => Some(site),
            Route::First(_) | Route::Never(_) => None,
        }
    }

    /// True if the master of the partition that contains a key is live; otherwise no site can change the partition.
    pub(crate) fn has_live_master(&self, key: &Key) -> bool {
        let map = self.map();
        is_live(&map.design, map.design.of(key).master)
    }

    /// Executes an operator of a plan, and returns after the log has the change.
    pub(crate) async fn execute(&self, operator: &layout::Operator<Key>) -> Result<(), Abort> {
        match operator {
            layout::Operator::Split(key) => self.change(key, Operator::Split(key.clone())).await,
            layout::Operator::Merge(start) => self.change(start, Operator::Merge).await,
            layout::Operator::AddReplica(start, site) => self.add_replica(start, Site(*site)).await,
            layout::Operator::RemoveReplica(start, site) => {
                self.check_removal(start, Site(*site))?;
                self.change(start, Operator::RemoveReplica(Site(*site))).await
            }
            layout::Operator::Remaster(start, site) => {
                self.change(start, Operator::Remaster(Site(*site))).await
            }
        }
    }
}
