//! The log on stderr: text, or JSON lines where progress is; never through a progress bar.

use std::io::{self, IsTerminal, Write};

use indicatif::MultiProgress;
use tracing_subscriber::EnvFilter;

use crate::cli::{Global, ProgressMode, colour_wanted};
use crate::exit::{Exit, Failure};

/// What is logged unless something is asked for. Cassandra's driver tells of each connection that ends as of an error,
/// which is what a node's restart looks like; what matters of it comes back from the statements.
const UNASKED: &str = "warn,scylla=off";

/// Begins to log what the options want; `bars` are taken away while a line is written.
pub fn begin(global: &Global, bars: &MultiProgress) -> Result<(), Failure> {
    let filter = global.log_filter.as_deref().unwrap_or(UNASKED);
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

/// The reader of stderr may be gone. That is no reason to stop, and an error could not be shown: here it would be
/// a panic of the task that logs, which may be the one that waits for Ctrl-C.
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
