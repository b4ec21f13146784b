//! A simulated site: its queue, its locks, and what it waits for the log to have.
//!
//! The site's thread takes one job after the other. As in the real engine (`imago_store::site`), a write is answered
//! when the site has seen it come back from the log, and a scan that reads a replica waits until the site has seen
//! all of its own writes to what the scan reads: so long the scan locks the partitions that the site masters, and
//! writes there wait for it.

use std::collections::{BTreeMap, VecDeque};

use imago_plan::design::layout::{Partition, Site};

use super::Demands;
use crate::adapt::workload::{Kind, ROWS};

/// A client's transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transaction {
    pub client: usize,
    pub kind: Kind,
    /// The time at which it came to the site, at which the site looked at it, and at which it could begin.
    pub came_us: f64,
    pub looked_us: Option<f64>,
    pub began_us: f64,
    /// Log entries that the site was behind when it looked at it, if it reads a replica.
    pub behind: Option<u64>,
}

/// Work of a site's thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job {
    Transaction(Transaction),
    /// A write of another master.
    Applied,
    /// The log has the site's own writes up to this one.
    Logged(u64),
    /// Rows that are copied, by the time that they take.
    Copied(f64),
}

/// An answer, and the last own write that the log has to have before it is given.
#[derive(Clone, Copy, Debug)]
struct Held {
    number: u64,
    of: Transaction,
}

/// A scan that waits for the log, and the starts of the partitions that it has locked.
#[derive(Clone, Debug)]
struct Reader {
    number: u64,
    of: Transaction,
    locked: Vec<u64>,
}

/// The partitions of a design, by their starts.
#[derive(Clone, Debug, Default)]
pub(super) struct Partitions {
    pub starts: Vec<u64>,
    pub all: Vec<Partition>,
}

impl Partitions {
    pub fn number_of(&self, user: u64) -> usize {
        self.starts.partition_point(|start| *start <= user).saturating_sub(1)
    }

    /// The numbers of the partitions that a transaction touches.
    pub fn touched(&self, kind: Kind) -> std::ops::RangeInclusive<usize> {
        match kind {
            Kind::Count(user) => self.number_of(user)..=self.number_of(user),
            Kind::Scan(user, users) => self.number_of(user)..=self.number_of(user + users - 1),
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(super) struct SiteQueue {
    site: Site,
    queue: VecDeque<Job>,
    running: Option<(Job, f64)>,
    pub worked_us: f64,
    pub rows: [u64; 3],
    /// Transactions that came and are not answered.
    pub under_way: u32,
    /// Own writes: the number of the last one, and of the last that the site has seen in the log.
    written: u64,
    ordered: u64,
    /// The last own write to each partition, by its start.
    last: BTreeMap<u64, u64>,
    held: VecDeque<Held>,
    readers: Vec<Reader>,
    /// Writes that wait for a lock.
    blocked: Vec<Transaction>,
}

/// The end of a job.
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
            rows: [0; 3],
            under_way: 0,
            written: 0,
            ordered: 0,
            last: BTreeMap::new(),
            held: VecDeque::new(),
            readers: Vec::new(),
            blocked: Vec::new(),
        }
    }

    pub fn push(&mut self, job: Job) {
        if matches!(job, Job::Transaction(_)) {
            self.under_way += 1;
        }
        self.queue.push_back(job);
    }

    /// Takes the next job if the thread has none; the time that it takes.
    pub fn begin(&mut self, now_us: f64, by: &Partitions, demands: &Demands) -> Option<f64> {
        if self.running.is_some() {
            return None;
        }
        while let Some(job) = self.queue.pop_front() {
            let demand_us = match job {
                Job::Transaction(mut of) => {
                    let demand_us = match of.kind {
                        Kind::Count(_) => demands.count_us,
                        Kind::Scan(_, users) => demands.scanned_row_us * (users * ROWS) as f64,
                    };
                    of.looked_us.get_or_insert(now_us);
                    if !self.may_begin(&mut of, by) {
                        continue;
                    }
                    of.began_us = now_us;
                    self.running = Some((Job::Transaction(of), demand_us));
                    return Some(demand_us);
                }
                Job::Applied => demands.applied_us,
                Job::Logged(_) => 0.0,
                Job::Copied(us) => us,
            };
            self.running = Some((job, demand_us));
            return Some(demand_us);
        }
        None
    }

