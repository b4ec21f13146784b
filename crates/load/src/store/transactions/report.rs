//! The measurements of a load.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use imago_workload::procedures::Kind;
use imago_workload::timeline::Latency;
use serde::Serialize;

/// Largest latency that is recorded, in µs; longer ones are recorded as this.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Maximum number of contradictions that a report lists.
const CONTRADICTIONS_MAX: usize = 100;

/// Measurements of the transactions of one type in one session.
pub(super) struct OfSession {
    pub done: u64,
    pub rolled_back: u64,
    pub unknown: u64,
    pub gave_up: u64,
    pub latency: Histogram<u64>,
}

impl Default for OfSession {
    fn default() -> Self {
        let latency = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
        let latency = latency.expect("the bounds are constants in order");
        Self { done: 0, rolled_back: 0, unknown: 0, gave_up: 0, latency }
    }
}

/// Measurements of one session.
#[derive(Default)]
pub(super) struct SessionReport {
    pub kinds: BTreeMap<Kind, OfSession>,
    pub moved: u64,
    pub retried: u64,
    pub contradictions: Vec<String>,
    pub last_error: Option<String>,
}

/// Measurements of the transactions of one type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OfKind {
    /// Number of transactions that the store acknowledged.
    pub done: u64,
    /// Number of transactions that rolled themselves back, as the benchmark demands.
    pub rolled_back: u64,
    /// Number of transactions with an unknown outcome.
    pub unknown: u64,
    /// Number of transactions that did not happen within the maximum number of attempts.
    pub gave_up: u64,
    /// Latencies of those that were acknowledged or rolled back.
    pub latency: Latency,
}

/// Result of a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Duration of the load, in seconds.
    pub seconds: f64,
    /// Number of sessions.
    pub sessions: u32,
    /// Number of transactions per second that were acknowledged or rolled back.
    pub throughput_s: f64,
    /// Measurements of each type of transaction.
    pub kinds: BTreeMap<Kind, OfKind>,
    /// Number of attempts whose declared keys had become wrong.
    pub moved: u64,
    /// Number of attempts of which the store, or a connection that could not be opened, said that nothing happened.
    pub retried: u64,
    /// The last error after which an outcome was unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Number of rows that were checked after the load.
    pub rows: u64,
    /// Contradictions between the rows, and between them and the acknowledged transactions; at most a hundred.
    pub contradictions: Vec<String>,
}

impl Report {
    pub(super) fn of(
        reports: Vec<SessionReport>,
        sessions: u32,
        lasted: Duration,
        rows: u64,
    ) -> Self {
        let mut kinds: BTreeMap<Kind, OfSession> = BTreeMap::new();
        let (mut moved, mut retried) = (0, 0);
        let (mut contradictions, mut last_error) = (Vec::new(), None);
        for report in reports {
            moved += report.moved;
            retried += report.retried;
            contradictions.extend(report.contradictions);
            last_error = report.last_error.or(last_error);
            for (kind, one) in report.kinds {
                let all = kinds.entry(kind).or_default();
                all.done += one.done;
                all.rolled_back += one.rolled_back;
                all.unknown += one.unknown;
                all.gave_up += one.gave_up;
                all.latency.add(&one.latency).expect("all histograms have the same bounds");
            }
        }
        contradictions.truncate(CONTRADICTIONS_MAX);
        let ended: u64 = kinds.values().map(|one| one.done + one.rolled_back).sum();
        let of_kind = |one: OfSession| OfKind {
            done: one.done,
            rolled_back: one.rolled_back,
            unknown: one.unknown,
            gave_up: one.gave_up,
            latency: Latency::of(&one.latency),
        };
        Self {
            seconds: lasted.as_secs_f64(),
            sessions,
            throughput_s: ended as f64 / lasted.as_secs_f64().max(f64::MIN_POSITIVE),
            kinds: kinds.into_iter().map(|(kind, one)| (kind, of_kind(one))).collect(),
            moved,
            retried,
            last_error,
            rows,
            contradictions,
        }
    }
}
