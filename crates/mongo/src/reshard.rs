//! Changing the shape of a live collection (shard key, chunks, set of shards) with the least movement of data
//! (Morphus).
//!
//! Morphus changed the server; Imago uses unmodified servers. The collection's documents are copied to a *shadow*, a
//! collection of the same database that is sharded by the new key and whose chunks are placed while it is empty. The
//! shadow follows the collection by its change stream, and is finally renamed to the collection's name. The paper's
//! phases:
//!
//! - *Prepare* ([`plan`](mod@plan)): samples the new key, cuts it into chunks, weighs each chunk on each shard, places
//!   the chunks ([`imago_plan::reshard::placement`]), and assigns connections to the flows
//!   ([`imago_plan::reshard::flow`]). The plan is persisted in the job's record. Then the balancer is disabled for
//!   both collections, and the shadow is created.
//! - *Isolate* and *Execute*: the bulk is copied as in any copy ([`crate::copy`]), from secondaries where there are
//!   any.
//! - *Recover*: changes are applied, by the new key.
//! - *Commit*: writes are blocked for a moment, the last changes are applied and compared, and the shadow is
//!   renamed.
//!
//! With the other engine ([`plan::Engine::Native`]) the server performs all of these phases, with the same plan.
//!
//! Invariants of the shadow:
//! - Until the rename nothing of the collection changes except its balancer flag, so cancelling a job only drops
//!   the shadow.
//! - The rename is requested only while writes are blocked and the shadow has all writes from before the write
//!   block. Late writes, which a validator does not block, are brought over after the rename. Once the rename was
//!   requested, the write block is not lifted before the outcome of the rename is known.
//! - The successor of a process that died determines that outcome from the cluster: from the collection's UUID, and
//!   from the presence of the shadow.

pub mod advise;
pub mod commit;
pub mod execute;
mod findings;
pub mod plan;
mod planning;
mod revert;
mod spec;

pub use commit::Block;
pub use execute::bulk::worker_route;
pub use execute::native::{add_native_findings, engine_and_block};
pub use execute::{both_roles, check, clean_up, create, run};
pub use planning::plan;
pub use revert::{Reversal, revert};
pub use spec::{BlockStep, KIND, LateWrites, Options, Outcome, Spec};
