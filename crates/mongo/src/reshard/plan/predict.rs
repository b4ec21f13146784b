//! Prediction of duration and disk space of a change of shape, by a simple model that the plan shows.
//!
//! Every document is read once and written once, whether it moves to another shard or not, because the shadow is
//! another collection. The duration has a share for each document (its lookup, its index entries, its oplog entry),
//! one for each byte, and a constant: creating and placing the shadow's chunks, catching up, the cut-over. Network,
//! disks and load are not measured: with a machine for each shard the change takes less time, over a slow network
//! more, and at a pace that spares clients ([`crate::replicate::pace`]) as long as the clients' load requires. An
//! operator's limits are known, and count twice: the comparison runs at the same rate as the copy.
//!
//! The speed of the servers is not measured separately either: drawing the sample of a plan reads every document,
//! unless there are very many or very few. A quarter of the predicted duration is scaled by the time of that read: it was a
//! single read, which says most of it about documents that are not in memory, while a change is mostly work of processors.
//! What came of a cluster's earlier changes says more, and corrects the prediction of a job
//! ([`imago_job::prediction::Interval::corrected`]).
//!
//! The constants are fitted to whole changes of shape, with the comparison of all documents and the commit, of
//! 250,000 to 1,000,000 documents of 0.8 and 1 KB on three shards of one member each that shared two cores and
//! served no load.

use std::time::Duration;

use imago_job::record::Limits;

use crate::replicate::pace::LEAST_S;
use crate::server::collection::Size;

/// Number of empty documents that are read and written per second.
const DOCUMENTS_PER_S: f64 = 140_000.0;
/// Number of bytes that are read and written per second, apart from the cost per document.
const BYTES_PER_S: f64 = 145_000_000.0;
/// Duration of a change that does not depend on the size, in seconds.
const FIXED_S: f64 = 1.2;
/// Time to create and place one chunk, in seconds.
const CHUNK_S: f64 = 0.02;

/// Speed at which documents are skipped while sampling, relative to the speed at which they are read and written, on
/// the servers to which the constants are fitted.
const READ_PAST_FASTER: f64 = 88.0;
/// Number of documents that are drawn and returned per second on those servers to which the constants are fitted:
/// most of the cost of a sample of few documents.
const DRAWN_PER_S: f64 = 800_000.0;
/// Minimum size of the documents read by a sample that measures the servers' speed, in bytes; a shorter read depends
/// on single replies.
const READ_BYTES_MIN: u64 = 100_000_000;
/// Share of the predicted duration that is scaled by the time of the sample's read.
const SLOWNESS_SHARE: f64 = 0.25;
/// Largest factor by which the time of one sample may change the estimate, up or down.
const SLOWNESS_MAX: f64 = 4.0;

/// Inputs of a prediction of the duration of a change of shape.
#[derive(Clone, Copy, Debug)]
pub(in crate::reshard) struct PredictionInput {
    /// Size of the collection's documents.
    pub size: Size,
    /// Number of chunks after the change.
    pub chunks: usize,
    /// Factor by which the servers are slower than those to which the constants are fitted; see [`slowness`].
    pub slowness: f64,
}

/// A read of all documents of a collection, some of which were drawn for a sample.
#[derive(Clone, Copy, Debug)]
pub(in crate::reshard) struct FullRead {
    /// Size of all documents that were read.
    pub read: Size,
    /// Number of documents that were drawn and returned.
    pub drawn: u64,
    /// Duration of the read.
    pub took: Duration,
}

/// Returns the duration of the read `look` relative to that on the servers to which the constants are fitted; 1
/// without a read, or after one that was too short.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(in crate::reshard) fn slowness(look: Option<FullRead>) -> f64 {
    let Some(look) = look.filter(|look| look.read.bytes >= READ_BYTES_MIN) else { return 1.0 };
    let usual = by_size(look.read) / READ_PAST_FASTER + look.drawn as f64 / DRAWN_PER_S;
    (look.took.as_secs_f64() / usual).clamp(1.0 / SLOWNESS_MAX, SLOWNESS_MAX)
}

/// Returns the time to read and write the documents of a collection of the size `size`, in seconds.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn by_size(size: Size) -> f64 {
    size.documents as f64 / DOCUMENTS_PER_S + size.bytes as f64 / BYTES_PER_S
}

/// Returns the predicted duration of a change of shape, in seconds, under the operator's `limits`.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(in crate::reshard) fn seconds(of: PredictionInput, limits: Limits) -> f64 {
    let servers = 1.0 + SLOWNESS_SHARE * (of.slowness - 1.0);
    let (documents, bytes) = (of.size.documents as f64, of.size.bytes as f64);
    let by_documents = limits.documents_s.map_or(0.0, |limit| documents / limit as f64);
    // The comparison obeys the limit of bytes too, hence the factor two.
    let by_bytes = limits.bytes_s.map_or(0.0, |limit| 2.0 * bytes / limit as f64);
    let copied = (by_size(of.size) * servers).max(by_documents).max(by_bytes);
    copied + (FIXED_S + of.chunks as f64 * CHUNK_S) * servers
}

