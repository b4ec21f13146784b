//! The change of one Cassandra node in a roll. It can be repeated from any state in which a dead process left the
//! node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use imago_job::control::Stop;
use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::run::Run;

use super::super::Uri;
use super::super::connection::connect_to;
use super::super::error::{Error, Result};
use super::super::journal::CassandraJournal;
use super::super::knobs::{Class, HEAP};
use super::super::nodetool::nodetool;
use super::super::ring::{Cluster, chain, settings};
use super::Change;
use super::files::{Contents, Files};
use crate::cluster::NodeAccess;
use crate::cluster::costs::NodeRollTime;
use crate::cluster::error::did_not_start;
use crate::cluster::node::LOOK_BOUND;

/// Age of the journal's last answer after which another process may have taken over the job; well below the silence
/// that a takeover requires.
const JOURNAL_AGE_MAX: Duration = Duration::from_secs(20);
/// Time allowed to journal an action on a node whose change has begun.
const NOTE_BOUND: Duration = Duration::from_secs(3);
/// Maximum number of start attempts if all nodes start at once, and the delay between two.
const START_TRIES: u32 = 6;
const START_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of start attempts with the old file, after a node did not start with the new one.
const BACK_TRIES: u32 = 2;
/// Minimum time allowed for a starting JVM to answer `nodetool`.
const JVM_BOUND: Duration = Duration::from_secs(10);
/// Maximum number of stop attempts.
const STOP_TRIES: u32 = 3;
/// Timeout of a `nodetool` command that closes the port for clients or applies a setting.
const DISABLE_BOUND: Duration = Duration::from_secs(60);
/// Timeout of a node's stop command, and timeout of its start command.
const STOP_BOUND: Duration = Duration::from_secs(180);
const START_BOUND: Duration = Duration::from_secs(300);
/// Time allowed for a started node to accept clients.
const ANSWER_BOUND: Duration = Duration::from_secs(300);
/// Time allowed until all nodes see a changed node up and have sent it the writes that it missed.
const RETURN_BOUND: Duration = Duration::from_secs(1_800);
/// Minimum ratio of the heap size that a JVM reports to the configured one.
const HEAP_LEAST: f64 = 0.85;
/// Delay between two probes of a node's port, and delay between two inspections of the cluster.
const PROBE_EVERY: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The change of one node in a roll; see the module's documentation.
pub(super) struct Step<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) uri: &'a Uri,
    pub(super) changes: &'a [Change],
    /// True if the node is restarted; otherwise its settings are applied live.
    pub(super) restarts: bool,
    /// True if all nodes of the cluster restart at once.
    pub(super) is_at_once: bool,
    pub(super) run: &'a Run,
    pub(super) journal: &'a CassandraJournal,
    /// Index of the node to change, in [`Cluster::members`].
    pub(super) number: usize,
    /// Indices of the other nodes that the roll has stopped meanwhile.
    pub(super) others: BTreeSet<usize>,
}

