//! How long it takes and what room it needs: a simple model, said openly.
//!
//! Every document is read once and written once, whether it changes its shard or not, because the
//! shadow is another collection. What that takes is a share for each document (its lookup, its
//! index entries, its place in the oplog) and one for each byte, and something that no size
//! changes: creating and placing the shadow's chunks, catching up, the cut-over. Network, disks and
//! load are not asked: on a cluster whose shards are machines of their own it takes less, over a slow
//! line more, and at the pace of clients ([`crate::pace`]) as long as these allow. An operator's limits
//! are known, and kept twice: what is copied is compared at the same rate.
//!
//! The constants are fitted to whole changes of shape, comparison of all documents and commit
//! included, of 20,000 and 1,000,000 documents of 1 KB on three shards of one member each that shared
//! two cores and served no load.

use imago_job::record::Limits;

use crate::collection::Size;
use crate::pace::LEAST_S;

/// Documents that are read and written in a second, were they empty.
const DOCUMENTS_PER_S: f64 = 100_000.0;
/// Bytes that are read and written in a second, were documents free.
const BYTES_PER_S: f64 = 100_000_000.0;
/// What does not depend on the size, in seconds.
const FIXED_S: f64 = 3.0;
/// What each chunk takes beside, to be made and given to its shard, in seconds.
const CHUNK_S: f64 = 0.02;

/// How long a change of shape takes, in seconds.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn seconds(size: Size, chunks: usize, limits: Limits) -> f64 {
    let (documents, bytes) = (size.documents as f64, size.bytes as f64);
    let unlimited = documents / DOCUMENTS_PER_S + bytes / BYTES_PER_S;
    let by_documents = limits.documents_s.map_or(0.0, |limit| documents / limit as f64);
    // The comparison keeps to the limit of bytes too.
    let by_bytes = limits.bytes_s.map_or(0.0, |limit| 2.0 * bytes / limit as f64);
    FIXED_S + unlimited.max(by_documents).max(by_bytes) + chunks as f64 * CHUNK_S
}

/// The same at the least pace that spares clients, to which all of it keeps.
pub(super) fn paced_s(size: Size, chunks: usize, limits: Limits) -> f64 {
    let least = limits.bytes_s.map_or(LEAST_S, |limit| limit.min(LEAST_S));
    seconds(size, chunks, Limits { bytes_s: Some(least), ..limits })
}

/// What each shard needs beside what it has, in bytes: its documents uncompressed, and their share
/// of what the collection's indexes take now.
pub(super) fn space_bytes(after: &[Size], total: Size, index_bytes: u64) -> Vec<u64> {
    let space = |held: &Size| {
        let indexes = u128::from(index_bytes) * u128::from(held.bytes);
        let indexes = indexes / u128::from(total.bytes.max(1));
        held.bytes.saturating_add(u64::try_from(indexes).unwrap_or(u64::MAX))
    };
    after.iter().map(space).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn more_takes_longer() {
        let size = |documents, bytes| Size { documents, bytes };
        let seconds = |documents, bytes| seconds(size(documents, bytes), 1, Limits::default());
        assert!(seconds(2_000, 1_000) > seconds(1_000, 1_000));
        assert!(seconds(1_000, 2_000) > seconds(1_000, 1_000));
    }

    #[test]
    fn a_limit_takes_as_long_as_it_says() {
        let size = Size { documents: 1_000_000, bytes: 1_000_000_000 };
        let within_s = |documents_s, bytes_s| {
            let limits = Limits { documents_s, bytes_s, ..Limits::default() };
            Duration::from_secs_f64(seconds(size, 0, limits)).as_secs()
        };
        assert_eq!(within_s(None, None), 23);
        assert_eq!(within_s(None, Some(1_000_000)), 2_003, "copied, and compared");
        assert_eq!(within_s(Some(1_000), None), 1_003);
        assert_eq!(within_s(Some(1_000), Some(1_000_000)), 2_003);
        assert_eq!(within_s(Some(u64::MAX), Some(u64::MAX)), 23);
    }

    #[test]
    fn the_least_pace_is_a_limit_too() {
        let size = Size { documents: 1_000_000, bytes: 1_000_000_000 };
        let within_s = |bytes_s| {
            let limits = Limits { bytes_s, ..Limits::default() };
            Duration::from_secs_f64(paced_s(size, 0, limits)).as_secs()
        };
        assert_eq!(within_s(None), 2_003);
        assert_eq!(within_s(Some(500_000)), 4_003);
        assert_eq!(within_s(Some(5_000_000)), 2_003);
    }

    #[test]
    fn indexes_are_shared_by_what_each_shard_holds() {
        let size = |bytes| Size { documents: 1, bytes };
        assert_eq!(space_bytes(&[size(30), size(10), size(0)], size(40), 20), [45, 15, 0]);
    }
}
