//! Size and frequency of small pieces of background work, chosen so that clients hardly notice them.
//!
//! Unlike the bulk of a source, its changes cannot wait indefinitely. They are applied in small
//! pieces with pauses between them as long as that keeps up with the arrivals, and in larger pieces
//! otherwise.

use std::time::Duration;

/// Returns the pause after a piece of work that took `took`, when `left` more such pieces wait and new ones arrive:
/// nine times as long as the piece, so that clients have the servers to themselves most of the time, but short enough
/// for all waiting pieces to be done `within` this time.
#[must_use]
pub fn pause_after(took: Duration, left: u32, within: Duration) -> Duration {
    let each = within / left.max(1);
    (took * PAUSE_RATIO).min(each.saturating_sub(took))
}

/// Ratio of the pause to the duration of the work before it: see [`pause_after`].
const PAUSE_RATIO: u32 = 9;

/// Returns the number of entries of the next piece of work, when `ready` entries wait and the last piece took `took`:
/// `sizes.least`, which clients hardly notice, unless consecutive pieces of that size would not finish all waiting
/// entries `within` this time. So slow servers get fewer requests with more entries each; never more than
/// `sizes.most`.
///
/// # Panics
///
/// If `sizes.least` is more than `sizes.most`.
#[must_use]
pub fn piece_size(took: Duration, ready: usize, within: Duration, sizes: Sizes) -> usize {
    let needed = (ready as u128 * took.as_nanos()).div_ceil(within.as_nanos().max(1));
    usize::try_from(needed).unwrap_or(usize::MAX).clamp(sizes.least, sizes.most)
}

/// Bounds on the number of entries in a piece of work or in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of entries that clients hardly notice.
    pub least: usize,
    /// Largest number of entries that servers accept at once.
    pub most: usize,
}

/// Returns the pause before the next read from a queue, after a reply that held `found` of at most
/// `most` entries and a previous pause of `before`: long enough that replies are half full. Each
/// reply has a fixed cost even if it holds little, and clients notice a full one. There is no pause
/// while replies stay fuller than that; [`batch_limit`] detects entries that accumulate
/// nevertheless.
#[must_use]
pub fn pause_before_reading(before: Duration, found: usize, most: usize) -> Duration {
    if found * 2 > most {
        let shorter = before * 3 / 4;
        if shorter < READ_PAUSE_MIN { Duration::ZERO } else { shorter }
    } else {
        (before * 5 / 4).clamp(READ_PAUSE_MIN, READ_PAUSE_MAX)
    }
}

/// Returns the limit on the number of entries in further replies from a queue, after a reply that held `found` of at
/// most `most` entries, the oldest of which had waited for `age`. If replies are slow, or entries arrive fast, small
/// replies do not keep up, and entries would wait longer and longer. So full replies of old entries raise the limit,
/// and it stays raised. Larger limits than the arrivals need have no effect.
#[must_use]
pub fn batch_limit(most: usize, found: usize, age: Duration, sizes: Sizes) -> usize {
    let is_behind = found >= most && age > READ_WITHIN;
    if is_behind { (most * 4).clamp(sizes.least, sizes.most) } else { most }
}

