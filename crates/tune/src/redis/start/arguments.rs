//! The command line of a Redis server, derived from its process, from the command that starts it, or from its systemd
//! unit.
//!
//! A process with a changed title (`set-proc-title yes`, the default) no longer exposes its command line.

use super::words::of_shell;

/// Command-line arguments of a Redis server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// Path of the server's configuration file, as given on the command line.
    pub(super) file: String,
    /// Arguments after the path, as the words of lines of a configuration file.
    pub(super) lines: Vec<Vec<String>>,
}

/// Name of the server's program, in any folder; it may have a suffix.
const PROGRAM: &str = "redis-server";

fn is_program(word: &str) -> bool {
    word.rsplit('/').next().is_some_and(|name| name.starts_with(PROGRAM))
}

/// Parses the command line of a process (`/proc/PID/cmdline`, with line ends between its words); None if it is only a
/// title.
pub(super) fn of_process(cmdline: &str) -> Option<CommandLine> {
    let words: Vec<String> =
        cmdline.split('\n').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    of_words(&words)
}

/// Parses the command line of the server in a start script; None if the script has no such command. The caller must
/// compare the path with the server's own: the command may start another program.
pub(super) fn of_script(script: &str) -> Option<CommandLine> {
    of_shell(script).iter().find_map(|words| of_words(words))
}

/// Returns the systemd unit that a script starts by `systemctl`; None if it starts none.
pub(super) fn unit(script: &str) -> Option<String> {
    let of = |words: &Vec<String>| {
        let at = words.iter().position(|word| word.rsplit('/').next() == Some("systemctl"))?;
        let mut rest = words[at + 1..].iter().filter(|word| !word.starts_with('-'));
        let starts = matches!(&**rest.next()?, "start" | "restart" | "reload-or-restart");
        let unit = rest.next()?;
        let is_plain = unit.chars().all(|c| c.is_ascii_alphanumeric() || "@._-:".contains(c));
        (starts && is_plain).then(|| unit.clone())
    };
    of_shell(script).iter().find_map(of)
}

/// Parses the server's command line in systemd's description of a unit (`systemctl show -p ExecStart`); None if the
/// unit has no such command.
pub(super) fn of_unit(told: &str) -> Option<CommandLine> {
    let (_, rest) = told.split_once("argv[]=")?;
    of_script(rest.split(" ; ").next()?)
}

/// Parses the words of a command as a server's command line; None if it starts no server with a configuration file.
fn of_words(words: &[String]) -> Option<CommandLine> {
    let at = words.iter().position(|word| is_program(word))?;
    let (file, rest) = words[at + 1..].split_first()?;
    if file.starts_with('-') {
        return None;
    }
    let mut lines: Vec<Vec<String>> = Vec::new();
    for word in rest {
        match (word.strip_prefix("--"), lines.last_mut()) {
            (Some(name), _) => lines.push(name.split_whitespace().map(str::to_owned).collect()),
            (None, Some(line)) => line.push(word.clone()),
            (None, None) => {}
        }
    }
    Some(CommandLine { file: file.clone(), lines })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(of: Option<CommandLine>) -> Option<String> {
        let of = of?;
        let lines: Vec<String> = of.lines.iter().map(|line| line.join(" ")).collect();
        Some(format!("{}: {}", of.file, lines.join("; ")))
    }

    #[test]
    fn arguments_behind_the_file_are_lines() {
        let process =
            "/usr/bin/redis-server\n/etc/redis/redis.conf\n--maxmemory\n100mb\n--save\n60\n1000\n";
        let expected = "/etc/redis/redis.conf: maxmemory 100mb; save 60 1000";
        assert_eq!(told(of_process(process)).as_deref(), Some(expected));
        for title in
            ["redis-server 127.0.0.1:6379\n", "/usr/bin/redis-server *:6379 [cluster]\n", ""]
        {
            assert_eq!(told(of_process(title)), None, "{title}");
        }
        let script =
            "cd /srv && ./redis-server redis.conf --daemonize yes --maxmemory-samples 7 >log";
        let expected = "redis.conf: daemonize yes; maxmemory-samples 7";
        assert_eq!(told(of_script(script)).as_deref(), Some(expected));
        assert_eq!(told(of_script("systemctl start redis")), None);
    }

    #[test]
    fn a_unit_tells_what_it_starts() {
        assert_eq!(unit("systemctl start redis-server").as_deref(), Some("redis-server"));
        assert_eq!(
            unit("sudo systemctl --no-block restart redis@1.service; sleep 1").as_deref(),
            Some("redis@1.service")
        );
        assert_eq!(unit("systemctl stop redis"), None);
        assert_eq!(unit("systemctl start 'a b'"), None);
        let debian = "ExecStart={ path=/usr/bin/redis-server ; argv[]=/usr/bin/redis-server /etc/redis/redis.conf \
                      --supervised systemd --daemonize no ; ignore_errors=no ; start_time=[n/a] ; pid=0 }";
        let expected = "/etc/redis/redis.conf: supervised systemd; daemonize no";
        assert_eq!(told(of_unit(debian)).as_deref(), Some(expected));
    }
}
