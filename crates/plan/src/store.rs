//! The decision whether a store's physical design should change, and to what (MorphoSys, §5). The design is the set of
//! partition bounds with the master site and the replica sites of each partition ([`layout`]).
//!
//! The modules follow the sections of the paper: the workload model ([`reservoir`], [`workload`], §5.1), the costs of
//! operations ([`regression`], [`cost`], §5.2), candidate plans ([`plans`], §5.3.3), the predicted price of a design
//! ([`price`], §5.3.2), and the choice of the plans that pay, which means that their predicted saving exceeds their
//! cost ([`decide`], §5.3). A store uses all this as one strategy among others ([`strategy`]). [`regimes`] handles
//! workloads that alternate. [`controller`] joins these parts, and [`planner`] is the whole loop, without I/O: from
//! samples to the operators that are executed, and to the judgement of their effect.
//!
//! Beside that loop, [`drain`] empties a site, [`replicas`] maintains a minimum number of copies, and [`heat`] is the
//! table of the use of key ranges over time.

pub mod allowance;
pub mod calibration;
pub mod coarse;
pub mod considered;
pub mod controller;
pub mod cost;
pub mod decide;
pub mod division;
pub mod drain;
pub mod guardrails;
pub mod heat;
pub mod layout;
pub mod parameters;
pub mod planner;
pub mod plans;
pub mod price;
pub mod queues;
mod ranks;
pub mod redesign;
pub mod regimes;
pub mod regression;
mod removals;
pub mod replicas;
pub mod reservoir;
mod significance;
pub mod site_set;
pub mod strategy;
pub mod updates;
pub mod waves;
pub mod weigh;
pub mod workload;

#[cfg(test)]
mod tests;
