//! The stream of events of a process: operations report events, and any number of renderers subscribe.
//!
//! Reporting never waits, so a stuck terminal cannot stall a job. Every queue is bounded:
//!
//! - Of a job's progress events only the newest waits in a subscriber's queue, since it includes the older
//!   ones.
//! - Every other event waits until its subscriber takes it, up to [`PENDING_MAX`] of them. A renderer with more
//!   pending events is stuck: from then on the oldest events are dropped, terminal events last. A warning
//!   `events_lost` reports the number of dropped events when the renderer continues.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::clock::{self, Clock};
use crate::event::{Body, Event, Progress};
use crate::id::JobId;

/// Maximum number of events that wait in the queue of one subscriber.
pub const PENDING_MAX: usize = 4096;

/// The stream of the events of all jobs of a process. Clones are cheap and share the stream.
#[derive(Clone)]
pub struct Events {
    shared: Arc<Shared>,
}

struct Shared {
    clock: Clock,
    state: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    queues: Vec<Arc<Queue>>,
    latest: BTreeMap<JobId, Latest>,
    closed: bool,
}

#[derive(Default)]
struct Latest {
    phase: Option<String>,
    progress: Option<Progress>,
}

/// Reports the events of one job to the process's stream of events. Cheap to clone.
#[derive(Clone)]
pub struct Reporter {
    events: Events,
    job: JobId,
    kind: String,
}

/// The subscription of one renderer to a process's stream of events, with the events that the renderer has not
/// received yet.
pub struct Subscription {
    events: Events,
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<Pending>,
    arrived: Notify,
}

#[derive(Default)]
struct Pending {
    events: VecDeque<Event>,
    lost: u64,
    closed: bool,
}

/// Locks a mutex, even after a panic in another thread: every change of the data is a single step, so the data is
/// consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::with_clock(clock::wall())
    }
}

impl Events {
    /// Returns a stream whose events get their timestamps from `clock`.
    pub fn with_clock(clock: Clock) -> Self {
        Self { shared: Arc::new(Shared { clock, state: Mutex::default() }) }
    }

    /// Returns the reporter of `job`, whose operation is of this kind, such as `copy`.
    pub fn reporter(&self, job: JobId, kind: impl Into<String>) -> Reporter {
        Reporter { events: self.clone(), job, kind: kind.into() }
    }

    /// Subscribes to all events of the process that are reported from now on.
    pub fn subscribe(&self) -> Subscription {
        let queue = Arc::new(Queue::default());
        let mut streams = lock(&self.shared.state);
        if streams.closed {
            queue.close();
        }
        streams.queues.push(Arc::clone(&queue));
        Subscription { events: self.clone(), queue }
    }

    /// Ends the stream: subscribers receive their pending events, and then the end. Later events are dropped.
    pub fn close(&self) {
        let mut streams = lock(&self.shared.state);
        streams.closed = true;
        streams.queues.iter().for_each(|queue| queue.close());
    }

    fn emit(&self, reporter: &Reporter, body: Body) {
        let (job, kind) = (reporter.job.clone(), reporter.kind.clone());
        let mut streams = lock(&self.shared.state);
        let latest = streams.latest.entry(job.clone()).or_default();
        match &body {
            Body::Phase { to, .. } => latest.phase = Some(to.clone()),
            Body::Progress(progress) => latest.progress = Some((**progress).clone()),
            _ => {}
        }
        let event = Event { at_ms: (self.shared.clock)(), job, kind, body };
        // Under the lock, so that every subscriber sees the same order.
        streams.queues.iter().for_each(|queue| queue.push(event.clone()));
    }
}

impl Reporter {
    /// Returns the id of the job whose events are reported.
    pub fn job(&self) -> &JobId {
        &self.job
    }

    /// Returns the stream to which the job's events are reported.
    pub fn events(&self) -> &Events {
        &self.events
    }

