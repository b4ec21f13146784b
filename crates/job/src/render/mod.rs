//! Renderers: every way in which a job is shown is one that takes the one stream of events.

pub mod json;
pub mod log;
pub mod prometheus;

use std::io;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::event::Event;
use crate::reporter::Subscription;

/// Shows events.
pub trait Render: Send + 'static {
    /// Shows one event. An error ends the rendering, not the job: the viewer is gone.
    fn show(&mut self, event: &Event) -> io::Result<()>;

    /// Cleans up after the last event.
    fn end(&mut self) {}
}

/// A renderer at work.
#[must_use = "wait for it, or the last events may not be shown"]
pub struct Rendering {
    ended: oneshot::Receiver<()>,
}

/// Shows everything that `subscription` gets, until its stream is closed.
///
/// On a thread of its own, because a terminal or a pipe may block for ever, and nothing else shall.
pub fn spawn(mut subscription: Subscription, mut renderer: impl Render) -> io::Result<Rendering> {
    let (tell, ended) = oneshot::channel();
    let runtime = Handle::current();
    std::thread::Builder::new().name("imago-render".to_owned()).spawn(move || {
        while let Some(event) = runtime.block_on(subscription.next()) {
            if renderer.show(&event).is_err() {
                break;
            }
        }
        renderer.end();
        // The waiter is gone when the time was up.
        let _ = tell.send(());
    })?;
    Ok(Rendering { ended })
}

impl Rendering {
    /// Waits until everything was shown, but not longer than `bound`: false when the time was up.
    pub async fn finish(self, bound: Duration) -> bool {
        tokio::time::timeout(bound, self.ended).await.is_ok()
    }
}
