//! The effects that adaptation predicts of its plans, beside what was measured: loads on a store that begins with random masters.
//!
//! The loads differ in what pays: replicas where most is read, masters together where two partitions are written together, and
//! splits where a few keys are popular.

use std::time::Duration;

use imago_job::prediction::Prediction;
use imago_load::store::transactions::Benchmark;
use imago_workload::procedures::{smallbank, tpcc, twitter, ycsb};

use super::designs::Design;
use super::figures::EXPONENT;
use super::scene::{self, Scene};
use crate::error::Result;

/// Number of users of each load but TPC-C.
const USERS: u32 = 20_000;
/// Seed of the first load; each further one has the next.
const SEED: u64 = 17;

fn loads() -> [Benchmark; 5] {
    let ycsb = |scans, exponent| {
        Benchmark::Ycsb(ycsb::Parameters { users: USERS, rows: 1, partners: 2, scans, exponent })
    };
    [
        ycsb(0.5, EXPONENT),
        ycsb(0.1, 0.0),
        Benchmark::TpcC(tpcc::Parameters {
            warehouses: 4,
            items: 2_000,
            customers: 100,
            mix: tpcc::Mix::Three,
            cross_warehouse: None,
        }),
        Benchmark::SmallBank(smallbank::Parameters { customers: USERS }),
        Benchmark::Twitter(twitter::Parameters { users: USERS, ..twitter::Parameters::default() }),
    ]
}

/// Runs each load for `seconds` on a store of four sites that adapts, and returns what its plans predicted beside what came.
/// Blocks.
///
/// # Errors
/// Fails if a store refuses an operation.
pub fn predictions(seconds: u64) -> Result<Vec<Prediction>> {
    let mut all = Vec::new();
    for (benchmark, seed) in loads().into_iter().zip(SEED..) {
        let scene = Scene {
            benchmark,
            sites: 4,
            site_cpu: 0.15,
            round_trip: Duration::from_micros(200),
            partitions: 16,
            clients: 64,
            rate_s: None,
            warm: Duration::ZERO,
            lasts: Duration::from_secs(seconds),
            seed,
            changes_s_max: 50.0,
        };
        all.extend(scene::run(Design::Morphosys, &scene)?.predictions);
    }
    Ok(all)
}
