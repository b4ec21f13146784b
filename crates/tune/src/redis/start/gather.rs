//! Reads the files of a Redis server and its command line on the server's machine.

use super::arguments::{CommandLine, of_process, of_script, of_unit, unit};
use super::effective::{Effective, Place, Sources, Unknown};
use crate::cluster::node::{LOOK_BOUND, quoted};
use crate::cluster::{Error, NodeAccess, Result};

/// Maximum number of files or patterns that one server's configuration may include.
const FILES_MAX: usize = 64;

/// Facts about the process of a running Redis server, as the server reports them.
#[derive(Clone, Debug, Default)]
pub(in crate::redis) struct Process {
    /// ID of the process on its machine.
    pub(in crate::redis) pid: String,
    /// Path of the server's program.
    pub(in crate::redis) executable: String,
    /// Path of the configuration file that the process was started with.
    pub(in crate::redis) configuration: String,
    /// Working directory of the process now.
    pub(in crate::redis) folder: String,
}

/// The sources of a server's configuration at its next start, as far as known.
#[derive(Clone, Debug)]
pub(in crate::redis) struct Starts<'n> {
    node: &'n NodeAccess,
    sources: Sources,
    /// False if the command line is unknown.
    pub(in crate::redis) knows_arguments: bool,
}

impl<'n> Starts<'n> {
    /// Determines the sources of a node's configuration at its next start; if the node is down (`process` is None),
    /// from the cluster file only.
    ///
    /// # Errors
    /// Fails if no command can be run on the machine, or if the server was started with another file than the cluster
    /// file names.
    pub(in crate::redis) async fn of(
        node: &'n NodeAccess,
        process: Option<&Process>,
    ) -> Result<Self> {
        let own = process.map_or(&*node.configuration, |process| &process.configuration);
        let told = command_line(node, process, own).await?;
        if let Some(process) = process {
            is_same_file(node, &process.configuration).await?;
        }
        let folder = told.as_ref().and_then(|told| folder_of(own, &told.file));
        let arguments = told.as_ref().map(|told| told.lines.clone()).unwrap_or_default();
        let path = node.configuration.clone();
        let sources = Sources { path, folder, arguments, ..Sources::default() };
        let mut starts = Self { node, sources, knows_arguments: told.is_some() };
        if let Some(process) = process.filter(|_| starts.sources.folder.is_none()) {
            starts.guess_folder(process).await?;
        }
        Ok(starts)
    }

    /// Assumes that the server starts in its present working directory, unless a line `dir` changes that after the
    /// start.
    async fn guess_folder(&mut self, process: &Process) -> Result<()> {
        if process.folder.is_empty() {
            return Ok(());
        }
        let text = self.node.read_file(&self.node.configuration).await?;
        let mut guessed = self.clone();
        guessed.sources.folder = Some(process.folder.clone());
        let moves = guessed.read(&text).await.is_ok_and(|found| found.get("dir").is_some());
        if !moves {
            *self = guessed;
        }
        Ok(())
    }

    /// Evaluates the configuration that the server would have if its own file had this text; reads included files.
    ///
    /// # Errors
    /// Fails if the server would not start, if an include cannot be resolved, or if there are too many.
    pub(in crate::redis) async fn read(&mut self, text: &str) -> Result<Effective> {
        let name = &self.node.name;
        for _ in 0..=FILES_MAX {
            match Effective::of(&self.sources, text) {
                Ok(effective) => return Ok(effective),
                Err(Unknown::Files(pattern)) => {
                    let files = included(self.node, &pattern).await?;
                    self.sources.included.insert(pattern, files);
                }
                Err(Unknown::Invalid(place, problem)) => {
                    return Err(Error::precondition(
                        format!("{name} would not start again: {problem} ({place})"),
                        "correct that file there",
                    ));
                }
                Err(Unknown::Relative(place, path)) => {
                    return Err(Error::precondition(
                        format!(
                            "{name} includes {path} ({place}), and the folder in which it starts is not known"
                        ),
                        "write the whole path of that file there",
                    ));
                }
            }
        }
        Err(Error::precondition(
            format!("{name} includes more than {FILES_MAX} files or patterns"),
            "put them together",
        ))
    }

