//! Operations on a node's machine: scripts for its shell, each with a timeout.

use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::process::Stdio;
use std::time::Duration;

use imago_job::id::JobId;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::error::{Error, Result};
use super::file::NodeAccess;

/// Maximum output that is read of a script on a node, in bytes of stdout and of stderr each.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// Maximum length of a script's output that an error quotes, in characters from its end.
const QUOTED_CHARS: usize = 400;
/// Timeout of a read-only command on a node.
pub(crate) const LOOK_BOUND: Duration = Duration::from_secs(30);
/// Timeout of reading or writing a configuration file on a node.
const FILE_BOUND: Duration = Duration::from_secs(30);
/// Delimiter of a file's content within a script on a node; no line of a configuration equals it.
const END: &str = "IMAGO-END-OF-FILE";

impl NodeAccess {
    /// Executes a script on the node's machine and returns its output; `doing` describes it in errors. After the
    /// timeout `bound` the script is abandoned; processes that it started may continue.
    ///
    /// The output goes into files: a server that a script starts may keep a pipe open for as long as it runs.
    pub(crate) async fn run(&self, doing: &str, script: &str, bound: Duration) -> Result<String> {
        let failed = |said: String| Error::Command {
            node: self.name.clone(),
            doing: doing.to_owned(),
            said,
        };
        let work = async {
            let (mut printed, mut said) = (tempfile::tempfile()?, tempfile::tempfile()?);
            let mut child = Command::new("sh")
                .args(["-c", &self.shell])
                .stdin(Stdio::piped())
                .stdout(printed.try_clone()?)
                .stderr(said.try_clone()?)
                .kill_on_drop(true)
                .spawn()?;
            let mut stdin = child.stdin.take().expect("it is piped");
            // A shell that exits at once, such as ssh without a key, reports the reason itself.
            let _ = stdin.write_all(script.as_bytes()).await;
            drop(stdin);
            let status = child.wait().await?;
            Ok::<_, std::io::Error>((status, text_of(&mut printed)?, text_of(&mut said)?))
        };
        let (status, printed, said) = match timeout(bound, work).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(cause)) => return Err(failed(cause.to_string())),
            Err(_) => return Err(failed(format!("no end within {} s", bound.as_secs()))),
        };
        if status.success() {
            return Ok(printed);
        }
        let said = if said.trim().is_empty() { printed.trim() } else { said.trim() };
        let skipped = said.chars().count().saturating_sub(QUOTED_CHARS);
        let quoted: String = said.chars().skip(skipped).collect();
        Err(failed(format!("{status}: {quoted}")))
    }

    /// Reads the configuration file at `path` on the node's machine.
    pub(crate) async fn read_file(&self, path: &str) -> Result<String> {
        let doing = "reading the configuration";
        let script = format!("cat -- {}\n", quoted(path));
        let text = self.run(doing, &script, FILE_BOUND).await?;
        if text.contains(char::REPLACEMENT_CHARACTER) {
            // The text could not be written back unchanged.
            let (node, said) = (self.name.clone(), "it is not UTF-8 throughout".to_owned());
            return Err(Error::Command { node, doing: doing.into(), said });
        }
        Ok(text)
    }

    /// Writes the new content `text` of the file at `path` into a file next to it, with the present file's owner and
    /// mode, and a copy of the present file, which stays unchanged. The later steps write no file contents, so that a
    /// full disk is detected here.
    pub(crate) async fn stage_file(&self, path: &str, job: &JobId, text: &str) -> Result<()> {
        let script = format!(
            "set -e\n\
             f={}\n\
             n=\"$f.imago-new-{job}\"\n\
             c=\"$f.imago-copy-{job}\"\n\
             trap 'rm -f -- \"$n\" \"$c\"' EXIT\n\
             cp -p -- \"$f\" \"$c\"\n\
             cp -p -- \"$f\" \"$n\"\n\
             cat > \"$n\" <<'{END}'\n{}{END}\n\
             sync -- \"$n\" \"$c\"\n\
             trap - EXIT\n",
            quoted(path),
            with_end(text),
        );
        self.run("writing the new configuration", &script, FILE_BOUND).await.map(drop)
    }

    /// Removes the files that [`Self::stage_file`] wrote for this job next to `path`.
    pub(crate) async fn unstage_file(&self, path: &str, job: &JobId) -> Result<()> {
        let path = quoted(path);
        let script = format!("f={path}\nrm -f -- \"$f.imago-new-{job}\" \"$f.imago-copy-{job}\"\n");
        self.run("removing the new configuration", &script, FILE_BOUND).await.map(drop)
    }

    /// Replaces the present file at `path` by the one staged for the job, and saves the present one next to it; fails
    /// if the present content differs from `expected`.
    pub(crate) async fn install_file(&self, path: &str, job: &JobId, expected: &str) -> Result<()> {
        // A shell's here-document ends with a line end, which the file may lack.
        let is_open = !expected.ends_with('\n') && !expected.is_empty();
        let cut = if is_open { "head -c -1 | " } else { "" };
        let script = format!(
            "set -e\n\
             f={}\n\
             n=\"$f.imago-new-{job}\"\n\
             c=\"$f.imago-copy-{job}\"\n\
             cat <<'{END}' | {cut}cmp -s -- \"$f\" - && cmp -s -- \"$f\" \"$c\" || {{ rm -f -- \"$c\" \"$n\"; \
             echo \"$f has been changed meanwhile\" >&2; exit 1; }}\n\
             {}{END}\n\
             mv -f -- \"$c\" \"$f.imago-before-{job}\"\n\
             mv -f -- \"$n\" \"$f\"\n\
             sync\n",
            quoted(path),
            with_end(expected),
        );
        self.run("putting the new configuration in place", &script, FILE_BOUND).await.map(drop)
    }

    /// Saves a copy of the file at `path` next to it for a later restore, unless the job has a copy already.
    pub(crate) async fn back_up_file(&self, path: &str, job: &JobId) -> Result<()> {
        let path = quoted(path);
        let script = format!(
            "set -e\n\
             f={path}\n\
             b=\"$f.imago-before-{job}\"\n\
             [ -e \"$b\" ] && exit\n\
             trap 'rm -f -- \"$b\"' EXIT\n\
             cp -p -- \"$f\" \"$b\"\n\
             sync -- \"$b\"\n\
             trap - EXIT\n"
        );
        self.run("keeping a copy of the configuration", &script, FILE_BOUND).await.map(drop)
    }

    /// Removes the copy of the file at `path` that [`Self::back_up_file`] saved for this job.
    pub(crate) async fn forget_file(&self, path: &str, job: &JobId) -> Result<()> {
        let script = format!("rm -f -- {}.imago-before-{job}\n", quoted(path));
        self.run("removing a copy of the configuration", &script, FILE_BOUND).await.map(drop)
    }

    /// Restores the file at `path` as it was before the job. Returns false if the job has saved no copy of it, so
    /// that it has not changed the file. If the disk has no room for a copy, the restored file is a hard link to the
    /// saved one.
    pub(crate) async fn restore_file(&self, path: &str, job: &JobId) -> Result<bool> {
        // A disk without room for a copy has room for a hard link.
        let script = format!(
            "set -e\n\
             f={}\n\
             b=\"$f.imago-before-{job}\"\n\
             r=\"$f.imago-back-{job}\"\n\
             [ -e \"$b\" ] || {{ echo none; exit 0; }}\n\
             cmp -s -- \"$b\" \"$f\" && exit\n\
             cp -p -- \"$b\" \"$r\" || {{ rm -f -- \"$r\"; ln -- \"$b\" \"$r\"; }}\n\
             mv -f -- \"$r\" \"$f\"\n\
             rm -f -- \"$r\"\n\
             sync\n\
             cmp -s -- \"$b\" \"$f\" || {{ echo \"$f is not as $b\" >&2; exit 1; }}\n",
            quoted(path)
        );
        let said = self.run("putting the old configuration back", &script, FILE_BOUND).await?;
        Ok(said.trim() != "none")
    }
}

