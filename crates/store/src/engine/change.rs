//! Changes of the design: by command, and by the router for a transaction that no site can run.
//!
//! Each change is made by a site whose prefix of the log contains the change before it: after a reply that a
//! replica was added, it can be made the master.

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

/// Between two looks whether the map has what a site told of.
const MAP_WAIT: Duration = Duration::from_millis(1);

impl Store {
    /// Makes a replica of the partition that a key is in, at a site.
    ///
    /// # Errors
    /// Why there is none; nothing of it happened but where the time was over: then it may still come.
    pub async fn add_replica(&self, key: &Key, at: Site) -> Result<(), Abort> {
        self.check_used(at)?;
        let start = self.shared.start_of(key);
        self.shared.step(Step::InstallReplica(at, start)).await
    }

    /// Pins the partition that a key is in to a site, which is made its master if it is not.
    ///
    /// # Errors
    /// As [`Store::add_replica`]; a replica may have been made.
    pub async fn pin(&self, key: &Key, at: Site) -> Result<(), Abort> {
        self.check_used(at)?;
        self.shared.pin(key, at).await
    }

    /// Changes the partition that a key is in.
    ///
    /// # Errors
    /// As [`Store::add_replica`].
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
    fn start_of(&self, key: &Key) -> Key {
        self.map.load().design.of(key).range.start.clone()
    }

    /// Pins a partition, by as many steps as it takes.
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
                // It was changed meanwhile, or is about to be: it is looked at again.
                Err(Abort::Refused(_) | Abort::Elsewhere | Abort::Busy)
                    if Instant::now() < until =>
                {
                    sleep(BACK_WAIT).await;
                }
                Err(abort) => return Err(abort),
            }
        }
    }

    fn check_site(&self, site: Site) -> Result<(), Abort> {
        let count = self.sites;
        let missing = || Abort::Refused(StoreError::NoSite(site, count).to_string());
        if usize::from(site.0) < count { Ok(()) } else { Err(missing()) }
    }

    /// Does one step of a change of design.
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
            // Its thread is gone.
            Ok(Outcome::Back(_)) | Err(_) => Err(Abort::Deposed),
        }
    }

    /// Waits until the map has what a site told of, which its process may do before this one has read the
    /// log as far: after a reply that there are two partitions, a request must not find the one from before.
    async fn await_map(&self, seen: Position) {
        let until = Instant::now() + PATIENCE;
        let Some(followed) = &self.followed else { return };
        while followed.load() < seen && Instant::now() < until {
            sleep(MAP_WAIT).await;
        }
    }

    /// Changes the design until some site can run a transaction, and says which.
    pub(super) async fn bring_about(
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
                    // It was changed meanwhile, or is about to be: it is looked at again.
                    Ok(()) => {}
                    Err(Abort::Refused(_) | Abort::Elsewhere | Abort::Deposed | Abort::Busy) => {
                        sleep(BACK_WAIT).await;
                    }
                    Err(abort) => return Err(abort),
                },
            }
            if Instant::now() >= until {
                return Err(Abort::Late);
            }
        }
    }
}
