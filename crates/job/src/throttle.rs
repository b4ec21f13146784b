//! How fast a job may go: limits on documents and bytes per second, changeable while it runs.
//!
//! The decision is [`imago_plan::bucket`]; here is the waiting. Both limits hold together, and no
//! waiter is forgotten when a limit changes: it is woken and asks again.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use imago_plan::bucket::{Bucket, Position};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::record::{Limits, ZeroLimit};

/// Limits documents and bytes per second; cheap to clone, all clones share the limits.
#[derive(Clone)]
pub struct Throttle {
    shared: Arc<Shared>,
}

struct Shared {
    began: Instant,
    buckets: Mutex<Buckets>,
    /// Counts the changes of the limits.
    changed: watch::Sender<u64>,
}

struct Buckets {
    limits: Limits,
    documents: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Throttle {
    /// A throttle with these limits.
    pub fn new(limits: Limits) -> Result<Self, ZeroLimit> {
        limits.check()?;
        let bucket = |rate: Option<u64>| rate.map(|rate_s| Bucket::new(rate_s, burst(rate_s), 0));
        let buckets = Buckets {
            limits,
            documents: bucket(limits.documents_s),
            bytes: bucket(limits.bytes_s),
        };
        let (changed, _) = watch::channel(0);
        let shared = Shared { began: Instant::now(), buckets: Mutex::new(buckets), changed };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The limits as they are.
    pub fn limits(&self) -> Limits {
        self.lock().limits
    }

    /// Changes the limits, for those who wait too.
    pub fn set(&self, limits: Limits) -> Result<(), ZeroLimit> {
        limits.check()?;
        let now_ns = self.now_ns();
        {
            let mut buckets = self.lock();
            if buckets.limits == limits {
                return Ok(());
            }
            buckets.limits = limits;
            change(&mut buckets.documents, limits.documents_s, now_ns);
            change(&mut buckets.bytes, limits.bytes_s, now_ns);
        }
        self.shared.changed.send_modify(|changes| *changes += 1);
        Ok(())
    }

    /// Waits until so many documents and bytes may pass. Safe to cancel: what was asked for and not
    /// waited for only makes the next ones wait as if it had passed.
    pub async fn take(&self, documents: u64, bytes: u64) {
        let mut changed = self.shared.changed.subscribe();
        let (for_documents, for_bytes) = {
            let now_ns = self.now_ns();
            let mut buckets = self.lock();
            let documents = buckets.documents.as_mut().map(|b| b.reserve(documents, now_ns));
            (documents, buckets.bytes.as_mut().map(|b| b.reserve(bytes, now_ns)))
        };
        if for_documents.is_none() && for_bytes.is_none() {
            return;
        }
        loop {
            let wait_ns = self.wait_ns(for_documents, for_bytes);
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

    fn wait_ns(&self, documents: Option<Position>, bytes: Option<Position>) -> u64 {
        let now_ns = self.now_ns();
        let mut buckets = self.lock();
        let wait = |bucket: &mut Option<Bucket>, position: Option<Position>| {
            match (bucket, position) {
                (Some(bucket), Some(position)) => bucket.wait_ns(position, now_ns),
                // The limit was taken away meanwhile.
                _ => 0,
            }
        };
        wait(&mut buckets.documents, documents).max(wait(&mut buckets.bytes, bytes))
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

/// A tenth of a second at the rate may pass at once: enough to keep batches moving, too little to be
/// felt by the servers.
fn burst(rate_s: u64) -> u64 {
    (rate_s / 10).max(1)
}

fn change(bucket: &mut Option<Bucket>, rate_s: Option<u64>, now_ns: u64) {
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
        Limits { documents_s, bytes_s, secondary_lag_ms: None }
    }

    /// How long it took, with a bound that only a waiter who is forgotten reaches.
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

    #[test]
    fn a_limit_of_zero_is_refused_with_what_to_do() {
        let refused = Throttle::new(limits(None, Some(0))).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains("imago job pause")));
    }
}
