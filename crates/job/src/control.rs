//! The check before each step: may the operation go on?
//!
//! A [`Control`] combines everything that can hold or end an operation: the operator's request
//! (through the journal), signals to this process, a gate that the operation closes itself for a
//! named cause (a secondary that lags), and the throttle. An operation calls [`Control::checkpoint`]
//! between steps and [`Control::take`] before each batch; both wait while it must, and both return
//! [`Stop`] when it must end.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::record::{Limits, Requested, ZeroLimit};
use crate::throttle::Throttle;

/// The reason why an operation must end before it is done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// This process was asked to end; the job can be resumed.
    #[error("interrupted; the job can be resumed")]
    Interrupted,
    /// Another process asked for the job, and may claim it now.
    #[error("handed over to another process")]
    HandedOver,
    /// The operator gave the job up.
    #[error("cancelled by the operator")]
    Cancelled,
    /// Another process took the job over; this one must not touch it any more.
    #[error("another process took the job over: {0}")]
    TakenOver(String),
    /// The journal could not be reached for so long that another process may take the job over.
    #[error("the job's state could not be saved: {0}")]
    JournalLost(String),
}

/// The operator's requests, the limits, and the reasons to stop, as an operation sees them; cheap
/// to clone.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

struct Shared {
    requested: watch::Sender<Requested>,
    gates: watch::Sender<BTreeMap<&'static str, String>>,
    throttle: Throttle,
    /// Cancelled by signals to the process.
    interrupted: CancellationToken,
    /// Cancelled when the operation must end for another reason, which is then in `why`.
    stopped: CancellationToken,
    why: OnceLock<Stop>,
}

impl Default for Control {
    /// No limit, no gate and no request to stop, except by its holder.
    fn default() -> Self {
        Self::new(Limits::default(), CancellationToken::new()).expect("no limit is zero")
    }
}

impl Control {
    /// A control with these limits; `interrupted` is cancelled when the process is asked to end.
    pub fn new(limits: Limits, interrupted: CancellationToken) -> Result<Self, ZeroLimit> {
        Ok(Self {
            shared: Arc::new(Shared {
                requested: watch::Sender::new(Requested::Run),
                gates: watch::Sender::new(BTreeMap::new()),
                throttle: Throttle::new(limits)?,
                interrupted,
                stopped: CancellationToken::new(),
                why: OnceLock::new(),
            }),
        })
    }

    /// Waits while the job is paused or held; an error when it must end.
    pub async fn checkpoint(&self) -> Result<(), Stop> {
        let mut requested = self.shared.requested.subscribe();
        let mut gates = self.shared.gates.subscribe();
        self.or_stop(async {
            // Until both hold at once: a gate may close while the pause ends.
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

    /// Waits as [`Control::checkpoint`] does, then until so many documents and bytes may pass.
    pub async fn take(&self, documents: u64, bytes: u64) -> Result<(), Stop> {
        self.checkpoint().await?;
        self.or_stop(self.shared.throttle.take(documents, bytes)).await
    }

    /// As [`Control::take`], for what can wait: it keeps to the pace too.
    pub async fn take_paced(&self, documents: u64, bytes: u64) -> Result<(), Stop> {
        self.checkpoint().await?;
        self.or_stop(self.shared.throttle.take_paced(documents, bytes)).await?;
        // It may have waited for longer than it took to be paused.
        self.checkpoint().await
    }

    /// Sleeps, unless the operation must end.
    pub async fn sleep(&self, pause: Duration) -> Result<(), Stop> {
        self.or_stop(tokio::time::sleep(pause)).await
    }

    /// Awaits `work`, unless the operation must end: then `work` is dropped.
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

    /// The reason why the operation must end, if it must.
    pub fn stopped(&self) -> Option<Stop> {
        let ends = self.shared.stopped.is_cancelled() || self.shared.interrupted.is_cancelled();
        ends.then(|| self.why())
    }

    /// Ends the operation; the first reason counts.
    pub fn stop(&self, why: Stop) {
        let _: Result<(), Stop> = self.shared.why.set(why);
        self.shared.stopped.cancel();
    }

    /// The operator's present request.
    pub fn request(&self, wanted: Requested) {
        match wanted {
            Requested::Cancel => self.stop(Stop::Cancelled),
            Requested::HandOver => self.stop(Stop::HandedOver),
            Requested::Run | Requested::Pause => {}
        }
        self.shared.requested.send_if_modified(|now| std::mem::replace(now, wanted) != wanted);
    }

    /// True if the operator's request is to pause.
    pub fn is_paused(&self) -> bool {
        *self.shared.requested.borrow() == Requested::Pause
    }

    /// The throttle.
    pub fn throttle(&self) -> &Throttle {
        &self.shared.throttle
    }

    /// Holds the operation for a cause, in words for the operator: `secondary lag 12 s over the
    /// limit 10 s`. `gate` is whose cause it is: each gate has one, and all must be open.
    pub fn hold(&self, gate: &'static str, cause: impl Into<String>) {
        let cause = cause.into();
        self.shared.gates.send_modify(|gates| drop(gates.insert(gate, cause)));
    }

    /// Opens a gate.
    pub fn release(&self, gate: &'static str) {
        self.shared.gates.send_if_modified(|gates| gates.remove(gate).is_some());
    }

    /// The cause that holds the operation, in words for the operator.
    pub fn blocked_by(&self) -> Option<String> {
        if self.is_paused() {
            return Some("paused by the operator".to_owned());
        }
        let gates = self.shared.gates.borrow();
        let causes: Vec<&str> = gates.values().map(String::as_str).collect();
        (!causes.is_empty()).then(|| causes.join("; "))
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
    async fn every_gate_must_be_open() {
        let control = Control::default();
        control.hold("secondary", "secondary lag 12 s over the limit 10 s");
        control.hold("index", "an index is being built");
        let step = checkpoint(&control);
        control.release("index");
        settle().await;
        assert!(is_waiting(&step));
        control.release("secondary");
        assert_eq!(step.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn a_pause_during_a_hold_is_waited_for_too() {
        let control = Control::default();
        control.hold("secondary", "lag");
        let step = checkpoint(&control);
        settle().await;
        control.request(Requested::Pause);
        control.release("secondary");
        settle().await;
        assert!(is_waiting(&step));
        control.request(Requested::Run);
        assert_eq!(step.await.unwrap(), Ok(()));
    }

    #[tokio::test]
    async fn what_holds_is_named() {
        let control = Control::default();
        assert_eq!(control.blocked_by(), None);
        control.hold("secondary", "secondary lag 12 s over the limit 10 s");
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
