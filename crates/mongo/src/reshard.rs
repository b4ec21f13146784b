//! Changing the shard key of a live collection, moving the least data (Morphus).
//!
//! Morphus changed the server; here the server is as it is. The collection's documents are copied
//! into a *shadow*, a collection of the same database that is sharded by the new key and whose
//! chunks were placed before anything was in them. It follows the collection by its changes, and
//! takes its name at last. The paper's phases:
//!
//! - *Prepare* ([`plan`]): sample the new key, cut it into chunks, weigh each chunk on each shard,
//!   place the chunks ([`imago_plan::placement`]), give sockets to the flows
//!   ([`imago_plan::flow`]). The plan is kept in the job's record. Then the balancer leaves both
//!   collections alone, and the shadow is created.
//! - *Isolate* and *Execute*: the bulk is copied as any other ([`crate::copy`]), from secondaries
//!   where there are any.
//! - *Recover*: changes are applied, by the new key.
//! - *Commit*: writes are blocked for a moment, the last changes applied and compared, and the
//!   shadow renamed.
//!
//! The other engine ([`plan::Engine::Native`]) has the server do all of that by itself, with the same plan.
//!
//! Invariants of the shadow:
//! - Until the rename nothing of the collection is changed except the balancer's flag, so to cancel is to
//!   drop the shadow.
//! - The rename is requested only while writes are blocked and everything written before the block is in
//!   the shadow (late writes, which a validator does not block, are brought over behind it). Once it was
//!   requested, the block is not lifted before its outcome is known.
//! - The successor of a process that died learns the outcome from the cluster: from the collection's UUID,
//!   and from the presence of the shadow.

pub mod commit;
pub mod execute;
mod findings;
pub mod plan;
mod planning;
mod revert;
mod spec;

pub use commit::Block;
pub use execute::bulk::helpers_route;
pub use execute::native::{begun, warn_in};
pub use execute::{both, check, clean_up, create, run};
pub use planning::plan;
pub use revert::{Way, revert};
pub use spec::{KIND, LateWrites, Options, Outcome, Spec};
