//! A trial start of a Redis server with a copy of a file. The trial server has no data, port, replicas or cluster,
//! and is stopped at once.

use std::time::Duration;

use crate::cluster::node::quoted;
use crate::cluster::{NodeAccess, Result};

/// Time allowed until the trial server is ready, in tenths of a second; it loads no data.
const READY_TENTHS: u32 = 100;
/// Timeout of the whole trial.
const BOUND: Duration = Duration::from_secs(40);
/// Delimiter of the configuration's content within the script; no line of a configuration equals it.
const END: &str = "IMAGO-END-OF-FILE";
/// File name of the trial server's data. The trial runs in the server's own folder, as relative paths require; it
/// finds no data under this name, and writes none.
const NO_DATA: &str = "imago-trial-has-no-data.rdb";

/// Result of a trial start of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::redis) enum Trial {
    /// The trial server was ready for clients.
    Started,
    /// The trial server exited, or was not ready in time; contains its last output.
    Refused(String),
    /// No trial was made: the machine has no suitable program for one.
    NotTried,
}

/// Starts the program `executable` with this text as its configuration file on a node's machine, in the folder
/// `folder` (None: the root), and stops it. `has_tls` is true if the text sets a TLS port; not every program has the
/// setting.
///
/// # Errors
/// Fails if no command can be run on the machine.
pub(in crate::redis) async fn try_out(
    node: &NodeAccess,
    executable: &str,
    folder: Option<&str>,
    text: &str,
    has_tls: bool,
) -> Result<Trial> {
    let script = script(executable, folder, text, has_tls);
    let printed = node.run("trying the new file", &script, BOUND).await?;
    let (first, rest) = printed.split_once('\n').unwrap_or((&printed, ""));
    Ok(match first {
        "started" => Trial::Started,
        "refused" => Trial::Refused(rest.split_whitespace().collect::<Vec<_>>().join(" ")),
        _ => Trial::NotTried,
    })
}

/// Builds the script of a trial. The last line of a setting applies, so the lines that isolate the trial follow the
/// text.
fn script(executable: &str, folder: Option<&str>, text: &str, has_tls: bool) -> String {
    let folder = folder.unwrap_or("/");
    let tls = if has_tls { "tls-port 0\n" } else { "" };
    format!(
        "e={}\n\
         [ -x \"$e\" ] || {{ echo absent; exit 0; }}\n\
         d=$(mktemp -d) || {{ echo absent; exit 0; }}\n\
         p=\n\
         trap '[ -z \"$p\" ] || {{ kill \"$p\" 2>/dev/null; wait \"$p\" 2>/dev/null; }}; rm -rf -- \"$d\"' EXIT\n\
         cat >\"$d/redis.conf\" <<'{END}'\n{}{}{END}\n\
         cat >>\"$d/redis.conf\" <<{END}\n\
         port 0\n{tls}unixsocket \"$d/redis.sock\"\ndbfilename {NO_DATA}\nlogfile \"$d/log\"\npidfile \"$d/pid\"\nloglevel notice\n\
         syslog-enabled no\ndaemonize no\nsupervised no\nsave \"\"\nappendonly no\ncluster-enabled no\nreplicaof no one\n\
         set-proc-title no\ncrash-memcheck-enabled no\n{END}\n\
         cd -- {} || exit 1\n\
         \"$e\" \"$d/redis.conf\" >\"$d/out\" 2>&1 &\n\
         p=$!\n\
         i=0\n\
         while [ \"$i\" -lt {READY_TENTHS} ]; do\n\
         grep -qi 'ready to accept connections' \"$d/log\" 2>/dev/null && {{ echo started; exit 0; }}\n\
         kill -0 \"$p\" 2>/dev/null || break\n\
         sleep 0.1 2>/dev/null || sleep 1\n\
         i=$((i+1))\n\
         done\n\
         grep -qi 'permission denied' \"$d/out\" \"$d/log\" 2>/dev/null && {{ echo absent; exit 0; }}\n\
         echo refused\n\
         tail -n 4 \"$d/out\" 2>/dev/null\n\
         tail -n 2 \"$d/log\" 2>/dev/null\n\
         exit 0\n",
        quoted(executable),
        text,
        if text.ends_with('\n') || text.is_empty() { "" } else { "\n" },
        quoted(folder),
    )
}
