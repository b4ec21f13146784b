//! One node's part of a roll. It may be taken again from any state in which a dead process left the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use imago_job::reporter::Reporter;

use super::super::connection::connect_to;
use super::super::error::{Error, Result};
use super::super::knobs::Class;
use super::super::ring::{Cluster, chain, settings};
use super::super::settings_file;
use super::super::uri::Uri;
use super::Change;

/// For a command by which a node takes no more clients.
const DISABLE_BOUND: Duration = Duration::from_secs(60);
/// For a node to write down what it has in memory only.
const DRAIN_BOUND: Duration = Duration::from_secs(180);
/// For the commands that end and start a node.
const STOP_BOUND: Duration = Duration::from_secs(180);
const START_BOUND: Duration = Duration::from_secs(300);
/// For a node that was started to take clients.
const ANSWER_BOUND: Duration = Duration::from_secs(300);
/// For all nodes to see it up, and to have sent it what it missed.
const RETURN_BOUND: Duration = Duration::from_secs(1_800);
/// Intervals between two looks.
const PROBE_EVERY: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// See the module's documentation.
pub(super) struct Step<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) uri: &'a Uri,
    pub(super) changes: &'a [Change],
    pub(super) restarts: bool,
    pub(super) reporter: &'a Reporter,
    pub(super) number: usize,
    /// The other nodes that are stopped meanwhile.
    pub(super) others: BTreeSet<usize>,
}

/// A node with its new configuration.
pub(super) struct Taken {
    /// The values that its file had.
    pub(super) before: BTreeMap<String, Option<String>>,
    /// How long it was not fully there.
    pub(super) elapsed: Duration,
}

/// The content of a node's configuration, and what it is to be.
struct Contents {
    old: String,
    new: String,
}

