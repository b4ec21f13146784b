//! Checks the configuration that a Redis node would have after its next start: before a change, and again after it.
//!
//! Invariant: a roll changes a node only if the node's files and command line would give it the requested values at its
//! next start, as far as these can be determined. A trial start must also succeed, if there is a program for it.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;

use super::super::connection::{Node, line};
use super::super::knobs::Class;
use super::super::settings_file;
use super::super::snapshot::{ANSWER_WAIT, Snapshot};
use super::super::start::{Effective, Place, Process, Starts, Trial, try_out};
use super::{Change, Roller};
use crate::cluster::{Error, Result};

/// Present and new text of a node's own configuration file.
pub(super) struct Planned {
    /// Text that the file has now.
    pub(super) old: String,
    /// Text of the file with the new values of the settings that need a restart.
    pub(super) new: String,
}

impl Roller {
    /// Checks for each node that answers that the roll's changes would survive a restart of the node.
    ///
    /// # Errors
    /// Fails for the first node where they would not; the message names the conflicting line.
    pub(super) async fn check_survives_restart(&self, snapshot: &Snapshot<'_>) -> Result<()> {
        let there = (0..self.file.nodes.len()).filter(|number| snapshot.facts[*number].is_ok());
        try_join_all(there.map(|number| self.check_node_survives_restart(number))).await.map(drop)
    }

    async fn check_node_survives_restart(&self, number: usize) -> Result<()> {
        let process = self.process(number).await?;
        self.planned(number, Some(&process), &self.changes.iter().collect::<Vec<_>>())
            .await
            .map(drop)
    }

    /// Reads the facts about the process of the node with the index `number`.
    pub(super) async fn process(&self, number: usize) -> Result<Process> {
        let node = &self.file.nodes[number];
        let wait = node.look_max.unwrap_or(ANSWER_WAIT);
        let at = Node::connect(&node.address.to_string(), &self.file.uri, wait).await?;
        let info: String = at.ask(&["INFO", "server"]).await?;
        let value = |key| line(&info, key).unwrap_or_default().to_owned();
        let told: BTreeMap<String, String> = at.ask(&["CONFIG", "GET", "dir"]).await?;
        Ok(Process {
            pid: value("process_id"),
            executable: value("executable"),
            configuration: value("config_file"),
            folder: told.get("dir").cloned().unwrap_or_default(),
        })
    }

    /// Computes the new text of a node's file, and checks that the node would start with these changes and have their
    /// values; `process` is None if the node is down.
    ///
    /// # Errors
    /// Fails if the node would not start, or would not have the values.
    pub(super) async fn planned(
        &self,
        number: usize,
        process: Option<&Process>,
        changes: &[&Change],
    ) -> Result<Planned> {
        let node = &self.file.nodes[number];
        let mut starts = Starts::of(node, process).await?;
        let old = node.read_file(&node.configuration).await?;
        let before = starts.read(&old).await?;
        let live: Vec<&Change> =
            changes.iter().copied().filter(|change| change.knob.class == Class::Live).collect();
        if !live.is_empty()
            && let Some((directive, place)) = starts.doubled_by_rewrite(&before)
        {
            return Err(Error::precondition(
                format!(
                    "{} would not start again: CONFIG REWRITE copies each `{directive}` of other files into its own, \
                     where it is then a second time ({place})",
                    node.name
                ),
                match directive {
                    "user" => {
                        "move the users into a file of their own (aclfile), or into the server's own file"
                    }
                    _ => "move the line into the server's own file",
                },
            ));
        }
        if !starts.knows_arguments && process.is_some() {
            self.check_command_line_values(number, &before, &live).await?;
        }
        let mut written = old.clone();
        for change in &live {
            let is_default = is_value(change, change.knob.default);
            written = settings_file::rewrite(&written, change.knob.name, &change.value, is_default);
        }
        let restarting = changes.iter().any(|change| change.knob.class == Class::Restart);
        let whole = if restarting { self.new_text(&written) } else { written };
        let after = starts.read(&whole).await?;
        self.gives(number, &after, changes)?;
        self.starts_with(number, process, &starts, &after, &whole).await?;
        let new = self.new_text(&old);
        Ok(Planned { old, new })
    }

