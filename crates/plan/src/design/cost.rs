//! The learned cost model (MorphoSys, §5.2): what a transaction and an operator take, in µs.
//!
//! Linear functions, of which each operation uses those of Table 1. What they measure in this store:
//! - `service`(work ahead): one wait for the site's thread, which runs its transactions one after another. The paper's
//!   input is the CPU of the site; here that is 1 as soon as anything waits, and says nothing of how much does. So the
//!   input is the time that the transactions at the site need there ([`super::queues`]). One that reads waits
//!   once, from when its request is sent until the site looks at it. One that writes waits again, from when the log has
//!   it until the site looks at that, and then for about as long as two others ([`Operation::waits`]).
//! - `wait_updates`(log entries that the site is behind, u): from then until the site has applied what the
//!   session has seen, and until the log has what the site itself wrote, where a replica is read: only then the site
//!   is one state of the database. There is one log for all partitions: `behind` stands for the paper's vₙ − vᵣ of a
//!   partition, and u of Eq. 2 is the share of the site's entries that concern it ([`super::updates`]). Both are 0
//!   where no replica is read. All that a transaction that writes nothing waits for is laid to this function, and to
//!   `lock` all that one waits for that does nothing but write; waits for an earlier request of its client to none.
//! - `lock`(w): the wait for partitions that are changing hands, or that a transaction which reads replicas has locked
//!   while it waits for the log. No transaction locks a partition while it runs, for the thread is one.
//! - `read_write`(rows read, rows written): the procedure itself; for a new replica the rows that are copied are an input
//!   of `change`, since they are read and written in bulk.
//! - `commit`(partitions read, partitions written): the log itself, from the procedure's end until it has the entry.
//! - `change`(work ahead of a remaster; of a split or merge; of a new replica; rows copied): what such an operator takes
//!   beyond these. Here it is several steps through the log, one after the other, which no transaction has, and each
//!   waits for the thread of the master.
//! - `cpu`(reads, writes and applied updates a second): the share that a site uses of what it has.
//!
//! Invariants:
//! - An operation uses exactly the functions of its column of Table 1, and an operator `change` besides, which stands for
//!   `read_write` in that of a new replica.
//! - What operators take teaches nothing of transactions.

use super::regression::Linear;

/// Inputs of an operation's functions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Inputs {
    /// The work ahead of one wait at the site, in µs: what the transactions there need of its time, divided by the waits
    /// of a transaction.
    pub ahead_us: f64,
    /// The same at the other site that takes part, for a remaster and a new replica.
    pub other_ahead_us: f64,
    /// Log entries that the site is behind, where a replica is read.
    pub behind: f64,
    /// u of Eq. 2.
    pub update_share: f64,
    /// w: the sum of W(p) of all partitions that are written.
    pub contention: f64,
    /// Rows read and written.
    pub rows: (f64, f64),
    /// Rows that are copied to a new replica.
    pub copied: f64,
    /// Partitions read and written.
    pub partitions: (f64, f64),
}

/// An operation whose cost is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A transaction; whether it reads what it does not write, and whether it writes.
    Transaction {
        /// It reads partitions that it does not write.
        reads: bool,
        /// It writes.
        writes: bool,
    },
    /// A partition changes its master.
    Remaster,
    /// A partition becomes two.
    Split,
    /// Two become one.
    Merge,
    /// A site gets a copy.
    AddReplica,
    /// A site loses one.
    RemoveReplica,
}

/// The functions that an operation uses: a row of the transposed Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uses {
    /// Waiting for service.
    pub service: bool,
    /// Waiting for updates.
    pub wait_updates: bool,
    /// Waiting for partitions.
    pub lock: bool,
    /// Reading and writing.
    pub read_write: bool,
    /// Committing.
    pub commit: bool,
}

impl Operation {
    /// The number of its waits for the thread of its site, and for that of the other site that takes part.
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

    /// Table 1.
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

/// Measured times of a transaction, in µs; none for a part that was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Waiting for service.
    pub service: Option<f64>,
    /// Waiting for updates.
    pub wait_updates: Option<f64>,
    /// Waiting for partitions.
    pub lock: Option<f64>,
    /// Reading and writing.
    pub read_write: Option<f64>,
    /// Committing.
    pub commit: Option<f64>,
}

/// The functions. See the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Of the work ahead.
    pub service: Linear<1>,
    /// Of the entries behind, and u.
    pub wait_updates: Linear<2>,
    /// Of w.
    pub lock: Linear<1>,
    /// Of rows read and written.
    pub read_write: Linear<2>,
    /// Of the work ahead of a remaster, of a split or merge and of a new replica, and of rows copied.
    pub change: Linear<4>,
    /// Of partitions read and written.
    pub commit: Linear<2>,
    /// Of reads, writes and updates a second.
    pub cpu: Linear<3>,
}

