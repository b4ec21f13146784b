//! The learned cost model (MorphoSys, §5.2): the predicted time of a transaction or an operator, in µs.
//!
//! The model has linear functions, of which each operation uses those of the paper's Table 1. In this store they
//! measure:
//!   input is the CPU load of the site. Here that is 1 as soon as anything waits, and does not show how much waits. So
//!   the input is the time that the transactions at the site need there ([`super::queues`]). A transaction that reads
//!   waits once, from when its request is sent until the site takes it up. One that writes waits again, from when the
//!   log has its entry until the site takes that up, and this wait is about as long as two others
//!   ([`Operation::waits`]).
//! - `wait_updates`(log lag of the site in entries, u): where a replica is read, the wait until the site has applied
//!   the updates that the session has seen, and until the log has the site's own writes: only then is the site one
//!   state of the database. There is one log for all partitions: `lag_entries` stands for the paper's vₙ − vᵣ of a
//!   partition, and u of Eq. 2 is the share of the site's entries that concern the partition ([`super::updates`]). Both
//!   are 0 where no replica is read. All waits of a transaction that writes nothing are attributed to this function,
//!   and all waits of one that only writes to `lock`. Waits for an earlier request of the client are attributed to no
//!   function.
//! - `lock`(w): the wait for partitions that are being remastered, or that a transaction which reads replicas has
//!   locked while it waits for the log. No transaction locks a partition while it runs, because the site has one
//!   thread.
//! - `read_write`(rows read, rows written): the run time of the procedure. For a new replica the copied rows are an
//!   input of `change` instead, since they are read and written in bulk.
//! - `commit`(partitions read, partitions written): the log itself, from the procedure's end until the log has the
//!   entry.
//! - `change`(work ahead of a remaster; of a split or merge; of a new replica; rows copied): the time of such an
//!   operator beyond the other functions. Here it takes several steps through the log, one after the other, which no
//!   transaction has, and each step waits for the thread of the master.
//! - `cpu`(rows read, written and applied, and transactions, per second): the load of a site, as a share of the CPU that
//!   it has. A transaction has a cost of its own, for its request, its reply and its log entry: where transactions are
//!   short it is most of what a replica takes over from the master when it answers reads.
//!
//! Invariants:
//! - An operation uses exactly the functions of its column of Table 1. Every operator but the removal of a replica uses
//!   `change` in addition, which replaces `read_write` for a new replica.
//! - The times of operators do not change the functions of transactions.

use super::regression::Linear;

/// Inputs of the cost functions for one operation, a transaction or an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Inputs {
    /// Work ahead of one wait for the thread of the operation's site, in µs: the time that the transactions at the
    /// site need of its thread, divided by the number of waits of a transaction.
    pub queued_work_us: f64,
    /// Work ahead of one wait for the thread of the other site that takes part in a remaster or in adding a replica,
    /// in µs.
    pub other_queued_work_us: f64,
    /// Number of log entries that the site has yet to apply; 0 for an operation that reads no replica.
    pub lag_entries: f64,
    /// u of Eq. 2: of the updates that the site applies for other masters, the share (0..1) that concerns the
    /// partition that the operation reads.
    pub update_share: f64,
    /// w: the sum of W(p), the share of writes of partition p in all accesses, over the partitions that the operation
    /// writes.
    pub contention: f64,
    /// Number of rows that the operation reads, and number of rows that it writes.
    pub rows: (f64, f64),
    /// Number of rows that adding a replica copies; 0 for other operations.
    pub copied: f64,
    /// Number of partitions that the operation reads and does not write, and number of partitions that it writes.
    pub partitions: (f64, f64),
}

/// The work of a site: rows read, rows written, rows applied for other masters, and transactions run, each per second.
pub type SiteRates = [f64; 4];

/// An operation whose cost is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A transaction, of one of three kinds by whether it reads and whether it writes.
    Transaction {
        /// True if the transaction reads partitions that it does not write.
        reads: bool,
        /// True if the transaction writes partitions.
        writes: bool,
    },
    /// The change of a partition's master.
    Remaster,
    /// The split of a partition in two.
    Split,
    /// The merge of two partitions.
    Merge,
    /// The addition of a replica of a partition at a site.
    AddReplica,
    /// The removal of a site's replica of a partition.
    RemoveReplica,
}

/// The cost functions that an operation uses: its column of the paper's Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// True if the operation waits for the site's thread ([`CostModel::service`]).
    pub service: bool,
    /// True if the operation waits until the site has applied updates from the log ([`CostModel::wait_updates`]).
    pub wait_updates: bool,
    /// True if the operation waits for locked partitions ([`CostModel::lock`]).
    pub lock: bool,
    /// True if the operation reads and writes rows ([`CostModel::read_write`]).
    pub read_write: bool,
    /// True if the operation writes a commit to the log ([`CostModel::commit`]).
    pub commit: bool,
}

