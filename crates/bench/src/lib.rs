//! Measurements: one file per published table or figure, one per comparison with a peer. Each
//! figure is a ratio to a floor or a peer that was measured in the same run.
//!
//! What this crate must not know: flags and terminals.
