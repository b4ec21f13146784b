//! Fault injection into a cluster (kill, stop, restart, step down), and waiting for the consequences.

use std::time::{Duration, Instant};

use bson::doc;

use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::process::Liveness;
use crate::replica_set::ReplicaSet;
use crate::router_process::RouterProcess;
use crate::server::Server;
use crate::times;

/// Time for which a primary that stepped down cannot be elected again, in seconds.
const STEP_DOWN_S: i32 = 5;

impl Cluster {
    /// Kills the node named `node` at once (SIGKILL). Its port and data remain reserved for it.
    pub fn kill(&self, node: &str) -> Result<()> {
        self.record_fault(node);
        match self.router_named(node) {
            Some(router) => router.kill(),
            None => self.server(node)?.kill(),
        }
    }

    /// Asks the node named `node` to end (SIGTERM), and waits until its process has ended. Its port and data remain
    /// reserved for it.
    #[crate::boxed]
    pub async fn terminate(&self, node: &str) -> Result<()> {
        self.record_fault(node);
        self.server(node)?.terminate().await
    }

    /// Suspends the node named `node` (SIGSTOP): its connections stay open and silent.
    pub fn stop(&self, node: &str) -> Result<()> {
        self.record_fault(node);
        self.server(node)?.stop()
    }

    /// Resumes the suspended node named `node` (SIGCONT).
    pub fn resume(&self, node: &str) -> Result<()> {
        self.server(node)?.resume()
    }

    /// Starts the killed node named `node` again on the same port and data, and waits until its replica set has a
    /// primary that every running member follows.
    #[crate::boxed]
    pub async fn restart(&self, node: &str) -> Result<()> {
        if let Some(router) = self.router_named(node) {
            return router.restart().await;
        }
        let began = Instant::now();
        self.server(node)?.restart().await?;
        times::note("restart", node, began);
        if let Some(set) = self.set_of(node) {
            set.wait_settled().await?;
        }
        times::note("settle", node, began);
        Ok(())
    }

    /// Resumes suspended nodes, starts killed ones again, and waits until every member of every replica set has all
    /// writes.
    pub(crate) async fn heal(&self) -> Result<()> {
        let is_gone = |router: &&RouterProcess| router.info().process.is_none();
        if let Some(router) = self.router().filter(is_gone) {
            router.restart().await?;
        }
        for set in self.sets() {
            for server in &set.members {
                match server.liveness() {
                    Liveness::Running => {}
                    Liveness::Stopped => server.resume()?,
                    Liveness::Gone => server.restart().await?,
                }
            }
            let primary = set.wait_settled().await?;
            set.confirm_write(primary, self.admin().credentials).await?;
        }
        Ok(())
    }

    /// Puts the CPU limits of all replica set members in force if `is_enforced`, else suspends them, for example to
    /// load data faster.
    pub fn enforce_cpu_limits(&self, is_enforced: bool) -> Result<()> {
        let members = self.sets().iter().flat_map(|set| &set.members);
        members.into_iter().try_for_each(|server| server.enforce_cpu_limit(is_enforced))
    }

    /// Makes the primary of the replica set named `set` step down, waits for the next primary, and returns its name.
    /// A replica set of one member elects the same member again.
    #[crate::boxed]
    pub async fn step_down(&self, set: &str) -> Result<String> {
        self.record_fault(set);
        let set = self.set(set)?;
        let old = set.wait_primary(|_| true).await?;
        let away_s = if set.members.len() == 1 { 1 } else { STEP_DOWN_S };
        let command =
            doc! { "replSetStepDown": away_s, "secondaryCatchUpPeriodSecs": 0, "force": true };
        self.admin().run(old, command, Duration::from_secs(30)).await?;
        let alone = set.members.len() == 1;
        let new = set.wait_primary(|server| alone || server.name() != old.name()).await?;
        Ok(new.name().to_owned())
    }

    /// Waits until the replica set named `set` has a primary, and returns the primary's name.
    #[crate::boxed]
    pub async fn primary(&self, set: &str) -> Result<String> {
        Ok(self.set(set)?.wait_primary(|_| true).await?.name().to_owned())
    }

    /// Waits until the replica set named `set` has a primary other than the node named `old`, and returns its name.
    #[crate::boxed]
    pub async fn primary_other_than(&self, set: &str, old: &str) -> Result<String> {
        let set = self.set(set)?;
        Ok(set.wait_primary(|server| server.name() != old).await?.name().to_owned())
    }

    /// Waits until the replica set named `set` has a primary and every running member follows it.
    #[crate::boxed]
    pub async fn settled(&self, set: &str) -> Result<()> {
        self.set(set)?.wait_settled().await.map(|_| ())
    }

    /// Returns the name of the replica set that `node` belongs to; `node` may also be the name of a replica set.
    pub fn set_name_of(&self, node: &str) -> Result<String> {
        if let Some(set) = self.set_names().find(|set| *set == node) {
            return Ok(set.to_owned());
        }
        match self.set_of(node) {
            Some(set) => Ok(set.name.clone()),
            None => Err(self.unknown("node", node, self.nodes().iter().map(|node| &*node.name))),
        }
    }

    fn unknown<'a>(
        &self,
        what: &'static str,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Error {
        Error::Unknown {
            cluster: self.name().to_owned(),
            what,
            name: name.to_owned(),
            known: known.collect::<Vec<_>>().join(", "),
        }
    }

    fn router_named(&self, node: &str) -> Option<&RouterProcess> {
        self.router().filter(|router| router.name() == node)
    }

    fn server(&self, node: &str) -> Result<&Server> {
        if let Some(router) = self.router_named(node) {
            return router.server();
        }
        let mut servers = self.sets().iter().flat_map(|set| &set.members);
        servers
            .find(|server| server.name() == node)
            .ok_or_else(|| self.unknown("node", node, self.nodes().iter().map(|node| &*node.name)))
    }

    fn set(&self, name: &str) -> Result<&ReplicaSet> {
        self.sets()
            .iter()
            .find(|set| set.name == name)
            .ok_or_else(|| self.unknown("replica set", name, self.set_names()))
    }

    fn set_of(&self, node: &str) -> Option<&ReplicaSet> {
        let has = |set: &&ReplicaSet| set.members.iter().any(|server| server.name() == node);
        self.sets().iter().find(has)
    }
}
