//! The progress of a coordinator, and its lag.

use super::Coordinator;

/// The coordinator's progress, for display.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Changes seen in the stream.
    pub changes_read: u64,
    /// Documents written or deleted by rounds.
    pub changes_applied: u64,
    /// Dirty keys in memory.
    pub held: usize,
    /// The lag: time by which the applied changes are behind the source, in ms.
    pub lag_ms: u64,
    /// The same, of the changes that the stream has shown: quiet shards do not count.
    pub behind_ms: u64,
}

impl Coordinator {
    /// The coordinator's progress now.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            changes_read: self.changes_read,
            changes_applied: self.changes_applied,
            held: self.held(),
            lag_ms: self.behind_ms().max(self.unseen_ms()),
            behind_ms: self.behind_ms(),
        }
    }

    /// The age of the oldest change that is not applied, by the source's clock; the time since the
    /// stream was last heard of, when that is longer than its half second.
    fn behind_ms(&self) -> u64 {
        let silence_ms = u64::try_from(self.heard.elapsed().as_millis()).unwrap_or(u64::MAX);
        let silence_ms = if silence_ms > 1_000 { silence_ms } else { 0 };
        let from = self.checkpoint_position() + 1;
        let oldest = self.marks.range(from..).find_map(|(_, mark)| mark.wall_ms);
        let oldest = oldest.filter(|_| self.held() > 0);
        oldest.map_or(0, |oldest| self.age_ms(oldest)).max(silence_ms)
    }

    /// With shards, how far the stream is behind the present, to within a second: the quietest
    /// shard may hold it back.
    fn unseen_ms(&self) -> u64 {
        let newest = self.marks.values().next_back();
        let newest = newest.filter(|_| self.source.is_sharded());
        newest.map_or(0, |mark| self.age_ms(i64::from(mark.time.time + 1) * 1_000))
    }

    pub(super) fn age_ms(&self, wall_ms: i64) -> u64 {
        age_ms(wall_ms, self.clock_ahead_ms)
    }
}

/// Age of `wall_ms`, a time of the source's clock; this machine's clock is `clock_ahead_ms` ahead
/// of it.
pub(super) fn age_ms(wall_ms: i64, clock_ahead_ms: i64) -> u64 {
    let now_ms = bson::DateTime::now().timestamp_millis() - clock_ahead_ms;
    u64::try_from(now_ms - wall_ms).unwrap_or(0)
}
