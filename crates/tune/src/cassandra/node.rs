//! What is done on a node's machine: scripts for its shell, each within a bound.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use super::cluster_file::NodeAccess;
use super::error::{Error, Result};

/// The most that a script may print.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
/// The end of what it says that an error quotes.
const QUOTED_CHARS: usize = 400;
/// For a command that only looks.
pub(super) const LOOK_BOUND: Duration = Duration::from_secs(30);
/// For reading and writing the configuration.
const FILE_BOUND: Duration = Duration::from_secs(30);
/// What ends the content of a file within a script; no line of a configuration is that.
const END: &str = "IMAGO-END-OF-FILE";

impl NodeAccess {
    /// Runs a script, and returns what it prints. Behind its bound the script is no longer waited for; what it began may
    /// go on.
    pub(super) async fn run(&self, doing: &str, script: &str, bound: Duration) -> Result<String> {
        let failed = |said: String| Error::Command {
            node: self.name.clone(),
            doing: doing.to_owned(),
            said,
        };
        let work = async {
            let mut child = Command::new("sh")
                .args(["-c", &self.shell])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()?;
            let mut stdin = child.stdin.take().expect("it is piped");
            let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
            let mut printed = Vec::new();
            let mut said = Vec::new();
            let write = async {
                // A shell that ends at once, such as ssh without a key, says why by itself.
                let _ = stdin.write_all(script.as_bytes()).await;
                drop(stdin);
            };
            let read = stdout.expect("it is piped").take(OUTPUT_BYTES_MAX);
            let mut read = std::pin::pin!(read);
            let errors = stderr.expect("it is piped").take(OUTPUT_BYTES_MAX);
            let mut errors = std::pin::pin!(errors);
            let ((), out, err) =
                tokio::join!(write, read.read_to_end(&mut printed), errors.read_to_end(&mut said));
            out?;
            err?;
            Ok::<_, std::io::Error>((child.wait().await?, printed, said))
        };
        let (status, printed, said) = match timeout(bound, work).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(cause)) => return Err(failed(cause.to_string())),
            Err(_) => return Err(failed(format!("no end within {} s", bound.as_secs()))),
        };
        let printed = String::from_utf8_lossy(&printed).into_owned();
        if status.success() {
            return Ok(printed);
        }
        let said = String::from_utf8_lossy(&said);
        let said = if said.trim().is_empty() { printed.trim() } else { said.trim() };
        let skipped = said.chars().count().saturating_sub(QUOTED_CHARS);
        let quoted: String = said.chars().skip(skipped).collect();
        Err(failed(format!("{status}: {quoted}")))
    }

    /// Runs a command of `nodetool`.
    pub(super) async fn nodetool(&self, command: &str, bound: Duration) -> Result<String> {
        let script = format!("{} {command}\n", self.nodetool);
        self.run(&format!("nodetool {command}"), &script, bound).await
    }

    /// The content of its configuration.
    pub(super) async fn read_configuration(&self) -> Result<String> {
        let script = format!("cat -- {}\n", quoted(&self.configuration));
        self.run("reading the configuration", &script, FILE_BOUND).await
    }

    /// Writes a new configuration beside the present one, with its owner and mode. The present one stays as it is.
    pub(super) async fn stage_configuration(&self, text: &str) -> Result<()> {
        let script = format!(
            "set -e\n\
             f={}\n\
             trap 'rm -f -- \"$f.imago-new\"' EXIT\n\
             cp -p -- \"$f\" \"$f.imago-new\"\n\
             cat > \"$f.imago-new\" <<'{END}'\n{}{END}\n\
             sync -- \"$f.imago-new\"\n\
             trap - EXIT\n",
            quoted(&self.configuration),
            with_end(text),
        );
        self.run("writing the new configuration", &script, FILE_BOUND).await.map(drop)
    }

    /// Puts the staged configuration in the place of the present one, which is kept beside it, unless that is not
    /// `expected` any more.
    pub(super) async fn install_configuration(&self, expected: &str) -> Result<()> {
        // The shell ends the last line, where the file may have left it open.
        let cut = if expected.ends_with('\n') || expected.is_empty() {
            ""
        } else {
            "truncate -s -1 -- \"$f.imago-old\"\n"
        };
        let script = format!(
            "set -e\n\
             f={}\n\
             cat > \"$f.imago-old\" <<'{END}'\n{}{END}\n{cut}\
             cmp -s -- \"$f\" \"$f.imago-old\" || {{ rm -f -- \"$f.imago-old\" \"$f.imago-new\"; echo \"$f has been \
             changed meanwhile\" >&2; exit 1; }}\n\
             rm -f -- \"$f.imago-old\"\n\
             cp -p -- \"$f\" \"$f.imago-before\"\n\
             mv -f -- \"$f.imago-new\" \"$f\"\n\
             sync\n",
            quoted(&self.configuration),
            with_end(expected),
        );
        self.run("putting the new configuration in place", &script, FILE_BOUND).await.map(drop)
    }

    /// Puts the configuration of before back.
    pub(super) async fn restore_configuration(&self) -> Result<()> {
        let script = format!(
            "set -e\nf={}\ncp -p -- \"$f.imago-before\" \"$f\"\nsync\n",
            quoted(&self.configuration)
        );
        self.run("putting the old configuration back", &script, FILE_BOUND).await.map(drop)
    }
}

/// The text with an end of its last line, which the shell puts there in any case.
fn with_end(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// A word that the shell takes as it is.
fn quoted(word: &str) -> String {
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
            nodetool: "false".into(),
            stop: "true".into(),
            start: "true".into(),
        }
    }

    const OLD: &str = "# it's ours: \"$HOME\" `id`\ncluster_name: 'shop'\nnum_tokens: 16\n";

    #[tokio::test]
    async fn a_configuration_is_replaced_whole_and_the_old_one_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("it's cassandra.yaml");
        std::fs::write(&file, OLD).unwrap();
        let node = node(&file);
        assert_eq!(node.read_configuration().await.unwrap(), OLD);
        let new = OLD.replace("16", "8");
        node.stage_configuration(&new).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD, "only staged");
        node.install_configuration(OLD).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), new);
        node.restore_configuration().await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD);
    }

    #[tokio::test]
    async fn an_open_last_line_is_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cassandra.yaml");
        std::fs::write(&file, OLD.trim_end()).unwrap();
        let node = node(&file);
        node.stage_configuration("num_tokens: 8").await.unwrap();
        node.install_configuration(OLD.trim_end()).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "num_tokens: 8\n");
    }

    #[tokio::test]
    async fn a_file_that_was_changed_meanwhile_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cassandra.yaml");
        std::fs::write(&file, OLD).unwrap();
        let node = node(&file);
        node.stage_configuration("num_tokens: 8\n").await.unwrap();
        std::fs::write(&file, "num_tokens: 4 # by hand\n").unwrap();
        let error = node.install_configuration(OLD).await.unwrap_err().to_string();
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
        std::os::unix::fs::symlink("/dev/full", folder.path().join("cassandra.yaml.imago-new"))
            .unwrap();
        let error = node(&file).stage_configuration("num_tokens: 8\n").await.unwrap_err();
        assert!(error.to_string().contains("cas-1"), "{error}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), OLD);
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
