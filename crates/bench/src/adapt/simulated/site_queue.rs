//! A simulated site: its queue, its locks, and its waits for the log.
//!
//! The site's thread runs one job after the other. As in the real engine (`imago_store::site`), a write is answered
//! when the site has received it back from the log. A scan that reads a replica waits until the site has received
//! back all of its own writes to the partitions that the scan reads. Until then the scan locks those of its
//! partitions that the site masters, and writes to them wait for it.

use std::collections::{BTreeMap, VecDeque};

use imago_plan::store::layout::{Partition, Site};

use super::demands::Demands;
use crate::adapt::workload::{Kind, ROWS};

/// Weight of one transaction in the moving average of the fraction of scans.
const SCANS_RATE: f64 = 0.02;

/// A transaction of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transaction {
    pub client: usize,
    pub kind: Kind,
    /// Time of its arrival at the site, in µs.
    pub arrived_us: f64,
    /// Time at which the site first handled it, in µs; `None` before that.
    pub first_handled_us: Option<f64>,
    /// Time at which it began to run, in µs.
    pub began_us: f64,
    /// Time that it needs of the site, in µs.
    pub demand_us: f64,
    /// Number of the site's own writes that were not back from the log when the site first handled it.
    pub lag_entries: u64,
    /// True if it reads a partition that the site does not master.
    pub reads_replica: bool,
}

impl Transaction {
    /// Creates a transaction that arrives at a site now.
    pub fn new(client: usize, kind: Kind, now_us: f64) -> Self {
        let (arrived_us, began_us, demand_us) = (now_us, now_us, 0.0);
        let (first_handled_us, lag_entries, reads_replica) = (None, 0, false);
        Self {
            client,
            kind,
            arrived_us,
            first_handled_us,
            began_us,
            demand_us,
            lag_entries,
            reads_replica,
        }
    }
}

/// A job of a site's thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Transaction(Transaction),
    /// Applies a write of another master.
    Applied,
    /// Skips a write of another master, of a partition that the site has no copy of.
    Skipped,
    /// Receives the site's own writes up to this number back from the log.
    Logged(u64),
    /// Copies rows, for this time in µs.
    Copied(f64),
}

/// A reply that waits until the own write with this number is back from the log.
#[derive(Clone, Copy, Debug)]
struct PendingReply {
    number: u64,
    of: Transaction,
}

/// The partitions of a design, in the order of their starts.
#[derive(Clone, Debug, Default)]
pub(super) struct Partitions {
    pub starts: Vec<u64>,
    pub all: Vec<Partition>,
}

impl Partitions {
    pub fn number_of(&self, user: u64) -> usize {
        self.starts.partition_point(|start| *start <= user).saturating_sub(1)
    }

    /// Returns the indexes of the partitions that a transaction accesses.
    pub fn touched(&self, kind: Kind) -> std::ops::RangeInclusive<usize> {
        match kind {
            Kind::Count(user) => self.number_of(user)..=self.number_of(user),
            Kind::Scan(user, users) => self.number_of(user)..=self.number_of(user + users - 1),
        }
    }
}

/// State of a simulated site.
#[derive(Clone, Debug)]
pub(super) struct SiteQueue {
    site: Site,
    queue: VecDeque<Job>,
    running: Option<(Job, f64)>,
    pub worked_us: f64,
    /// Rows read, written and applied, and transactions run.
    pub counts: [u64; 4],
    /// Moving average of the fraction of scans among its transactions.
    scans: f64,
    /// Number of transactions that have arrived and are not answered.
    pub under_way: u32,
    /// Number of its last own write.
    written: u64,
    /// Number of the last own write that is back from the log.
    ordered: u64,
    /// Number of the last own write to each partition, by the start of the partition.
    last: BTreeMap<u64, u64>,
    pending_replies: VecDeque<PendingReply>,
    /// Scans that wait for the log, and writes that wait for these scans, in order of arrival. Each has the starts of
    /// the partitions that it locks.
    waiting: Vec<(Transaction, Vec<u64>)>,
}

