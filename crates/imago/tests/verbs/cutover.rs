//! `imago cutover` between real clusters with authorisation, under a load whose every acknowledged
//! operation is checked afterwards.

mod back;
mod catalog;
mod death;
mod disturbed;
mod failing;
mod forward;
mod functions;
mod refused;
mod scene;
