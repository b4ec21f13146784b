//! The copy protocol, tried in every order (a small exhaustive model) and in random orders (larger
//! runs), with the real table of pending changes as the one that decides.
//!
//! A source takes writes; workers lease slices from persisted job state, read the horizon after
//! leasing, and copy documents as any replica at or after the horizon shows them; a coordinator reads the
//! change stream into the table of pending changes, persists the horizon, looks at the slices, drops, takes rounds,
//! re-reads touched keys at or after the dirty key, writes, and persists checkpoints. Workers and coordinator may be
//! killed between any two steps. Whenever the coordinator would call the copy drained, the destination
//! must equal the source, document for document, and no document more.
//!
//! The model assumes two things, and shows by a seeded bug each that they are needed: a write never lands
//! after its writer was declared dead; every persisted step is durable before the next one starts.

mod books;
mod bug;
mod coordinator;
mod desk;
mod exhaustive;
mod facts;
mod interleavings;
mod job;
mod live;
mod naive;
mod protocol;
mod sightings;
mod source;
mod worker;
