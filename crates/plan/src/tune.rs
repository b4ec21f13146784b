//! The decision when a database cluster's configuration (the values of its tuned settings) should change, and to what
//! (SOPHIA, §4).
//!
//! Time is divided into intervals. The operations that clients request in an interval are a [`workload`] (§4.1), which
//! a [`forecast`] extends into the future. The [`throughput`] (Eq. 3) is the number of operations that a cluster would
//! serve in an interval with a configuration; a [`roll`] is the change from one configuration to another, with the
//! operations served meanwhile. A [`schedule`] has the times to change and the configurations to change to, so that
//! most operations are served in all (Eqs. 5–8); [`genetic`] searches for one as the paper does, and [`baselines`] are
//! the methods that it is compared with. A [`planner`] follows the time, with a live cluster or in a [`replay`] of a
//! past trace; [`judge`] assesses the effect of a change, and [`switchback`] that of two configurations which take turns. The number of nodes that may be down at once is computed by
//! [`availability`] (§4.5); the order in which masters and replicas are restarted, by [`succession`]; the time to wait
//! for a reply, by [`adaptive_timeout`]; the configuration that holds a job's data, by [`capacity`] (§5).

pub mod adaptive_timeout;
pub mod anova;
pub mod availability;
pub mod baselines;
pub mod canary;
pub mod capacity;
pub mod design;
pub mod forecast;
pub mod gain_interval;
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
pub mod switchback;
pub mod throughput;
pub mod workload;
