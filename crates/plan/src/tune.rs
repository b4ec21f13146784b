//! The decision when a cluster's configuration should change, and to what (SOPHIA, §4).
//!
//! Time is divided into intervals. What clients ask for in each is a [`workload`] (§4.1), which a [`forecast`]
//! extends into the future. What a cluster would serve in each interval by each configuration is its
//! [`throughput`] (Eq. 3); what it serves while it changes from one to another is a [`roll`]. A [`schedule`]
//! says when to change, and to what, so that most operations are served in all (Eqs. 5–8); [`genetic`] searches for
//! one as the paper does, and [`baselines`] are what it is compared with. A [`planner`] goes with the time, beside a
//! cluster or in a [`replay`] of a past trace; [`judge`] says what came of a change. How many nodes may be away at once is
//! [`availability`] (§4.5); in which order masters and replicas are restarted, [`succession`]; how long a reply is
//! waited for, [`adaptive_timeout`]; which configuration holds a job's data, [`capacity`] (§5).

pub mod adaptive_timeout;
pub mod anova;
pub mod availability;
pub mod baselines;
pub mod canary;
pub mod capacity;
pub mod design;
pub mod forecast;
pub mod genetic;
pub mod judge;
pub mod planner;
pub mod records;
pub mod replay;
pub mod roll;
pub mod sampling;
pub mod schedule;
pub mod search;
pub mod space;
pub mod succession;
pub mod surrogate;
pub mod throughput;
pub mod workload;
