//! `imago chain` over a sharded cluster with a cache: its results, its faults, the proxy, and the engines that run it.

mod drivers;
mod faults;
mod job;
mod proxy;
pub mod scene;
