//! Sessions within the process, each of which runs one transaction after the other.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::engine::site::mailbox::{Outcome, ReplyTo, SiteEvent};
use crate::engine::{BACK_WAIT, PATIENCE, Shared, Store};
use crate::key::{Key, KeyRange};
use crate::record::Position;
use crate::router::{Route, most_mastered};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::sleep;
use crate::transaction::{Abort, Done, Procedure, Transaction};

impl Store {
    /// Returns a new session, which has seen nothing yet.
    #[must_use]
    pub fn session(&self) -> Session {
        Session { shared: Arc::clone(&self.shared), seen: Position::START }
    }
}

/// Counts a session's transaction as under way at a site, until this is dropped.
struct UnderWay<'a>(&'a AtomicU32);

impl<'a> UnderWay<'a> {
    /// Counts one more transaction in `count`, the number under way at a site.
    fn at(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A session within the process: it runs transactions one after the other. Each sees at least the state that those
/// before it saw.
pub struct Session {
    shared: Arc<Shared>,
    /// The prefix of the log that the session has seen.
    seen: Position,
}

impl Session {
    /// Runs a transaction, which reads `reads` and may write `writes` by `procedure`, at a site that can run it. If
    /// there is no such site, the design is changed first.
    ///
    /// # Errors
    /// Returns why the transaction did not run; after [`Abort::Deposed`] or [`Abort::Unlogged`] it may have run.
    pub async fn run(
        &mut self,
        reads: Vec<KeyRange>,
        writes: Vec<Key>,
        procedure: Box<dyn Procedure>,
    ) -> Result<Done, Abort> {
        let until = Instant::now() + PATIENCE;
        let session = self.seen;
        let (client, at_masters, output) = (None, false, None);
        let is_distributed = self.shared.is_two_phase;
        let mut transaction = Transaction {
            reads,
            writes,
            session,
            client,
            at_masters,
            is_distributed,
            output,
            procedure,
        };
        let mut is_again = false;
        loop {
            let Transaction { reads, writes, at_masters, .. } = &transaction;
            let (site, moved) = match self.shared.route(reads, writes, None, *at_masters) {
                Route::Run(site) => (site, None),
                Route::Never(abort) => return Err(abort),
                Route::First(_) if is_distributed => {
                    let map = self.shared.map.load();
                    self.shared.distributed.fetch_add(1, Ordering::Relaxed);
                    (most_mastered(&map.design, reads, writes), None)
                }
                Route::First(_) => {
                    let moves = self.shared.lock_moves(reads, writes).await;
                    (self.shared.change_design_for(reads, writes, until).await?, Some(moves))
                }
            };
            let (answer, outcome) = oneshot::channel();
            let event = SiteEvent::Transact(vec![(ReplyTo::Channel(answer), transaction, until)]);
            let under_way = UnderWay::at(&self.shared.under_way[usize::from(site.0)]);
            _ = self.shared.sender(site).send(event);
            // A site executes what it is sent in order, so that others may have what the transaction needs now. If that was
            // too early once, it keeps them until it has run.
            let had_moved = moved.is_some();
            let moved = moved.filter(|_| is_again);
            is_again |= had_moved;
            let outcome = outcome.await;
            drop(under_way);
            drop(moved);
            match outcome {
                Ok(Outcome::Answer(seen, answer)) => {
                    self.seen = self.seen.max(seen);
                    return answer;
                }
                Ok(Outcome::Rerouted(back)) => transaction = back,
                // The site's thread has ended, and the outcome is lost.
                Err(_) => return Err(Abort::Deposed),
            }
            if Instant::now() >= until {
                return Err(self.shared.late(&transaction.reads, &transaction.writes));
            }
            sleep(BACK_WAIT).await;
        }
    }
}
