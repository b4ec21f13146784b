//! Mistakes that an implementation of the protocol could make, each breaking one invariant of the
//! table of pending changes or one assumption that the table of pending changes rests on.

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// Invariant 1: a change of a key whose round is in progress is taken for applied.
    BusyKeyForgotten,
    /// Invariant 2: changes of a slice that is being copied are applied at once.
    LeasedAppliedAtOnce,
    /// Invariant 3: dirty keys are dropped though no horizon was persisted.
    DroppedWithoutHorizon,
    /// Invariant 3: dirty keys later than the persisted horizon are dropped.
    DroppedBeyondHorizon,
    /// Invariant 3: the slices are looked at, and only then the horizon is persisted.
    LookedBeforeHorizon,
    /// Invariant 3: the worker reads the horizon, and only then leases the slice.
    HorizonReadBeforeLease,
    /// Invariant 3: a slice that lost its worker counts as never leased.
    OfferedCountsAsUntouched,
    /// Invariant 3: the worker reads from a replica that lags behind the horizon.
    ReadBeforeHorizon,
    /// Invariant 4: two rounds of one key at once, the later of which may land first.
    LaneNotByKey,
    /// Invariant 5: the checkpoint passes dirty keys that wait for their slice.
    CheckpointIgnoresAside,
    /// Invariant 5: the checkpoint passes dirty keys that wait for their lane.
    CheckpointIgnoresReady,
    /// Invariant 5: the checkpoint passes changes of a round in progress.
    CheckpointIgnoresRounds,
    /// Invariant 5: a batch of the stream counts as read when its first change was recorded.
    CheckpointInsideBatch,
    /// The state that is re-read may be older than the dirty key.
    ReadOlderThanTouch,
    /// A touched document that is gone from the source stays at the destination.
    DeleteIgnored,
    /// The bulk insert leaves a document alone that the destination already has.
    InsertKeepsOlder,
    /// A slice is marked copied before its last write is durable.
    CopiedBeforeLastWrite,
    /// A slice is offered again while the worker that had it can still write.
    LeaseTakenFromTheLiving,
    /// A write that the killed coordinator had sent lands after its successor started.
    WriteOutlivesLead,
}
