//! The number of documents in a batch.

use imago_job::throttle::Throttle;

/// Largest batch of the bulk, in bytes: large enough that a round trip costs little in comparison, and small enough
/// that a worker, which holds a few batches, needs little memory.
const BATCH_BYTES: u64 = 4 * 1024 * 1024;
/// Most shards for each of which a batch is enlarged by one part: reading large batches slows clients down too.
const PARTS_MAX: u64 = 4;
/// Smallest part of a batch that one server is sent while the bulk is limited, in bytes: a command costs the server,
/// and so clients, as much as a dozen documents of a kilobyte. Much larger parts slow clients down too: at 1 MB/s
/// with 300 operations a second, the 99th percentile of reads, 2.45 ms without a job, was 3.92 ms with parts of 10
/// KB, 2.94 with 30 KB and 4.32 with 80 KB (75 s of each).
const PART_BYTES_MIN: u64 = 32 * 1024;
/// Assumed mean size of a document, in bytes, before any document of the slice was read.
const DOCUMENT_BYTES: u64 = 1_024;
/// Most documents in a batch.
const DOCUMENTS_MAX: u64 = 20_000;

/// Returns the number of documents to read in one batch, given that `documents` had `bytes` bytes so far, and that
/// each of `shards` shards is sent its part of a batch. Small commands cost servers, and so clients, more than their
/// bytes do, so a part is as large as the batch for a single server.
pub(super) fn size(throttle: &Throttle, shards: usize, (documents, bytes): (u64, u64)) -> i32 {
    let average = bytes.checked_div(documents).unwrap_or(DOCUMENT_BYTES).max(1);
    // A batch passes the throttle as a whole: a batch of several seconds would be a burst.
    let limit = throttle.limits().documents_s.unwrap_or(u64::MAX);
    let parts = (shards as u64).clamp(1, PARTS_MAX);
    let part = throttle.batch_bytes(BATCH_BYTES).max(PART_BYTES_MIN);
    let wanted = (part * parts).min(BATCH_BYTES) / average;
    i32::try_from(wanted.min(limit).clamp(1, DOCUMENTS_MAX)).expect("at most 20,000")
}

/// Returns true if a cursor that was opened for batches of `opened` documents should be reopened for batches of
/// `wanted`: the pace changed by more than its usual fluctuation.
pub(super) fn is_another(opened: i32, wanted: i32) -> bool {
    wanted / 2 > opened || wanted < opened / 2
}

#[cfg(test)]
mod tests {
    use imago_job::record::Limits;

    use super::*;

    fn size_at(pace_s: Option<u64>, documents_s: Option<u64>, shards: usize) -> i32 {
        let throttle = Throttle::new(Limits { documents_s, ..Limits::default() }).unwrap();
        throttle.set_pace(pace_s);
        size(&throttle, shards, (10, 10_000))
    }

    #[test]
    fn each_shard_gets_what_one_server_would() {
        let paced = |shards| size_at(Some(5_000_000), None, shards);
        assert_eq!(paced(1), 50, "a hundredth of a second");
        assert_eq!(paced(3), 150);
        assert_eq!(paced(30), 200, "reading is felt too");
    }

    #[test]
    fn a_slow_pace_is_kept_by_fewer_batches_and_not_by_smaller_ones() {
        let paced = |pace_s| size_at(Some(pace_s), None, 3);
        assert_eq!((paced(1_000_000), paced(100_000)), (98, 98));
    }

    #[test]
    fn no_batch_is_larger_than_one_that_nothing_holds_up() {
        for shards in [1, 3, 30] {
            assert_eq!(size_at(None, None, shards), 4_194);
            assert_eq!(size_at(Some(1_000_000_000), None, shards), 4_194);
        }
    }

    #[test]
    fn no_batch_has_more_documents_than_a_second_may() {
        assert_eq!(size_at(Some(5_000_000), Some(20), 3), 20);
    }
}