    /// Checks that the node of index `number` would run with the new values if its configuration were `after`.
    ///
    /// # Errors
    /// Fails if another line overrides one of them.
    fn gives(&self, number: usize, after: &Effective, changes: &[&Change]) -> Result<()> {
        let name = &self.file.nodes[number].name;
        let other = |change: &&&Change| !is_value(change, value_after(after, change).0);
        let Some(change) = changes.iter().find(other) else { return Ok(()) };
        let (setting, asked) = (change.knob.name, &change.value);
        let (value, place) = value_after(after, change);
        let help = match place {
            Some(Place::CommandLine) => {
                "take it from the command that starts the server: it holds over the file at each start"
            }
            _ => "take it from there, or put the `include` before the server's own settings",
        };
        let place = place.map_or_else(|| "its default".to_owned(), ToString::to_string);
        Err(Error::precondition(
            format!(
                "{name} would run with {setting} \"{value}\" after its next start, not \"{asked}\": that stands in {place}"
            ),
            help,
        ))
    }

    /// Checks, for a node with an unknown command line, that the running value of each setting is in a file: any
    /// other value may be on the command line.
    async fn check_command_line_values(
        &self,
        number: usize,
        before: &Effective,
        changes: &[&Change],
    ) -> Result<()> {
        let node = &self.file.nodes[number];
        let wait = node.look_max.unwrap_or(ANSWER_WAIT);
        let at = Node::connect(&node.address.to_string(), &self.file.uri, wait).await?;
        for change in changes {
            let name = change.knob.name;
            let told: BTreeMap<String, String> = at.ask(&["CONFIG", "GET", name]).await?;
            let Some(runs) = told.get(name) else { continue };
            let (value, _) = value_after(before, change);
            let normal = |text: &str| change.knob.value(text).map(|value| value.to_string()).ok();
            if normal(runs) != normal(value) && !is_value(change, runs) {
                return Err(Error::precondition(
                    format!(
                        "{} runs with {name} \"{runs}\", and its files say \"{value}\": it was set while the server ran, or \
                         stands on its command line, which cannot be read",
                        node.name
                    ),
                    "take it from the command that starts the server; if it is not there, have the server write it \
                     (CONFIG REWRITE), and roll again",
                ));
            }
        }
        Ok(())
    }

    /// Starts a trial server with `text` as its file, if there is a program for it, and checks that it starts.
    async fn starts_with(
        &self,
        number: usize,
        process: Option<&Process>,
        starts: &Starts<'_>,
        after: &Effective,
        text: &str,
    ) -> Result<()> {
        let node = &self.file.nodes[number];
        // A module may have side effects when it is loaded.
        let Some(process) = process.filter(|_| !after.loads_modules()) else { return Ok(()) };
        // If the working directory at the start is unknown, relative paths cannot be resolved.
        let is_absolute = after.get("dir").is_some_and(|set| set.value.starts_with('/'));
        if starts.folder().is_none() && !is_absolute {
            return Ok(());
        }
        let has_tls = after.get("tls-port").is_some();
        let tried = try_out(node, &process.executable, starts.folder(), text, has_tls).await?;
        match tried {
            Trial::Started | Trial::NotTried => Ok(()),
            Trial::Refused(said) => Err(Error::precondition(
                format!("{} would not start again with its file as it is to be: {said}", node.name),
                "correct the file there",
            )),
        }
    }

    /// Checks, after `CONFIG REWRITE`, that a node would start with its file, and run with the new values of these
    /// changes.
    ///
    /// # Errors
    /// Fails if it would not.
    pub(super) async fn was_written(&self, number: usize, changes: &[&Change]) -> Result<()> {
        let node = &self.file.nodes[number];
        let process = self.process(number).await?;
        let mut starts = Starts::of(node, Some(&process)).await?;
        let text = node.read_file(&node.configuration).await?;
        let after = starts.read(&text).await?;
        self.gives(number, &after, changes)?;
        self.starts_with(number, Some(&process), &starts, &after, &text).await
    }
}

/// Returns the value that a node would have of the setting to change, and the line that sets it; the default and None
/// if no line does.
fn value_after<'e>(effective: &'e Effective, change: &Change) -> (&'e str, Option<&'e Place>) {
    match effective.get(change.knob.name) {
        Some(set) => (&set.value, Some(&set.place)),
        None => (change.knob.default, None),
    }
}

/// Returns true if the text is the new value of the change.
fn is_value(change: &Change, text: &str) -> bool {
    change.knob.value(text).is_ok_and(|value| value.to_string() == change.value)
}