    /// Reports an event of the job with this content, at the present time.
    pub fn emit(&self, body: Body) {
        self.events.emit(self, body);
    }

    /// Reports that the job enters the phase `to`.
    pub fn phase(&self, to: impl Into<String>) {
        self.emit(Body::Phase { from: self.latest(|latest| latest.phase.clone()), to: to.into() });
    }

    /// Reports the job's progress. If `progress.phase` is empty, the phase that was reported last replaces it.
    pub fn progress(&self, mut progress: Progress) {
        if progress.phase.is_empty() {
            progress.phase = self.latest(|latest| latest.phase.clone()).unwrap_or_default();
        }
        self.emit(Body::Progress(Box::new(progress)));
    }

    /// Reports a warning: a stable code for programs, the problem with the affected object, and the remedy.
    pub fn warning(
        &self,
        code: impl Into<String>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let (code, message, help) = (code.into(), message.into(), help.into());
        self.emit(Body::Warning { code, message, help });
    }

    /// Reports a decision that the job made, and its reason, both in words.
    pub fn decision(&self, what: impl Into<String>, why: impl Into<String>) {
        self.emit(Body::Decision { what: what.into(), why: why.into() });
    }

    /// Reports a value that the job measured, in `unit`. The name ends with the unit, for example `write_block_ms`.
    pub fn measurement(&self, name: impl Into<String>, value: f64, unit: impl Into<String>) {
        self.emit(Body::Measurement { name: name.into(), value, unit: unit.into() });
    }

    /// Returns the progress that was last reported for the job; `None` if there was none.
    pub fn latest_progress(&self) -> Option<Progress> {
        self.latest(|latest| latest.progress.clone())
    }

    fn latest<T>(&self, what: impl FnOnce(&Latest) -> Option<T>) -> Option<T> {
        lock(&self.events.shared.state).latest.get(&self.job).and_then(what)
    }
}

impl Subscription {
    /// Waits for the next event and returns it, or `None` after the end of the stream. Safe to cancel.
    #[crate::boxed]
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let arrived = self.queue.arrived.notified();
            {
                let mut pending = lock(&self.queue.state);
                if let Some(event) = pending.take() {
                    return Some(event);
                }
                if pending.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// Returns the next event without waiting; `None` if no event is pending.
    pub fn try_next(&mut self) -> Option<Event> {
        lock(&self.queue.state).take()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut streams = lock(&self.events.shared.state);
        streams.queues.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
    }
}

impl Queue {
    fn push(&self, event: Event) {
        lock(&self.state).push(event);
        self.arrived.notify_one();
    }

    fn close(&self) {
        lock(&self.state).closed = true;
        self.arrived.notify_one();
    }
}

impl Pending {
    fn push(&mut self, event: Event) {
        if self.closed {
            return;
        }
        let same = |old: &Event| old.job == event.job && old.body.is_superseded_by(&event.body);
        if let Some(place) = self.events.iter().rposition(same) {
            self.events.remove(place);
        }
        if self.events.len() >= PENDING_MAX {
            let place = self.events.iter().position(|old| !old.body.is_terminal()).unwrap_or(0);
            self.events.remove(place);
            self.lost += 1;
        }
        self.events.push_back(event);
    }