/// Returns the predicted duration of a change of shape at the least pace that spares clients, in seconds, under the
/// operator's `limits`.
pub(in crate::reshard) fn paced_s(of: PredictionInput, limits: Limits) -> f64 {
    let least = limits.bytes_s.map_or(LEAST_S, |limit| limit.min(LEAST_S));
    seconds(of, Limits { bytes_s: Some(least), ..limits })
}

/// Returns the additional disk space that each shard needs, in bytes: its documents uncompressed, and their share of
/// the collection's indexes. `after` are the sizes of the documents on each shard after the change, `total` is their
/// sum.
pub(in crate::reshard) fn space_bytes(after: &[Size], total: Size, index_bytes: u64) -> Vec<u64> {
    let space = |held: &Size| {
        let indexes = u128::from(index_bytes) * u128::from(held.bytes);
        let indexes = indexes / u128::from(total.bytes.max(1));
        held.bytes.saturating_add(u64::try_from(indexes).unwrap_or(u64::MAX))
    };
    after.iter().map(space).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MILLION: Size = Size { documents: 1_000_000, bytes: 1_000_000_000 };

    fn look(read: Size, took: Duration) -> Option<FullRead> {
        Some(FullRead { read, drawn: 100_000, took })
    }

    fn base(size: Size) -> PredictionInput {
        PredictionInput { size, chunks: 0, slowness: 1.0 }
    }

    fn whole_s(of: PredictionInput, documents_s: Option<u64>, bytes_s: Option<u64>) -> u64 {
        let limits = Limits { documents_s, bytes_s, ..Limits::default() };
        Duration::from_secs_f64(seconds(of, limits)).as_secs()
    }

    #[test]
    fn more_takes_longer() {
        let size = |documents, bytes| Size { documents, bytes };
        let seconds = |documents, bytes| seconds(base(size(documents, bytes)), Limits::default());
        assert!(seconds(2_000, 1_000) > seconds(1_000, 1_000));
        assert!(seconds(1_000, 2_000) > seconds(1_000, 1_000));
    }

    #[test]
    fn a_limit_takes_as_long_as_it_says() {
        let within_s = |documents_s, bytes_s| whole_s(base(MILLION), documents_s, bytes_s);
        assert_eq!(within_s(None, None), 15);
        assert_eq!(within_s(None, Some(1_000_000)), 2_001, "copied, and compared");
        assert_eq!(within_s(Some(1_000), None), 1_001);
        assert_eq!(within_s(Some(1_000), Some(1_000_000)), 2_001);
        assert_eq!(within_s(Some(u64::MAX), Some(u64::MAX)), 15);
    }

    #[test]
    fn the_least_pace_is_a_limit_too() {
        let within_s = |bytes_s| {
            let limits = Limits { bytes_s, ..Limits::default() };
            Duration::from_secs_f64(paced_s(base(MILLION), limits)).as_secs()
        };
        assert_eq!(within_s(None), 2_001);
        assert_eq!(within_s(Some(500_000)), 4_001);
        assert_eq!(within_s(Some(5_000_000)), 2_001);
    }

    #[test]
    fn servers_that_read_slowly_are_expected_to_take_longer() {
        let within_s = |ms| {
            let slowness = slowness(look(MILLION, Duration::from_millis(ms)));
            whole_s(PredictionInput { slowness, ..base(MILLION) }, None, None)
        };
        assert_eq!(within_s(284), 15, "as those that the constants are of");
        assert_eq!(within_s(568), 19, "twice as slowly");
        assert_eq!(within_s(142), 13);
        assert_eq!(within_s(1_000_000), 26, "one look shifts it so far and no further");
    }

    #[test]
    fn what_is_drawn_takes_its_time_however_few_documents_are_passed_over() {
        let few = Size { documents: 200_000, bytes: 200_000_000 };
        let seen = slowness(look(few, Duration::from_millis(157)));
        assert!((0.99..1.01).contains(&seen), "{seen}");
    }

    #[test]
    fn what_was_not_seen_changes_nothing() {
        let little = Size { documents: 99_999, bytes: 99_999_000 };
        assert_eq!(slowness(None).to_bits(), 1.0_f64.to_bits());
        assert_eq!(slowness(look(little, Duration::from_secs(60))).to_bits(), 1.0_f64.to_bits());
    }

    proptest! {
        #[test]
        fn a_look_errs_by_a_bounded_factor(
            documents in 0..1_000_000_000_u64, mean in 20..100_000_u64, chunks in 0..10_000_usize,
            took_ms in 0..10_000_000_u64,
        ) {
            let size = Size { documents, bytes: documents * mean };
            let slowness = slowness(look(size, Duration::from_millis(took_ms)));
            let of = PredictionInput { size, chunks, slowness };
            let unseen = seconds(PredictionInput { slowness: 1.0, ..of }, Limits::default());
            let seen = seconds(of, Limits::default());
            prop_assert!(seen <= unseen * 1.75 + 1e-6 && seen >= unseen * 0.8125 - 1e-6);
        }
    }

    #[test]
    fn indexes_are_shared_by_what_each_shard_holds() {
        let size = |bytes| Size { documents: 1, bytes };
        assert_eq!(space_bytes(&[size(30), size(10), size(0)], size(40), 20), [45, 15, 0]);
    }
}
