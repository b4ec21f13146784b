//! Changes of the design by hand: each is asked of the site that makes it, until that knows enough.
//!
//! A site refuses a change by the design that it knows. Whoever was told that a change is made may ask
//! for the next one of a site that has not heard of it yet; that is no reason to refuse it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tokio::sync::oneshot;
use tokio::time::sleep;

use super::{BACK_WAIT, Mail, Outcome, PATIENCE, Shared, Store, StoreError};
use crate::design::Partition;
use crate::key::Key;
use crate::record::{self, Operator, Position, Site};
use crate::router::Step;
use crate::transaction::Abort;

impl Store {
    /// Makes a replica of the partition that a key is in, at a site.
    ///
    /// # Errors
    /// Why there is none; nothing of it happened but where the time was over: then it may still come.
    pub async fn add_replica(&self, key: &Key, at: Site) -> Result<(), Abort> {
        self.by_hand(key, |partition| Step::Adopt(at, partition.range.start.clone())).await
    }

    /// Changes the partition that a key is in.
    ///
    /// # Errors
    /// As [`Store::add_replica`].
    pub async fn change(&self, key: &Key, operator: Operator) -> Result<(), Abort> {
        let step = |partition: &Partition| {
            let (start, operator) = (partition.range.start.clone(), operator.clone());
            Step::Change(partition.master, record::Change { start, operator })
        };
        self.by_hand(key, step).await
    }

    async fn by_hand(&self, key: &Key, step: impl Fn(&Partition) -> Step) -> Result<(), Abort> {
        let until = Instant::now() + PATIENCE;
        let told = self.shared.changed.load(Ordering::Acquire);
        loop {
            let step = step(self.shared.map.load().design.of(key));
            let (known, done) = self.shared.ask(step, until).await;
            let is_behind = match &done {
                Err(Abort::Elsewhere) => true,
                Err(Abort::Refused(_)) => known.is_some_and(|known| known < told),
                _ => false,
            };
            if !is_behind || Instant::now() >= until {
                self.shared.changed.fetch_max(known.unwrap_or(0), Ordering::AcqRel);
                return done;
            }
            sleep(BACK_WAIT).await;
        }
    }
}

impl Shared {
    /// Does one step of a change of design.
    pub(super) async fn step(&self, step: Step) -> Result<(), Abort> {
        self.ask(step, Instant::now() + PATIENCE).await.1
    }

    /// The same until a time, with the prefix of the log that the site had, if one answered.
    async fn ask(&self, step: Step, until: Instant) -> (Option<Position>, Result<(), Abort>) {
        let site = match &step {
            Step::Adopt(site, _) | Step::Change(site, _) => *site,
        };
        let Some(door) = self.doors.get(usize::from(site.0)) else {
            let missing = StoreError::NoSite(site, self.doors.len()).to_string();
            return (None, Err(Abort::Refused(missing)));
        };
        let (answer, outcome) = oneshot::channel();
        _ = door.send(Mail::Step(step, until, answer));
        match outcome.await {
            Ok(Outcome::Answer(known, answer)) => (Some(known), answer.map(|_| ())),
            // Its thread is gone.
            Ok(Outcome::Back(_)) | Err(_) => (None, Err(Abort::Deposed)),
        }
    }
}
