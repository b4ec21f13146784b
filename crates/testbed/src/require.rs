//! The programs and privileges that a test requires of its machine.
//!
//! A test that is skipped silently proves nothing, so a missing program makes it fail. With `IMAGO_ALLOW_MISSING`
//! in the environment the test reports the missing program and ends without having run.

use std::fmt::Display;

/// Name of the environment variable that permits tests to be skipped because a program or privilege is missing.
pub const ALLOW_MISSING: &str = "IMAGO_ALLOW_MISSING";

/// Returns the value of `found`. If it is an error, returns `None` provided that `IMAGO_ALLOW_MISSING` is set.
///
/// # Panics
/// If `found` is an error and `IMAGO_ALLOW_MISSING` is not set.
#[track_caller]
pub fn require<T>(found: Result<T, impl Display>) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(missing) if std::env::var_os(ALLOW_MISSING).is_some() => {
            eprintln!("left out, because {ALLOW_MISSING} is set: {missing}");
            None
        }
        Err(missing) => panic!(
            "this test cannot run: {missing}. `make setup` installs programs; {ALLOW_MISSING}=1 leaves out what cannot run"
        ),
    }
}
