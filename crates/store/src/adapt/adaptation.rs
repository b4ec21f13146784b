//! The interface of adaptation to the rest of the store: its options, its report, and the task that runs the planner.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use imago_plan::store::layout::Layout;
use imago_plan::store::strategy::{MorphoSys, Strategy};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use super::explanation::Known;
use super::heat::{HeatRecorder, HeatReport};
use super::limits::{AdaptLimits, LimitsFault, LimitsReport, LimitsRequest, StoreUsage};
use super::options::Options;
use super::persisted::{EVERY, Persisted, StateWriter};
use super::report::AdaptReport;
use crate::engine::Store;
use crate::key::Key;
use crate::record::Site;
use crate::sampler::{Sampled, Sampler};
use crate::site::Usage;

/// Adaptation of one store. It runs in the process that has the router's map (its routing table).
pub struct Adaptation {
    pub(super) store: Arc<Store>,
    pub(super) sampler: Arc<Sampler>,
    pub(super) options: Mutex<Options>,
    /// Limits that requests have changed at run time, in this process or an earlier one; `None` for each other limit.
    pub(super) set: Mutex<LimitsRequest>,
    pub(super) is_paused: AtomicBool,
    pub(super) report: Mutex<AdaptReport>,
    began: Instant,
    /// Value of the clock of decisions and bans at the time `began`, in ms: 0, or where an earlier process left that
    /// clock.
    base_ms: u64,
    pub(super) writer: StateWriter,
    /// Persisted state of an earlier process, until the planner takes it to restore itself.
    pub(super) earlier: Mutex<Option<Persisted>>,
    pub(super) known: Mutex<Arc<Known>>,
    pub(super) strategy: Mutex<Box<dyn Strategy<Key>>>,
    heat: Mutex<HeatRecorder>,
    /// If true, makes the planner panic in its next round: a fault for tests.
    #[cfg(test)]
    pub(super) panics: AtomicBool,
}

impl Adaptation {
    /// Makes the sites of `store` sample transactions into `sampler`. Decisions begin with [`Adaptation::run`].
    #[must_use]
    pub fn new(store: Arc<Store>, sampler: Arc<Sampler>, options: Options) -> Arc<Self> {
        Self::with_persisted(store, sampler, options, StateWriter::default(), Persisted::default())
    }

    /// Replaces the strategy, which chooses the plans to execute, from the next decision on.
    pub fn set_strategy(&self, strategy: Box<dyn Strategy<Key>>) {
        let mut deciding = self.strategy.lock().unwrap_or_else(PoisonError::into_inner);
        *deciding = strategy;
    }

    /// Creates adaptation with the persisted state `earlier` of an earlier process, which `writer` updates, and makes
    /// the sites of `store` sample transactions.
    pub(super) fn with_persisted(
        store: Arc<Store>,
        sampler: Arc<Sampler>,
        options: Options,
        writer: StateWriter,
        earlier: Persisted,
    ) -> Arc<Self> {
        store.sample(Arc::clone(&sampler));
        let horizon_s = options.parameters.horizon_s;
        let (is_paused, base_ms, set) = (earlier.is_paused, earlier.now_ms, earlier.limits);
        let report =
            AdaptReport { mode: options.mode, horizon_s, is_paused, ..AdaptReport::default() };
        let (is_paused, report) = (AtomicBool::new(is_paused), Mutex::new(report));
        Arc::new(Self {
            store,
            sampler,
            options: Mutex::new(options),
            set: Mutex::new(set),
            is_paused,
            report,
            began: Instant::now(),
            base_ms,
            writer,
            earlier: Mutex::new(Some(earlier)),
            known: Mutex::default(),
            strategy: Mutex::new(Box::new(MorphoSys::default())),
            heat: Mutex::new(HeatRecorder::new()),
            #[cfg(test)]
            panics: AtomicBool::new(false),
        })
    }

    /// Returns the current state of adaptation, with the planner's last decisions.
    #[must_use]
    pub fn report(&self) -> AdaptReport {
        let kept = self.writer.report();
        AdaptReport { kept, ..self.report.lock().unwrap_or_else(PoisonError::into_inner).clone() }
    }

    /// Returns the reads, writes, conflicts and CPU time of key ranges over the last hour.
    #[must_use]
    pub fn heat(&self) -> HeatReport {
        let heat = self.heat.lock().unwrap_or_else(PoisonError::into_inner);
        heat.report(self.up_ms(), SystemTime::now())
    }

    /// Discards the recorded heat of key ranges, and sets the span of time that each of its columns covers to `each`.
    pub fn heat_columns(&self, each: Duration) {
        let recorder = HeatRecorder::with_columns(each.as_millis() as u64);
        *self.heat.lock().unwrap_or_else(PoisonError::into_inner) = recorder;
    }

    pub(super) fn record_heat(&self, fetched: &[Sampled], layout: &Layout<Key>) {
        let mut heat = self.heat.lock().unwrap_or_else(PoisonError::into_inner);
        heat.record(self.up_ms(), &self.sampler, fetched, layout);
    }

    /// Returns the time since this process began to adapt the store, in ms.
    fn up_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the clock of decisions and bans, in ms. It counts the time in which the store adapted, over all its
    /// processes.
    pub(super) fn now_ms(&self) -> u64 {
        self.base_ms.saturating_add(self.up_ms())
    }

