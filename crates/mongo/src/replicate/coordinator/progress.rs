//! The progress of a coordinator, and its lag.

use super::Coordinator;

/// The coordinator's progress, for display.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Number of changes of documents that this coordinator has read from the change stream.
    pub changes_read: u64,
    /// Number of documents that this coordinator's rounds wrote or deleted at the destination.
    pub changes_applied: u64,
    /// Number of dirty keys in memory, over all collections.
    pub dirty_keys: usize,
    /// Lag of the destination behind the source, in ms; of a sharded source, the time by which the stream is late
    /// counts too.
    pub lag_ms: u64,
    /// Lag of the destination, in ms, behind the changes that the stream has shown: idle shards do not add to it.
    pub behind_ms: u64,
}

impl Coordinator {
    /// Returns the coordinator's present progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            changes_read: self.changes_read,
            changes_applied: self.changes_applied,
            dirty_keys: self.dirty_keys(),
            lag_ms: self.behind_ms().max(self.stream_lag_ms()),
            behind_ms: self.behind_ms(),
        }
    }

    /// Returns the age, in ms, of the oldest change that is not applied, by the source's clock, or the time since the
    /// last batch, if that exceeds one second and is longer.
    fn behind_ms(&self) -> u64 {
        let silence_ms =
            u64::try_from(self.last_batch_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        let silence_ms = if silence_ms > 1_000 { silence_ms } else { 0 };
        let from = self.checkpoint_position() + 1;
        let oldest = self.marks.range(from..).find_map(|(_, mark)| mark.wall_ms);
        let oldest = oldest.filter(|_| self.dirty_keys() > 0);
        oldest.map_or(0, |oldest| self.age_ms(oldest)).max(silence_ms)
    }

    /// Returns the time, in ms, by which the change stream is behind the source's clock, to within a second; 0 for a
    /// replica set. With shards, the idlest shard may delay the stream.
    fn stream_lag_ms(&self) -> u64 {
        let newest = self.marks.values().next_back();
        let newest = newest.filter(|_| self.source.is_sharded());
        newest.map_or(0, |mark| self.age_ms(i64::from(mark.time.time + 1) * 1_000))
    }

    pub(super) fn age_ms(&self, wall_ms: i64) -> u64 {
        age_ms(wall_ms, self.clock_ahead_ms)
    }
}

/// Returns the age, in ms, of `wall_ms`, a time of the source's clock in ms since 1970. This machine's clock is ahead
/// of that clock by `clock_ahead_ms`.
pub(super) fn age_ms(wall_ms: i64, clock_ahead_ms: i64) -> u64 {
    let now_ms = bson::DateTime::now().timestamp_millis() - clock_ahead_ms;
    u64::try_from(now_ms - wall_ms).unwrap_or(0)
}
