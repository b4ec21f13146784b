//! The files of a node that have the settings of a roll: read, and replaced all or none.
//!
//! Each new file is whole on the node's disk before the first one takes its place, and the old one is kept beside it.

use std::collections::{BTreeMap, BTreeSet};

use imago_job::id::JobId;

use super::super::error::Result;
use super::Change;
use crate::cluster::NodeAccess;

/// The content of one of a node's files, and what it is to be.
pub(super) struct Contents<'a> {
    path: &'a str,
    old: String,
    new: String,
}

impl Contents<'_> {
    pub(super) fn changes(&self) -> bool {
        self.new != self.old
    }
}

/// The files of one node.
pub(super) struct Files<'a> {
    pub(super) node: &'a NodeAccess,
    pub(super) changes: &'a [Change],
}

impl<'a> Files<'a> {
    /// The text of each file that has any of the settings, by its path.
    async fn texts(&self) -> Result<BTreeMap<&'a str, String>> {
        let mut texts = BTreeMap::new();
        for change in self.changes {
            let path = change.knob.path(self.node)?;
            if !texts.contains_key(path) {
                texts.insert(path, self.node.read_file(path).await?);
            }
        }
        Ok(texts)
    }

    /// The value that each setting has.
    pub(super) async fn values(&self) -> Result<BTreeMap<String, Option<String>>> {
        let texts = self.texts().await?;
        let value = |Change { knob, .. }: &Change| {
            Ok((knob.name.to_owned(), knob.read(&texts[knob.path(self.node)?])?))
        };
        self.changes.iter().map(value).collect()
    }

    /// What the files have, and are to have.
    pub(super) async fn contents(&self) -> Result<Vec<Contents<'a>>> {
        let mut all = Vec::new();
        for (path, old) in self.texts().await? {
            let mut new = old.clone();
            for change @ Change { knob, value } in self.changes {
                let value = value.as_ref().map(ToString::to_string);
                if knob.path(self.node)? == path && !change.is_in(knob.read(&new)?.as_deref()) {
                    new = knob.write(&new, value.as_deref())?;
                }
            }
            all.push(Contents { path, old, new });
        }
        Ok(all)
    }

    /// Writes the new files beside the present ones.
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

    /// Removes what was written beside the present files, if the node lets it.
    pub(super) async fn unstage(&self, job: &JobId, contents: &[Contents<'_>]) {
        for one in contents.iter().filter(|one| one.changes()) {
            if let Err(error) = self.node.unstage_file(one.path, job).await {
                tracing::debug!(%error, "a file is left");
            }
        }
    }

    /// Puts the new files in the places of the present ones: all of them, or none.
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

    /// Puts the files back that were there before the job. False if the job has changed none.
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
