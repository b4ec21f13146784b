//! The context of every verb: the output of results, the display of progress, and the user's request to stop.

use std::io::{self, IsTerminal};
use std::sync::Mutex;
use std::time::Duration;

use imago_job::id::JobId;
use imago_job::render::{self, Render, Rendering};
use imago_job::reporter::{Events, Reporter};
use indicatif::MultiProgress;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure};
use crate::logging;
use crate::options::{Global, ProgressMode};
use crate::output::Output;
use crate::render::{Bars, Plain};

/// Maximum time for displaying the last events before the process ends.
const FINISH_MAX: Duration = Duration::from_secs(2);

/// The context in which a verb of the command line runs.
pub struct Context {
    /// The writer of results to stdout.
    pub output: Output,
    /// Token that is cancelled when the user asks to stop (Ctrl-C, SIGTERM, SIGHUP): the verb then ends in an orderly
    /// way, and with [`Exit::Interrupted`] if the work can be resumed.
    pub cancel: CancellationToken,
    /// Display mode of progress as requested, for verbs that display something other than a job.
    pub progress: ProgressMode,
    /// The progress lines at the bottom of a terminal, to which a verb that displays something other than a job adds
    /// its own.
    pub bars: MultiProgress,
    events: Events,
    renderings: Mutex<Vec<Rendering>>,
}

impl Context {
    /// Creates the context from the global options, and starts logging, the display of progress and the metrics. It
    /// must be called within the Tokio runtime.
    pub fn new(global: &Global) -> Result<Self, Failure> {
        let bars = MultiProgress::new();
        logging::begin(global, &bars)?;
        let context = Self {
            output: Output::stdout(global.json),
            cancel: CancellationToken::new(),
            progress: global.progress,
            bars: bars.clone(),
            events: Events::default(),
            renderings: Mutex::default(),
        };
        context.show_progress(global.progress, bars)?;
        // Without --log-filter there is no log of events: the progress display already shows
        // warnings.
        if global.log_filter.is_some() {
            context.render(render::log::Log)?;
        }
        if let Some(address) = global.metrics {
            let metrics = render::prometheus::serve(address).map_err(|error| {
                Failure::from_error(Exit::Precondition, "metrics_address", &error)
            })?;
            context.render(metrics)?;
        }
        Ok(context)
    }

    /// Returns the stream of job events, which is displayed as progress.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Creates the reporter of events of a job of the given kind.
    pub fn reporter(&self, job: JobId, kind: &str) -> Reporter {
        self.events.reporter(job, kind)
    }

    /// Waits until all reported events are displayed, but at most [`FINISH_MAX`]; to be called before the process
    /// ends.
    pub async fn finish(&self) {
        self.events.close();
        let renderings = match self.renderings.lock() {
            Ok(mut renderings) => std::mem::take(&mut *renderings),
            Err(poisoned) => std::mem::take(&mut *poisoned.into_inner()),
        };
        let all = async {
            for rendering in renderings {
                rendering.finish(FINISH_MAX).await;
            }
        };
        // A renderer that hangs must not keep the process from ending.
        drop(tokio::time::timeout(FINISH_MAX, all).await);
    }

    fn show_progress(&self, mode: ProgressMode, bars: MultiProgress) -> Result<(), Failure> {
        let terminal = io::stderr().is_terminal();
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match mode {
            ProgressMode::None => Ok(()),
            ProgressMode::Json => self.render(render::json::JsonLines(io::stderr())),
            ProgressMode::Bar if terminal => self.render(Bars::new(bars)),
            ProgressMode::Auto if terminal && !dumb => self.render(Bars::new(bars)),
            ProgressMode::Auto | ProgressMode::Bar => self.render(Plain::new(io::stderr())),
        }
    }

    fn render(&self, renderer: impl Render) -> Result<(), Failure> {
        let rendering = render::spawn(self.events.subscribe(), renderer).map_err(|cause| {
            Failure::new(Exit::Failed, "renderer", "cannot start to show progress").because(&cause)
        })?;
        match self.renderings.lock() {
            Ok(mut renderings) => renderings.push(rendering),
            Err(poisoned) => poisoned.into_inner().push(rendering),
        }
        Ok(())
    }
}