/// The result of a job.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Transactions that are answered now.
    pub answered: Vec<Transaction>,
    /// A write that goes to the log: its number, and its user.
    pub wrote: Option<(u64, u64)>,
}

impl SiteQueue {
    pub fn new(site: Site) -> Self {
        Self {
            site,
            queue: VecDeque::new(),
            running: None,
            worked_us: 0.0,
            counts: [0; 4],
            scans: 0.0,
            under_way: 0,
            written: 0,
            ordered: 0,
            last: BTreeMap::new(),
            pending_replies: VecDeque::new(),
            waiting: Vec::new(),
        }
    }

    pub fn push(&mut self, job: Job) {
        if matches!(job, Job::Transaction(_)) {
            self.under_way += 1;
        }
        self.queue.push_back(job);
    }

    /// Starts the next job if the thread is idle. Returns the duration of the job in µs, or `None` if no job starts.
    pub fn begin(&mut self, now_us: f64, by: &Partitions, demands: &Demands) -> Option<f64> {
        if self.running.is_some() {
            return None;
        }
        while let Some(job) = self.queue.pop_front() {
            let demand_us = match job {
                Job::Transaction(mut of) => {
                    if of.first_handled_us.is_none() {
                        (of.first_handled_us, of.lag_entries) =
                            (Some(now_us), self.written - self.ordered);
                    }
                    if !self.may_begin(&mut of, by) {
                        continue;
                    }
                    let is_scan = f64::from(u8::from(matches!(of.kind, Kind::Scan(..))));
                    self.scans += SCANS_RATE * (is_scan - self.scans);
                    of.began_us = now_us;
                    of.demand_us = demands.of(of.kind, self.scans, self.under_way);
                    self.running = Some((Job::Transaction(of), of.demand_us));
                    return Some(of.demand_us);
                }
                Job::Applied => demands.applied_us,
                Job::Skipped => demands.skipped_us,
                Job::Logged(_) => 0.0,
                Job::Copied(us) => us,
            };
            self.running = Some((job, demand_us));
            return Some(demand_us);
        }
        None
    }

    /// True if a transaction need not wait. Otherwise the transaction is added to the waiting ones. Waiting
    /// transactions get their locks in the order in which they arrived.
    fn may_begin(&mut self, of: &mut Transaction, by: &Partitions) -> bool {
        let is_own = |number: &usize| by.all[*number].master == self.site;
        let touched = by.touched(of.kind);
        of.reads_replica = !touched.clone().all(|number| is_own(&number));
        let locks: Vec<u64> = match of.kind {
            Kind::Scan(..) if !of.reads_replica => return true,
            _ => touched.filter(is_own).map(|number| by.starts[number]).collect(),
        };
        let is_taken = |start: &u64| self.waiting.iter().any(|(_, taken)| taken.contains(start));
        let is_unseen = |start: &u64| self.last.get(start).is_some_and(|last| *last > self.ordered);
        let must_see = of.reads_replica && locks.iter().any(is_unseen);
        if !must_see && !locks.iter().any(is_taken) {
            return true;
        }
        self.waiting.push((*of, locks));
        false
    }

