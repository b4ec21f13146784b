//! Controls whether an operation may continue; the operation checks its control before each step.
//!
//! A [`Control`] combines everything that can block or end an operation: the operator's request (through the
//! journal), signals to this process, gates that the operation closes itself for a named cause (such as the lag of a
//! secondary), and the throttle. An operation calls [`Control::checkpoint`] between steps and [`Control::take`]
//! before each batch. Both wait while the operation is blocked, and return [`Stop`] if it must end.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::record::{Limits, Requested, ZeroLimit};
use crate::throttle::Throttle;

/// The reason why an operation must end in this process before the job is complete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// A signal interrupted this process; the job can be resumed.
    #[error("interrupted; the job can be resumed")]
    Interrupted,
    /// Another process requested the job, and may claim it now.
    #[error("handed over to another process")]
    HandedOver,
    /// The operator cancelled the job.
    #[error("cancelled by the operator")]
    Cancelled,
    /// Another process took the job over; this process must not work at it any more. Contains the details, in words.
    #[error("another process took the job over: {0}")]
    TakenOver(String),
    /// The journal could not be reached for so long that another process may take the job over. Contains the last
    /// error, in words.
    #[error("the job's state could not be saved: {0}")]
    JournalLost(String),
}

/// The operator's requests, the limits, and the reasons to stop, as one job's operation sees them. Clones are cheap
/// and share their state.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

struct Shared {
    requested: watch::Sender<Requested>,
    gates: watch::Sender<BTreeMap<&'static str, String>>,
    slowed: watch::Sender<BTreeMap<&'static str, String>>,
    throttle: Throttle,
    /// Cancelled by signals to the process, or when the process is to end.
    interrupted: CancellationToken,
    /// Cancelled when the operation must end for a reason other than a signal; `why` then contains the reason.
    stopped: CancellationToken,
    why: OnceLock<Stop>,
}

impl Default for Control {
    /// Returns a control without limits that no signal interrupts: only calls of its own methods block or stop it.
    fn default() -> Self {
        Self::new(Limits::default(), CancellationToken::new()).expect("no limit is zero")
    }
}

impl Control {
    /// Returns a control with these limits on the speed. The caller cancels `interrupted` when the process is to end.
    pub fn new(limits: Limits, interrupted: CancellationToken) -> Result<Self, ZeroLimit> {
        Ok(Self {
            shared: Arc::new(Shared {
                requested: watch::Sender::new(Requested::Run),
                gates: watch::Sender::new(BTreeMap::new()),
                slowed: watch::Sender::new(BTreeMap::new()),
                throttle: Throttle::new(limits)?,
                interrupted,
                stopped: CancellationToken::new(),
                why: OnceLock::new(),
            }),
        })
    }

    /// Waits while the job is paused or a gate is closed. Returns an error as soon as the operation must end.
    #[crate::boxed]
    pub async fn checkpoint(&self) -> Result<(), Stop> {
        let mut requested = self.shared.requested.subscribe();
        let mut gates = self.shared.gates.subscribe();
        self.or_stop(async {
            // The loop ends when both conditions hold at once: a gate may close while the pause ends.
            loop {
                // The senders live as long as `self`.
                drop(requested.wait_for(|wanted| *wanted != Requested::Pause).await);
                drop(gates.wait_for(BTreeMap::is_empty).await);
                if *self.shared.requested.borrow() != Requested::Pause {
                    return;
                }
            }
        })
        .await
    }

    /// Waits as [`Control::checkpoint`] does, and then until the throttle admits a batch of `documents` documents
    /// with `bytes` bytes.
    #[crate::boxed]
    pub async fn take(&self, documents: u64, bytes: u64) -> Result<(), Stop> {
        self.checkpoint().await?;
        self.or_stop(self.shared.throttle.take(documents, bytes)).await
    }

    /// Waits as [`Control::take`] does, for a batch of deferrable work, which also keeps to the pace.
    #[crate::boxed]
    pub async fn take_paced(&self, documents: u64, bytes: u64) -> Result<(), Stop> {
        self.checkpoint().await?;
        self.or_stop(self.shared.throttle.take_paced(documents, bytes)).await?;
        // The job may have been paused during the wait.
        self.checkpoint().await
    }