impl Operation {
    /// Returns how often the operation waits for the thread of its site, and how often for the thread of the other
    /// site that takes part.
    #[must_use]
    pub fn waits(self) -> (f64, f64) {
        match self {
            Self::Transaction { writes: false, .. } => (1.0, 0.0),
            Self::Transaction { .. } | Self::Split | Self::Merge | Self::RemoveReplica => {
                (3.0, 0.0)
            }
            Self::AddReplica => (1.0, 1.0),
            Self::Remaster => (3.0, 1.0),
        }
    }

    /// Returns the cost functions that the operation uses, by the paper's Table 1.
    #[must_use]
    pub fn uses(self) -> Uses {
        let (service, all) = (
            true,
            Uses { service: true, wait_updates: true, lock: true, read_write: true, commit: true },
        );
        match self {
            Self::Transaction { reads, writes } => {
                Uses { wait_updates: reads, lock: writes, ..all }
            }
            Self::Remaster => Uses { read_write: false, ..all },
            Self::Split | Self::Merge => Uses { wait_updates: false, read_write: false, ..all },
            Self::AddReplica => Uses { wait_updates: false, lock: false, commit: false, ..all },
            Self::RemoveReplica => {
                Uses { service, wait_updates: false, lock: false, read_write: false, commit: false }
            }
        }
    }
}

/// Measured times of one transaction, or means over several, by cost function; `None` for a part that was not
/// measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Length of one wait for the site's thread, in µs.
    pub service: Option<f64>,
    /// Wait until the site has applied updates from the log, in µs.
    pub wait_updates: Option<f64>,
    /// Wait for locked partitions, in µs.
    pub lock: Option<f64>,
    /// Run time of the transaction's procedure, in µs.
    pub read_write: Option<f64>,
    /// Time from the procedure's end until the log has the transaction's entry, in µs.
    pub commit: Option<f64>,
}

/// The learned cost functions, from which the time of a transaction or an operator and the load of a site are
/// predicted.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Length of one wait for a site's thread in µs, predicted from the work ahead in µs ([`Inputs::queued_work_us`]).
    pub service: Linear<1>,
    /// Wait for updates in µs, predicted from the site's log lag in entries and from u ([`Inputs::update_share`]).
    pub wait_updates: Linear<2>,
    /// Wait for locked partitions in µs, predicted from w ([`Inputs::contention`]).
    pub lock: Linear<1>,
    /// Run time of a procedure in µs, predicted from the numbers of rows read and written.
    pub read_write: Linear<2>,
    /// Time of an operator beyond the other functions in µs, predicted from four inputs: the work ahead in µs of a
    /// remaster, of a split or merge and of a new replica, and the number of rows copied.
    pub change: Linear<4>,
    /// Time of a commit in µs, predicted from the numbers of partitions read and written.
    pub commit: Linear<2>,
    /// Load of a site as a share of the CPU that the site has, predicted from [`SiteRates`].
    pub cpu: Linear<4>,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            service: Linear::new([10.0]).with_prior([1.0]).rising().with_replay(40),
            wait_updates: Linear::new([1.0, 0.01])
                .with_prior(LAG_PRIOR)
                .rising()
                .proportional()
                .with_replay(40),
            lock: Linear::new([0.01]).rising(),
            read_write: Linear::new([1.0, 1.0]).rising(),
            change: Linear::new([10.0, 10.0, 10.0, 100.0])
                .with_prior(CHANGE_PRIOR)
                .rising()
                .proportional()
                .with_replay(60),
            commit: Linear::new([1.0, 1.0]),
            cpu: Linear::new([10.0; 4])
                .with_prior(CPU_PRIOR)
                .rising()
                .proportional()
                .with_replay(60),
        }
    }
}

/// Relative CPU costs of a row that is read, of a row that is written, of a row that is applied for another master, and
/// of a transaction; used until more is known.
const CPU_PRIOR: SiteRates = [1.0, 10.0, 15.0, 100.0];
/// Relative weights of an entry of log lag and of u in the wait for updates; used until more is known.
const LAG_PRIOR: [f64; 2] = [1.0, 0.0];
/// Relative weights, in the time of an operator, of a µs of work ahead for each kind of operator and of a copied row;
/// used until more is known.
const CHANGE_PRIOR: [f64; 4] = [1.0, 1.0, 1.0, 2.0];
/// Least number of samples from which a cost function must have been learned before decisions use it. Most samples are
/// means over a second.
const TRUSTED_SAMPLES: u64 = 5;
/// Mean error of the predicted load of sites, as a share of the load, up to which no greater gain is required.
const ERROR_BORNE: f64 = 0.3;
/// Additional gain that a plan needs, as a share of the latency, per unit of load error beyond [`ERROR_BORNE`].
const GAIN_FOR_ERROR: f64 = 0.1;
/// Largest additional gain that a plan needs because of load errors, as a share of the latency.
const UNCERTAINTY_MAX: f64 = 0.2;

