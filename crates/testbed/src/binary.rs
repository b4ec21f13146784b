//! Where the server programs are: an environment variable first, then `PATH`, then the cache
//! folder that `make setup` fills.

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The `mongod` to start: `IMAGO_MONGOD`, `PATH`, or the cache folder's.
pub fn find_mongod() -> Result<PathBuf> {
    const VARIABLE: &str = "IMAGO_MONGOD";
    let cached = cache_dir().join("imago/bin/mongod");
    let found = named_by(VARIABLE)?.or_else(|| on_path("mongod"));
    found.or_else(|| is_executable(&cached).then(|| cached.clone())).ok_or(Error::NoProgram {
        program: "mongod",
        variable: VARIABLE,
        cached,
    })
}

/// The real `mongos`, if this machine has one: `IMAGO_MONGOS`, or `PATH`.
///
/// None is the usual case: package registries do not carry it, and [`crate::router`] stands in.
pub fn find_mongos() -> Result<Option<PathBuf>> {
    Ok(named_by("IMAGO_MONGOS")?.or_else(|| on_path("mongos")))
}

fn named_by(variable: &'static str) -> Result<Option<PathBuf>> {
    match env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from) {
        Some(path) if is_executable(&path) => Ok(Some(path)),
        Some(path) => Err(Error::BadProgram { variable, path }),
        None => Ok(None),
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| is_executable(file))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn cache_dir() -> PathBuf {
    dir_or_home("XDG_CACHE_HOME", ".cache")
}

/// The folder that `variable` names, or `fallback` in the home folder (XDG base directories).
pub(crate) fn dir_or_home(variable: &str, fallback: &str) -> PathBuf {
    let absolute = env::var_os(variable).map(PathBuf::from).filter(|dir| dir.is_absolute());
    absolute.unwrap_or_else(|| {
        let home = env::var_os("HOME").unwrap_or_else(|| OsStr::new("/").to_owned());
        PathBuf::from(home).join(fallback)
    })
}
