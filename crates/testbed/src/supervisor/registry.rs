//! Registry of the testbeds that run in the background: one file for each testbed's name in the state folder.
//!
//! A file is replaced as a whole, never written in place, so that a reader sees a consistent state. Claiming and
//! releasing a name happen under a lock on the folder itself, so that of two claimants exactly one succeeds, and no
//! lock file is left over.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::binary::dir_or_home;
use crate::cluster::{NodeInfo, valid_name};
use crate::content::ContentSpec;
use crate::error::{Error, Result};
use crate::process::{Liveness, ProcessId};
use crate::scratch;

/// Progress of the start of a testbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The servers are being started.
    Starting,
    /// Clients can use the testbed.
    Ready,
}

/// Registry entry of a running testbed, stored as one JSON file. It contains the passwords of a disposable cluster
/// and is readable by its user only.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RegistryEntry {
    /// Specification of the testbed, which contains its name.
    pub spec: ContentSpec,
    /// Identity of the testbed's supervisor process.
    pub supervisor: ProcessId,
    /// Progress of the testbed's start.
    pub phase: Phase,
    /// Connection string for the application; empty while the testbed starts.
    pub uri: String,
    /// Connection string for the administrator; empty while the testbed starts.
    pub admin_uri: String,
    /// Folder of the testbed's data and logs; `None` while the testbed starts.
    pub folder: Option<PathBuf>,
    /// Reason why CPU limits were requested but are unavailable; `None` if they are in force or were not requested.
    pub unshared: Option<String>,
    /// The nodes of the testbed, as of its start or the last request to its supervisor; empty while it starts.
    pub nodes: Vec<NodeInfo>,
}

/// The registry of testbeds in one state folder.
#[derive(Debug, Clone)]
pub struct Registry {
    folder: PathBuf,
}

impl Registry {
    /// Returns the user's registry: `$XDG_STATE_HOME/imago/testbed`, by default in `~/.local/state`.
    #[must_use]
    pub fn of_user() -> Self {
        Self::at(dir_or_home("XDG_STATE_HOME", ".local/state").join("imago/testbed"))
    }

    /// Returns the registry whose state folder is `folder`, which need not exist.
    #[must_use]
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the path of the state folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    /// Returns the path of the log file of the supervisor of the testbed named `name`.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Returns the entry of the testbed named `name`, or `None` if there is none.
    pub fn find(&self, name: &str) -> Result<Option<RegistryEntry>> {
        let path = self.file(name);
        let doing = || format!("read {}", path.display());
        match fs::read(&path) {
            Ok(content) => serde_json::from_slice(&content)
                .map(Some)
                .map_err(|error| Error::io(doing())(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(doing())(error)),
        }
    }

    /// Returns the entry of the testbed named `name`, or an error that lists the existing names.
    pub fn get(&self, name: &str) -> Result<RegistryEntry> {
        match self.find(name)? {
            Some(standing) => Ok(standing),
            None => Err(Error::NoSuchTestbed { name: name.to_owned(), known: self.known()? }),
        }
    }

    fn known(&self) -> Result<String> {
        let names = self.names()?;
        Ok(if names.is_empty() { "there are none".into() } else { names.join(", ") })
    }

    /// Returns the names of all registered testbeds, in alphabetical order.
    pub fn names(&self) -> Result<Vec<String>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => {
                return Err(Error::io(format!("read {}", self.folder.display()))(error));
            }
        };
        let names = entries.flatten().filter_map(|entry| {
            let file = entry.file_name().into_string().ok()?;
            let name = file.strip_suffix(".json")?;
            valid_name(name).then(|| name.to_owned())
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    }

    /// Claims the testbed name of `spec` for this process. A name whose supervisor is dead is taken over, after the
    /// remains of that supervisor have been removed.
    pub fn claim(&self, spec: &ContentSpec) -> Result<Claim> {
        let name = spec.name();
        if !valid_name(name) {
            return Err(Error::BadName { name: name.to_owned() });
        }
        let made = fs::create_dir_all(&self.folder);
        made.map_err(Error::io(format!("make the folder {}", self.folder.display())))?;
        let _lock = self.lock()?;
        if let Some(old) = self.find(name)? {
            if old.supervisor.liveness() != Liveness::Gone {
                return Err(Error::NameTaken { name: name.to_owned(), pid: old.supervisor.pid });
            }
            sweep(&old);
        }
        let entry = RegistryEntry {
            spec: spec.clone(),
            supervisor: ProcessId::own(),
            phase: Phase::Starting,
            uri: String::new(),
            admin_uri: String::new(),
            folder: None,
            unshared: None,
            nodes: Vec::new(),
        };
        self.write(&entry)?;
        Ok(Claim { registry: self.clone(), entry })
    }

    fn write(&self, standing: &RegistryEntry) -> Result<()> {
        let name = standing.spec.name();
        let path = self.file(name);
        let doing = || format!("write {}", path.display());
        let content = serde_json::to_vec_pretty(standing)
            .map_err(|error| Error::io(doing())(error.into()))?;
        let new = self.folder.join(format!(".{name}.new"));
        scratch::write_private(&new, &content)?;
        fs::rename(&new, &path).map_err(Error::io(doing()))
    }

    /// Removes the entry `dead` of a supervisor that has ended, and the supervisor's remains: servers (which the
    /// kernel has killed already), folder, log. An entry that another supervisor has written meanwhile stays.
    pub(crate) fn remove_dead(&self, dead: &RegistryEntry) -> Result<()> {
        let _lock = self.lock()?;
        let name = dead.spec.name();
        // Another supervisor may have claimed the name meanwhile; its entry must not be removed.
        if self.find(name)?.is_some_and(|found| found.supervisor == dead.supervisor) {
            sweep(dead);
            self.remove(name);
        }
        Ok(())
    }

    /// Removes the log file of a supervisor that never claimed the testbed name `name`.
    pub(crate) fn remove_unclaimed_log(&self, name: &str) -> Result<()> {
        let _lock = self.lock()?;
        if self.find(name)?.is_none() {
            self.remove(name);
        }
        Ok(())
    }

    fn remove(&self, name: &str) {
        for path in [self.file(name), self.log(name)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "could not remove a file");
                }
                _ => {}
            }
        }
    }

    fn lock(&self) -> Result<File> {
        let doing = || format!("lock {}", self.folder.display());
        let folder = File::open(&self.folder).map_err(Error::io(doing()))?;
        flock(&folder, FlockOperation::LockExclusive)
            .map_err(|errno| Error::io(doing())(errno.into()))?;
        Ok(folder)
    }
}

