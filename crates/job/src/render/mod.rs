//! Renderers of events. Each display of a job renders the same stream of events.

pub mod json;
pub mod log;
pub mod prometheus;

use std::io;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::event::Event;
use crate::reporter::Subscription;

/// A renderer of events, such as a terminal display, a log or metrics.
pub trait Render: Send + 'static {
    /// Renders one event. An error, such as a closed output, ends the rendering but not the job.
    fn show(&mut self, event: &Event) -> io::Result<()>;

    /// Cleans up after the last event, or after an event that could not be rendered.
    fn end(&mut self) {}
}

/// A renderer that runs on its own thread until its subscription ends.
#[must_use = "wait for it, or the last events may not be shown"]
pub struct Rendering {
    ended: oneshot::Receiver<()>,
}

/// Starts a thread that renders all events of `subscription` until their stream is closed or `renderer` fails.
///
/// The thread is separate, because a terminal or a pipe may block for ever, and must not block other work.
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
        // The receiver is gone if it stopped waiting.
        let _ = tell.send(());
    })?;
    Ok(Rendering { ended })
}

impl Rendering {
    /// Waits until the renderer has ended, but at most for the time `bound`. Returns false if that time limit was
    /// reached.
    #[crate::boxed]
    pub async fn finish(self, bound: Duration) -> bool {
        tokio::time::timeout(bound, self.ended).await.is_ok()
    }
}
