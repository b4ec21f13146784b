//! The set of sites that are not in use. A site that is drained, or was declared unused at a start, receives no
//! partitions from the router, from commands or from adaptation.
//!
//! The set is maintained by the process that has the map, in the file `sites.json` of the store's folder if it has
//! one. The set is not part of the log. The file is written before the site is drained or taken into use again.
//!
//! Invariant: the set in memory equals the set in the file.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use serde::{Deserialize, Serialize};

use super::{Map, Store};
use crate::design::Design;
use crate::engine::site::epoch::count;
use crate::record::Site;
use crate::sync::Mutex;
use crate::transaction::Abort;

/// Version of the format of `sites.json`.
const VERSION: u32 = 1;

/// The set of a store's sites that are not in use.
pub(crate) struct Unused {
    sites: Mutex<BTreeSet<Site>>,
    /// Path of `sites.json`, which persists the set; `None` without a folder. This lock is taken before that of the
    /// set, and held while the set changes.
    file: Mutex<Option<PathBuf>>,
}

/// The content of `sites.json`.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// Version of the format of `sites.json`.
    version: u32,
    /// Number of sites of the store when the file was written.
    sites: u16,
    /// Numbers of the sites that are not in use.
    unused: BTreeSet<u16>,
}

/// The error of a set of unused sites that cannot be read, written or accepted.
#[derive(Debug, thiserror::Error)]
pub enum UnusedError {
    /// The file `sites.json` cannot be read or written.
    #[error("cannot {doing} {}", .path.display())]
    Io {
        /// The operation that failed: `read` or `write`.
        doing: &'static str,
        /// Path of the file `sites.json`.
        path: PathBuf,
        /// The error of the operating system, or of encoding the file's content.
        #[source]
        source: io::Error,
    },
    /// The file `sites.json` is damaged, or of a newer version.
    #[error(
        "{} does not tell which sites are in use ({why}): remove it to use all sites, and drain again those that are \
         not to be used", .path.display()
    )]
    Damaged {
        /// Path of the file `sites.json`.
        path: PathBuf,
        /// The fault of the file, as text.
        why: String,
    },
    /// The declaration leaves no site in use.
    #[error("{unused} of {sites} sites unused: at least one has to be in use")]
    NoneUsed {
        /// Number of sites that are declared unused.
        unused: u16,
        /// Number of all sites of the store.
        sites: u16,
    },
    /// This site is declared unused at the start, but has partitions, replicas or pins.
    #[error("{0} has partitions: it can be drained, but not be declared unused at a start")]
    Holds(Site),
}

impl Unused {
    /// Returns the empty set of unused sites, which no file persists.
    pub fn none() -> Self {
        Self { sites: Mutex::new(BTreeSet::new()), file: Mutex::new(None) }
    }

    /// True if a site is not in use.
    pub fn contains(&self, site: Site) -> bool {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).contains(&site)
    }

    /// Returns all sites that are not in use.
    pub fn all(&self) -> BTreeSet<Site> {
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the set of unused sites by `change`, after the result was written to the file. `all` is the number of
    /// the store's sites.
    fn change(
        &self,
        all: u16,
        change: impl FnOnce(&mut BTreeSet<Site>),
    ) -> Result<(), UnusedError> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sites = self.all();
        change(&mut sites);
        if let Some(path) = &*file {
            let unused = sites.iter().map(|site| site.0).collect();
            write(path, &Kept { version: VERSION, sites: all, unused })?;
        }
        *self.sites.lock().unwrap_or_else(PoisonError::into_inner) = sites;
        Ok(())
    }
}

fn write(path: &Path, kept: &Kept) -> Result<(), UnusedError> {
    let failed = |source| UnusedError::Io { doing: "write", path: path.to_owned(), source };
    let bytes = serde_json::to_vec(kept).map_err(io::Error::from).map_err(failed)?;
    imago_job::atomic_file::replace(path, &bytes).map_err(failed)
}

