//! Ctrl-C, SIGTERM and SIGHUP (the terminal was closed): the first signal requests an orderly end,
//! the second one ends the process at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Exit;

/// Watches for Ctrl-C, SIGTERM and SIGHUP: cancels `cancel` at the first signal and ends the process at the second.
///
/// A job that is ended at once is as resumable as one that was killed: its state is persisted.
pub fn watch(cancel: CancellationToken) {
    let signals =
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    match signals {
        [Ok(interrupt), Ok(terminate), Ok(hangup)] => {
            tokio::spawn(stop_on([interrupt, terminate, hangup], cancel));
        }
        [Err(cause), ..] | [_, Err(cause), _] | [.., Err(cause)] => {
            tracing::warn!(%cause, "cannot watch for signals: Ctrl-C will end Imago at once");
        }
    }
}

async fn stop_on(mut signals: [Signal; 3], cancel: CancellationToken) {
    wait(&mut signals).await;
    tracing::warn!("stopping in an orderly way; once more to stop at once");
    cancel.cancel();
    wait(&mut signals).await;
    tracing::warn!("stopped at once");
    std::process::exit(Exit::Interrupted as i32);
}

/// Waits for the next of the three signals.
async fn wait([interrupt, terminate, hangup]: &mut [Signal; 3]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}