    /// True if a transaction waits for nothing; else it is kept until it does not.
    fn may_begin(&mut self, of: &mut Transaction, by: &Partitions) -> bool {
        let touched = by.touched(of.kind);
        if let Kind::Count(user) = of.kind {
            let start = by.starts[by.number_of(user)];
            let is_locked = self.readers.iter().any(|reader| reader.locked.contains(&start));
            if is_locked {
                self.blocked.push(*of);
            }
            return !is_locked;
        }
        let is_own = |number: &usize| by.all[*number].master == self.site;
        if touched.clone().all(|number| is_own(&number)) {
            return true;
        }
        of.behind.get_or_insert(self.written - self.ordered);
        let locked: Vec<u64> = touched.filter(is_own).map(|number| by.starts[number]).collect();
        let number = locked.iter().filter_map(|start| self.last.get(start)).max().copied();
        let Some(number) = number.filter(|number| *number > self.ordered) else { return true };
        self.readers.push(Reader { number, of: *of, locked });
        false
    }

    /// The thread has done its job.
    pub fn end(&mut self, by: &Partitions) -> Ended {
        let (job, demand_us) = self.running.take().expect("a job ends that had begun");
        self.worked_us += demand_us;
        let mut ended = Ended::default();
        match job {
            Job::Transaction(of) => match of.kind {
                Kind::Count(user) => {
                    self.written += 1;
                    self.last.insert(by.starts[by.number_of(user)], self.written);
                    (self.rows[0], self.rows[1]) = (self.rows[0] + ROWS, self.rows[1] + ROWS);
                    self.held.push_back(Held { number: self.written, of });
                    ended.wrote = Some((self.written, user));
                }
                Kind::Scan(_, users) => {
                    self.rows[0] += users * ROWS;
                    let starts = by.touched(of.kind).map(|number| by.starts[number]);
                    let number = starts.filter_map(|start| self.last.get(&start)).max().copied();
                    match number.filter(|number| *number > self.ordered) {
                        Some(number) => {
                            let before = self.held.back().map_or(0, |held| held.number);
                            self.held.push_back(Held { number: number.max(before), of });
                        }
                        None => ended.answered.push(of),
                    }
                }
            },
            Job::Applied => self.rows[2] += ROWS,
            Job::Logged(number) => {
                self.ordered = number;
                self.wake();
                while let Some(held) = self.held.front().filter(|held| held.number <= number) {
                    ended.answered.push(held.of);
                    self.held.pop_front();
                }
            }
            Job::Copied(_) => {}
        }
        self.under_way -= ended.answered.len() as u32;
        ended
    }

    /// Scans for which the log has all, and writes whose partitions they had locked, are next.
    fn wake(&mut self) {
        let ready: Vec<Reader> =
            self.readers.extract_if(.., |reader| reader.number <= self.ordered).collect();
        if ready.is_empty() {
            return;
        }
        let blocked = std::mem::take(&mut self.blocked);
        let next = ready.into_iter().map(|reader| reader.of).chain(blocked);
        for of in next.collect::<Vec<_>>().into_iter().rev() {
            self.queue.push_front(Job::Transaction(of));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const DEMANDS: Demands =
        Demands { count_us: 50.0, scanned_row_us: 0.7, applied_us: 14.0, log_us: 90.0 };

    fn transaction(client: usize, kind: Kind) -> Job {
        let (looked_us, began_us, behind) = (None, 0.0, None);
        Job::Transaction(Transaction { client, kind, came_us: 0.0, looked_us, began_us, behind })
    }

    #[test]
    fn a_scan_of_a_replica_waits_for_the_sites_own_writes_and_holds_up_others() {
        let partition = |master, replicas: BTreeSet<Site>| Partition {
            master,
            replicas,
            rows: 15_000,
            bytes: 1_800_000,
            pin: None,
        };
        let all = vec![partition(0, BTreeSet::new()), partition(1, [0].into())];
        let by = Partitions { starts: vec![0, 5_000], all };
        let mut site = SiteQueue::new(0);
        for (client, kind) in
            [Kind::Count(4_990), Kind::Scan(4_980, 100), Kind::Count(17)].into_iter().enumerate()
        {
            site.push(transaction(client, kind));
        }
        assert_eq!(site.begin(0.0, &by, &DEMANDS), Some(DEMANDS.count_us));
        assert_eq!(site.end(&by).wrote, Some((1, 4_990)));
        assert_eq!(site.begin(50.0, &by, &DEMANDS), None, "both wait");
        site.push(Job::Logged(1));
        assert_eq!(site.begin(140.0, &by, &DEMANDS), Some(0.0));
        let answered = site.end(&by).answered;
        assert_eq!(answered.iter().map(|of| of.client).collect::<Vec<_>>(), [0]);
        assert_eq!(site.begin(140.0, &by, &DEMANDS), Some(300.0 * DEMANDS.scanned_row_us));
        let scan = site.end(&by).answered[0];
        assert_eq!((scan.client, scan.looked_us, scan.began_us), (1, Some(50.0), 140.0));
        assert_eq!(scan.behind, Some(1));
        assert_eq!(site.begin(350.0, &by, &DEMANDS), Some(DEMANDS.count_us));
        assert_eq!((site.end(&by).wrote, site.under_way), (Some((2, 17)), 1));
    }
}