    /// Returns the working directory of the server when it starts; None if unknown.
    pub(in crate::redis) fn folder(&self) -> Option<&str> {
        self.sources.folder.as_deref()
    }

    /// Returns the `user` or `loadmodule` line that `CONFIG REWRITE` would duplicate; None if there is no such line.
    pub(in crate::redis) fn doubled_by_rewrite<'e>(
        &self,
        effective: &'e Effective,
    ) -> Option<(&'static str, &'e Place)> {
        effective.doubled_by_rewrite(&self.sources.path)
    }
}

/// Reads the server's command line from its process, from the start command, or from the systemd unit; None if it is
/// in none of them. `own` is the path of the server's own file.
async fn command_line(
    node: &NodeAccess,
    process: Option<&Process>,
    own: &str,
) -> Result<Option<CommandLine>> {
    let is_own = |told: &CommandLine| own == told.file || folder_of(own, &told.file).is_some();
    let pid = process.map(|process| &*process.pid);
    if let Some(pid) = pid.filter(|pid| !pid.is_empty() && pid.chars().all(|c| c.is_ascii_digit()))
    {
        // Systems other than Linux have no such file.
        let script = format!(
            "[ -r /proc/{pid}/cmdline ] && tr '\\000' '\\n' </proc/{pid}/cmdline || true\n"
        );
        let told = node.run("reading its command line", &script, LOOK_BOUND).await?;
        if let Some(told) = of_process(&told).filter(is_own) {
            return Ok(Some(told));
        }
    }
    if let Some(told) = of_script(&node.start).filter(is_own) {
        return Ok(Some(told));
    }
    let Some(unit) = unit(&node.start) else { return Ok(None) };
    let script = format!("systemctl show -p ExecStart {} 2>/dev/null || true\n", quoted(&unit));
    let told = node.run("reading its unit", &script, LOOK_BOUND).await?;
    Ok(of_unit(&told).filter(is_own))
}

/// Returns the folder from which the relative `path` leads to the server's own file `own`; None if the path is
/// absolute, or leads elsewhere.
fn folder_of(own: &str, path: &str) -> Option<String> {
    if path.starts_with('/') {
        return None;
    }
    let path = path.trim_start_matches("./");
    let folder = own.strip_suffix(path)?.strip_suffix('/')?;
    Some(if folder.is_empty() { "/".into() } else { folder.to_owned() })
}

/// Checks that the server was started with the file that the cluster file names, if both exist on the machine; `own`
/// is the path that the server was started with.
async fn is_same_file(node: &NodeAccess, own: &str) -> Result<()> {
    if own == node.configuration {
        return Ok(());
    }
    let (own_word, named) = (quoted(own), quoted(&node.configuration));
    let script =
        format!("if [ -e {own_word} ] && ! [ {own_word} -ef {named} ]; then echo other; fi\n");
    if node.run("comparing its files", &script, LOOK_BOUND).await?.trim() != "other" {
        return Ok(());
    }
    Err(Error::precondition(
        format!(
            "{} was started with {own}, and the cluster file names {}",
            node.name, node.configuration
        ),
        "have `configuration` name the file that the server reads",
    ))
}

/// Reads the files of an included path or pattern, in the server's order, each with path and text; empty if there are
/// no such files.
async fn included(node: &NodeAccess, pattern: &str) -> Result<Vec<(String, String)>> {
    let script = format!(
        "for f in {}; do [ -f \"$f\" ] || continue; printf '%s\\n' \"$f\"; wc -c <\"$f\"; cat -- \"$f\"; done\n",
        globbed(pattern)
    );
    let doing = format!("reading {pattern}");
    let printed = node.run(&doing, &script, LOOK_BOUND).await?;
    let failed = || {
        let said = "it is not UTF-8 throughout, or too long".to_owned();
        Error::Command { node: node.name.clone(), doing: doing.clone(), said }
    };
    let (mut files, mut rest) = (Vec::new(), &*printed);
    while !rest.is_empty() {
        let (path, behind) = rest.split_once('\n').ok_or_else(failed)?;
        let (bytes, behind) = behind.split_once('\n').ok_or_else(failed)?;
        let bytes: usize = bytes.trim().parse().map_err(|_| failed())?;
        let text = behind.get(..bytes).ok_or_else(failed)?;
        files.push((path.to_owned(), text.to_owned()));
        rest = &behind[bytes..];
    }
    Ok(files)
}