impl Step<'_> {
    /// Changes the node and returns the durations of the change; None if the node needed no change.
    pub(super) async fn take(&self) -> Result<Option<NodeRollTime>> {
        if self.changes.is_empty() {
            return Ok(None);
        }
        let began = Instant::now();
        if !answers(self.address(), self.uri).await && self.is_starting().await {
            // A stop now would discard the progress of this start.
            self.say("still starts", "it is waited for").await;
            self.takes_clients().await;
        }
        let contents = match self.files().contents().await {
            Ok(contents) => contents,
            Err(error) if answers(self.address(), self.uri).await => return Err(error),
            // A dead process has left the node stopped.
            Err(error) => return Err(self.restore_old_files(&error, began).await),
        };
        let mut away = Duration::ZERO;
        if self.restarts {
            let Some(served_again) = self.restart(&contents).await? else { return Ok(None) };
            away = served_again.duration_since(began);
        } else {
            self.apply(&contents).await?;
        }
        Ok(Some(NodeRollTime {
            away_s: away.as_secs_f64(),
            whole_s: began.elapsed().as_secs_f64(),
        }))
    }

    /// Reads the present values of the settings to change from the node's files, by the setting's name.
    pub(super) async fn before(&self) -> Result<BTreeMap<String, Option<String>>> {
        self.files().values().await
    }

    fn files(&self) -> Files<'_> {
        Files { node: self.access(), changes: self.changes }
    }

    fn name(&self) -> &str {
        &self.access().name
    }

    fn address(&self) -> SocketAddr {
        self.access().address
    }

    fn access(&self) -> &NodeAccess {
        &self.cluster.members[self.number].access
    }

    fn job(&self) -> &JobId {
        &self.run.record().id
    }

    /// Checks that this process still owns the job: a process that was suspended does not notice that another one has
    /// taken the job over.
    async fn check_ownership(&self) -> Result<()> {
        if self.run.ownership().age() <= JOURNAL_AGE_MAX {
            return Ok(());
        }
        match self.journal.load(self.job()).await {
            Ok(record) if record.epoch == self.run.epoch() => Ok(()),
            Ok(_) => Err(Error::Stopped(Stop::TakenOver(format!(
                "job {} has a new owner, which brings {} back",
                self.job(),
                self.name()
            )))),
            // While the journal does not answer, no other process can take the job over either.
            Err(_) => Ok(()),
        }
    }

    /// Journals and reports the next action on the node with its reason, and checks that this process owns the job.
    async fn begin(&self, what: &str, why: &str) -> Result<()> {
        let what = format!("{}: {what}", self.name());
        self.journal.note(self.job(), &what, why).await?;
        self.check_ownership().await?;
        self.run.reporter().decision(what, why);
        Ok(())
    }

    /// Reports an action on the node or its result, and journals it if possible: a node whose change has begun must
    /// return to service even if the nodes that store the journal are down.
    async fn say(&self, what: &str, why: &str) {
        let what = format!("{}: {what}", self.name());
        let noted = tokio::time::timeout(NOTE_BOUND, self.journal.note(self.job(), &what, why));
        if !matches!(noted.await, Ok(Ok(()))) {
            tracing::debug!(what, "an action is not kept");
        }
        self.run.reporter().decision(what, why);
    }

    /// Changes the node's files, and applies the settings in the running node.
    async fn apply(&self, contents: &[Contents<'_>]) -> Result<()> {
        if contents.iter().any(Contents::changes) {
            self.begin("gets its new file", "what is set live is lost by a restart").await?;
            self.files().stage(self.job(), contents).await?;
            self.files().install(self.job(), contents).await?;
        }
        for Change { knob, value } in self.changes {
            let Class::Live { nodetool: command } = knob.class else { continue };
            let value = match (value, knob.default) {
                (Some(value), _) => value.clone(),
                (None, Some(default)) => knob.value(default)?,
                (None, None) => continue,
            };
            let command = command.replace("{}", &value.number);
            let what = format!("{} becomes {value}", knob.name);
            self.begin(&what, "it can be set while the node runs").await?;
            nodetool(self.access(), &command, DISABLE_BOUND).await?;
        }
        Ok(())
    }

    /// Restarts the node with its new files. Returns the time at which the node accepted clients again; None if it
    /// was not restarted because it runs with the new configuration already.
    async fn restart(&self, contents: &[Contents<'_>]) -> Result<Option<Instant>> {
        let is_new = !contents.iter().any(Contents::changes);
        let answers = answers(self.address(), self.uri).await;
        if answers && is_new && self.differences().await?.is_empty() {
            self.say("left as it is", "it runs with this configuration already").await;
            self.has_returned().await?;
            return Ok(None);
        }
        if !is_new {
            self.check_ownership().await?;
            // A full disk is detected while the node still serves.
            self.files().stage(self.job(), contents).await?;
        }
        if answers && let Err(error) = self.leave().await {
            self.files().unstage(self.job(), contents).await;
            return Err(error);
        }
        // A stopped node is started again, unless another process has taken over the job and does that.
        self.stop().await?;
        let stopped = Instant::now();
        let mut installed = Ok(());
        if !is_new {
            self.check_ownership().await?;
            installed = self.files().install(self.job(), contents).await;
        }
        match (installed, self.start().await) {
            (Ok(()), Ok(())) => {}
            (Ok(()), Err(error)) => return Err(self.restore_old_files(&error, stopped).await),
            // The node runs with its present file.
            (Err(error), Ok(())) => {
                self.has_returned().await?;
                return Err(error);
            }
            (Err(error), Err(silent)) => {
                let (why, silent) = (chain(&error), chain(&silent));
                let why = format!("it could not get its new file ({why}), and ends ({silent})");
                let error = Error::failed(why, "see its log");
                return Err(self.restore_old_files(&error, stopped).await);
            }
        }
        let served_again = Instant::now();
        self.has_returned().await?;
        let differences = self.differences().await?;
        if differences.is_empty() {
            return Ok(Some(served_again));
        }
        Err(Error::failed(
            format!(
                "{} runs, but not with what its file says: {}",
                self.name(),
                differences.join("; ")
            ),
            "are `configuration` and `jvm_options` in the cluster file the files that the node reads?",
        ))
    }

    /// Closes the node's port for clients, and flushes its memtables.
    async fn leave(&self) -> Result<()> {
        let why = "clients go to other nodes before it stops";
        self.begin("takes no more clients", why).await?;
        let address = self.address();
        let disabled = nodetool(self.access(), "disablebinary", DISABLE_BOUND).await;
        let gone = disabled.is_ok()
            && within(DISABLE_BOUND, PROBE_EVERY, async || !accepts(address).await).await;
        if !gone {
            // The port is reopened: nothing else has been changed yet.
            let _ = nodetool(self.access(), "enablebinary", DISABLE_BOUND).await;
            let said = match disabled {
                Err(error) => chain(&error),
                Ok(_) => format!("it still takes some after {} s", DISABLE_BOUND.as_secs()),
            };
            let (node, doing) = (self.name().to_owned(), "closing the clients' connections".into());
            return Err(Error::Command { node, doing, said });
        }
        self.say("drains", "what it has in memory only is written, so that it starts quickly")
            .await;
        if let Err(error) = nodetool(self.access(), "drain", self.access().drain_max).await {
            let help = "it is stopped all the same: what was acknowledged is in its commit log";
            self.run.reporter().warning("drain", chain(&error), help);
        }
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        self.check_ownership().await?;
        self.say("stops", "the new configuration needs a restart").await;
        let (access, stop) = (self.access(), format!("{}\n", self.access().stop));
        let mut tries = 0;
        loop {
            tries += 1;
            let Err(error) = access.run("stopping", &stop, STOP_BOUND).await else { return Ok(()) };
            // A node that is already stopped is a success; if no command can be run there, its state is unknown.
            let reached = access.run("looking", "true\n", LOOK_BOUND).await.is_ok();
            let stopped = nodetool(access, "info", LOOK_BOUND).await.is_err();
            if reached && stopped && !accepts(self.address()).await {
                return Ok(());
            }
            if tries >= STOP_TRIES {
                let (name, why) = (self.name(), chain(&error));
                return Err(Error::failed(
                    format!("{name} takes no more clients, and could not be stopped: {why}"),
                    "stop and start it by hand: it has its old configuration; no other node was stopped",
                ));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn start(&self) -> Result<()> {
        let why = "it is to serve again";
        if self.is_at_once {
            // The journal is unavailable: all nodes are down.
            self.run.reporter().decision(format!("{}: starts", self.name()), why);
        } else {
            self.say("starts", why).await;
        }
        let (access, start) = (self.access(), format!("{}\n", self.access().start));
        let mut tries = 1;
        // If all nodes start at once, one may find no peer to join and exit: it is started again when others are up.
        while let Err(error) = access.run("starting", &start, START_BOUND).await {
            if !self.is_at_once || tries >= START_TRIES {
                return Err(error);
            }
            tries += 1;
            tokio::time::sleep(START_EVERY).await;
        }
        if self.takes_clients().await {
            return Ok(());
        }
        Err(Error::Command {
            node: self.name().to_owned(),
            doing: "starting".into(),
            said: format!("it takes no clients after {} s", ANSWER_BOUND.as_secs()),
        })
    }

    /// Waits until the node accepts clients and answers them. Returns false after [`ANSWER_BOUND`].
    async fn takes_clients(&self) -> bool {
        let (address, uri) = (self.address(), self.uri);
        within(ANSWER_BOUND, PROBE_EVERY, async || answers(address, uri).await).await
    }

    /// Returns true if the node's JVM runs but does not accept clients yet, or will within moments (a process may
    /// have started it).
    async fn is_starting(&self) -> bool {
        let member = &self.cluster.members[self.number];
        let limit = self.cluster.waits.limit(member);
        let began = Instant::now();
        loop {
            if let Ok(said) = nodetool(self.access(), "netstats", limit).await {
                let is = |mode: &str| said.lines().any(|line| line.trim() == mode);
                // A dead process may have closed the port for clients: a drained node does not open it again.
                if is("Mode: DRAINED") || is("Mode: DRAINING") {
                    return false;
                }
                if is("Mode: NORMAL") {
                    let opened = nodetool(self.access(), "enablebinary", limit).await;
                    tracing::debug!(is_open = opened.is_ok(), "its port for clients is opened");
                }
                return true;
            }
            if began.elapsed() > JVM_BOUND.max(limit / 2) {
                return false;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Restores the node's old configuration after it did not start for the reason `why`. Returns the error that
    /// reports the outcome, and how long the node has accepted no clients since `away_since`.
    async fn restore_old_files(&self, why: &Error, away_since: Instant) -> Error {
        if let Err(taken_over) = self.check_ownership().await {
            return taken_over;
        }
        let name = self.name();
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
                let stop = format!("{}\n", self.access().stop);
                let _ = self.access().run("stopping", &stop, STOP_BOUND).await;
                let restored = self.files().restore(self.job()).await;
                // The node is started with any file, rather than left down.
                match self.start().await {
                    Ok(()) => {
                        served_again = Some(Instant::now());
                        let restored = restored?;
                        self.has_returned().await?;
                        return Ok::<_, Error>(restored);
                    }
                    Err(error) if tries >= BACK_TRIES => return Err(error),
                    Err(_) => tries += 1,
                }
                tokio::time::sleep(START_EVERY).await;
            }
        };
        let back = back.await;
        let away = served_again.unwrap_or_else(Instant::now).duration_since(away_since);
        let error = did_not_start(name, why, back, away);
        self.say("has its old files back", &error.to_string()).await;
        error
    }

    /// Waits until every node sees the changed one up and has sent it the writes that it missed.
    async fn has_returned(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let obstacles = self.cluster.obstacles(self.uri, &self.others, true).await;
            if obstacles.is_empty() {
                let waited = began.elapsed().as_secs();
                let why = format!("all nodes see it up, and it has what it missed ({waited} s)");
                self.say("is back", &why).await;
                return Ok(());
            }
            if began.elapsed() > RETURN_BOUND {
                let within = RETURN_BOUND.as_secs();
                return Err(Error::failed(
                    format!("{} is not fully back within {within} s: {obstacles}", self.name(),),
                    "no other node was stopped; mend that, and begin another roll",
                ));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Describes the settings whose value in the running node differs from the requested one.
    async fn differences(&self) -> Result<Vec<String>> {
        let running = settings(self.access(), self.uri).await?;
        let different = |change: &Change| {
            let name = change.knob.name;
            let value = change.value.as_ref().map(ToString::to_string);
            let value = value.or_else(|| change.knob.default.map(str::to_owned))?;
            let runs = running.get(name)?;
            (*runs != value).then(|| format!("{name} is {runs}, not {value}"))
        };
        let restart = self.changes.iter().filter(|change| change.knob.class == Class::Restart);
        let mut found: Vec<String> = restart.filter_map(different).collect();
        let heap = self.changes.iter().find(|change| change.knob.name == HEAP);
        if let Some(asked) = heap.and_then(|change| change.value.as_ref()) {
            let info = nodetool(self.access(), "info", LOOK_BOUND).await?;
            found.extend(other_heap(&info, &asked.number));
        }
        Ok(found)
    }
}

/// Describes the heap size in the output of `nodetool info` if it is not the requested one (in MiB); None if it is.
/// The size that a JVM reports may be a little smaller: some collectors do not count the part that they keep free.
fn other_heap(info: &str, asked_mib: &str) -> Option<String> {
    let line = info.lines().find_map(|line| line.strip_prefix("Heap Memory (MB)"))?;
    let runs: f64 = line.rsplit('/').next()?.trim().replace(',', "").parse().ok()?;
    let asked: f64 = asked_mib.parse().ok()?;
    let is_that = (HEAP_LEAST * asked..=asked + 1.0).contains(&runs);
    (!is_that).then(|| format!("{HEAP} is {runs:.0}MiB, not {asked_mib}MiB"))
}

/// Returns true if the node accepts clients and answers them.
async fn answers(node: SocketAddr, uri: &Uri) -> bool {
    accepts(node).await && connect_to(node, uri).await.is_ok()
}

/// Returns true if the node's port for clients is open.
async fn accepts(node: SocketAddr) -> bool {
    let connecting = tokio::net::TcpStream::connect(node);
    matches!(tokio::time::timeout(Duration::from_secs(3), connecting).await, Ok(Ok(_)))
}

/// Checks the condition `holds` every so often, and returns true once it does; returns false if it does not within
/// `bound`.
async fn within(bound: Duration, every: Duration, mut holds: impl AsyncFnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if holds().await {
            return true;
        }
        if began.elapsed() > bound {
            return false;
        }
        tokio::time::sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_is_told_from_another_one_though_a_jvm_counts_a_part_of_it() {
        // As Cassandra 5.0 tells it; the first JVM has the serial collector, the second one G1.
        let info = |heap: &str| {
            format!(
                "ID                     : 1d38a840\nHeap Memory (MB)       : {heap}\nOff Heap Memory (MB)   : 0.00\n"
            )
        };
        assert_eq!(other_heap(&info("117.51 / 247.50"), "256"), None);
        assert_eq!(other_heap(&info("3215.77 / 8192.00"), "8192"), None);
        let said = other_heap(&info("117.51 / 247.50"), "512");
        assert_eq!(said.as_deref(), Some("max_heap_size is 248MiB, not 512MiB"));
        assert!(other_heap(&info("117.51 / 494.94"), "256").is_some());
        assert_eq!(other_heap("", "256"), None, "it is not told");
    }
}
