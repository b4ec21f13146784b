//! The log on stderr: text, or JSON lines if progress is JSON; progress bars are suspended while a
//! line is written.

use std::io::{self, IsTerminal, Write};

use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;

use crate::exit::{Exit, Failure};
use crate::options::{Global, ProgressMode, colour_wanted};

/// The log filter without `--log-filter`. Cassandra's driver logs every connection that ends as an error, including
/// those of a node's restart; relevant errors are returned by the statements.
const DEFAULT_FILTER: &str = "warn,scylla=off";

/// Starts the log on stderr as the options specify; the progress lines `bars` are suspended while a line is written.
pub fn begin(global: &Global, bars: &MultiProgress) -> Result<(), Failure> {
    let filter = global.log_filter.as_deref().unwrap_or(DEFAULT_FILTER);
    let filter = EnvFilter::try_new(filter).map_err(|cause| {
        Failure::new(Exit::Usage, "log_filter", format!("{filter:?} is not a log filter"))
            .because(&cause)
            .help("write a level, or a target and a level: `info`, `warn,imago_mongo=debug`")
    })?;
    let bars = bars.clone();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colour_wanted(io::stderr().is_terminal()))
        .with_writer(move || Lines { bars: bars.clone() });
    let begun = match global.progress {
        ProgressMode::Json => log.json().try_init(),
        _ => log.try_init(),
    };
    begun.map_err(|cause| {
        Failure::new(Exit::Failed, "log", "cannot begin to log").because(cause.as_ref())
    })
}

/// A writer of log lines to stderr that ignores errors. If the reader of stderr is gone, the work continues, and an
/// error could not be shown: it would be a panic of the task that logs, which may be the one that waits for Ctrl-C.
struct Lines {
    bars: MultiProgress,
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        drop(self.bars.suspend(|| io::stderr().write_all(line)));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        drop(io::stderr().flush());
        Ok(())
    }
}
