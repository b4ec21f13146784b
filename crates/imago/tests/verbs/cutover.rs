//! `imago cutover` between real clusters with authorisation, under a load whose every acknowledged
//! operation is checked afterwards.

mod back;
mod building;
pub mod catalog;
mod clocks;
mod death;
mod disturbed;
mod expiry;
mod failing;
mod forward;
mod functions;
mod kinds;
mod many;
mod refused;
pub mod scene;
mod structure;
