//! The life of a long operation: phases, events, control, and persisted state.
//!
//! This crate must not know which operation a job runs. It carries phases, numbers and words that the operation
//! chose, and never interprets them.
//!
//! An operation gets a [`Reporter`] for its events and a [`Control`] that tells whether the operation may continue.
//! State that must survive the process is a [`Record`] in a [`journal::Journal`]. A display of a job subscribes to
//! the job's stream of [`Event`]s.

pub mod atomic_file;
pub mod clock;
pub mod control;
pub mod error;
pub mod eta;
pub mod event;
pub mod file;
pub mod id;
pub mod journal;
pub mod limits;
pub mod ownership;
pub mod prediction;
pub mod record;
pub mod render;
pub mod reporter;
pub mod retry;
pub mod run;
pub mod state;
pub mod throttle;

/// Boxes the future of an async function that other crates call. The function's body is then compiled once, in this
/// crate, and not in each crate that awaits it.
pub(crate) use async_recursion::async_recursion as boxed;

pub use control::{Control, Stop};
pub use event::{Body, Event, Progress};
pub use id::JobId;
pub use record::{Limits, Record, Requested};
pub use reporter::{Events, Reporter};
pub use run::Run;
pub use state::State;
pub use throttle::Throttle;
