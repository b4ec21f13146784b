//! The command line: flags, tables, progress, exit codes.
//!
//! What this crate must not know: any algorithm, any wire protocol.

fn main() {}
