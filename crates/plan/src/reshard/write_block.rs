//! Predicts the duration of a write block, the time at the cut-over in which writes are refused or wait, from a
//! rehearsed rename and rehearsed writes.
//!
//! Under the block a server executes a fixed sequence: the block is set; the last changes are read,
//! applied, compared and recorded; the collection is renamed; the block is lifted. Each part is a
//! known number of sequential writes, each of which waits for a majority to reach disk. The rename
//! consists of some dozens of such writes, and is rehearsed as a whole. It counts twice: the block
//! may be lifted once the config servers have recorded the rename, but the shards lift it only
//! after they have completed the rename, which takes about as long again with documents, chunks and
//! clients (in three cut-overs of a million documents a bare rename took 92 ms, the rename until
//! its record 92 ms, lifting 116 ms).

/// Number of sequential majority writes under a write block besides the rename: three to set the block at the config
/// server and the shards, three to lift it, one that brings the cluster time to every shard, and one for the record.
const WRITES: u64 = 8;
/// Duration of the rename of a collection with documents and clients, as a multiple of the duration
/// of a bare rename.
const RENAMES: u64 = 2;
/// Time allowed for reading, applying and comparing the last changes under the block, in ms.
const DRAIN_MS: u64 = 40;
/// Longest duration of a write block that is promised for a reshard, in ms.
pub const PROMISED_MS: u64 = 300;

/// Durations of server operations, measured in a rehearsal shortly before the write block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RehearsalTimes {
    /// Duration of a rename of a nearly empty collection onto another one, in ms.
    pub rename_ms: u64,
    /// Median duration of a write that a majority acknowledges, in ms.
    pub write_ms: u64,
}

impl RehearsalTimes {
    /// Returns the expected duration of the write block, in ms.
    #[must_use]
    pub fn block_ms(self) -> u64 {
        let writes_ms = self.write_ms.saturating_mul(WRITES);
        let renames_ms = self.rename_ms.saturating_mul(RENAMES);
        renames_ms.saturating_add(writes_ms).saturating_add(DRAIN_MS)
    }

    /// Returns true if the expected duration of the write block exceeds [`PROMISED_MS`].
    #[must_use]
    pub fn exceeds_promise(self) -> bool {
        self.block_ms() > PROMISED_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quick_disks_keep_the_promise_and_slow_ones_do_not() {
        let quick = RehearsalTimes { rename_ms: 80, write_ms: 3 };
        assert!(!quick.exceeds_promise(), "{}", quick.block_ms());
        assert!(RehearsalTimes { rename_ms: 80, write_ms: 40 }.exceeds_promise());
        assert!(RehearsalTimes { rename_ms: 400, write_ms: 3 }.exceeds_promise());
    }

    proptest! {
        #[test]
        fn it_grows_with_each_part_and_never_overflows(rename_ms: u64, write_ms: u64) {
            let tried = RehearsalTimes { rename_ms, write_ms };
            prop_assert!(tried.block_ms() >= rename_ms.max(write_ms));
            let quicker = RehearsalTimes { write_ms: write_ms / 2, ..tried };
            prop_assert!(tried.block_ms() >= quicker.block_ms());
        }
    }
}
