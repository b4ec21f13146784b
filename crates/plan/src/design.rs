//! The decision whether a store's physical design should change, and to what (MorphoSys, §5).
//!
//! Every file is a section of the paper: what is known of the workload ([`reservoir`], [`workload`], §5.1), what
//! operations take ([`regression`], [`cost`], §5.2), which plans there are ([`plans`], §5.3.3), what a design would
//! cost ([`price`], §5.3.2), and which plan pays ([`decide`], §5.3). A store takes it as one strategy among others
//! ([`strategy`]).

pub mod brakes;
pub mod coarse;
pub mod cost;
pub mod decide;
pub mod layout;
pub mod plans;
pub mod price;
pub mod queues;
mod ranks;
pub mod regression;
pub mod reservoir;
pub mod site_set;
pub mod strategy;
pub mod updates;
pub mod waves;
pub mod workload;

#[cfg(test)]
mod tests;