/// Reads the output of a script from the file that received it, up to [`OUTPUT_BYTES_MAX`].
fn text_of(file: &mut File) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    Read::by_ref(file).take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the text with a line end, which a here-document of the shell always adds.
fn with_end(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// Quotes a word for the shell, so that nothing in it is expanded.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(configuration: &std::path::Path) -> NodeAccess {
        NodeAccess {
            name: "cas-1".into(),
            address: "127.0.0.1:9042".parse().unwrap(),
            shell: "sh".into(),
            configuration: configuration.display().to_string(),
            nodetool: None,
            jvm_options: None,
            stop: "true".into(),
            start: "true".into(),
            drain_max: Duration::from_secs(180),
            look_max: None,
        }
    }

    fn path(file: &std::path::Path) -> String {
        file.display().to_string()
    }

    fn job() -> JobId {
        JobId::from_parts(1_498_442_107_000, 7)
    }

    const OLD: &str = "# it's ours: \"$HOME\" `id`\ncluster_name: 'shop'\nnum_tokens: 16\n";

    #[tokio::test]
    async fn a_configuration_is_replaced_whole_and_the_old_one_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("it's cassandra.yaml");
        std::fs::write(&file, OLD).unwrap();
        let node = node(&file);
        assert_eq!(node.read_file(&path(&file)).await.unwrap(), OLD);
        let new = OLD.replace("16", "8");
        node.stage_file(&path(&file), &job(), &new).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD, "only staged");
        node.install_file(&path(&file), &job(), OLD).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), new);
        assert!(node.restore_file(&path(&file), &job()).await.unwrap());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD);
        let other = JobId::from_parts(1_498_442_107_000, 8);
        std::fs::write(&file, "num_tokens: 4 # by hand\n").unwrap();
        assert!(!node.restore_file(&path(&file), &other).await.unwrap(), "it is another job's");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "num_tokens: 4 # by hand\n");
    }

    #[tokio::test]
    async fn what_a_script_starts_may_live_on() {
        let folder = tempfile::tempdir().unwrap();
        let node = node(&folder.path().join("cassandra.yaml"));
        let began = std::time::Instant::now();
        let said =
            node.run("starting", "sleep 20 & echo up", Duration::from_secs(15)).await.unwrap();
        assert_eq!((said.trim(), began.elapsed() < Duration::from_secs(10)), ("up", true));
    }

    #[tokio::test]
    async fn a_file_of_another_encoding_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cassandra.yaml");
        std::fs::write(&file, b"# caf\xe9\nnum_tokens: 16\n").unwrap();
        let error = node(&file).read_file(&path(&file)).await.unwrap_err().to_string();
        assert!(error.contains("not UTF-8"), "{error}");
    }

    #[tokio::test]
    async fn an_open_last_line_is_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cassandra.yaml");
        std::fs::write(&file, OLD.trim_end()).unwrap();
        let node = node(&file);
        node.stage_file(&path(&file), &job(), "num_tokens: 8").await.unwrap();
        node.install_file(&path(&file), &job(), OLD.trim_end()).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "num_tokens: 8\n");
    }

    #[tokio::test]
    async fn a_file_that_was_changed_meanwhile_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cassandra.yaml");
        std::fs::write(&file, OLD).unwrap();
        let node = node(&file);
        node.stage_file(&path(&file), &job(), "num_tokens: 8\n").await.unwrap();
        std::fs::write(&file, "num_tokens: 4 # by hand\n").unwrap();
        let error = node.install_file(&path(&file), &job(), OLD).await.unwrap_err().to_string();
        assert!(error.contains("has been changed meanwhile"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "num_tokens: 4 # by hand\n");
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[tokio::test]
    async fn a_full_disk_leaves_the_old_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cassandra.yaml");
        std::fs::write(&file, OLD).unwrap();
        // What is written there fails as on a full disk.
        std::os::unix::fs::symlink(
            "/dev/full",
            folder.path().join(format!("cassandra.yaml.imago-new-{}", job())),
        )
        .unwrap();
        let error =
            node(&file).stage_file(&path(&file), &job(), "num_tokens: 8\n").await.unwrap_err();
        assert!(error.to_string().contains("cas-1"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD);
    }

    #[tokio::test]
    async fn a_full_disk_does_not_keep_the_old_configuration_from_coming_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cassandra.yaml");
        std::fs::write(&file, OLD).unwrap();
        let node = node(&file);
        node.stage_file(&path(&file), &job(), "num_tokens: 8\n").await.unwrap();
        node.install_file(&path(&file), &job(), OLD).await.unwrap();
        let back = folder.path().join(format!("cassandra.yaml.imago-back-{}", job()));
        std::os::unix::fs::symlink("/dev/full", &back).unwrap();
        for _ in 0..2 {
            assert!(node.restore_file(&path(&file), &job()).await.unwrap());
            assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD);
            assert!(!back.is_symlink());
        }
    }

    #[tokio::test]
    async fn a_command_that_fails_or_hangs_is_named_with_what_it_said() {
        let node = node(std::path::Path::new("/etc/cassandra/cassandra.yaml"));
        let second = Duration::from_secs(1);
        let error = node.run("draining", "echo 'no such host' >&2; exit 7", second).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("draining on cas-1") && error.contains("no such host"), "{error}");
        let error = node.run("draining", "sleep 60", second).await.unwrap_err().to_string();
        assert!(error.contains("no end within 1 s"), "{error}");
    }
}
