//! Changes of the design: by command, and by the router for a transaction that no site can run.
//!
//! Each change is made by a site whose prefix of the log contains the change before it. For example, once the reply
//! says that a replica was added, the replica can be made the master.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::site::mailbox::{Outcome, ReplyTo, SiteEvent, StepRequest};
use super::{BACK_WAIT, PATIENCE, Shared, Store, StoreError};
use crate::key::{Key, KeyRange};
use crate::record::{Change, Operator, Position, Site};
use crate::router::{Route, Step};
use crate::sync::atomic::Ordering;
use crate::sync::sleep;
use crate::transaction::Abort;

/// Interval at which the map is checked for a position that a remote site has reported.
const MAP_WAIT: Duration = Duration::from_millis(1);

impl Store {
    /// Makes a replica of the partition that contains `key` at the site `at`.
    ///
    /// # Errors
    /// Returns why there is no replica. After [`Abort::Late`], [`Abort::Unlogged`] or [`Abort::Deposed`] it may still
    /// be made; after other errors nothing has changed.
    pub async fn add_replica(&self, key: &Key, at: Site) -> Result<(), Abort> {
        self.check_used(at)?;
        let start = self.shared.start_of(key);
        self.shared.step(Step::InstallReplica(at, start)).await
    }

    /// Pins the partition that contains `key` to the site `at`, and makes that site its master.
    ///
    /// # Errors
    /// Returns the errors of [`Store::add_replica`]; a replica may have been made.
    pub async fn pin(&self, key: &Key, at: Site) -> Result<(), Abort> {
        self.check_used(at)?;
        self.shared.pin(key, at).await
    }

    /// Executes a design change of the partition that contains `key`.
    ///
    /// # Errors
    /// Returns the errors of [`Store::add_replica`].
    pub async fn change(&self, key: &Key, operator: Operator) -> Result<(), Abort> {
        if let Operator::Remaster(to) | Operator::Pin(to) = &operator {
            self.check_used(*to)?;
        }
        let (master, start) = {
            let map = self.shared.map.load();
            let partition = map.design.of(key);
            (partition.master, partition.range.start.clone())
        };
        self.shared.step(Step::Change(master, Change { start, operator })).await
    }
}

impl Shared {
    /// Returns the first key of the partition that contains `key`.
    fn start_of(&self, key: &Key) -> Key {
        self.map.load().design.of(key).range.start.clone()
    }

    /// Pins the partition that contains `key` to the site `at` in as many steps as needed: it adds a replica there
    /// first if there is none.
    pub(super) async fn pin(&self, key: &Key, at: Site) -> Result<(), Abort> {
        self.check_site(at)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let step = {
                let map = self.map.load();
                let partition = map.design.of(key);
                let start = partition.range.start.clone();
                if partition.master == at && partition.pin == Some(at) {
                    return Ok(());
                }
                if partition.is_at(at) {
                    let operator = Operator::Pin(at);
                    Step::Change(partition.master, Change { start, operator })
                } else {
                    Step::InstallReplica(at, start)
                }
            };
            match self.step(step).await {
                Ok(()) => {}
                // The partition was changed meanwhile, or is being changed: the next round reads the map again.
                Err(Abort::Refused(_) | Abort::Elsewhere | Abort::Busy)
                    if Instant::now() < until =>
                {
                    sleep(BACK_WAIT).await;
                }
                Err(abort) => return Err(abort),
            }
        }
    }

    /// Returns an error unless the store has a site with this number.
    fn check_site(&self, site: Site) -> Result<(), Abort> {
        let count = self.sites;
        let missing = || Abort::Refused(StoreError::NoSite(site, count).to_string());
        if usize::from(site.0) < count { Ok(()) } else { Err(missing()) }
    }

    /// Executes one step of a change of the design at the step's site, and waits for its outcome.
    async fn step(&self, step: Step) -> Result<(), Abort> {
        let site = match &step {
            Step::InstallReplica(site, _) | Step::Change(site, _) => *site,
        };
        self.check_site(site)?;
        let (answer, outcome) = oneshot::channel();
        let (session, until) = (self.stepped.load(), Instant::now() + PATIENCE);
        let answer = ReplyTo::Channel(answer);
        self.sender(site).send(SiteEvent::Step(StepRequest { step, session, until, answer }));
        match outcome.await {
            Ok(Outcome::Answer(seen, answer)) => {
                self.stepped.advance_to(seen);
                self.await_map(seen).await;
                answer.map(|_| ())
            }
            // The site's thread has ended.
            Ok(Outcome::Rerouted(_)) | Err(_) => Err(Abort::Deposed),
        }
    }

    /// Waits until the map contains the prefix of the log up to `seen`. A remote site may reply before this process
    /// has read the log that far: after the reply that a partition was split, a request must not find the partition
    /// from before the split.
    async fn await_map(&self, seen: Position) {
        let until = Instant::now() + PATIENCE;
        let Some(followed) = &self.followed else { return };
        while followed.load() < seen && Instant::now() < until {
            sleep(MAP_WAIT).await;
        }
    }

    /// Changes the design until some site can run a transaction with these reads and writes, and returns that site.
    /// The error after the time `until` names an absent site if the transaction needs one.
    pub(super) async fn change_design_for(
        &self,
        reads: &[KeyRange],
        writes: &[Key],
        until: Instant,
    ) -> Result<Site, Abort> {
        self.brought.fetch_add(1, Ordering::Relaxed);
        loop {
            match self.route(reads, writes, None, false) {
                Route::Run(site) => return Ok(site),
                Route::Never(abort) => return Err(abort),
                Route::First(step) => match self.step(step).await {
                    // The partition was changed meanwhile, or is being changed: the next round reads the map again.
                    Ok(()) => {}
                    Err(Abort::Refused(_) | Abort::Elsewhere | Abort::Deposed | Abort::Busy) => {
                        sleep(BACK_WAIT).await;
                    }
                    Err(abort) => return Err(abort),
                },
            }
            if Instant::now() >= until {
                return Err(self.late(reads, writes));
            }
        }
    }
}