    /// Sleeps for the time `pause`. Returns an error as soon as the operation must end.
    #[crate::boxed]
    pub async fn sleep(&self, pause: Duration) -> Result<(), Stop> {
        self.or_stop(tokio::time::sleep(pause)).await
    }

    /// Awaits `work` and returns its result. If the operation must end first, drops `work` and returns the reason.
    pub async fn or_stop<T>(&self, work: impl Future<Output = T>) -> Result<T, Stop> {
        if let Some(stop) = self.stopped() {
            return Err(stop);
        }
        tokio::select! {
            biased;
            () = self.shared.stopped.cancelled() => Err(self.why()),
            () = self.shared.interrupted.cancelled() => Err(self.why()),
            done = work => Ok(done),
        }
    }

    /// Returns the reason why the operation must end, or `None` if it may continue.
    pub fn stopped(&self) -> Option<Stop> {
        let ends = self.shared.stopped.is_cancelled() || self.shared.interrupted.is_cancelled();
        ends.then(|| self.why())
    }

    /// Ends the operation for the reason `why`. Only the first reason counts.
    pub fn stop(&self, why: Stop) {
        let _: Result<(), Stop> = self.shared.why.set(why);
        self.shared.stopped.cancel();
    }

    /// Applies the operator's present request: stops the operation for a cancellation or handover, blocks or unblocks
    /// it otherwise.
    pub fn request(&self, wanted: Requested) {
        match wanted {
            Requested::Cancel => self.stop(Stop::Cancelled),
            Requested::HandOver => self.stop(Stop::HandedOver),
            Requested::Run | Requested::Pause => {}
        }
        self.shared.requested.send_if_modified(|now| std::mem::replace(now, wanted) != wanted);
    }

    /// Returns true if the operator's present request is to pause.
    pub fn is_paused(&self) -> bool {
        *self.shared.requested.borrow() == Requested::Pause
    }

    /// Returns the throttle, which limits the speed of the operation.
    pub fn throttle(&self) -> &Throttle {
        &self.shared.throttle
    }

    /// Closes the gate with this name, for a cause in words for the operator, such as `secondary lag 12 s over the
    /// limit 10 s`. Each gate has one cause; the operation waits until all gates are open.
    pub fn close_gate(&self, gate: &'static str, cause: impl Into<String>) {
        let cause = cause.into();
        self.shared.gates.send_modify(|gates| drop(gates.insert(gate, cause)));
    }

    /// Opens the gate with this name. Does nothing if it is open.
    pub fn open_gate(&self, gate: &'static str) {
        self.shared.gates.send_if_modified(|gates| gates.remove(gate).is_some());
    }

    /// Sets the cause, in words for the operator, for which the part of the operation with the name `whose` waits by
    /// itself, such as an unavailable majority. This blocks nothing. `None` removes the cause.
    pub fn set_slowdown(&self, whose: &'static str, cause: Option<String>) {
        self.shared.slowed.send_modify(|slowed| match cause {
            Some(cause) => drop(slowed.insert(whose, cause)),
            None => drop(slowed.remove(whose)),
        });
    }

    /// Returns the causes that were set by [`Control::set_slowdown`], in words for the operator; `None` if there are
    /// none.
    pub fn slowed_by(&self) -> Option<String> {
        let slowed = self.shared.slowed.borrow();
        let causes: Vec<&str> = slowed.values().map(String::as_str).collect();
        (!causes.is_empty()).then(|| causes.join("; "))
    }

    /// Returns the cause that blocks the operation (a pause or closed gates), or else the causes for which it waits
    /// by itself, in words for the operator; `None` if there are none.
    pub fn blocked_by(&self) -> Option<String> {
        if self.is_paused() {
            return Some("paused by the operator".to_owned());
        }
        let gates = self.shared.gates.borrow();
        let causes: Vec<&str> = gates.values().map(String::as_str).collect();
        if causes.is_empty() { self.slowed_by() } else { Some(causes.join("; ")) }
    }