    fn take(&mut self) -> Option<Event> {
        let lost = std::mem::take(&mut self.lost);
        let next = self.events.front()?;
        if lost == 0 {
            return self.events.pop_front();
        }
        let body = Body::Warning {
            code: "events_lost".to_owned(),
            message: format!("{lost} events were dropped: no subscriber took them"),
            help: format!("read faster: at most {PENDING_MAX} events wait for a reader"),
        };
        let (job, kind) = (next.job.clone(), next.kind.clone());
        Some(Event { at_ms: next.at_ms, job, kind, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> (Events, Reporter) {
        let events = Events::with_clock(Arc::new(|| 42));
        let reporter = events.reporter(JobId::from_parts(0, 0), "copy");
        (events, reporter)
    }

    fn done(documents_done: u64) -> Progress {
        Progress { documents_done, ..Progress::default() }
    }

    fn taken(subscription: &mut Subscription) -> Vec<Body> {
        std::iter::from_fn(|| subscription.try_next()).map(|event| event.body).collect()
    }

    fn documents(bodies: &[Body]) -> Vec<u64> {
        let of = |body: &Body| match body {
            Body::Progress(progress) => Some(progress.documents_done),
            _ => None,
        };
        bodies.iter().filter_map(of).collect()
    }

    #[test]
    fn a_slow_renderer_gets_the_newest_progress_and_everything_else() {
        let (events, reporter) = events();
        let mut slow = events.subscribe();
        for round in 0..1_000 {
            reporter.progress(done(round));
            reporter.decision(round.to_string(), "because");
        }
        let bodies = taken(&mut slow);
        assert_eq!(documents(&bodies), [999]);
        assert_eq!(bodies.len(), 1_001, "a decision was dropped");
    }

    #[test]
    fn a_fast_renderer_gets_every_progress() {
        let (events, reporter) = events();
        let mut fast = events.subscribe();
        for round in 0..10 {
            reporter.progress(done(round));
            assert_eq!(documents(&taken(&mut fast)), [round]);
        }
    }

    #[test]
    fn one_job_does_not_supersede_another() {
        let (events, reporter) = events();
        let mut slow = events.subscribe();
        let other = events.reporter(JobId::from_parts(1, 1), "verify");
        reporter.progress(done(1));
        other.progress(done(2));
        assert_eq!(documents(&taken(&mut slow)), [1, 2]);
    }

    #[test]
    fn a_stuck_renderer_is_bounded_and_told_what_it_missed() {
        let (events, reporter) = events();
        let mut stuck = events.subscribe();
        reporter.emit(Body::Done);
        for round in 0..PENDING_MAX + 9 {
            reporter.decision(round.to_string(), "because");
        }
        let bodies = taken(&mut stuck);
        let lost = matches!(&bodies[0], Body::Warning { code, message, .. }
            if code == "events_lost" && message.starts_with("10 "));
        assert!(lost, "{:?}", bodies[0]);
        assert_eq!(bodies.len(), 1 + PENDING_MAX);
        assert_eq!(bodies[1], Body::Done, "the terminal event was dropped");
    }

    #[tokio::test]
    async fn a_closed_stream_is_drained_and_ends() {
        let (events, reporter) = events();
        let mut subscription = events.subscribe();
        reporter.phase("copy");
        events.close();
        reporter.phase("too late");
        let first = subscription.next().await.map(|event| event.body);
        assert_eq!(first, Some(Body::Phase { from: None, to: "copy".to_owned() }));
        assert_eq!(subscription.next().await, None);
        assert_eq!(events.subscribe().next().await, None, "subscribed after the end");
    }

    #[tokio::test]
    async fn a_waiting_renderer_is_woken() {
        let (events, reporter) = events();
        let mut subscription = events.subscribe();
        let waiting = tokio::spawn(async move { subscription.next().await });
        tokio::task::yield_now().await;
        reporter.emit(Body::Done);
        let woken = tokio::time::timeout(std::time::Duration::from_secs(60), waiting).await;
        assert_eq!(woken.unwrap().unwrap().map(|event| event.body), Some(Body::Done));
    }

    #[test]
    fn who_no_longer_listens_is_forgotten() {
        let (events, reporter) = events();
        drop(events.subscribe());
        reporter.emit(Body::Done);
        assert_eq!(lock(&events.shared.state).queues.len(), 0);
    }

    #[test]
    fn progress_names_its_phase_and_is_kept() {
        let (_, reporter) = events();
        reporter.phase("copy");
        reporter.progress(done(3));
        let latest = reporter.latest_progress();
        assert_eq!(latest, Some(Progress { phase: "copy".to_owned(), ..done(3) }));
    }
}
