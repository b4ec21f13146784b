//! The restart of one Redis node with a new file. It can be repeated from any state in which a dead process left the
//! node.

use std::time::{Duration, Instant};

use imago_job::id::JobId;

use super::super::connection::{Node, line};
use super::super::knobs::Class;
use super::NodeRollTime;
use super::persist::Planned;
use super::work::Work;
use crate::cluster::error::{chain, did_not_start};
use crate::cluster::node::LOOK_BOUND;
use crate::cluster::{Error, NodeAccess, Result};

/// Timeout of a node's stop command, and timeout of its start command.
const STOP_BOUND: Duration = Duration::from_secs(120);
const START_BOUND: Duration = Duration::from_secs(120);
/// Time allowed for a started node to load its data.
const ANSWER_BOUND: Duration = Duration::from_secs(300);
/// Timeout of a node's reply while the node starts.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// Maximum number of stop attempts.
const STOP_TRIES: u32 = 3;
/// Maximum number of start attempts with the old file, after a node did not start with the new one.
const BACK_TRIES: u32 = 2;
/// Delay between two probes of a node.
const PROBE_EVERY: Duration = Duration::from_millis(100);

impl Work<'_> {
    /// Restarts the node of index `number` with its new file, and waits until the node has all data of its master.
    pub(super) async fn restart(&mut self, number: usize) -> Result<()> {
        let began = Instant::now();
        let roller = self.roller;
        let node = &roller.file.nodes[number];
        let process = match accepts(node).await {
            // A node that loads its data answers no other command.
            true if within(ANSWER_BOUND, async || self.has_loaded(node).await).await => {
                Some(roller.process(number).await?)
            }
            _ => None,
        };
        let changes: Vec<_> = roller.of_class(Class::Restart).collect();
        let Planned { old, new } = match roller.planned(number, process.as_ref(), &changes).await {
            Ok(planned) => planned,
            Err(error) if process.is_some() => return Err(error),
            // A dead process has left the node stopped.
            Err(error) => return Err(self.restore_old_file(node, &error, began).await),
        };
        if new == old && process.is_some() {
            // Another process may have started the node with the new file.
            let snapshot = roller.snapshot().await;
            if snapshot.facts[number].is_ok()
                && roller.differences(&snapshot, number, Class::Restart).is_empty()
            {
                self.say(&node.name, "is left as it is", "it runs with this configuration already");
                self.settled(false).await?;
                self.checkpoint.under_way = None;
                return self.save().await;
            }
        }
        if new != old {
            // A full disk is detected while the node still serves.
            node.stage_file(&node.configuration, self.job(), &new).await?;
        }
        self.checkpoint.under_way = Some(node.name.clone());
        self.say(&node.name, "stops", "its new configuration needs a restart");
        self.save().await?;
        self.stop(node).await?;
        let stopped = Instant::now();
        let installed = match new == old {
            true => Ok(()),
            false => node.install_file(&node.configuration, self.job(), &old).await,
        };
        self.say(&node.name, "starts", "it is to serve again");
        match (installed, self.start(node).await) {
            (Ok(()), Ok(())) => {}
            (Ok(()), Err(error)) => return Err(self.restore_old_file(node, &error, stopped).await),
            (Err(error), Err(silent)) => {
                let why = format!(
                    "it could not get its new file ({}), and does not start ({})",
                    chain(&error),
                    chain(&silent)
                );
                let why = Error::failed(why, "look at its log");
                return Err(self.restore_old_file(node, &why, stopped).await);
            }
            (Err(error), Ok(())) => {
                // The node runs with its present file.
                return Err(Error::failed(
                    format!("{} could not get its new file ({})", node.name, chain(&error)),
                    "no other node was stopped: mend that, and begin another roll",
                ));
            }
        }
        let away_s = stopped.elapsed().as_secs_f64();
        let (snapshot, _) = self.settled(false).await?;
        let differences = self.roller.differences(&snapshot, number, Class::Restart);
        if let Some(difference) = differences.first() {
            let runs = difference.from.as_deref().unwrap_or("its default");
            return Err(Error::failed(
                format!(
                    "{} runs with {} {runs}, not with what its file says",
                    node.name, difference.setting
                ),
                "is `configuration` in the cluster file the file that the node reads, without another one behind it?",
            ));
        }
        let whole_s = began.elapsed().as_secs_f64();
        self.say(&node.name, "is back", "all nodes see it, and it has what its master has");
        self.checkpoint.under_way = None;
        self.checkpoint.took.insert(node.name.clone(), NodeRollTime { away_s, whole_s });
        self.save().await
    }

    fn job(&self) -> &JobId {
        &self.run.record().id
    }

    async fn stop(&self, node: &NodeAccess) -> Result<()> {
        let stop = format!("{}\n", node.stop);
        let mut tries = 0;
        loop {
            tries += 1;
            if !accepts(node).await {
                // A node that is already stopped is a success; if no command can be run there, its state is unknown.
                return node.run("looking", "true\n", LOOK_BOUND).await.map(drop);
            }
            let Err(error) = node.run("stopping", &stop, STOP_BOUND).await else {
                return match within(STOP_BOUND, async || !accepts(node).await).await {
                    true => Ok(()),
                    false => Err(Error::failed(
                        format!("{} still takes clients after its stop command", node.name),
                        "does `stop` in the cluster file end this node?",
                    )),
                };
            };
            if tries >= STOP_TRIES {
                return Err(Error::failed(
                    format!("{} could not be stopped: {}", node.name, chain(&error)),
                    "it serves with its old configuration; no other node was stopped",
                ));
            }
            tokio::time::sleep(PROBE_EVERY).await;
        }
    }

    async fn start(&self, node: &NodeAccess) -> Result<()> {
        if !accepts(node).await {
            node.run("starting", &format!("{}\n", node.start), START_BOUND).await?;
        }
        if within(ANSWER_BOUND, async || self.has_loaded(node).await).await {
            return Ok(());
        }
        Err(Error::Command {
            node: node.name.clone(),
            doing: "starting".into(),
            said: format!("it does not answer after {} s", ANSWER_BOUND.as_secs()),
        })
    }

    /// Returns true if the node answers and has loaded its data.
    async fn has_loaded(&self, node: &NodeAccess) -> bool {
        let uri = &self.roller.file.uri;
        let Ok(at) = Node::connect(&node.address.to_string(), uri, ANSWER_WAIT).await else {
            return false;
        };
        let told = at.try_ask::<String>(&["INFO", "persistence"]).await;
        told.is_ok_and(|told| line(&told, "loading") == Some("0"))
    }

    /// Restores a node's old file after the node did not start for the reason `why`. Returns the error that reports
    /// the outcome, and how long the node has accepted no clients since `away_since`.
    async fn restore_old_file(
        &mut self,
        node: &NodeAccess,
        why: &Error,
        away_since: Instant,
    ) -> Error {
        let name = &node.name;
        self.run.reporter().warning(
            "does_not_start",
            format!("{name} does not start with the new configuration: {}", chain(why)),
            "it gets the old one back",
        );
        let mut served_again = None;
        let back = async {
            let mut tries = 1;
            loop {
                // The node may be partly up.
                if accepts(node).await {
                    let _ = node.run("stopping", &format!("{}\n", node.stop), STOP_BOUND).await;
                }
                let restored = node.restore_file(&node.configuration, self.job()).await;
                // The node is started with any file, rather than left down.
                match self.start(node).await {
                    Ok(()) => {
                        served_again = Some(Instant::now());
                        let restored = restored?;
                        self.settled(false).await?;
                        return Ok::<_, Error>(restored);
                    }
                    Err(error) if tries >= BACK_TRIES => return Err(error),
                    Err(_) => tries += 1,
                }
            }
        };
        let back = back.await;
        let away = served_again.unwrap_or_else(Instant::now).duration_since(away_since);
        let error = did_not_start(name, why, back, away);
        self.say(name, "has its old file back", &error.to_string());
        self.checkpoint.under_way = None;
        if let Err(unsaved) = self.save().await {
            tracing::debug!(%unsaved, "the job's state is not kept");
        }
        error
    }
}

/// Returns true if the node's port for clients is open.
async fn accepts(node: &NodeAccess) -> bool {
    let connecting = tokio::net::TcpStream::connect(node.address);
    matches!(tokio::time::timeout(Duration::from_secs(3), connecting).await, Ok(Ok(_)))
}

/// Checks the condition `holds` every so often, and returns true once it does; returns false if it does not within
/// `bound`.
pub(super) async fn within(bound: Duration, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let began = Instant::now();
    while !holds().await {
        if began.elapsed() > bound {
            return false;
        }
        tokio::time::sleep(PROBE_EVERY).await;
    }
    true
}
