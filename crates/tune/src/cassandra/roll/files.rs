//! The files of a Cassandra node that contain the settings of a roll: read, and replaced atomically as a group.
//!
//! Each new file is complete on the node's disk before the first one is renamed, and the old one is saved next to it.
//! The settings are parsed completely before anything is written, in their present and their new form: a file that
//! would keep a node from starting is found while the node still serves.

use std::collections::{BTreeMap, BTreeSet};

use imago_job::id::JobId;

use super::super::error::{Error, Result};
use super::super::knobs::{Class, File};
use super::super::yaml::{Document, Invalid};
use super::Change;
use crate::cluster::NodeAccess;

/// Present and new content of one of a node's configuration files.
pub(super) struct Contents<'a> {
    /// Path of the file on the node's machine.
    path: &'a str,
    old: String,
    new: String,
}

impl Contents<'_> {
    /// Returns true if the new content differs from the present one.
    pub(super) fn changes(&self) -> bool {
        self.new != self.old
    }
}

/// The configuration files of one node, and the changes of a roll in them.
pub(super) struct Files<'a> {
    /// How the node and its files are reached.
    pub(super) node: &'a NodeAccess,
    /// Changes of settings that the roll makes.
    pub(super) changes: &'a [Change],
}

impl<'a> Files<'a> {
    /// Reads each file that contains any of the settings to change, and returns the texts by path; includes
    /// `cassandra.yaml` if the node restarts, even without a change of that file.
    async fn texts(&self) -> Result<BTreeMap<&'a str, String>> {
        let mut texts = BTreeMap::new();
        if self.changes.iter().any(|change| change.knob.class == Class::Restart) {
            let path = &*self.node.configuration;
            texts.insert(path, self.node.read_file(path).await?);
        }
        for change in self.changes {
            let path = change.knob.path(self.node)?;
            if !texts.contains_key(path) {
                texts.insert(path, self.node.read_file(path).await?);
            }
        }
        Ok(texts)
    }

    /// Reads the present value of each setting to change, by the setting's name; None if its file does not have it.
    pub(super) async fn values(&self) -> Result<BTreeMap<String, Option<String>>> {
        let texts = self.texts().await?;
        let value = |Change { knob, .. }: &Change| {
            Ok((knob.name.to_owned(), knob.read(&texts[knob.path(self.node)?])?))
        };
        self.changes.iter().map(value).collect()
    }

    /// Reads the node's files that contain the settings to change, and computes their new content.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or if the node would not start with its present or its new content.
    pub(super) async fn contents(&self) -> Result<Vec<Contents<'a>>> {
        let mut all = Vec::new();
        for (path, old) in self.texts().await? {
            let before = self.settings(path, &old)?;
            let mut new = old.clone();
            for change @ Change { knob, value } in self.changes {
                let value = value.as_ref().map(ToString::to_string);
                if knob.path(self.node)? == path && !change.is_in(knob.read(&new)?.as_deref()) {
                    new = knob.write(&new, value.as_deref())?;
                }
            }
            if let Some(before) = before {
                self.check_written(path, &before, &new)?;
            }
            all.push(Contents { path, old, new });
        }
        Ok(all)
    }

    /// Parses the text of the file at `path` if that is the node's `cassandra.yaml`; returns None for other files.
    fn settings(&self, path: &str, text: &str) -> Result<Option<Document>> {
        if path != self.node.configuration {
            return Ok(None);
        }
        Document::parse(text).map(Some).map_err(|invalid| self.does_not_parse(path, &invalid))
    }

    /// Returns the error of a `cassandra.yaml` that the node's parser would refuse.
    fn does_not_parse(&self, path: &str, Invalid { line, problem }: &Invalid) -> Error {
        Error::precondition(
            format!("{path} of {}, line {line}: {problem}", self.node.name),
            "correct the file there: the node would not start with it. No node was stopped for that",
        )
    }

    /// Checks that the new `cassandra.yaml` parses, that the settings to change have their new values, and that all
    /// others are unchanged.
    fn check_written(&self, path: &str, before: &Document, new: &str) -> Result<()> {
        let after = Document::parse(new).map_err(|invalid| self.does_not_parse(path, &invalid))?;
        let own = self.changes.iter().filter(|change| change.knob.file == File::Settings);
        let names: Vec<&str> = own.clone().map(|change| change.knob.name).collect();
        let place = format!("{path} of {}", self.node.name);
        for change in own {
            let name = change.knob.name;
            if let Some(old_name) = after.old_name(name) {
                return Err(Error::precondition(
                    format!("{place} names {name} as versions before 4.1 did: {old_name}"),
                    format!(
                        "a node does not start with both names: write it as {name}, with its unit"
                    ),
                ));
            }
            if !change.is_in(after.scalar(name)) {
                return Err(Error::precondition(
                    format!(
                        "{place} would have {name}: {}, which is not what is asked for",
                        after.scalar(name).unwrap_or("without a value")
                    ),
                    format!("write {name} there as one line, without quotes around its name"),
                ));
            }
        }
        match before.other_change(&after, &names) {
            None => Ok(()),
            Some(other) => Err(Error::precondition(
                format!("{place} would have another {other}, too"),
                "a line at the end of the file goes on in the next one: end it",
            )),
        }
    }

    /// Writes the new content of each changed file into a file next to the present one; removes them all if one
    /// fails.
    pub(super) async fn stage(&self, job: &JobId, contents: &[Contents<'_>]) -> Result<()> {
        for one in contents.iter().filter(|one| one.changes()) {
            let staged = self.node.stage_file(one.path, job, &one.new).await;
            if staged.is_err() {
                self.unstage(job, contents).await;
                return staged;
            }
        }
        Ok(())
    }

    /// Removes the files that [`Self::stage`] wrote; ignores errors.
    pub(super) async fn unstage(&self, job: &JobId, contents: &[Contents<'_>]) {
        for one in contents.iter().filter(|one| one.changes()) {
            if let Err(error) = self.node.unstage_file(one.path, job).await {
                tracing::debug!(%error, "a file is left");
            }
        }
    }

    /// Replaces the present files by the staged ones; if one replacement fails, restores all files.
    pub(super) async fn install(&self, job: &JobId, contents: &[Contents<'_>]) -> Result<()> {
        for one in contents.iter().filter(|one| one.changes()) {
            let installed = self.node.install_file(one.path, job, &one.old).await;
            if let Err(error) = installed {
                self.unstage(job, contents).await;
                self.restore(job).await?;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Restores the node's files as they were before the job. Returns false if the job has changed none of them.
    pub(super) async fn restore(&self, job: &JobId) -> Result<bool> {
        let mut paths = BTreeSet::new();
        for change in self.changes {
            paths.insert(change.knob.path(self.node)?);
        }
        let mut is_changed = false;
        for path in paths {
            is_changed |= self.node.restore_file(path, job).await?;
        }
        Ok(is_changed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::knobs;
    use super::*;

    fn node(folder: &std::path::Path) -> NodeAccess {
        NodeAccess {
            name: "cas-2".into(),
            address: "127.0.0.1:9042".parse().unwrap(),
            shell: "sh".into(),
            configuration: folder.join("cassandra.yaml").display().to_string(),
            nodetool: None,
            jvm_options: None,
            stop: "true".into(),
            start: "true".into(),
            drain_max: Duration::from_secs(180),
            look_max: None,
        }
    }

    const FILE: &str = "cluster_name: 'shop'\nnum_tokens: 16\nconcurrent_reads: 32 # two disks\n\
        memtable:\n  configurations:\n    skiplist:\n      class_name: SkipListMemtable\n";

    /// What is said of a file when this setting is to be changed; nothing if it can be.
    async fn said(file: &str, name: &str, value: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let node = node(folder.path());
        std::fs::write(&node.configuration, file).unwrap();
        let knob = knobs::find(name).unwrap();
        let changes = [Change { knob, value: Some(knob.value(value).unwrap()) }];
        let error = Files { node: &node, changes: &changes }.contents().await.err()?;
        let help = error.help().map(str::to_owned).unwrap_or_default();
        assert!(error.to_string().contains("cas-2") && !help.is_empty(), "{error}: {help}");
        Some(error.to_string())
    }

    #[tokio::test]
    async fn a_file_with_which_a_node_would_not_start_is_found_live_settings_too() {
        for name in ["concurrent_reads", "native_transport_max_threads"] {
            assert_eq!(said(FILE, name, "64").await, None);
            for (broken, part) in [
                (FILE.replace("    skiplist", "\tskiplist"), "cassandra.yaml of cas-2, line 6"),
                (FILE.replace("      class_name", "   class_name"), "line 7"),
                (
                    format!("{FILE}num_tokens: 8\n"),
                    "line 8: num_tokens is there twice, first in line 2",
                ),
                (FILE.replace("'shop'", "'shop"), "line"),
            ] {
                let said = said(&broken, name, "64").await.unwrap();
                assert!(said.contains(part), "{said}");
            }
        }
    }

    #[tokio::test]
    async fn what_would_be_written_is_parsed_again() {
        // The new line would go on with the last value, which is within quotes.
        let open = format!("{FILE}hints_directory: \"/var/lib/\n  hints\"");
        assert_eq!(said(&open, "native_transport_max_threads", "64").await, None);
        let quoted = format!("{FILE}\"native_transport_max_threads\": 48\n");
        let twice = said(&quoted, "native_transport_max_threads", "64").await.unwrap();
        assert!(twice.contains("native_transport_max_threads is there twice"), "{twice}");
        let flow = "{cluster_name: shop, num_tokens: 16}\n";
        assert!(said(flow, "concurrent_reads", "64").await.is_some());
        let block = format!("{FILE}about: |\n  text\n\n");
        assert_eq!(said(&block, "native_transport_max_threads", "64").await, None);
        let old = format!("{FILE}compaction_throughput_mb_per_sec: 64\n");
        let old = said(&old, "compaction_throughput", "32MiB/s").await.unwrap();
        assert!(old.contains("compaction_throughput_mb_per_sec"), "{old}");
    }
}
