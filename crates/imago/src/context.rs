//! What every verb is handed: where results go, how progress is shown, and when to stop.

use tokio_util::sync::CancellationToken;

use crate::cli::{Global, ProgressMode};
use crate::exit::Failure;
use crate::output::Output;

/// What every verb is handed.
pub struct Context {
    /// Where results go.
    pub output: Output,
    /// Cancelled when the user asks to stop (Ctrl-C, SIGTERM): end in an orderly way, and with
    /// [`crate::exit::Exit::Interrupted`] when the work can be resumed.
    pub cancel: CancellationToken,
    /// How progress is shown.
    #[allow(dead_code, reason = "taken by the renderers")]
    pub progress: ProgressMode,
}

impl Context {
    /// A context as the options of every verb want it.
    pub fn new(global: &Global) -> Result<Self, Failure> {
        Ok(Self {
            output: Output::stdout(global.json),
            cancel: CancellationToken::new(),
            progress: global.progress,
        })
    }

    /// Lets everything that was reported be shown, before the process ends.
    pub async fn finish(&self) {}
}