impl CostModel {
    /// Returns why nothing can be decided by this model yet, which is a function learned from too few samples; `None`
    /// if decisions can rely on the model.
    #[must_use]
    pub fn distrust(&self) -> Option<String> {
        let functions = [
            ("service", self.service.samples()),
            ("read_write", self.read_write.samples()),
            ("cpu", self.cpu.samples()),
        ];
        let unknown = functions.into_iter().find(|(_, samples)| *samples < TRUSTED_SAMPLES);
        unknown.map(|(name, samples)| {
            format!("{name} was learned from {samples} samples, of {TRUSTED_SAMPLES}")
        })
    }

    /// Returns the share of the latency that a plan has to save beyond the least gain, because the load of sites is
    /// predicted inaccurately. The error of the wait for service is ignored: this wait varies by more than its inputs
    /// explain.
    #[must_use]
    pub fn uncertainty(&self) -> f64 {
        let beyond = self.cpu.recent_error_share().unwrap_or(0.0) - ERROR_BORNE;
        (GAIN_FOR_ERROR * beyond).clamp(0.0, UNCERTAINTY_MAX)
    }

    /// Returns the predicted time of an operation, in µs.
    #[must_use]
    pub fn predict(&self, operation: Operation, inputs: &Inputs) -> f64 {
        let (uses, waits) = (operation.uses(), operation.waits());
        let used = |is_used: bool, value: f64| if is_used { value } else { 0.0 };
        let parts = inputs.partitions;
        used(uses.service, waits.0 * self.service.predict([inputs.queued_work_us]))
            + used(waits.1 > 0.0, waits.1 * self.service.predict([inputs.other_queued_work_us]))
            + used(
                uses.wait_updates,
                self.wait_updates.predict([inputs.lag_entries, inputs.update_share]),
            )
            + used(uses.lock, self.lock.predict([inputs.contention]))
            + used(uses.read_write && change(operation, inputs).is_none(), self.rows(inputs))
            + used(uses.commit, self.commit.predict([parts.0, parts.1]))
            + self.change_of(operation, inputs)
    }

    /// Returns the predicted time to read and write rows in a procedure, in µs.
    fn rows(&self, inputs: &Inputs) -> f64 {
        self.read_write.predict([inputs.rows.0, inputs.rows.1])
    }

    /// Returns the predicted time of an operator beyond the functions of Table 1, in µs. Until an operator was
    /// observed, copied rows cost as much as rows in a procedure.
    fn change_of(&self, operator: Operation, inputs: &Inputs) -> f64 {
        match change(operator, inputs) {
            Some(of) if self.change.samples() > 0 => self.change.predict(of),
            Some(of) => self.read_write.predict([of[3]; 2]),
            None => 0.0,
        }
    }

    /// Learns from the measured total time `us` of an operator, in µs: the part that the other functions do not
    /// explain is attributed to [`CostModel::change`].
    pub fn observe_operator(&mut self, operator: Operation, inputs: &Inputs, us: f64) {
        if let Some(of) = change(operator, inputs) {
            let others = self.predict(operator, inputs) - self.change_of(operator, inputs);
            self.change.observe(of, (us - others).max(0.0));
        }
    }

    /// Learns from the measured times of a transaction. The measured wait for service is the mean length of one wait.
    pub fn observe(&mut self, operation: Operation, inputs: &Inputs, measured: &Measured) {
        let uses = operation.uses();
        let of = |is_used: bool, value: Option<f64>| value.filter(|_| is_used);
        if let Some(us) = of(uses.service, measured.service) {
            self.service.observe([inputs.queued_work_us], us);
        }
        if let Some(us) = of(uses.wait_updates, measured.wait_updates) {
            self.wait_updates.observe([inputs.lag_entries, inputs.update_share], us);
        }
        if let Some(us) = of(uses.lock, measured.lock) {
            self.lock.observe([inputs.contention], us);
        }
        if let Some(us) = of(uses.read_write, measured.read_write) {
            self.read_write.observe([inputs.rows.0, inputs.rows.1], us);
        }
        if let Some(us) = of(uses.commit, measured.commit) {
            self.commit.observe([inputs.partitions.0, inputs.partitions.1], us);
        }
    }
}

/// Returns the four inputs of [`CostModel::change`] for an operator; `None` for an operation that does not use that
/// function.
fn change(operator: Operation, inputs: &Inputs) -> Option<[f64; 4]> {
    let queued_work_us = inputs.queued_work_us + inputs.other_queued_work_us;
    match operator {
        Operation::Remaster => Some([queued_work_us, 0.0, 0.0, 0.0]),
        Operation::Split | Operation::Merge => Some([0.0, queued_work_us, 0.0, 0.0]),
        Operation::AddReplica => Some([0.0, 0.0, queued_work_us, inputs.copied]),
        Operation::Transaction { .. } | Operation::RemoveReplica => None,
    }
}
