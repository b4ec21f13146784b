//! Samples of transactions that had to wait at their site.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::record::Site;
use crate::sampler::{Cause, Sampled, Sampler, WaitTime};

/// Sessions that write, and scans that are tried at most.
const WRITERS: u32 = 4;
const SCANS_MAX: u32 = 20_000;

#[test]
fn a_scan_that_waits_for_the_log_says_for_how_long_and_that_is_part_of_its_time() {
    let store = Arc::new(Store::start(&options(None, 2)).expect("a store in memory"));
    let sampler = Arc::new(Sampler::new(2, None));
    sampler.set_every(1);
    store.sample(Arc::clone(&sampler));
    runtime().block_on(async {
        // The scan reads a partition of its own site, and a replica.
        store.change(&Key::least(), Operator::Split(key(5_000))).await.expect("a split");
        store.add_replica(&key(5_000), Site(1)).await.expect("a replica");
        store.change(&key(5_000), Operator::Remaster(Site(1))).await.expect("another master");
        let is_over = Arc::new(AtomicBool::new(false));
        let writer = |n: u32| {
            let (mut session, is_over) = (store.session(), Arc::clone(&is_over));
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    add(&mut session, &[n]).await.expect("an addition");
                }
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        let mut session = store.session();
        let mut waited = None;
        for _ in 0..SCANS_MAX {
            let began = Instant::now();
            assert!(all(&mut session).await.len() <= WRITERS as usize);
            let took_us = began.elapsed().as_secs_f64() * 1e6;
            let scans = sampler.fetch().into_iter().filter(|sampled| sampled.writes.is_empty());
            // Scans commit nothing.
            let latency_us =
                |scan: &Sampled, waited: WaitTime| scan.service_us + waited.us + scan.run_us;
            let late = scans.filter_map(|scan| {
                let waited = scan.waited?;
                Some((waited, scan.rows, latency_us(&scan, waited)))
            });
            waited = late.last();
            if let Some((waited, rows, latency_us)) = waited {
                assert!(waited.us > 0.0 && latency_us >= waited.us, "{waited:?} of {latency_us}");
                assert!(latency_us <= took_us, "{latency_us} of {took_us}");
                assert!(rows.is_some_and(|(_, written)| written == 0), "{rows:?}");
                if waited.cause == Cause::Updates {
                    break;
                }
            }
            tokio::time::sleep(Duration::from_micros(50)).await;
        }
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await.expect("a writer");
        }
        let waited = waited.map(|(waited, ..)| waited.cause);
        assert_eq!(waited, Some(Cause::Updates), "none of {SCANS_MAX} scans met a write");
    });
}
