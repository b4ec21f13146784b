//! The demands of transactions and log entries on a simulated site, as they are measured on the real engine.
//!
//! A site with many transactions in progress does more of them each time that it wakes up, so that each needs less time.
//! A read-modify-write needs more time beside scans, which occupy the CPU caches. So the demands are measured with
//! several numbers of clients and mixes of transactions, and interpolated.

use serde::Serialize;

use crate::adapt::workload::{Kind, ROWS};

/// Numbers of transactions in progress at a site for which demands are measured.
pub const IN_PROGRESS: [u32; 3] = [4, 16, 64];
/// Fractions of scans for which demands are measured.
pub const MIXES: [f64; 3] = [0.0, 0.5, 1.0];

/// Demands on a site, in µs of the CPU time that the site has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Demands {
    /// Demands of transactions, for each number of [`IN_PROGRESS`].
    pub transactions: [TransactionDemands; IN_PROGRESS.len()],
    /// Demand of applying a read-modify-write for its master, at a site with a replica.
    pub applied_us: f64,
    /// Demand of the log entry of a read-modify-write at a site without a replica.
    pub skipped_us: f64,
    /// Time from the end of such a read-modify-write until an idle site receives its log entry. It is no demand on
    /// the site.
    pub log_us: f64,
}

/// Demands of transactions at a site with a certain number of transactions in progress.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TransactionDemands {
    /// Demand of a read-modify-write of a user's rows, at a site without scans.
    pub count_us: f64,
    /// Additional demand of a read-modify-write at a site with scans. It is multiplied by the fraction of scans among
    /// the transactions of the site.
    pub count_beside_us: f64,
    /// Demand of each row of a scan.
    pub scanned_row_us: f64,
}

impl TransactionDemands {
    /// Computes the demands from the mean time of a transaction in each of [`MIXES`], in µs; a scan reads `scan_rows`
    /// rows in the mean. With a fraction `s` of scans, the mean time is `(1 - s) (count + s beside) + s scan`.
    pub fn of([counts_us, mixed_us, scans_us]: [f64; MIXES.len()], scan_rows: f64) -> Self {
        let mixed = MIXES[1];
        let beside_us = ((mixed_us - mixed * scans_us) / (1.0 - mixed) - counts_us) / mixed;
        Self {
            count_us: counts_us,
            count_beside_us: beside_us.max(0.0),
            scanned_row_us: scans_us / scan_rows,
        }
    }

    fn between(self, other: Self, share: f64) -> Self {
        let mix = |one: f64, other: f64| one + share * (other - one);
        Self {
            count_us: mix(self.count_us, other.count_us),
            count_beside_us: mix(self.count_beside_us, other.count_beside_us),
            scanned_row_us: mix(self.scanned_row_us, other.scanned_row_us),
        }
    }
}

impl Demands {
    /// Returns the demand of a transaction at a site with this fraction of scans and this number of transactions in
    /// progress.
    pub(super) fn of(&self, kind: Kind, scans: f64, in_progress: u32) -> f64 {
        let demands = self.at(in_progress);
        match kind {
            Kind::Count(_) => demands.count_us + scans * demands.count_beside_us,
            Kind::Scan(_, users) => demands.scanned_row_us * (users * ROWS) as f64,
        }
    }

    /// Returns the demand of reading a row to copy it.
    pub(super) fn copied_row_us(&self) -> f64 {
        self.transactions[IN_PROGRESS.len() - 1].scanned_row_us
    }

    /// Interpolates the demands of transactions by the logarithm of the number in progress.
    fn at(&self, in_progress: u32) -> TransactionDemands {
        let log = |number: u32| f64::from(number.max(1)).log2();
        let next = IN_PROGRESS.partition_point(|number| *number <= in_progress);
        if next == 0 || next == IN_PROGRESS.len() {
            return self.transactions[next.saturating_sub(1)];
        }
        let [low, high] = [IN_PROGRESS[next - 1], IN_PROGRESS[next]].map(log);
        let share = (log(in_progress) - low) / (high - low);
        self.transactions[next - 1].between(self.transactions[next], share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_computed_from_mixes_and_interpolated() {
        let of = |factor: f64| {
            let mean = |scans: f64| (1.0 - scans) * (52.0 + scans * 90.0) + scans * 410.0;
            TransactionDemands::of(MIXES.map(mean).map(|us| us * factor), 600.0)
        };
        let transactions = [2.0, 1.5, 1.0].map(of);
        assert!((transactions[2].count_beside_us - 90.0).abs() < 1e-9, "{transactions:?}");
        let demands = Demands { transactions, applied_us: 14.0, skipped_us: 5.0, log_us: 90.0 };
        let count = |scans, in_progress| demands.of(Kind::Count(4_711), scans, in_progress);
        for (scans, in_progress, expected) in
            [(0.0, 0, 104.0), (0.0, 4, 104.0), (0.0, 8, 91.0), (0.0, 16, 78.0), (0.5, 64, 97.0)]
        {
            let demand = count(scans, in_progress);
            assert!((demand - expected).abs() < 1e-9, "{scans} {in_progress}: {demand}");
        }
        assert_eq!(count(0.25, 1_000), 74.5);
        let scan = demands.of(Kind::Scan(39_000, 200), 0.5, 64);
        assert!((scan - 410.0).abs() < 1e-9, "{scan}");
    }
}
