//! The work that nodes of Cassandra do in the background, by their own counters: what a measurement waits for.
//!
//! - Tasks on data files (compaction, cleanup, index builds), in a virtual table of each node.
//! - Compilation by the JVM, as the time that its compilers have worked since the node's start. A node whose frequent code is
//!   compiled uses little of it; a node that was just started serves a third of what it will.

use std::time::Instant;

use futures_util::future::try_join_all;
use scylla::client::session::Session;

use super::ClusterFile;
use super::connection::{connect_to, rows};
use super::error::{Error, Result};
use super::nodetool::nodetool;
use crate::cluster::NodeAccess;
use crate::cluster::node::LOOK_BOUND;

/// `nodetool` command that reads the time that the JVM's compilers have worked, in milliseconds.
const COMPILED: &str = "sjk mx -mg -b java.lang:type=Compilation -f TotalCompilationTime";
/// Maximum share of one processor that a node's compilers use when its frequent code is compiled.
const COMPILING_MAX: f64 = 0.1;

/// Reader of the background work of a cluster's nodes.
#[derive(Debug)]
pub struct BackgroundWork {
    file: ClusterFile,
    /// Connection to each node, in the order of the file; `None` before the first reading.
    sessions: Vec<Option<Session>>,
    /// The last reading of the compilers' time of each node, in milliseconds; `None` before it.
    compiled: Option<(Instant, Vec<u64>)>,
}

impl BackgroundWork {
    /// Returns a reader that has not read anything yet.
    #[must_use]
    pub fn new(file: ClusterFile) -> Self {
        let sessions = file.nodes.iter().map(|_| None).collect();
        Self { file, sessions, compiled: None }
    }

    /// Forgets the last reading of the compilers' time: nodes were restarted.
    pub fn forget(&mut self) {
        self.compiled = None;
        self.sessions.iter_mut().for_each(|session| *session = None);
    }

    /// Describes the tasks on data files that some node executes; `None` if there are none.
    ///
    /// # Errors
    /// Fails if a node does not answer.
    #[crate::boxed]
    pub async fn data_tasks(&mut self) -> Result<Option<String>> {
        let (file, sessions) = (&self.file, &mut self.sessions);
        let reads = file.nodes.iter().zip(sessions).map(|(node, session)| async move {
            let own = match session.take() {
                Some(own) => own,
                None => connect_to(node.address, &file.uri).await?,
            };
            let statement = "SELECT kind FROM system_views.sstable_tasks";
            let tasks =
                rows::<(String,)>(&own, "reading tasks on data files", statement, ()).await?;
            *session = Some(own);
            Ok::<_, Error>(
                tasks.into_iter().next().map(|(kind,)| format!("{kind} on {}", node.name)),
            )
        });
        Ok(try_join_all(reads).await?.into_iter().flatten().next())
    }

    /// Describes the compilation by the nodes' JVMs since the last call; `None` if none of them compiles much. The first call
    /// can tell nothing, and says so.
    ///
    /// # Errors
    /// Fails if a node does not answer.
    #[crate::boxed]
    pub async fn compilation(&mut self) -> Result<Option<String>> {
        let read = |node: &NodeAccess| {
            let node = node.clone();
            async move { compiled_ms(&node, &nodetool(&node, COMPILED, LOOK_BOUND).await?) }
        };
        let now = try_join_all(self.file.nodes.iter().map(read)).await?;
        let at = Instant::now();
        let Some((last_at, last)) = self.compiled.replace((at, now.clone())) else {
            return Ok(Some("the compilers' time was read for the first time".into()));
        };
        let seconds = at.duration_since(last_at).as_secs_f64();
        let shares = now
            .iter()
            .zip(&last)
            .map(|(now, last)| now.saturating_sub(*last) as f64 / 1_000.0 / seconds.max(1e-3));
        let most = self.file.nodes.iter().zip(shares).max_by(|a, b| a.1.total_cmp(&b.1));
        Ok(most.filter(|(_, share)| *share > COMPILING_MAX).map(|(node, share)| {
            format!("{} compiles ({:.0} % of a processor)", node.name, 100.0 * share)
        }))
    }
}

/// Parses the time that a node's compilers have worked, in milliseconds.
fn compiled_ms(node: &NodeAccess, text: &str) -> Result<u64> {
    let last = text.split_whitespace().last().unwrap_or_default();
    last.parse().map_err(|_| Error::Command {
        node: node.name.clone(),
        doing: "reading how long it compiled".into(),
        said: format!("\"{}\" is no time", text.trim()),
    })
}
