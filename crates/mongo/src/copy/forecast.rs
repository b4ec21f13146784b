//! The forecast of a copy's end: the time until the destination has caught up, with its 90 % interval; for a reshard, the
//! time until the collection is committed.
//!
//! What is left is the sum of the phases that are left: the bulk, whose rate is measured ([`imago_job::eta`]), the indexes,
//! catching up, and for a reshard the comparison of all documents. The phases after the bulk have not begun while most people look at the forecast, so they are estimated
//! from the number of index entries and from the lag, with wide intervals. All run on the same servers, so their errors are
//! added.
//!
//! Invariant: as long as something is left, the forecast is above zero.

use imago_job::prediction::Interval;

/// Index entries that a server builds per second, of all indexes together.
const ENTRIES_S: f64 = 550_000.0;
/// Factor by which an estimated time of building indexes may be wrong either way.
const INDEX_FACTOR: f64 = 2.0;
/// Time that the build of indexes takes besides its entries, in seconds: its agreement with the other members.
const INDEX_FIXED_S: f64 = 0.05;
/// Least, expected and largest time of catching up without a lag, in seconds.
const CATCH_UP_S: (f64, f64, f64) = (0.05, 0.15, 1.0);
/// Largest time of catching up, as a multiple of the lag.
const LAG_TIMES: f64 = 2.0;

/// Time of comparing all documents, as a share of the bulk's time.
const COMPARE_SHARE: f64 = 0.45;
/// Factor by which the estimated time of a comparison may be wrong either way.
const COMPARE_FACTOR: f64 = 2.0;
/// Time of a comparison and commit besides the documents, in seconds.
const COMMIT_S: f64 = 0.3;

/// The phase that a copy is in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Phase {
    /// The bulk is copied, with the time that is left of it in milliseconds, if that can be estimated.
    Copy(Option<Interval>),
    /// Indexes have been built for this time, in seconds.
    Index(f64),
    /// Changes are applied until the lag is short.
    CatchUp,
    /// Documents have been compared for this time, in seconds.
    Compare(f64),
}

/// The work of a copy, apart from its bulk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Work {
    /// Number of index entries to build.
    pub entries: u64,
    /// Lag of the applied changes, in milliseconds.
    pub lag_ms: u64,
    /// Time for which the bulk has been copied, in seconds, if its documents are compared in the end.
    pub compared_s: Option<f64>,
    /// Clients that the bulk spares, if there are any.
    pub spared: Option<Spared>,
}

/// Clients that the bulk spares at present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spared {
    /// Time for which they have been there, in seconds.
    pub for_s: f64,
    /// Number of bytes of the bulk that are left.
    pub left_bytes: u64,
    /// Limit of the operator, in bytes per second.
    pub limit_s: Option<u64>,
}

/// Bytes that a bulk copies per second without clients, at most.
const FULL_S: f64 = 150_000_000.0;

impl Spared {
    /// Returns the time that is left of the bulk, in seconds, if clients may go before it ends; `stayed` is the time if they stay.
    ///
    /// Clients that have been there for a time `t` go within another time `x` with the probability `x / (t + x)`: the present
    /// is as likely in the first part of their stay as in the last one (Gott, Nature 363, 1993). The lower bound is the time
    /// within which one of twenty goes. The expected time is the geometric mean of that of clients that stay and the mean of
    /// those that may go; the upper bound is that of clients that stay.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    fn may_go(self, stayed: Interval) -> Interval {
        let full_s = self.limit_s.map_or(FULL_S, |limit| FULL_S.min(limit as f64));
        let alone = self.left_bytes as f64 / full_s;
        let mean = alone + self.for_s * (stayed.expected / self.for_s.max(1e-3)).ln_1p();
        let expected = (stayed.expected * mean.min(stayed.expected)).sqrt();
        let soon = alone + self.for_s / 19.0;
        Interval::new(stayed.low.min(soon), expected, stayed.high)
    }
}

/// Returns the time until the end of a copy in this phase, in seconds; `None` if it cannot be estimated.
pub(super) fn left_s(phase: Phase, work: Work) -> Option<Interval> {
    let none = Interval::new(0.0, 0.0, 0.0);
    let indexes = index_s(work.entries).unwrap_or(none);
    let (bulk, indexes, catch_up) = match phase {
        Phase::Copy(left_ms) => {
            let left = left_ms?;
            let s = |ms: f64| ms / 1_000.0;
            let bulk = Interval::new(s(left.low), s(left.expected), s(left.high));
            let bulk = work.spared.map_or(bulk, |spared| spared.may_go(bulk));
            (bulk, indexes, catch_up_s(0))
        }
        Phase::Index(passed_s) => (none, rest(indexes, passed_s), catch_up_s(work.lag_ms)),
        Phase::CatchUp => (none, none, catch_up_s(work.lag_ms)),
        Phase::Compare(_) => (none, none, none),
    };
    let compare = work.compared_s.map_or(none, |copied_s| {
        let whole = COMMIT_S + COMPARE_SHARE * (copied_s + bulk.expected);
        let whole = Interval::within(whole, COMPARE_FACTOR);
        if let Phase::Compare(passed_s) = phase { rest(whole, passed_s) } else { whole }
    });
    Some(bulk.plus(indexes).plus(catch_up).plus(compare))
}

