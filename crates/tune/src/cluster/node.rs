//! What is done on a node's machine: scripts for its shell, each within a bound.

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

/// The most that a script may print.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// The end of what it says that an error quotes.
const QUOTED_CHARS: usize = 400;
/// For a command that only looks.
pub(crate) const LOOK_BOUND: Duration = Duration::from_secs(30);
/// For reading and writing the configuration.
const FILE_BOUND: Duration = Duration::from_secs(30);
/// What ends the content of a file within a script; no line of a configuration is that.
const END: &str = "IMAGO-END-OF-FILE";

impl NodeAccess {
    /// Runs a script, and returns what it prints. Behind its bound the script is no longer waited for; what it began may
    /// go on.
    ///
    /// Its output goes into files: a server that a script starts may keep that open for as long as it lives.
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
            // A shell that ends at once, such as ssh without a key, says why by itself.
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

    /// The content of one of its files of configuration.
    pub(crate) async fn read_file(&self, path: &str) -> Result<String> {
        let doing = "reading the configuration";
        let script = format!("cat -- {}\n", quoted(path));
        let text = self.run(doing, &script, FILE_BOUND).await?;
        if text.contains(char::REPLACEMENT_CHARACTER) {
            // It could not be written back as it is.
            let (node, said) = (self.name.clone(), "it is not UTF-8 throughout".to_owned());
            return Err(Error::Command { node, doing: doing.into(), said });
        }
        Ok(text)
    }

    /// Writes a new file beside the present one, with its owner and mode, and a copy of the present one, which stays as it is:
    /// what follows writes no file any more, so that a disk that is full is found now.
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

    /// Removes what was staged.
    pub(crate) async fn unstage_file(&self, path: &str, job: &JobId) -> Result<()> {
        let path = quoted(path);
        let script = format!("f={path}\nrm -f -- \"$f.imago-new-{job}\" \"$f.imago-copy-{job}\"\n");
        self.run("removing the new configuration", &script, FILE_BOUND).await.map(drop)
    }

    /// Puts the staged file in the place of the present one, which is kept beside it, unless that is not `expected` any
    /// more.
    pub(crate) async fn install_file(&self, path: &str, job: &JobId, expected: &str) -> Result<()> {
        // The shell ends the last line, where the file may have left it open.
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

    /// Puts the file back that was there before the job. False if the job has not changed it. Where the disk has no room for
    /// a copy, it is the same file as the one that is kept.
    pub(crate) async fn restore_file(&self, path: &str, job: &JobId) -> Result<bool> {
        // A disk without room for a copy has room for another name of the file.
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
             sync\n",
            quoted(path)
        );
        let said = self.run("putting the old configuration back", &script, FILE_BOUND).await?;
        Ok(said.trim() != "none")
    }
}

/// What a script has written into a file, as far as it is looked at.
fn text_of(file: &mut File) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    Read::by_ref(file).take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The text with an end of its last line, which the shell puts there in any case.
fn with_end(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// A word that the shell takes as it is.
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
