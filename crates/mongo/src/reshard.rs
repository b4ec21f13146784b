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
//! - Until the rename nothing of the collection is changed but the balancer's flag, so that
//!   cancelling is dropping the shadow.
//! - The rename is asked for only while writes are blocked and everything written before the block
//!   is in the shadow (what a validator does not block is brought over behind it); and once it was
//!   asked for, nobody lifts the block before it is known how it ended.
//! - Whoever goes on with a job whose process died finds out by what is there: the collection's
//!   UUID, and whether the shadow exists.

pub mod balance;
mod bulk;
mod bypass;
mod chunk_weights;
mod cluster_lock;
pub mod commit;
mod findings;
mod late_writes;
mod members;
mod native;
mod placement;
pub mod plan;
mod plan_check;
mod planning;
mod predict;
mod revert;
pub mod run;
mod sample;
pub mod shadow;
mod shard_probe;
mod survey;
mod validation;
mod watch;
mod zones;

pub use bulk::helpers_route;
pub use commit::Block;
pub use late_writes::Slipped;
pub use native::{begun, warn_in};
pub use planning::plan;
pub use revert::{Way, revert};
pub use run::{How, KIND, Outcome, Spec, both, check, clean_up, create, run};