impl Default for CostModel {
    fn default() -> Self {
        Self {
            service: Linear::new([10.0]).led_by([1.0]).rising().rehearsing(40),
            wait_updates: Linear::new([1.0, 0.01])
                .led_by(BEHIND_WORTH)
                .rising()
                .proportional()
                .rehearsing(40),
            lock: Linear::new([0.01]).rising(),
            read_write: Linear::new([1.0, 1.0]).rising(),
            change: Linear::new([10.0, 10.0, 10.0, 100.0])
                .led_by(CHANGE_WORTH)
                .rising()
                .proportional()
                .rehearsing(60),
            commit: Linear::new([1.0, 1.0]),
            cpu: Linear::new([10.0; 3]).led_by(ROWS_WORTH).rising().proportional().rehearsing(60),
        }
    }
}

/// The relative costs of a row that is read among many, a row that is written, and a row that is applied for
/// another master, transactions' own costs spread over them; used until more is known.
const ROWS_WORTH: [f64; 3] = [1.0, 30.0, 12.0];
/// The relative costs of an entry that a site is behind and of a partition's share in these; used until more is known.
const BEHIND_WORTH: [f64; 2] = [1.0, 0.0];
/// The relative costs of a µs of work ahead of each kind of operator, and of a row that is copied; used until more is known.
const CHANGE_WORTH: [f64; 4] = [1.0, 1.0, 1.0, 2.0];
/// Samples of a function, most of them means of a second, with which something can be decided by it.
const TRUSTED_SAMPLES: u64 = 5;
/// The largest mean error with which something can be decided.
const TRUSTED_ERROR: f64 = 0.6;

impl CostModel {
    /// Why nothing can be decided by this model yet, if so.
    #[must_use]
    pub fn distrust(&self) -> Option<String> {
        let functions = [
            ("service", self.service.samples(), self.service.error_share()),
            ("read_write", self.read_write.samples(), self.read_write.error_share()),
            ("cpu", self.cpu.samples(), self.cpu.error_share()),
        ];
        functions.into_iter().find_map(|(name, samples, error)| match error {
            _ if samples < TRUSTED_SAMPLES => {
                Some(format!("{name} was learned from {samples} samples, of {TRUSTED_SAMPLES}"))
            }
            // The wait for service varies by more than its cause; the others follow from theirs.
            Some(error) if error > TRUSTED_ERROR && name == "cpu" => {
                Some(format!("{name} is {:.0} % wrong on average", error * 100.0))
            }
            _ => None,
        })
    }

    /// The predicted time of an operation, in µs.
    #[must_use]
    pub fn predict(&self, operation: Operation, inputs: &Inputs) -> f64 {
        let (uses, waits) = (operation.uses(), operation.waits());
        let used = |is_used: bool, value: f64| if is_used { value } else { 0.0 };
        let parts = inputs.partitions;
        used(uses.service, waits.0 * self.service.predict([inputs.ahead_us]))
            + used(waits.1 > 0.0, waits.1 * self.service.predict([inputs.other_ahead_us]))
            + used(
                uses.wait_updates,
                self.wait_updates.predict([inputs.behind, inputs.update_share]),
            )
            + used(uses.lock, self.lock.predict([inputs.contention]))
            + used(uses.read_write && change(operation, inputs).is_none(), self.rows(inputs))
            + used(uses.commit, self.commit.predict([parts.0, parts.1]))
            + self.change_of(operation, inputs)
    }

    /// Reading and writing rows.
    fn rows(&self, inputs: &Inputs) -> f64 {
        self.read_write.predict([inputs.rows.0, inputs.rows.1])
    }

    /// The time of an operator beyond the functions of Table 1. Until one was seen, copied rows cost as much as in a
    /// procedure.
    fn change_of(&self, operator: Operation, inputs: &Inputs) -> f64 {
        match change(operator, inputs) {
            Some(of) if self.change.samples() > 0 => self.change.predict(of),
            Some(of) => self.read_write.predict([of[3]; 2]),
            None => 0.0,
        }
    }

    /// Learns from what an operator took in all: what the other functions do not explain is laid to the one that is for
    /// operators alone.
    pub fn observe_operator(&mut self, operator: Operation, inputs: &Inputs, us: f64) {
        if let Some(of) = change(operator, inputs) {
            let others = self.predict(operator, inputs) - self.change_of(operator, inputs);
            self.change.observe(of, (us - others).max(0.0));
        }
    }

    /// Learns from what was measured of a transaction. A wait for service is one of them, on average.
    pub fn observe(&mut self, operation: Operation, inputs: &Inputs, measured: &Measured) {
        let uses = operation.uses();
        let of = |is_used: bool, value: Option<f64>| value.filter(|_| is_used);
        if let Some(us) = of(uses.service, measured.service) {
            self.service.observe([inputs.ahead_us], us);
        }
        if let Some(us) = of(uses.wait_updates, measured.wait_updates) {
            self.wait_updates.observe([inputs.behind, inputs.update_share], us);
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

/// The inputs of `change` for an operator that has any.
fn change(operator: Operation, inputs: &Inputs) -> Option<[f64; 4]> {
    let ahead_us = inputs.ahead_us + inputs.other_ahead_us;
    match operator {
        Operation::Remaster => Some([ahead_us, 0.0, 0.0, 0.0]),
        Operation::Split | Operation::Merge => Some([0.0, ahead_us, 0.0, 0.0]),
        Operation::AddReplica => Some([0.0, 0.0, ahead_us, inputs.copied]),
        Operation::Transaction { .. } | Operation::RemoveReplica => None,
    }
}
