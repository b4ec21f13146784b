//! Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::Exit;

/// Cancels `cancel` at the first signal and ends the process at the second.
///
/// A job that is ended at once is as resumable as one that was killed: its state is persisted.
pub fn watch(cancel: CancellationToken) {
    let (interrupt, terminate) =
        match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
            (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
            (Err(cause), _) | (_, Err(cause)) => {
                tracing::warn!(%cause, "cannot watch for signals: Ctrl-C will end Imago at once");
                return;
            }
        };
    tokio::spawn(stop_on(interrupt, terminate, cancel));
}

async fn stop_on(mut interrupt: Signal, mut terminate: Signal, cancel: CancellationToken) {
    wait(&mut interrupt, &mut terminate).await;
    tracing::warn!("stopping in an orderly way; once more to stop at once");
    cancel.cancel();
    wait(&mut interrupt, &mut terminate).await;
    tracing::warn!("stopped at once");
    std::process::exit(Exit::Interrupted as i32);
}

async fn wait(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}