    /// Converts an instant to the clock of [`Adaptation::now_ms`], in ms.
    pub(super) fn to_clock_ms(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        self.base_ms.saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the planner's state as of its last round, from which placements are explained.
    pub(super) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::SeqCst)
    }

    /// Pauses changes of the design by adaptation if `is_paused` is true; otherwise resumes them. Persists the
    /// choice.
    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::SeqCst);
        self.writer.amend(|state| state.is_paused = is_paused);
        self.report.lock().unwrap_or_else(PoisonError::into_inner).is_paused = is_paused;
    }

    /// Runs the planner, and persists its state periodically. If the planner panics, the store serves on without
    /// adaptation: the panic is reported as the failure of adaptation, and logged.
    pub async fn run(self: Arc<Self>) {
        let mut planner = JoinSet::new();
        planner.spawn(Arc::clone(&self).decide());
        let ended = tokio::select! {
            ended = planner.join_next() => ended,
            () = self.write_now_and_then() => None,
        };
        if let Some(Err(ended)) = ended {
            let failure = format!("adaptation has ended, and the store serves on: {ended}");
            tracing::error!(%failure, "please report this");
            self.sampler.set_every(0);
            let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
            (report.has_ended, report.failure) = (true, Some(failure));
        }
    }

    /// Returns the present options of adaptation.
    pub(super) fn options(&self) -> Options {
        *self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the quantities of the store that limits are compared with.
    async fn usage(&self) -> StoreUsage {
        let usage = self.store.usage().await;
        let bytes = |(site, copies): &(Site, Vec<Usage>)| {
            (site.0, copies.iter().map(|copy| copy.size.bytes).sum())
        };
        let map = self.store.map();
        StoreUsage {
            partitions: map.design.partitions().count(),
            replicas: map.design.partitions().map(|one| one.replicas.len()).max().unwrap_or(0),
            bytes: usage.iter().map(bytes).collect(),
            sites: self.store.sites(),
        }
    }

    /// Checks the limits of the start, and logs a warning for each that the store exceeds already.
    pub(super) async fn check_limits(&self) -> Result<(), LimitsFault> {
        let (limits, held) = (AdaptLimits::of(&self.options()), self.usage().await);
        limits.check(&held)?;
        limits.notes(&held).iter().for_each(|note| tracing::warn!("{note}"));
        Ok(())
    }

    /// Returns the limits in force, and which of them the store exceeds.
    pub async fn limits(&self) -> LimitsReport {
        let limits = AdaptLimits::of(&self.options());
        LimitsReport { notes: limits.notes(&self.usage().await), limits }
    }

    /// Changes limits from the next decision on, persists them, and returns the limits then in force.
    ///
    /// # Errors
    /// If a limit is invalid, or the store already exceeds the requested memory limit; no limit is changed then.
    pub async fn limit(&self, request: &LimitsRequest) -> Result<LimitsReport, LimitsFault> {
        let held = self.usage().await;
        let limits = {
            let mut options = self.options.lock().unwrap_or_else(PoisonError::into_inner);
            let limits = AdaptLimits::of(&options).with(request);
            limits.check(&held)?;
            if request.memory_max_mb.is_some() {
                limits.check_memory(&held)?;
            }
            limits.set(&mut options);
            limits
        };
        let set = {
            let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
            *set = set.and(request);
            *set
        };
        self.writer.amend(|state| state.limits = set);
        let mut report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        (report.mode, report.horizon_s) = (limits.mode, limits.horizon_s);
        Ok(LimitsReport { notes: limits.notes(&held), limits })
    }

    /// Sets the state of adaptation to be written next; `state` is called only if there is a file.
    pub(super) fn persist(&self, state: impl FnOnce() -> Persisted) {
        self.writer.offer(state);
    }

    /// Creates adaptation with the state in a folder, if there is one. The limits in `options` are overridden by
    /// those that were set at run time in an earlier process, and both by the `given` ones.
    ///
    /// # Errors
    /// If the limits are invalid.
    pub async fn in_folder(
        store: Arc<Store>,
        sampler: Arc<Sampler>,
        mut options: Options,
        given: &LimitsRequest,
        folder: Option<&Path>,
    ) -> Result<Arc<Self>, LimitsFault> {
        let (writer, persisted) = StateWriter::open(folder);
        let limits = AdaptLimits::of(&options).with(&persisted.limits.and(given));
        limits.set(&mut options);
        let adaptation = Self::with_persisted(store, sampler, options, writer, persisted);
        adaptation.check_limits().await?;
        Ok(adaptation)
    }

    /// Writes the latest state to the file every [`EVERY`], if it has changed; it never returns.
    pub(super) async fn write_now_and_then(self: &Arc<Self>) {
        loop {
            sleep(EVERY).await;
            let of = Arc::clone(self);
            _ = spawn_blocking(move || of.writer.write()).await;
        }
    }

    /// Writes the latest state to the file, if it differs from the written one in anything; called at a clean end.
    pub fn write_latest(&self) {
        self.writer.write_if(|latest, written| latest != written);
    }
}
