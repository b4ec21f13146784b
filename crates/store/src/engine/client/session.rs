//! Transactions from inside of the process, one after the other.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use crate::engine::site::mailbox::{Outcome, ReplyTo, SiteEvent};
use crate::engine::{BACK_WAIT, PATIENCE, Shared, Store};
use crate::key::{Key, KeyRange};
use crate::record::Position;
use crate::router::Route;
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::sleep;
use crate::transaction::{Abort, Done, Procedure, Transaction};

impl Store {
    /// A new session: its transactions see at least what those before them saw.
    #[must_use]
    pub fn session(&self) -> Session {
        Session { shared: Arc::clone(&self.shared), seen: Position::START }
    }
}

/// A transaction that a site has at work, counted there until this is dropped.
struct UnderWay<'a>(&'a AtomicU32);

impl<'a> UnderWay<'a> {
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

/// Transactions one after the other, each of which sees at least what those before it saw.
pub struct Session {
    shared: Arc<Shared>,
    seen: Position,
}

impl Session {
    /// Runs a transaction at a site that can, which is brought about where there is none.
    ///
    /// # Errors
    /// Why nothing of it happened; after [`Abort::Deposed`] it may have.
    pub async fn run(
        &mut self,
        reads: Vec<KeyRange>,
        writes: Vec<Key>,
        procedure: Box<dyn Procedure>,
    ) -> Result<Done, Abort> {
        let until = Instant::now() + PATIENCE;
        let session = self.seen;
        let (client, at_masters, output) = (None, false, None);
        let mut transaction =
            Transaction { reads, writes, session, client, at_masters, output, procedure };
        loop {
            let Transaction { reads, writes, at_masters, .. } = &transaction;
            let (site, _moved) = match self.shared.route(reads, writes, None, *at_masters) {
                Route::Run(site) => (site, None),
                Route::Never(abort) => return Err(abort),
                Route::First(_) => {
                    let moves = self.shared.moves.lock().await;
                    (self.shared.bring_about(reads, writes, until).await?, Some(moves))
                }
            };
            let (answer, outcome) = oneshot::channel();
            let event = SiteEvent::Transact(vec![(ReplyTo::Channel(answer), transaction, until)]);
            let under_way = UnderWay::at(&self.shared.under_way[usize::from(site.0)]);
            _ = self.shared.sender(site).send(event);
            let outcome = outcome.await;
            drop(under_way);
            match outcome {
                Ok(Outcome::Answer(seen, answer)) => {
                    self.seen = self.seen.max(seen);
                    return answer;
                }
                Ok(Outcome::Back(back)) => transaction = back,
                // Its thread is gone, and what it knew.
                Err(_) => return Err(Abort::Deposed),
            }
            if Instant::now() >= until {
                return Err(Abort::Late);
            }
            sleep(BACK_WAIT).await;
        }
    }
}
