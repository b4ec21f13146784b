//! The effective configuration that a Redis server has after its next start, derived from its files and its command
//! line, and a trial start.
//!
//! `CONFIG SET` and `CONFIG REWRITE` return OK even if a later `include` or an argument restores the old value at the
//! next start (redis 8572), or if the server cannot start with the written file (redis 11736). So the new file is
//! evaluated, and tested on a server without data, before it is written; afterwards it is evaluated again.

mod arguments;
mod effective;
mod gather;
mod trial;
mod words;

pub(super) use effective::{Effective, Place};
pub(super) use gather::{Process, Starts};
pub(super) use trial::{Trial, try_out};