/// Returns the time of building indexes with so many entries, in seconds; `None` without entries.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn index_s(entries: u64) -> Option<Interval> {
    let expected = INDEX_FIXED_S + entries as f64 / ENTRIES_S;
    (entries > 0).then(|| Interval::within(expected, INDEX_FACTOR))
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn catch_up_s(lag_ms: u64) -> Interval {
    let lag_s = lag_ms as f64 / 1_000.0;
    let (low, expected, high) = CATCH_UP_S;
    Interval::new(low, expected + lag_s / 2.0, high + LAG_TIMES * lag_s)
}

/// Returns what is left of a time of which `passed_s` has passed. What lasts longer than expected goes on for about as long
/// as a share of what has passed.
fn rest(whole: Interval, passed_s: f64) -> Interval {
    let left = |bound: f64, share: f64| (bound - passed_s).max(share * passed_s);
    Interval::new(left(whole.low, 0.02), left(whole.expected, 0.2), left(whole.high, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Work = Work { entries: 0, lag_ms: 0, compared_s: None, spared: None };
    const INDEXES: Work = Work { entries: 5_000_000, ..NOTHING };

    #[test]
    fn later_phases_count_from_the_start() {
        let bulk = Phase::Copy(Some(Interval::within(40_000.0, 1.5)));
        let without = left_s(bulk, NOTHING).unwrap();
        let with = left_s(bulk, INDEXES).unwrap();
        assert!(without.expected > 40.0 && without.expected < 42.0, "{without:?}");
        assert!((with.expected - without.expected - 9.141).abs() < 1e-3, "{with:?}");
        let compared = left_s(bulk, Work { compared_s: Some(10.0), ..INDEXES }).unwrap();
        assert!((compared.expected - with.expected - 22.8).abs() < 1e-3, "{compared:?}");
        assert_eq!(left_s(Phase::Copy(None), INDEXES), None, "the bulk's rate is unknown");
    }

    #[test]
    fn clients_that_came_may_go() {
        let bulk = Phase::Copy(Some(Interval::within(100_000.0, 1.5)));
        let beside = |for_s| {
            let spared = Some(Spared { for_s, left_bytes: 300_000_000, limit_s: None });
            left_s(bulk, Work { spared, ..NOTHING }).unwrap()
        };
        let stay = left_s(bulk, NOTHING).unwrap();
        let (came, stayed) = (beside(4.0), beside(4_000.0));
        assert!(came.contains(4.0) && came.contains(120.0) && came.expected < 40.0, "{came:?}");
        assert!(stayed.expected > 0.98 * stay.expected && stayed.low == stay.low, "{stayed:?}");
        assert!(beside(0.0).low >= 2.0, "the rest is copied once they are gone");
        let spared = Some(Spared { for_s: 4.0, left_bytes: 300_000_000, limit_s: Some(4_000_000) });
        let limited = left_s(bulk, Work { spared, ..NOTHING }).unwrap();
        assert!(limited.low > 66.0 && limited.expected > 86.0, "{limited:?}: the limit stays");
    }

    #[test]
    fn something_is_left_until_the_end() {
        for passed_s in [0.0, 1.0, 20.0, 400.0] {
            let left = left_s(Phase::Index(passed_s), INDEXES).unwrap();
            assert!(left.low > 0.0 && left.expected > 0.5 && left.high > 3.0, "{left:?}");
            let compared = Work { compared_s: Some(60.0), ..NOTHING };
            let left = left_s(Phase::Compare(passed_s), compared).unwrap();
            assert!(left.low > 0.0 && left.expected > 0.5, "{left:?}");
        }
        let late = left_s(Phase::Index(400.0), INDEXES).unwrap();
        assert!(late.high > 400.0, "{late:?}: it takes much longer than expected");
        let behind = left_s(Phase::CatchUp, Work { lag_ms: 12_000, ..NOTHING }).unwrap();
        assert!(behind.contains(12.0) && behind.low > 0.0, "{behind:?}");
    }
}
