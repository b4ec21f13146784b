//! Limits on the speed of a job: documents and bytes per second, changeable while the job runs.
//!
//! [`imago_plan::pacing::token_bucket`] computes the waits; this module sleeps. All limits apply together. When a
//! limit changes, each waiting request wakes up and computes its wait again. `governor` does not fit: its quota is
//! fixed, and it refuses a request that is larger than the burst.
//!
//! In addition to the operator's limits there is a *pace*, a limit in bytes per second which a monitor of the servers
//! sets and changes. The pace applies only to deferrable work, such as the bulk of a copy: changes must be applied at
//! the rate at which they occur.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use imago_plan::pacing::batch_size::BatchSize;
use imago_plan::pacing::token_bucket::{Bucket, Position};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::record::{Limits, ZeroLimit};

/// Limits the documents and bytes per second of one job. Clones are cheap and share the limits.
#[derive(Clone)]
pub struct Throttle {
    shared: Arc<Shared>,
}

struct Shared {
    began: Instant,
    buckets: Mutex<Buckets>,
    /// Number of changes of the limits and of the pace since the throttle was created.
    changed: watch::Sender<u64>,
}

struct Buckets {
    limits: Limits,
    documents: Option<Bucket>,
    bytes: Option<Bucket>,
    pace: Option<Bucket>,
    /// Time at which a pace was set while there was none, in nanoseconds since the throttle was created.
    paced_from_ns: u64,
    /// Time at which the pace last delayed a request, or was set, in nanoseconds since the throttle was created.
    pace_delayed_at_ns: u64,
    /// Size of batches of deferrable work while no pace is set.
    batch_size: BatchSize,
}

/// The position of one request in the token bucket of each limit; `None` where there is no such limit.
#[derive(Clone, Copy)]
struct Reservation {
    documents: Option<Position>,
    bytes: Option<Position>,
    pace: Option<Position>,
}

impl Throttle {
    /// Returns a throttle with these limits and without a pace.
    pub fn new(limits: Limits) -> Result<Self, ZeroLimit> {
        limits.check()?;
        let bucket = |rate: Option<u64>| rate.map(|rate_s| Bucket::new(rate_s, burst(rate_s), 0));
        let buckets = Buckets {
            limits,
            documents: bucket(limits.documents_s),
            bytes: bucket(limits.bytes_s),
            pace: None,
            paced_from_ns: 0,
            pace_delayed_at_ns: 0,
            batch_size: BatchSize::default(),
        };
        let (changed, _) = watch::channel(0);
        let shared = Shared { began: Instant::now(), buckets: Mutex::new(buckets), changed };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns the operator's present limits.
    pub fn limits(&self) -> Limits {
        self.lock().limits
    }

    /// Replaces the operator's limits, also for requests that already wait.
    pub fn set(&self, limits: Limits) -> Result<(), ZeroLimit> {
        limits.check()?;
        let now_ns = self.now_ns();
        {
            let mut buckets = self.lock();
            if buckets.limits == limits {
                return Ok(());
            }
            buckets.limits = limits;
            change(&mut buckets.documents, limits.documents_s, burst, now_ns);
            change(&mut buckets.bytes, limits.bytes_s, burst, now_ns);
            buckets.batch_size = BatchSize::default();
        }
        self.shared.changed.send_modify(|changes| *changes += 1);
        Ok(())
    }

    /// Sets the pace of deferrable work, in bytes per second; `None` removes it.
    ///
    /// # Panics
    ///
    /// Panics if the pace is zero: no work would ever be admitted.
    pub fn set_pace(&self, bytes_s: Option<u64>) {
        let now_ns = self.now_ns();
        {
            let mut buckets = self.lock();
            if buckets.pace.as_ref().map(Bucket::rate_s) == bytes_s {
                return;
            }
            buckets.batch_size = BatchSize::default();
            buckets.pace_delayed_at_ns = now_ns;
            if buckets.pace.is_none() {
                buckets.paced_from_ns = now_ns;
            }
            let burst = |rate_s| batch(BatchSize::default(), rate_s);
            change(&mut buckets.pace, bytes_s, burst, now_ns);
        }
        self.shared.changed.send_modify(|changes| *changes += 1);
    }

    /// Returns the maximum size of a batch of deferrable work, in bytes, at most `most`. It is the amount that the
    /// limits admit in a hundredth of a second, because a batch is sent to the servers as a whole and delays the
    /// requests after it. The size is larger if batches of that size do not reach a limit
    /// ([`imago_plan::pacing::batch_size`]), except at a pace: there, slow replies are a reason to slow down.
    pub fn batch_bytes(&self, most: u64) -> u64 {
        let buckets = self.lock();
        let rates = [&buckets.bytes, &buckets.pace];
        let least = rates.into_iter().flatten().map(Bucket::rate_s).min();
        least.map_or(most, |rate_s| batch(buckets.batch_size, rate_s).min(most))
    }

    /// Returns true if deferrable work has a pace at present.
    pub fn is_paced(&self) -> bool {
        self.lock().pace.is_some()
    }

    /// Returns the time for which deferrable work has had a pace, without a break; `None` if it has none.
    pub fn paced_for(&self) -> Option<Duration> {
        let now_ns = self.now_ns();
        let buckets = self.lock();
        let ns = now_ns.saturating_sub(buckets.paced_from_ns);
        buckets.pace.is_some().then(|| Duration::from_nanos(ns))
    }

    /// Returns true if there is a pace, and for more than a second no request has had to wait for it.
    pub fn is_below_pace(&self) -> bool {
        let now_ns = self.now_ns();
        let buckets = self.lock();
        buckets.pace.is_some() && now_ns.saturating_sub(buckets.pace_delayed_at_ns) > PACE_IDLE_NS
    }

    /// Waits until the operator's limits admit a batch of `documents` documents with `bytes` bytes. Safe to cancel: a
    /// cancelled request still counts as admitted, so it delays later requests.
    #[crate::boxed]
    pub async fn take(&self, documents: u64, bytes: u64) {
        let now_ns = self.now_ns();
        let reservation = self.lock().reserve(documents, bytes, now_ns);
        self.wait(reservation).await;
    }

    /// Waits as [`Throttle::take`] does, for a batch of deferrable work, which also keeps to the pace.
    #[crate::boxed]
    pub async fn take_paced(&self, documents: u64, bytes: u64) {
        let now_ns = self.now_ns();
        let reservation = self.lock().reserve_paced(documents, bytes, now_ns);
        self.wait(reservation).await;
    }

    async fn wait(&self, reservation: Reservation) {
        let mut changed = self.shared.changed.subscribe();
        loop {
            let wait_ns = self.wait_ns(reservation);
            if wait_ns == 0 {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::from_nanos(wait_ns)) => {}
                // The sender lives as long as `self`.
                _ = changed.changed() => {}
            }
        }
    }

