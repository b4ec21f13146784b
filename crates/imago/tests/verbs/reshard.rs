//! `imago reshard` on real sharded clusters with authorisation, under a load whose every acknowledged
//! operation is checked afterwards.

mod cancelled;
mod clients;
mod commit;
mod death;
pub mod dice;
pub mod disturbed;
mod drain;
mod gone;
mod members;
mod native;
mod pace;
mod plain;
mod proof;
mod random;
mod refused;
mod revert;
pub mod scene;
mod shapes;
mod stall;
mod unusual;
mod validator;
mod writer;
mod wrong;