impl Step<'_> {
    pub(super) async fn take(&self) -> Result<Taken> {
        let began = Instant::now();
        let contents = self.contents().await?;
        let before = self.before(&contents.old)?;
        if self.restarts {
            self.restart(&contents).await?;
        } else {
            self.apply(&contents).await?;
        }
        Ok(Taken { before, elapsed: began.elapsed() })
    }

    fn name(&self) -> &str {
        &self.cluster.members[self.number].access.name
    }

    fn address(&self) -> SocketAddr {
        self.cluster.members[self.number].access.address
    }

    fn access(&self) -> &super::super::cluster_file::NodeAccess {
        &self.cluster.members[self.number].access
    }

    fn say(&self, what: &str, why: &str) {
        self.reporter.decision(format!("{}: {what}", self.name()), why);
    }

    async fn contents(&self) -> Result<Contents> {
        let old = self.access().read_configuration().await?;
        let mut new = old.clone();
        for Change { knob, value } in self.changes {
            let value = value.as_ref().map(ToString::to_string);
            if settings_file::read(&new, knob.name)? != value {
                new = settings_file::write(&new, knob.name, value.as_deref())?;
            }
        }
        Ok(Contents { old, new })
    }

    fn before(&self, old: &str) -> Result<BTreeMap<String, Option<String>>> {
        let value = |change: &Change| {
            let name = change.knob.name;
            settings_file::read(old, name).map(|value| (name.to_owned(), value))
        };
        self.changes.iter().map(value).collect()
    }

    /// Changes the file, and applies live what it says.
    async fn apply(&self, contents: &Contents) -> Result<()> {
        if contents.new != contents.old {
            self.access().stage_configuration(&contents.new).await?;
            self.access().install_configuration(&contents.old).await?;
        }
        for Change { knob, value } in self.changes {
            let Class::Live { nodetool } = knob.class else { continue };
            let value = match (value, knob.default) {
                (Some(value), _) => value.clone(),
                (None, Some(default)) => knob.value(default)?,
                (None, None) => continue,
            };
            let command = nodetool.replace("{}", &value.number);
            self.access().nodetool(&command, DISABLE_BOUND).await?;
            self.say(&format!("{} is {value}", knob.name), "it can be set while the node runs");
        }
        Ok(())
    }

    /// Restarts the node with the new file.
    async fn restart(&self, contents: &Contents) -> Result<()> {
        let is_new = contents.new == contents.old;
        let answers = answers(self.address(), self.uri).await;
        if answers && is_new && self.differences().await?.is_empty() {
            self.say("left as it is", "it runs with this configuration already");
            return self.has_returned().await;
        }
        if !is_new {
            // A disk that is full is found while the node still serves.
            self.access().stage_configuration(&contents.new).await?;
        }
        if answers {
            self.leave().await?;
        }
        self.stop().await?;
        let installed =
            if is_new { Ok(()) } else { self.access().install_configuration(&contents.old).await };
        let started = match &installed {
            Ok(()) => self.start().await,
            // It is started again in any case, with the file that is there.
            Err(_) => Ok(()),
        };
        if let Err(error) = started {
            return Err(self.go_back(&error).await);
        }
        if let Err(error) = installed {
            self.start().await?;
            self.has_returned().await?;
            return Err(error);
        }
        self.has_returned().await?;
        let differences = self.differences().await?;
        if differences.is_empty() {
            return Ok(());
        }
        Err(Error::failed(
            format!(
                "{} runs, but not with what its file says: {}",
                self.name(),
                differences.join("; ")
            ),
            "is `configuration` in the cluster file the file that the node reads?",
        ))
    }

    /// Has the node take no more clients, and write down what it has in memory.
    async fn leave(&self) -> Result<()> {
        let why = "clients go to other nodes before it stops";
        self.say("takes no more clients", why);
        self.access().nodetool("disablebinary", DISABLE_BOUND).await?;
        let address = self.address();
        let gone = within(DISABLE_BOUND, PROBE_EVERY, async || !accepts(address).await).await;
        if !gone {
            let _ = self.access().nodetool("enablebinary", DISABLE_BOUND).await;
            return Err(Error::Command {
                node: self.name().to_owned(),
                doing: "closing the clients' connections".into(),
                said: format!("it still takes some after {} s", DISABLE_BOUND.as_secs()),
            });
        }
        self.say("drains", "what it has in memory only is written, so that it starts quickly");
        if let Err(error) = self.access().nodetool("drain", DRAIN_BOUND).await {
            let help = "it is stopped all the same: what was acknowledged is in its commit log";
            self.reporter.warning("drain", chain(&error), help);
        }
        Ok(())
    }

    async fn stop(&self) -> Result<()> {
        self.say("stops", "the new configuration needs a restart");
        let (access, stop) = (self.access(), format!("{}\n", self.access().stop));
        let Err(error) = access.run("stopping", &stop, STOP_BOUND).await else { return Ok(()) };
        // One that had stopped already is what was wanted.
        if access.nodetool("info", DISABLE_BOUND).await.is_err() && !accepts(self.address()).await {
            return Ok(());
        }
        Err(error)
    }

    async fn start(&self) -> Result<()> {
        self.say("starts", "its configuration is in place");
        let (access, start) = (self.access(), format!("{}\n", self.access().start));
        access.run("starting", &start, START_BOUND).await?;
        let (address, uri) = (self.address(), self.uri);
        if within(ANSWER_BOUND, PROBE_EVERY, async || answers(address, uri).await).await {
            return Ok(());
        }
        Err(Error::Command {
            node: self.name().to_owned(),
            doing: "starting".into(),
            said: format!("it takes no clients after {} s", ANSWER_BOUND.as_secs()),
        })
    }

    /// Gives the node its old configuration back after it did not start, and says what came of it.
    async fn go_back(&self, why: &Error) -> Error {
        let name = self.name();
        self.reporter.warning(
            "does_not_start",
            format!("{name} does not start with the new configuration: {}", chain(why)),
            "it gets the old one back",
        );
        let back = async {
            // It may be half up.
            let stop = format!("{}\n", self.access().stop);
            let _ = self.access().run("stopping", &stop, STOP_BOUND).await;
            self.access().restore_configuration().await?;
            self.start().await?;
            self.has_returned().await
        };
        let (now, help) = match back.await {
            Ok(()) => (
                "it runs with the old one again".to_owned(),
                "nodes before it keep the new one: see the node's log, and roll again with other values",
            ),
            Err(error) => (
                format!("and it does not come back with the old one either: {}", chain(&error)),
                "see its log; the other nodes serve, and no other one was stopped",
            ),
        };
        Error::failed(
            format!("{name} does not start with the new configuration ({}); {now}", chain(why)),
            help,
        )
    }

    /// Waits until every node sees it up and has sent it what it missed.
    async fn has_returned(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let obstacles = self.cluster.obstacles(self.uri, &self.others).await;
            if obstacles.is_empty() {
                let waited = began.elapsed().as_secs();
                self.say(
                    "is back",
                    &format!("all nodes see it up, and it has what it missed ({waited} s)"),
                );
                return Ok(());
            }
            if began.elapsed() > RETURN_BOUND {
                let within = RETURN_BOUND.as_secs();
                return Err(Error::failed(
                    format!(
                        "{} is not fully back within {within} s: {}",
                        self.name(),
                        obstacles.join("; ")
                    ),
                    "no other node was stopped; mend that, and begin another roll",
                ));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The settings that it runs with and that its file has otherwise.
    async fn differences(&self) -> Result<Vec<String>> {
        let running = settings(self.access(), self.uri).await?;
        let different = |change: &Change| {
            let (name, value) = (change.knob.name, change.value.as_ref()?);
            let runs = running.get(name)?;
            (*runs != value.to_string()).then(|| format!("{name} is {runs}, not {value}"))
        };
        let restart = self.changes.iter().filter(|change| change.knob.class == Class::Restart);
        Ok(restart.filter_map(different).collect())
    }
}

/// True if the node takes clients and answers them.
async fn answers(node: SocketAddr, uri: &Uri) -> bool {
    accepts(node).await && connect_to(node, uri).await.is_ok()
}

/// True if its port for clients is open.
async fn accepts(node: SocketAddr) -> bool {
    let connecting = tokio::net::TcpStream::connect(node);
    matches!(tokio::time::timeout(Duration::from_secs(3), connecting).await, Ok(Ok(_)))
}

/// True as soon as it holds; false if it does not within the bound.
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