fn read(path: &Path) -> Result<Option<Kept>, UnusedError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(UnusedError::Io { doing: "read", path: path.to_owned(), source });
        }
    };
    let damaged = |why: String| UnusedError::Damaged { path: path.to_owned(), why };
    let kept: Kept = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
    if kept.version > VERSION {
        return Err(damaged(format!(
            "it is of version {}, and this program knows {VERSION}",
            kept.version
        )));
    }
    Ok(Some(kept))
}

impl Store {
    /// Reads the set of unused sites from `sites.json` in a folder, if there is one. Sites that the file does not
    /// know are unused if they are among the last `unused` sites of the store. Must be called before clients connect.
    ///
    /// # Errors
    /// Returns an error if the file cannot be used, no site would be in use, or a newly declared one has partitions.
    pub fn declare_unused(&self, folder: Option<&Path>, unused: u16) -> Result<(), UnusedError> {
        let sites = self.sites() as u16;
        if unused >= sites {
            return Err(UnusedError::NoneUsed { unused, sites });
        }
        let path = folder.map(|folder| folder.join("sites.json"));
        let kept = path.as_deref().map(read).transpose()?.flatten();
        let (is_known, known) = (kept.is_some(), kept.as_ref().map_or(0, |kept| kept.sites));
        let new = (known.max(sites - unused)..sites).map(Site);
        let map = self.map();
        let holds = |site: &Site| {
            map.design.partitions().any(|one| one.known_sites().any(|of| of == *site))
        };
        if let Some(site) = new.clone().find(holds) {
            return Err(UnusedError::Holds(site));
        }
        let of_file =
            kept.into_iter().flat_map(|kept| kept.unused).map(Site).filter(|site| site.0 < sites);
        let all: BTreeSet<Site> = of_file.chain(new).collect();
        if all.len() >= usize::from(sites) {
            return Err(UnusedError::NoneUsed { unused: all.len() as u16, sites });
        }
        *self.shared.unused.file.lock().unwrap_or_else(PoisonError::into_inner) = path;
        if all.is_empty() && !is_known {
            return Ok(());
        }
        self.shared.unused.change(sites, |unused| *unused = all)
    }

    /// True if a site is in use.
    #[must_use]
    pub fn is_used(&self, site: Site) -> bool {
        !self.shared.unused.contains(site)
    }

    /// True if a file persists which sites are in use, so that a restart of the store does not change it.
    #[must_use]
    pub fn keeps_unused(&self) -> bool {
        self.shared.unused.file.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Returns the sites that are not in use: drained ones, and those that were declared unused at a start.
    #[must_use]
    pub fn unused(&self) -> BTreeSet<Site> {
        self.shared.unused.all()
    }

    /// Returns the sites that are live by the design of `map` and in use, in the order of their numbers.
    #[must_use]
    pub fn live_and_used(&self, map: &Map) -> Vec<Site> {
        let unused = self.unused();
        (0..self.sites() as u16)
            .map(Site)
            .filter(|site| is_live(&map.design, *site) && !unused.contains(site))
            .collect()
    }

    /// Takes a site into use if `is_used` is true; otherwise out of use, which does not empty the site.
    ///
    /// # Errors
    /// Returns an error if the change cannot be persisted; then the set of unused sites is unchanged.
    pub(crate) fn set_used(&self, site: Site, is_used: bool) -> Result<(), UnusedError> {
        self.shared.unused.change(self.sites() as u16, |unused| {
            if is_used {
                unused.remove(&site);
            } else {
                unused.insert(site);
            }
        })
    }

    /// Returns an error if a site is not in use, so that no partition, replica or pin may be given to it.
    pub(super) fn check_used(&self, site: Site) -> Result<(), Abort> {
        if self.is_used(site) {
            return Ok(());
        }
        let number = site.0;
        Err(Abort::Refused(format!(
            "{site} is not in use: `imago store add {number}` takes it into use"
        )))
    }
}

/// True if a site is live by this design: its epoch has begun and is not fenced.
pub(crate) fn is_live(design: &Design, site: Site) -> bool {
    count(design.epoch(site)) > 0 && !design.is_fenced(site)
}
