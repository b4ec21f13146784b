//! Measurements of a real database under each of its configurations: the input of the decisions of tuning.
//!
//! [`series`] measures the throughput of each configuration with each mix of operations, one after the other;
//! [`compare`] has two configurations take turns, and says by how much they differ. Filling, rolling and the counters of
//! background work are specific to a database ([`Sampled`]); everything else is here.

pub mod cassandra;
pub mod compare;
mod file;
mod load;
pub mod redis;
pub mod series;

use std::time::Duration;

use imago_tune::cluster::Result;
use imago_tune::configurations::Configuration;
use imago_workload::mix::Mix;
use imago_workload::review::Reviews;
use imago_workload::target::Target;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

/// What is measured: the configurations, the mixes of operations, the records, and the load.
#[derive(Clone, Debug)]
pub struct Request {
    /// Number of records with which the database is filled.
    pub documents: u64,
    /// Size of a record, in bytes.
    pub size_bytes: u32,
    /// The configurations to measure.
    pub configurations: Vec<Configuration>,
    /// The mixes of operations to measure; none of them deletes records.
    pub mixes: Vec<Mix>,
    /// Number of operations that the load keeps in flight.
    pub clients: u32,
    /// Length of a window: the interval over which throughput is averaged.
    pub window: Duration,
    /// Number of windows in each measurement, after the database is warm.
    pub windows: usize,
    /// Maximum time for warming up before a measurement, after which the windows begin in any case.
    pub warm_max: Duration,
}

impl Request {
    /// Returns the generator of the content of the records.
    fn reviews(&self) -> Reviews {
        Reviews { size_bytes: self.size_bytes, ..Reviews::default() }
    }
}

/// The process that requests the measurements, and its connection to them.
#[derive(Clone, Copy)]
pub struct Caller<'c> {
    /// Name of the process, recorded in the jobs that roll out configurations.
    pub process: &'c str,
    /// Cancelling this token ends the measurements after the current window.
    pub cancel: &'c CancellationToken,
    /// Callback that receives messages about the progress, for people.
    pub say: &'c (dyn Fn(String) + Sync),
}

/// A database whose configurations are measured.
#[expect(async_fn_in_trait, reason = "one task measures, and awaits one thing after the other")]
pub trait Sampled {
    /// The type of the connection to which the load of a measurement is sent.
    type Target: Target;
    /// True if the database reports the memory and the processor time that it uses under a configuration.
    const REPORTS_USAGE: bool;

    /// Fills the database with the requested records, or checks that it may be filled, before the first configuration
    /// is rolled out.
    ///
    /// # Errors
    /// Returns an error if the database has other records than those to be measured, or the error of the server.
    async fn prepare(&self, request: &Request, caller: &Caller<'_>) -> Result<()>;

    /// Rolls out the configuration at the index `number` of the request, while no load runs. Afterwards all records exist,
    /// stored as the configuration specifies.
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be rolled out, or the database cannot be filled.
    async fn roll(&mut self, request: &Request, number: usize, caller: &Caller<'_>) -> Result<()>;

    /// Returns true if two configurations can replace each other in running nodes: by live settings whose effect ends with them.
    ///
    /// # Errors
    /// Returns an error if a setting is unknown.
    fn can_take_turns(from: &Configuration, to: &Configuration) -> Result<bool>;

    /// Changes running nodes to the configuration at the index `number` of the request. Only if [`Self::can_take_turns`].
    ///
    /// # Errors
    /// Returns an error if the configuration cannot be rolled out.
    async fn switch(&mut self, request: &Request, number: usize, caller: &Caller<'_>)
    -> Result<()>;

    /// Opens a connection to the database for the load of one measurement.
    ///
    /// # Errors
    /// Returns an error if no node answers, or the login fails.
    async fn target(&self, request: &Request) -> Result<Self::Target>;

    /// Returns the memory that the database uses now and the processor time that it has used since its start; `None`
    /// if the database does not report them.
    ///
    /// # Errors
    /// Returns the error of the server.
    async fn used(&self) -> Result<Option<ResourceUsage>>;

    /// Describes the work that the database does in the background now, by its own counters; `None` if there is none. Work
    /// on stored data counts only if `counts_data`: a load that writes causes it again and again.
    ///
    /// # Errors
    /// Returns the error of the server.
    async fn background(&mut self, counts_data: bool) -> Result<Option<String>>;
}

/// Resources that all serving nodes of a database use together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResourceUsage {
    /// Memory that the nodes use now, in bytes.
    pub memory_bytes: u64,
    /// Processor time that the nodes have used since their start, in seconds.
    pub cpu_s: f64,
}

/// One measurement: the throughput of one configuration with one mix in one round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Name of the configuration that was rolled out.
    pub configuration: String,
    /// The mix of operations, as text.
    pub mix: String,
    /// Number of the round of measurements, from 0.
    pub round: usize,
    /// Operations that ended per second: the mean of the windows.
    pub operations_s: f64,
    /// Difference between the throughput of the fastest and the slowest window, as a share of the mean.
    pub spread: f64,
    /// Time of warming up before the first window, in seconds.
    pub warm_s: f64,
    /// Reason why the database was not warm when the maximum time for warming up had passed; null if it was.
    pub not_warm: Option<String>,
    /// Median of the time to a reply, in microseconds: the mean over reads and writes, weighted by their numbers; null without
    /// operations.
    pub median_us: Option<f64>,
    /// 99th percentile of the time to a reply, in microseconds, as the median.
    pub p99_us: Option<f64>,
    /// Size of a record, in bytes.
    pub record_bytes: u32,
    /// Memory that the database uses after the configuration was rolled out, with all records and before any load, in
    /// bytes; `None` if the database does not report it.
    pub memory_bytes: Option<u64>,
    /// Processor time of the database per operation in the measured windows, in microseconds; `None` if the database
    /// does not report it. Unlike throughput, it does not depend on the speed of the load.
    pub cpu_us: Option<f64>,
}

#[cfg(test)]
mod tests;