/// Escapes the pattern of an `include` for the shell, except for its wildcards.
fn globbed(pattern: &str) -> String {
    let mut word = String::with_capacity(pattern.len() * 2);
    let mut is_within = false;
    for c in pattern.chars() {
        match c {
            '[' => is_within = true,
            ']' => is_within = false,
            _ => {}
        }
        let is_plain =
            c.is_alphanumeric() || "/._*?[]".contains(c) || (is_within && "-!^".contains(c));
        if !is_plain && c != '\\' {
            word.push('\\');
        }
        word.push(c);
    }
    word
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn node(folder: &std::path::Path, start: &str) -> NodeAccess {
        NodeAccess {
            name: "cache-1".into(),
            address: "127.0.0.1:6379".parse().unwrap(),
            shell: "sh".into(),
            configuration: folder.join("redis.conf").display().to_string(),
            nodetool: None,
            jvm_options: None,
            stop: "true".into(),
            start: start.into(),
            drain_max: Duration::from_secs(180),
            look_max: None,
        }
    }

    #[test]
    fn a_folder_is_told_by_a_relative_path() {
        assert_eq!(
            folder_of("/srv/redis/etc/redis.conf", "etc/redis.conf").as_deref(),
            Some("/srv/redis")
        );
        assert_eq!(folder_of("/redis.conf", "./redis.conf").as_deref(), Some("/"));
        assert_eq!(folder_of("/srv/redis.conf", "/srv/redis.conf"), None);
        assert_eq!(folder_of("/srv/my-redis.conf", "redis.conf"), None);
    }

    #[tokio::test]
    async fn files_are_read_in_order_with_whatever_they_hold() {
        let folder = tempfile::tempdir().unwrap();
        let under = |name: &str| folder.path().join(name);
        std::fs::create_dir(under("conf d$")).unwrap();
        for (name, text) in [
            ("20.conf", "hz 30"),
            ("10-a.conf", "hz 20\n# it's \"so\" `x` $HOME\n"),
            ("b.txt", "hz 1"),
        ] {
            std::fs::write(under("conf d$").join(name), text).unwrap();
        }
        let node = node(folder.path(), "systemctl start redis");
        let pattern = under("conf d$/[0-9]*.conf").display().to_string();
        let files = included(&node, &pattern).await.unwrap();
        let texts: Vec<&str> = files.iter().map(|(_, text)| &**text).collect();
        assert_eq!(texts, ["hz 20\n# it's \"so\" `x` $HOME\n", "hz 30"]);
        assert!(files[0].0.ends_with("conf d$/10-a.conf"), "{files:?}");
        assert!(
            included(&node, &under("none*.conf").display().to_string()).await.unwrap().is_empty()
        );
    }

    #[tokio::test]
    async fn a_server_that_does_not_run_is_known_by_the_command_that_starts_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display().to_string();
        let start = format!("cd {path} && redis-server redis.conf --hz 40 --daemonize yes");
        let node = node(folder.path(), &start);
        std::fs::write(folder.path().join("more.conf"), "timeout 60\nhz 20\n").unwrap();
        let mut starts = Starts::of(&node, None).await.unwrap();
        assert!(starts.knows_arguments);
        let told = starts.read("include more.conf\nhz 10\n").await.unwrap();
        let value = |name: &str| told.get(name).unwrap().value.clone();
        assert_eq!((value("hz"), value("timeout")), ("40".into(), "60".into()));
        let error = starts.read("include other.conf\n").await.unwrap_err();
        assert!(
            error.to_string().contains("cache-1 would not start again: there is no file"),
            "{error}"
        );
    }
}