fn sweep(dead: &RegistryEntry) {
    for process in dead.nodes.iter().filter_map(|node| node.process) {
        // In all likelihood the process has ended already; an error means that it is not one of the testbed's.
        let _ = process.signal(rustix::process::Signal::KILL);
    }
    if let Some(folder) = &dead.folder {
        scratch::remove(folder);
    }
}

/// A testbed name that this process has claimed; dropping the claim removes the entry and the supervisor's log.
#[derive(Debug)]
pub struct Claim {
    registry: Registry,
    entry: RegistryEntry,
}

impl Claim {
    /// Returns the registry entry of the claimed name.
    #[must_use]
    pub fn entry(&self) -> &RegistryEntry {
        &self.entry
    }

    /// Applies `change` to the registry entry and writes it to its file.
    pub fn update(&mut self, change: impl FnOnce(&mut RegistryEntry)) -> Result<()> {
        change(&mut self.entry);
        self.registry.write(&self.entry)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let name = self.entry.spec.name();
        match self.registry.lock() {
            Ok(_lock) => self.registry.remove(name),
            Err(error) => tracing::warn!(%error, name, "could not free a testbed's name"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterSpec;

    fn replica_set(name: &str) -> ContentSpec {
        ClusterSpec::replica_set(name, 1).into()
    }

    fn registry() -> (tempfile::TempDir, Registry) {
        let folder = tempfile::tempdir().unwrap();
        let registry = Registry::at(folder.path().join("state"));
        (folder, registry)
    }

    #[test]
    fn a_name_is_claimed_once_and_free_again_after_its_claim() {
        let (_folder, registry) = registry();
        let spec = replica_set("same");
        let claim = registry.claim(&spec).unwrap();
        assert!(matches!(registry.claim(&spec), Err(Error::NameTaken { .. })));
        drop(claim);
        assert!(registry.names().unwrap().is_empty());
        registry.claim(&spec).unwrap();
    }

    #[test]
    fn the_name_of_a_dead_supervisor_is_taken_over_and_its_folder_removed() {
        let (folder, registry) = registry();
        let spec = replica_set("left");
        let left = folder.path().join("data");
        fs::create_dir(&left).unwrap();
        let mut claim = registry.claim(&spec).unwrap();
        claim
            .update(|standing| {
                standing.supervisor.start_ticks += 1;
                standing.folder = Some(left.clone());
            })
            .unwrap();
        std::mem::forget(claim);
        let claim = registry.claim(&spec).unwrap();
        assert_eq!(claim.entry().supervisor, ProcessId::own());
        assert!(!left.exists());
    }

    #[test]
    fn a_name_that_could_leave_the_folder_is_refused() {
        let (_folder, registry) = registry();
        for name in ["../up", "", "A", "1a", "a/b", "a.b"] {
            let claimed = registry.claim(&replica_set(name));
            assert!(matches!(claimed, Err(Error::BadName { .. })), "{name:?}");
        }
    }

    #[test]
    fn only_its_user_can_read_what_is_written_down() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, registry) = registry();
        let _claim = registry.claim(&replica_set("secret")).unwrap();
        let mode = registry.file("secret").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
