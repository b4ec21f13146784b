//! The messages between the coordinator of a distributed transaction and its participants.

use serde::{Deserialize, Serialize};

use crate::design::Design;
use crate::key::{Key, KeyRange};
use crate::record::{Epoch, Position, Site};
use crate::rows::Rows;

/// The identity of a distributed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TransactionId {
    /// The site that coordinates the transaction.
    pub coordinator: Site,
    /// The epoch of the coordinator.
    pub epoch: Epoch,
    /// The number of the transaction among those that the coordinator has begun in that epoch.
    pub number: u64,
}

/// A request to the master of partitions to lock them for a distributed transaction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockRequest {
    /// The transaction for which the partitions are locked.
    pub id: TransactionId,
    /// The log position that the master must have reached, because the transaction's session has seen it.
    pub session: Position,
    /// Ranges of keys whose partitions get shared locks. The master sends their rows.
    pub reads: Vec<KeyRange>,
    /// Keys whose partitions get exclusive locks. The master sends their rows.
    pub writes: Vec<Key>,
}

/// The locks that a site has granted for a distributed transaction, and the rows that they protect.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The number of the transaction at its coordinator.
    pub number: u64,
    /// The epoch of the site that grants the locks.
    pub epoch: Epoch,
    /// The log position that the site had reached when it granted the locks. It contains all changes of the locked
    /// partitions.
    pub known: Position,
    /// The range and version of each partition with an exclusive lock.
    pub written: Vec<(KeyRange, u64)>,
    /// The rows that the request names.
    pub rows: Rows,
}

/// A message between the coordinator of a distributed transaction and a participant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TwoPhaseMessage {
    /// The coordinator asks for locks.
    Lock(LockRequest),
    /// The participant has locked the partitions.
    Granted(Grant),
    /// The participant does not master the partitions: the transaction with this number cannot go on.
    Denied(u64),
    /// The transaction writes nothing: the participant releases its locks once it has the given log position.
    Release(TransactionId, Position),
    /// The participant asks whether the transaction is still under way.
    Inquire(TransactionId),
}

impl LockRequest {
    /// Returns true if the request is for an exclusive lock of the partition that begins at `start`.
    pub fn writes_to(&self, start: &Key, design: &Design) -> bool {
        self.writes.iter().any(|key| design.of(key).range.start == *start)
    }
}
