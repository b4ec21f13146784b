//! The folder of a cluster's data and logs, removed with the cluster.
//!
//! A process that is killed cannot remove its folder. Each folder therefore contains a locked file. The kernel
//! releases the lock when the process that holds it ends, and the next process that makes a folder removes those with
//! a free lock. A folder gets its recognisable name only once it is locked, so that it cannot be removed between its
//! creation and its locking.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::error::{Error, Result};

const PREFIX: &str = "imago-testbed-";
const LOCK: &str = "owner.lock";

/// A folder that is removed when this value is dropped, or by other processes if this one dies.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Makes a folder whose name contains `name`, readable by this user only, in `base` (`None` for the system's
    /// temporary folder), and removes the folders there whose processes have ended.
    pub fn new(name: &str, base: Option<&Path>) -> Result<Self> {
        let base = base.map_or_else(std::env::temp_dir, Path::to_path_buf);
        sweep(&base);
        let id = random_hex(6)?;
        let raw = base.join(format!(".{PREFIX}{id}"));
        let path = base.join(format!("{PREFIX}{name}-{id}"));
        let doing = || format!("make the folder {}", path.display());
        fs::DirBuilder::new().mode(0o700).create(&raw).map_err(Error::io(doing()))?;
        let lock = File::create_new(raw.join(LOCK)).map_err(Error::io(doing()))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| Error::io(doing())(errno.into()))?;
        fs::rename(&raw, &path).map_err(Error::io(doing()))?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Removes the testbed folders in `base` whose processes have ended.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        // A lock that cannot be opened or taken belongs to a running process, or to another user.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else { continue };
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&entry.path());
        }
    }
}

/// Removes the folder `path` with its content. Attempts are repeated for half a second, because a server that is
/// being killed may still add a file.
pub(crate) fn remove(path: &Path) {
    const ATTEMPTS: u32 = 20;
    for _ in 0..ATTEMPTS {
        match fs::remove_dir_all(path) {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(25)),
        }
    }
    tracing::warn!(path = %path.display(), "could not remove a testbed folder");
}

/// Writes `content` to the file `path`, which is replaced if it exists and which only this user can read.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let written = options.open(path).and_then(|mut file| io::Write::write_all(&mut file, content));
    written.map_err(Error::io(format!("write {}", path.display())))
}

/// Returns `bytes` random bytes as hexadecimal digits, two for each byte.
pub(crate) fn random_hex(bytes: usize) -> Result<String> {
    let mut random = vec![0; bytes];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut random))
        .map_err(Error::io("read /dev/urandom"))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_owner_left_is_swept_and_what_a_living_one_has_is_not() {
        let base = tempfile::tempdir().unwrap();
        let living = Scratch::new("living", Some(base.path())).unwrap();
        let dead = base.path().join(format!("{PREFIX}dead-00"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(LOCK), "").unwrap();
        let other = Scratch::new("other", Some(base.path())).unwrap();
        assert!(!dead.exists());
        assert!(living.path().exists() && other.path().exists());
    }

    #[test]
    fn a_folder_goes_with_its_value() {
        let base = tempfile::tempdir().unwrap();
        let scratch = Scratch::new("gone", Some(base.path())).unwrap();
        fs::write(scratch.path().join("data"), "x").unwrap();
        drop(scratch);
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
