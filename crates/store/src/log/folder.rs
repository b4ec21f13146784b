//! Operations of logs and checkpoints on folders: making a folder, locking it for one process at a time, and making
//! files and their names durable.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::{LogError, Result};

/// Returns a function that converts an error of the operating system to a [`LogError`] with the operation `doing` and
/// the path.
pub(crate) fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    move |source| LogError::Io { doing, path: path.to_owned(), source }
}

/// The lock of a log's or checkpoint's folder, which keeps other processes out until it is dropped.
///
/// The lock is released explicitly. Closing the file would release it only if no other process has the file open too,
/// and a process that this one is just starting has all its files open until it executes another program.
#[derive(Debug)]
pub(crate) struct FolderLock(File);

impl Drop for FolderLock {
    fn drop(&mut self) {
        // If that fails, the file is closed next.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Makes the folder if it does not exist, and locks it for this process by a file named `lock` in it.
///
/// # Errors
/// Returns an error if the folder cannot be used, or another process has locked it.
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

/// Makes a folder and its missing parents, and makes their directory entries durable.
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

/// Makes the content of the file at the path durable, and returns its size in bytes; makes an empty file if there is
/// none. After a failed sync, the operating system may consider unwritten content written; so the content is written
/// again.
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

/// Makes the directory entries of the files in a folder durable.
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