    /// Ends the job of the thread.
    pub fn end(&mut self, by: &Partitions) -> Ended {
        let (job, demand_us) = self.running.take().expect("a job ends that had begun");
        self.worked_us += demand_us;
        let mut ended = Ended::default();
        match job {
            Job::Transaction(of) => match of.kind {
                Kind::Count(user) => {
                    self.counts[3] += 1;
                    self.written += 1;
                    self.last.insert(by.starts[by.number_of(user)], self.written);
                    self.counts[0] += ROWS;
                    self.counts[1] += ROWS;
                    self.pending_replies.push_back(PendingReply { number: self.written, of });
                    ended.wrote = Some((self.written, user));
                }
                Kind::Scan(_, users) => {
                    self.counts[3] += 1;
                    self.counts[0] += users * ROWS;
                    let starts = by.touched(of.kind).map(|number| by.starts[number]);
                    let number = starts.filter_map(|start| self.last.get(&start)).max().copied();
                    match number.filter(|number| *number > self.ordered) {
                        Some(number) => {
                            let before =
                                self.pending_replies.back().map_or(0, |reply| reply.number);
                            self.pending_replies
                                .push_back(PendingReply { number: number.max(before), of });
                        }
                        None => ended.answered.push(of),
                    }
                }
            },
            Job::Applied => self.counts[2] += ROWS,
            Job::Logged(number) => {
                self.ordered = number;
                self.wake();
                while let Some(reply) =
                    self.pending_replies.front().filter(|reply| reply.number <= number)
                {
                    ended.answered.push(reply.of);
                    self.pending_replies.pop_front();
                }
            }
            Job::Skipped | Job::Copied(_) => {}
        }
        self.under_way -= ended.answered.len() as u32;
        ended
    }

    /// Moves all waiting transactions to the head of the queue, in their order, so that they are tried again before
    /// other jobs.
    fn wake(&mut self) {
        for (of, _) in std::mem::take(&mut self.waiting).into_iter().rev() {
            self.queue.push_front(Job::Transaction(of));
        }
    }
}

#[cfg(test)]
mod tests {
    use imago_plan::store::site_set::SiteSet;

    use super::*;
    use crate::adapt::simulated::demands::{IN_PROGRESS, TransactionDemands};

    const COUNT_US: f64 = 50.0;
    const SCANNED_ROW_US: f64 = 0.7;
    const DEMANDS: Demands = Demands {
        transactions: [TransactionDemands {
            count_us: COUNT_US,
            count_beside_us: 0.0,
            scanned_row_us: SCANNED_ROW_US,
        }; IN_PROGRESS.len()],
        applied_us: 14.0,
        skipped_us: 0.0,
        log_us: 90.0,
    };

    #[test]
    fn a_scan_of_a_replica_waits_for_the_sites_own_writes_and_holds_up_others() {
        let partition = |master, replicas: SiteSet| Partition {
            master,
            replicas,
            rows: 15_000,
            bytes: 1_800_000,
            pin: None,
        };
        let all = vec![partition(0, SiteSet::default()), partition(1, SiteSet::only(0))];
        let by = Partitions { starts: vec![0, 5_000], all };
        let mut site = SiteQueue::new(0);
        for (client, kind) in
            [Kind::Count(4_990), Kind::Scan(4_980, 100), Kind::Count(17)].into_iter().enumerate()
        {
            site.push(Job::Transaction(Transaction::new(client, kind, 0.0)));
        }
        assert_eq!(site.begin(0.0, &by, &DEMANDS), Some(COUNT_US));
        assert_eq!(site.end(&by).wrote, Some((1, 4_990)));
        assert_eq!(site.begin(50.0, &by, &DEMANDS), None, "both wait");
        site.push(Job::Logged(1));
        assert_eq!(site.begin(140.0, &by, &DEMANDS), Some(0.0));
        let answered = site.end(&by).answered;
        assert_eq!(answered.iter().map(|of| of.client).collect::<Vec<_>>(), [0]);
        assert_eq!(site.begin(140.0, &by, &DEMANDS), Some(300.0 * SCANNED_ROW_US));
        let scan = site.end(&by).answered[0];
        assert_eq!((scan.client, scan.first_handled_us, scan.began_us), (1, Some(50.0), 140.0));
        assert_eq!((scan.lag_entries, scan.reads_replica), (1, true));
        assert_eq!(site.begin(350.0, &by, &DEMANDS), Some(COUNT_US));
        assert_eq!((site.end(&by).wrote, site.under_way), (Some((2, 17)), 1));
    }
}