    fn why(&self) -> Stop {
        self.shared.why.get().cloned().unwrap_or(Stop::Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_waiting<T>(task: &tokio::task::JoinHandle<T>) -> bool {
        !task.is_finished()
    }

    fn checkpoint(control: &Control) -> tokio::task::JoinHandle<Result<(), Stop>> {
        let control = control.clone();
        tokio::spawn(async move { control.checkpoint().await })
    }

    /// Time in which what does not wait would go on.
    async fn settle() {
        tokio::time::sleep(Duration::from_millis(30)).await;
    }

    #[tokio::test]
    async fn a_checkpoint_waits_while_paused() {
        let control = Control::default();
        control.request(Requested::Pause);
        let step = checkpoint(&control);
        settle().await;
        assert!(is_waiting(&step));
        control.request(Requested::Run);
        assert_eq!(step.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn what_slows_a_job_is_named_and_does_not_hold_it() {
        let control = Control::default();
        control.set_slowdown("majority", Some("rs0 waits for db3:27017 (down)".to_owned()));
        assert_eq!(control.checkpoint().await, Ok(()));
        assert_eq!(control.blocked_by().as_deref(), Some("rs0 waits for db3:27017 (down)"));
        control.close_gate("index", "an index is being built");
        assert_eq!(control.blocked_by().as_deref(), Some("an index is being built"));
        control.open_gate("index");
        control.set_slowdown("majority", None);
        assert_eq!(control.blocked_by(), None);
    }

    #[tokio::test]
    async fn every_gate_must_be_open() {
        let control = Control::default();
        control.close_gate("secondary", "secondary lag 12 s over the limit 10 s");
        control.close_gate("index", "an index is being built");
        let step = checkpoint(&control);
        control.open_gate("index");
        settle().await;
        assert!(is_waiting(&step));
        control.open_gate("secondary");
        assert_eq!(step.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn a_pause_during_a_hold_is_waited_for_too() {
        let control = Control::default();
        control.close_gate("secondary", "lag");
        let step = checkpoint(&control);
        settle().await;
        control.request(Requested::Pause);
        control.open_gate("secondary");
        settle().await;
        assert!(is_waiting(&step));
        control.request(Requested::Run);
        assert_eq!(step.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn what_holds_is_named() {
        let control = Control::default();
        assert_eq!(control.blocked_by(), None);
        control.close_gate("secondary", "secondary lag 12 s over the limit 10 s");
        let named = Some("secondary lag 12 s over the limit 10 s".to_owned());
        assert_eq!(control.blocked_by(), named);
        control.request(Requested::Pause);
        assert_eq!(control.blocked_by(), Some("paused by the operator".to_owned()));
    }

    #[tokio::test]
    async fn an_interrupt_ends_a_pause() {
        let interrupted = CancellationToken::new();
        let control = Control::new(Limits::default(), interrupted.clone()).unwrap();
        control.request(Requested::Pause);
        let step = checkpoint(&control);
        settle().await;
        interrupted.cancel();
        assert_eq!(step.await.unwrap(), Err(Stop::Interrupted));
    }

    #[tokio::test]
    async fn a_cancel_ends_a_wait_for_the_throttle() {
        let slow = Limits { documents_s: Some(1), ..Limits::default() };
        let control = Control::new(slow, CancellationToken::new()).unwrap();
        let taker = control.clone();
        let take = tokio::spawn(async move { taker.take(1_000_000, 0).await });
        settle().await;
        control.request(Requested::Cancel);
        assert_eq!(take.await.unwrap(), Err(Stop::Cancelled));
    }

    #[tokio::test]
    async fn the_first_reason_to_stop_counts() {
        let control = Control::default();
        control.stop(Stop::TakenOver("job has a new owner".to_owned()));
        control.stop(Stop::Cancelled);
        let first = Stop::TakenOver("job has a new owner".to_owned());
        assert_eq!(control.checkpoint().await, Err(first));
    }
}