/// Age above which an entry of a queue counts as delayed by the entries before it.
const READ_WITHIN: Duration = Duration::from_secs(5);
const READ_PAUSE_MIN: Duration = Duration::from_millis(20);
const READ_PAUSE_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn who_rests_is_done_in_time_if_it_can_be(took_ms in 0..200_u64, left in 0..10_000_u32) {
            let (took, within) = (Duration::from_millis(took_ms), Duration::from_secs(5));
            let rest = pause_after(took, left, within);
            prop_assert!(rest <= took * PAUSE_RATIO);
            prop_assert!(rest.is_zero() || (took + rest) * left <= within);
            // No longer a rest would do, and no shorter one is taken.
            prop_assert!(rest == took * PAUSE_RATIO || (took + rest + Duration::from_millis(1)) * left > within);
        }

        #[test]
        fn what_waits_shrinks_as_it_shall_however_slowly_servers_answer(
            ready in 1..10_000_usize, each_ms in 0..1_000_u64, entry_us in 0..500_u64,
        ) {
            let (sizes, within) = (Sizes { least: 32, most: 2_000 }, Duration::from_secs(10));
            let costs = |count: usize| {
                Duration::from_millis(each_ms) + Duration::from_micros(entry_us) * count as u32
            };
            let (mut left, mut now, mut took) = (ready, Duration::ZERO, Duration::ZERO);
            while now < within * 2 && left > 0 {
                let count = piece_size(took, left, within, sizes).min(left);
                prop_assert!(count == left || (sizes.least..=sizes.most).contains(&count));
                (left, took) = (left - count, costs(count));
                let pieces = left.div_ceil(piece_size(took, left, within, sizes));
                now += took + pause_after(took, pieces as u32, within);
            }
            prop_assert!(left <= (ready / 4).max(sizes.least), "{left} of {ready} wait");
        }

        #[test]
        fn a_piece_is_no_larger_than_it_must_be(
            took_ms in 0..2_000_u64, ready in 0..20_000_usize,
        ) {
            let (sizes, within) = (Sizes { least: 32, most: 2_000 }, Duration::from_secs(10));
            let took = Duration::from_millis(took_ms);
            let count = piece_size(took, ready, within, sizes);
            let lasts = |count: usize| took * ready.div_ceil(count) as u32;
            prop_assert!((sizes.least..=sizes.most).contains(&count));
            // The last piece may be half empty.
            prop_assert!(count == sizes.most || lasts(count) <= within + took);
            prop_assert!(count == sizes.least || lasts(count - 1) >= within);
        }

        #[test]
        fn answers_come_half_full_where_they_can(per_s in 0..20_000_usize) {
            let most = 128;
            let (mut pause, mut waiting, mut answers) = (Duration::ZERO, 0.0, Vec::new());
            for _ in 0..400 {
                waiting += (pause + Duration::from_millis(2)).as_secs_f64() * per_s as f64;
                let found = (waiting as usize).min(most);
                waiting -= found as f64;
                answers.push((found, pause));
                pause = pause_before_reading(pause, found, most);
                prop_assert!(pause <= READ_PAUSE_MAX);
            }
            let late = &answers[200..];
            let mean = late.iter().map(|(found, _)| found).sum::<usize>() / late.len();
            if (100..2_000).contains(&per_s) {
                prop_assert!((most * 2 / 5..=most * 3 / 5).contains(&mean), "{mean}");
            }
            // Entries that come more slowly than answers could carry them do not pile up.
            prop_assert!(waiting <= (most + per_s / 20) as f64, "{waiting} wait");
        }

        #[test]
        fn answers_become_as_large_as_it_takes_to_keep_up(
            per_s in 1..5_000_usize, takes_ms in 1..500_u64,
        ) {
            let sizes = Sizes { least: 128, most: 5_000 };
            let (mut most, mut pause, mut waiting, mut oldest) = (sizes.least, Duration::ZERO, 0.0, 0.0);
            for answer in 0..1_000 {
                let took = pause + Duration::from_millis(takes_ms);
                waiting += took.as_secs_f64() * per_s as f64;
                let age = Duration::from_secs_f64(waiting / per_s as f64);
                let found = (waiting as usize).min(most);
                waiting -= found as f64;
                most = batch_limit(most, found, age, sizes);
                pause = pause_before_reading(pause, found, sizes.least);
                prop_assert!(sizes.least <= most && most <= sizes.most);
                if answer > 500 {
                    oldest = age.as_secs_f64().max(oldest);
                }
            }
            let reads_s = sizes.most as f64 / (takes_ms as f64 / 1_000.0);
            prop_assert!(reads_s > per_s as f64, "the largest answers are enough");
            prop_assert!(oldest <= READ_WITHIN.as_secs_f64() + 3.0, "{oldest} s old, {most} at most");
            // A reader that keeps up with small answers gets no larger ones.
            if per_s * (takes_ms as usize) < 1_000 * sizes.least * 9 / 10 {
                prop_assert_eq!(most, sizes.least);
            }
        }
    }
}
