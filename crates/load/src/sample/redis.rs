//! The records of a Redis server or cluster whose configurations are measured.
//!
//! A key keeps its encoding until it is written again, and a hash table never becomes compact by itself, so that a
//! changed threshold alone would have no effect. Invariant: after a roll, all records were written under the
//! configuration that is measured. They are deleted before the roll, because `maxmemory` may be less than their size
//! under the previous configuration.

use std::path::PathBuf;
use std::time::Duration;

use imago_job::reporter::Events;
use imago_tune::cluster::{Error, Result};
use imago_tune::configurations::{self, Configuration};
use imago_tune::redis::connection::{Node, line};
use imago_tune::redis::replication::Replication;
use imago_tune::redis::roll::{Roller, Spec};
use imago_tune::redis::{ClusterFile, background, knobs};
use imago_workload::history::IdForm;

use super::{Caller, Request, ResourceUsage, Sampled};
use crate::Schema;
use crate::redis::{Durability, RedisTarget, delete_records, preload, require_own_records};

/// Timeout of a request for a node's memory and CPU use.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// The Redis records under whose load the configurations are measured.
#[derive(Clone, Debug)]
pub struct Records {
    file: ClusterFile,
    /// Path of the cluster file. Rolls of configurations are stored next to it.
    path: PathBuf,
    /// Names of the database and the collection, the first parts of all Redis keys.
    namespace: (String, String),
    /// Index of the configuration under which all records were written; `None` if it is not known.
    written: Option<usize>,
}

impl Records {
    /// Returns the records under the keys `DB:COLL:…` of a server or cluster, with `namespace` as DB and COLL. `path`
    /// is the path of the cluster file.
    #[must_use]
    pub fn new(file: ClusterFile, path: PathBuf, namespace: (String, String)) -> Self {
        Self { file, path, namespace, written: None }
    }

    /// Returns the roller that changes the nodes to the configuration at the index `number`; `None` if no node
    /// differs from that configuration.
    async fn roller(&self, request: &Request, number: usize) -> Result<Option<Roller>> {
        let changes = configurations::settings(&request.configurations, number);
        if changes.is_empty() {
            return Ok(None);
        }
        // The cluster is one for tests, so a master without a replica may be down for a moment.
        let spec = Spec { changes, tolerate: 0, unserved: true, is_of_controller: false };
        let roller = Roller::new(self.file.clone(), spec)?;
        let preview = roller.preview().await?;
        let differs = preview.nodes.iter().any(|node| !node.changes.is_empty());
        Ok(differs.then_some(roller))
    }
}

impl Sampled for Records {
    type Target = RedisTarget;
    const REPORTS_USAGE: bool = true;

    async fn prepare(&self, request: &Request, _: &Caller<'_>) -> Result<()> {
        require_own_records(&self.target(request).await?).await
    }

    async fn roll(&mut self, request: &Request, number: usize, caller: &Caller<'_>) -> Result<()> {
        // Records that a load has inserted are not among the records to measure, so all are written again.
        let inserts = request.mixes.iter().any(|mix| mix.insert > 0.0);
        if self.written == Some(number) && !inserts && self.roller(request, number).await?.is_none()
        {
            return Ok(());
        }
        self.written = None;
        delete_records(&self.target(request).await?).await?;
        self.switch(request, number, caller).await?;
        (caller.say)(format!(
            "writing all {} records anew: a key keeps the encoding that it was written with",
            request.documents
        ));
        preload(&self.target(request).await?, request.documents, |_| {}).await?;
        self.written = Some(number);
        Ok(())
    }

    fn can_take_turns(from: &Configuration, to: &Configuration) -> Result<bool> {
        knobs::can_take_turns(from, to)
    }

    async fn switch(
        &mut self,
        request: &Request,
        number: usize,
        caller: &Caller<'_>,
    ) -> Result<()> {
        let Some(roller) = self.roller(request, number).await? else { return Ok(()) };
        let (events, cancel) = (Events::default(), caller.cancel.clone());
        Box::pin(roller.begin(&self.path, caller.process, &events, cancel)).await.map(drop)
    }

    async fn target(&self, request: &Request) -> Result<RedisTarget> {
        let schema = Schema { id_form: IdForm::Text, reviews: request.reviews() };
        let durability = Durability { replicas: 0, wait: Duration::ZERO };
        let namespace = (&*self.namespace.0, &*self.namespace.1);
        RedisTarget::connect(&self.file.uri, namespace, durability, schema).await
    }

    /// Returns the sums of `used_memory`, and of `used_cpu_user` and `used_cpu_sys`, over all masters.
    async fn used(&self) -> Result<Option<ResourceUsage>> {
        let mut all = ResourceUsage { memory_bytes: 0, cpu_s: 0.0 };
        for node in &self.file.nodes {
            let at = Node::connect(&node.address.to_string(), &self.file.uri, ANSWER_WAIT).await?;
            let info: String = at.ask(&["INFO"]).await?;
            if let Some(Replication::Master { .. }) = Replication::parse(&info) {
                let ResourceUsage { memory_bytes, cpu_s } =
                    parse_usage(&info).ok_or_else(|| Error::Failed {
                        what: format!("{} does not say what it uses", node.name),
                        help: "is it a server of Redis 7?".into(),
                    })?;
                all = ResourceUsage {
                    memory_bytes: all.memory_bytes + memory_bytes,
                    cpu_s: all.cpu_s + cpu_s,
                };
            }
        }
        Ok(Some(all))
    }

    async fn background(&mut self, _: bool) -> Result<Option<String>> {
        background::work(&self.file).await
    }
}

/// Returns the memory and CPU use of a server from its reply to INFO; `None` if a field is missing.
fn parse_usage(info: &str) -> Option<ResourceUsage> {
    let seconds = |key: &str| line(info, key)?.parse::<f64>().ok();
    Some(ResourceUsage {
        memory_bytes: line(info, "used_memory")?.parse().ok()?,
        cpu_s: seconds("used_cpu_user")? + seconds("used_cpu_sys")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_processor_time_are_read_from_what_a_server_says() {
        let info = "# Memory\r\nused_memory:23881816\r\nused_memory_rss:31268864\r\n# CPU\r\nused_cpu_sys:1.500000\r\n\
                    used_cpu_user:2.250000\r\nused_cpu_sys_children:9.0\r\n";
        assert_eq!(
            parse_usage(info),
            Some(ResourceUsage { memory_bytes: 23_881_816, cpu_s: 3.75 })
        );
        assert_eq!(parse_usage(&info.replace("used_cpu_user", "cpu")), None);
    }
}
