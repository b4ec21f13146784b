//! Operations of logs and checkpoints on folders: a folder is made, held by one process at a time, and its
//! files are made durable, names too.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{LogError, Result};

pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    move |source| LogError::Io { doing, path: path.to_owned(), source }
}

/// A folder that other processes are kept out of.
///
/// It is given up by saying so. To close the file would do only where no other process has it open too, and a
/// process that this one is just starting has all its files until it becomes another program.
#[derive(Debug)]
pub(crate) struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // If it fails, closing the file is next.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Makes a folder if there is none, and keeps other processes out of it.
///
/// # Errors
/// Returns an error if it cannot be used, or if another process has it.
pub(crate) fn lock_folder(folder: &Path) -> Result<FolderLock> {
    make_folder(folder)?;
    let path = folder.join("lock");
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let lock = lock.map_err(failed("open", &path))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(FolderLock(lock)),
        Err(Errno::WOULDBLOCK) => Err(LogError::InUse { path: folder.to_owned() }),
        Err(errno) => Err(failed("lock", &path)(errno.into())),
    }
}

/// Makes a folder, and the folders above it know it.
fn make_folder(folder: &Path) -> Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|above| !above.exists()).collect();
    fs::create_dir_all(folder).map_err(failed("make", folder))?;
    for made in missing {
        match made.parent().filter(|above| !above.as_os_str().is_empty()) {
            Some(above) => sync_folder(above)?,
            None => sync_folder(Path::new("."))?,
        }
    }
    Ok(())
}

/// Makes durable what a file has, and returns how much that is. After a failure to do so once, the
/// system may take what it could not write for written; so it is written anew.
pub(super) fn make_durable(path: &Path) -> Result<u64> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
    let mut file = file.map_err(failed("open", path))?;
    let mut content = Vec::new();
    let written = file.read_to_end(&mut content).and_then(|_| {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&content)?;
        file.sync_all()
    });
    written.map_err(failed("sync", path))?;
    Ok(content.len() as u64)
}

pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(failed("sync", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_given_up_though_a_process_in_the_making_has_its_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let lock = lock_folder(folder.path()).expect("it is free");
        assert!(matches!(lock_folder(folder.path()), Err(LogError::InUse { .. })));
        // A fork does this with every file.
        let _twin = lock.0.try_clone().expect("a file");
        drop(lock);
        lock_folder(folder.path()).expect("it is free again");
    }
}
