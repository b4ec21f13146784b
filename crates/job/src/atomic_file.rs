//! Small files that are replaced atomically: a reader finds the old content or the new one, also after a
//! crash.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Replaces the content of the file at `path` atomically and durably. The new content is first written to a file
/// in the same folder with the extension `new`.
///
/// # Errors
/// Returns an error if the content cannot be written durably. The file at `path` then has its old content, unless
/// only the sync of its folder failed.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&new, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sites.json");
        for content in [&b"one"[..], b"another"] {
            replace(&path, content).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(replace(&folder.path().join("missing/sites.json"), b"x").is_err());
    }
}
