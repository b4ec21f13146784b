//! The state that survives the death of every process: the job's, at the destination.

use imago_plan::copy::pending_changes::SliceState;

use crate::source::Time;

/// A slice's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    /// Never leased.
    Pending,
    /// A worker has it.
    Leased,
    /// The worker that had it lost it: on offer again, partly written.
    Offered,
    /// The last write is durable.
    Copied,
}

impl Row {
    /// The row's state as the table of pending changes sees it.
    pub fn state(self) -> SliceState {
        match self {
            Self::Pending => SliceState::Untouched,
            Self::Leased | Self::Offered => SliceState::Leased,
            Self::Copied => SliceState::Copied,
        }
    }
}

/// The job's state.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Job {
    pub rows: Vec<Row>,
    /// Every read of a slice that was leased later includes the source up to here. A resumed coordinator,
    /// which begins before it, does not move it back.
    pub horizon: Time,
    /// A resumed coordinator reads the stream from here.
    pub checkpoint: Time,
}

impl Job {
    pub fn new(slices: usize) -> Self {
        Self { rows: vec![Row::Pending; slices], horizon: 0, checkpoint: 0 }
    }

    pub fn is_copied(&self) -> bool {
        self.rows.iter().all(|row| *row == Row::Copied)
    }
}