    fn wait_ns(&self, reservation: Reservation) -> u64 {
        let now_ns = self.now_ns();
        self.lock().wait_ns(reservation, now_ns)
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        match self.shared.buckets.lock() {
            Ok(buckets) => buckets,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

impl Buckets {
    fn reserve(&mut self, documents: u64, bytes: u64, now_ns: u64) -> Reservation {
        let documents = self.documents.as_mut().map(|bucket| bucket.reserve(documents, now_ns));
        let bytes = self.bytes.as_mut().map(|bucket| bucket.reserve(bytes, now_ns));
        Reservation { documents, bytes, pace: None }
    }

    fn reserve_paced(&mut self, documents: u64, bytes: u64, now_ns: u64) -> Reservation {
        let pace = self.pace.as_mut().map(|bucket| bucket.reserve(bytes, now_ns));
        let waits = |bucket: &mut Bucket| pace.is_some_and(|pace| bucket.wait_ns(pace, now_ns) > 0);
        if self.pace.as_mut().is_some_and(waits) {
            self.pace_delayed_at_ns = now_ns;
        }
        let reservation = Reservation { pace, ..self.reserve(documents, bytes, now_ns) };
        if self.pace.is_none() {
            self.batch_size = self.batch_size.after(self.wait_ns(reservation, now_ns) > 0);
        }
        reservation
    }

    fn wait_ns(&mut self, reservation: Reservation, now_ns: u64) -> u64 {
        let wait = |(bucket, position): (&mut Option<Bucket>, Option<Position>)| {
            match (bucket, position) {
                (Some(bucket), Some(position)) => bucket.wait_ns(position, now_ns),
                // The limit was removed meanwhile.
                _ => 0,
            }
        };
        let lines = [
            (&mut self.documents, reservation.documents),
            (&mut self.bytes, reservation.bytes),
            (&mut self.pace, reservation.pace),
        ];
        lines.into_iter().map(wait).max().unwrap_or(0)
    }
}

/// Time in nanoseconds: deferrable work that has not waited for the pace for longer is slower than the pace.
const PACE_IDLE_NS: u64 = 1_000_000_000;

/// Minimum size of a batch of deferrable work, in bytes: smaller batches would consist mostly of round trips.
const BATCH_BYTES_MIN: u64 = 32 * 1024;

/// Returns the burst of a limit of `rate_s` units per second: the amount of a tenth of a second. A burst of that size
/// keeps batches moving, and hardly loads the servers.
fn burst(rate_s: u64) -> u64 {
    (rate_s / 10).max(1)
}

/// Returns the burst at a pace of `rate_s` bytes per second, in bytes: one batch. Deferrable work is spread evenly,
/// because batches of several workers at once would delay clients like one large batch.
fn batch(batch_size: BatchSize, rate_s: u64) -> u64 {
    batch_size.of(rate_s).max(BATCH_BYTES_MIN)
}

fn change(
    bucket: &mut Option<Bucket>,
    rate_s: Option<u64>,
    burst: impl Fn(u64) -> u64,
    now_ns: u64,
) {
    match (bucket.as_mut(), rate_s) {
        (Some(bucket), Some(rate_s)) => bucket.set_rate(rate_s, burst(rate_s), now_ns),
        (None, Some(rate_s)) => *bucket = Some(Bucket::new(rate_s, burst(rate_s), now_ns)),
        (_, None) => *bucket = None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(documents_s: Option<u64>, bytes_s: Option<u64>) -> Limits {
        Limits { documents_s, bytes_s, ..Limits::default() }
    }

    /// Duration of the request, with a bound that only a forgotten waiter reaches.
    async fn taking(throttle: &Throttle, documents: u64, bytes: u64) -> Duration {
        let began = Instant::now();
        let taken = throttle.take(documents, bytes);
        tokio::time::timeout(Duration::from_secs(60), taken).await.unwrap();
        began.elapsed()
    }

    #[tokio::test]
    async fn without_limits_nothing_waits() {
        let throttle = Throttle::new(limits(None, None)).unwrap();
        taking(&throttle, u64::MAX, u64::MAX).await;
    }

    #[tokio::test]
    async fn the_tighter_limit_counts() {
        for (documents, bytes) in [(2_000, 3_000), (3_000, 2_000)] {
            let throttle = Throttle::new(limits(Some(10_000), Some(10_000))).unwrap();
            // The burst of 1,000 passes at once.
            let took = taking(&throttle, documents, bytes).await;
            assert!(took >= Duration::from_millis(200), "{took:?}");
        }
    }

    #[tokio::test]
    async fn all_clones_share_the_rate() {
        let throttle = Throttle::new(limits(Some(1_000), None)).unwrap();
        let began = Instant::now();
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let throttle = throttle.clone();
                tokio::spawn(async move { throttle.take(30, 0).await })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
    }

    /// At one document a second, what waits here would wait for days.
    async fn frees_who_waits(then: Limits) {
        let throttle = Throttle::new(limits(Some(1), None)).unwrap();
        let waiter = throttle.clone();
        let waiting = tokio::spawn(async move { taking(&waiter, 1_000_000, 0).await });
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!waiting.is_finished());
        throttle.set(then).unwrap();
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn a_change_reaches_those_who_wait() {
        frees_who_waits(limits(Some(1_000_000_000), None)).await;
    }

    #[tokio::test]
    async fn taking_a_limit_away_frees_those_who_wait() {
        frees_who_waits(limits(None, None)).await;
    }

    #[tokio::test]
    async fn only_what_can_wait_keeps_to_the_pace() {
        let throttle = Throttle::new(limits(None, None)).unwrap();
        throttle.set_pace(Some(1));
        taking(&throttle, 1, 1_000_000_000).await;
        let waiter = throttle.clone();
        let waiting = tokio::spawn(async move { waiter.take_paced(1, 1_000_000).await });
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!waiting.is_finished());
        throttle.set_pace(None);
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap().unwrap();
    }

    #[test]
    fn a_batch_is_what_passes_in_a_moment() {
        let throttle = Throttle::new(limits(None, Some(10_000_000))).unwrap();
        assert_eq!(throttle.batch_bytes(4_000_000), 100_000);
        throttle.set_pace(Some(5_000_000));
        assert_eq!(throttle.batch_bytes(4_000_000), 50_000);
        throttle.set_pace(Some(1));
        assert_eq!(throttle.batch_bytes(4_000_000), BATCH_BYTES_MIN);
        assert_eq!(throttle.batch_bytes(1_000), 1_000);
        throttle.set(limits(None, None)).unwrap();
        throttle.set_pace(None);
        assert_eq!(throttle.batch_bytes(4_000_000), 4_000_000);
    }

    #[tokio::test]
    async fn a_batch_grows_while_the_rate_is_not_reached() {
        let throttle = Throttle::new(limits(None, Some(10_000_000))).unwrap();
        for _ in 0..100 {
            // Nothing of the rate is used, so no request waits.
            throttle.take_paced(0, 0).await;
        }
        assert_eq!(throttle.batch_bytes(4_000_000), 1_000_000);
        throttle.set(limits(None, Some(20_000_000))).unwrap();
        assert_eq!(throttle.batch_bytes(4_000_000), 200_000);
        throttle.set_pace(Some(10_000_000));
        for _ in 0..100 {
            throttle.take_paced(0, 0).await;
        }
        assert_eq!(throttle.batch_bytes(4_000_000), 100_000, "clients are spared");
    }

    #[test]
    fn a_limit_of_zero_is_refused_with_what_to_do() {
        let refused = Throttle::new(limits(None, Some(0))).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("imago job pause")));
    }
}
