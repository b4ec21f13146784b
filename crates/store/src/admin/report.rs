//! Reports of a store's design: partitions with their sizes and rates, and sites with their states and sizes.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Admin;
use crate::engine::Transfer;
use crate::engine::site::epoch::count;
use crate::engine::unused::is_live;
use crate::key::Key;
use crate::log::CutTail;
use crate::record::Site;
use crate::site::Usage;
use crate::transaction::Absence;

/// Minimum time over which the rates of a report are averaged. Counts are also taken every `COUNTED_EVERY` without a
/// request, so that rates never cover an older period.
const RATES_OVER: Duration = Duration::from_secs(1);
const COUNTED_EVERY: Duration = Duration::from_secs(5);

/// The present design of a store (the bounds, masters and replicas of partitions), with sizes, rates and states.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DesignReport {
    /// Position in the log of which the report shows the design: at or shortly after the last change of the design.
    pub changed_at: u64,
    /// The partitions of the store, in key order.
    pub partitions: Vec<PartitionReport>,
    /// The sites, in the order of their numbers, from 0 on.
    pub sites: Vec<SiteReport>,
    /// The reason why the store accepts no writes now; `None` if it accepts them.
    pub trouble: Option<String>,
    /// State of the checkpoints; `None` if none are made: without a log, or for a log in Kafka without a checkpoint
    /// folder.
    pub checkpoints: Option<CheckpointsReport>,
    /// The damaged end of the log that was cut off when the store started; `None` if nothing was cut off.
    pub cut_tail: Option<CutTailReport>,
    /// Total size of the replies that clients have not received yet, and the number of closed connections.
    pub clients: ClientsReport,
    /// Minimum number of replicas of each partition that the store maintains (`--replicas-min`), the master not
    /// counted.
    #[serde(default)]
    pub replicas_min: u64,
    /// Number of partitions with fewer than `replicas_min` replicas at live sites.
    #[serde(default)]
    pub below_replicas_min: u64,
}

/// The end of a log that was not a complete group of commits: the process or the machine stopped while it was
/// written, or the disk has damaged it since.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CutTailReport {
    /// Path of the log file that was cut.
    pub path: PathBuf,
    /// Offset in the log file from which on bytes were cut off.
    pub at: u64,
    /// Number of bytes that were cut off.
    pub bytes: u64,
}

/// The replies that all clients of the store have not received yet, and the closed connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientsReport {
    /// Total length of the replies that clients have not received yet, in bytes.
    pub output_bytes: u64,
    /// Memory of the replies that clients have not received yet, in bytes: a value that several replies share counts
    /// once.
    #[serde(default)]
    pub output_memory_bytes: u64,
    /// Number of connections since the start that were closed because their clients did not receive replies.
    pub closed: u64,
}

/// State of the checkpoints of a store's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckpointsReport {
    /// Position in the log as of which the newest checkpoint was made; 0 before the first checkpoint.
    pub newest: u64,
    /// The reason why the last checkpoint that was due was not written; `None` if it was. After a failure the log
    /// since the newest checkpoint is retained until a checkpoint succeeds.
    pub failure: Option<String>,
}

/// A partition of the design, with its size and rates.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartitionReport {
    /// The first key of the partition; empty for the least key of all.
    pub start: String,
    /// The first key after the partition; `None` for the last partition.
    pub end: Option<String>,
    /// The number of the site that masters the partition.
    pub master: u16,
    /// The numbers of the sites that have replicas of the partition.
    pub replicas: Vec<u16>,
    /// The number of the site that the partition is pinned to; `None` if it is not pinned.
    pub pin: Option<u16>,
    /// True if the partition's master is available, so that its keys can be read and written.
    #[serde(default)]
    pub is_available: bool,
    /// Number of rows of the partition; `None` while its master is not alive.
    pub rows: Option<u64>,
    /// Size of the keys and values of the partition's rows, in bytes; `None` while its master is not alive.
    pub bytes: Option<u64>,
    /// Transactions per second that write to the partition; a change of the partition's design counts as one. `None`
    /// until the partition has been counted for a second.
    pub writes_per_s: Option<f64>,
    /// Transactions per second that read the partition, at all sites; `None` until the partition has been counted for
    /// a second.
    pub reads_per_s: Option<f64>,
}

/// A site of the store, with its state and its sizes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteReport {
    /// Number of the site, from 0 on.
    pub site: u16,
    /// Number of the site's epoch, from 1 on; 0 if the site has not started. With the log in Kafka, epochs
    /// are counted from the start of the router or of the process with all sites.
    pub epoch: u64,
    /// True if the site is live: its epoch has begun and is not fenced.
    pub is_live: bool,
    /// True if the site is assigned partitions and replicas: it is neither drained nor declared for later
    /// use.
    pub is_used: bool,
    /// The reason why the partitions that the site masters cannot be used; `None` if they can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<Absence>,
    /// Name of the rack in which the site's process runs; `None` if the process named none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// The transfer by which the site's process received its rows; `None` for a site in the router's process, and
    /// before the first transfer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
    /// Number of partitions that the site masters; according to the design if the site is absent.
    pub masters: u64,
    /// Number of partitions of which the site has replicas; 0 if the site is absent.
    pub replicas: u64,
    /// Number of rows of all copies at the site, replicas included.
    pub rows: u64,
    /// Size of the keys and values of all copies at the site, in bytes.
    pub bytes: u64,
    /// The log traffic from the router to the site; `None` for a site in the router's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogTrafficReport>,
}

/// The log traffic from a router to one site since the router started, in bytes of messages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LogTrafficReport {
    /// Size of the messages that were sent: they contain the part of the log that concerns the site.
    pub sent_bytes: u64,
    /// Size that messages with the whole log would have had, in bytes, for comparison.
    pub whole_bytes: u64,
}

/// For each partition, by its first key, its writes and its reads so far. Writes are the version of the master's
/// copy, which also counts changes of the partition's design; reads are the sum over all sites.
type Counts = HashMap<Key, (u64, u64)>;

/// The latest counts with the time at which they were taken, and the rates per second of writes and reads between
/// them and the counts before.
#[derive(Default)]
pub(super) struct Samples {
    last: Option<(Instant, Counts)>,
    rates: HashMap<Key, (f64, f64)>,
}

/// Returns the writes and reads of each partition so far, from the usage of each site's copies.
fn counts(usage: &[(Site, Vec<Usage>)]) -> Counts {
    let mut counts = Counts::new();
    for copy in usage.iter().flat_map(|(_, copies)| copies) {
        let counted = counts.entry(copy.start.clone()).or_default();
        counted.1 += copy.reads;
        if copy.is_master {
            counted.0 = copy.version;
        }
    }
    counts
}

impl Admin {
    /// Counts the writes and reads of partitions every `COUNTED_EVERY`, for as long as it is polled, so that rates
    /// stay current without requests.
    pub(super) async fn count_periodically(&self) {
        loop {
            tokio::time::sleep(COUNTED_EVERY).await;
            let usage = self.store.usage().await;
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.take(counts(&usage), Instant::now());
        }
    }

    pub(super) async fn report(&self) -> DesignReport {
        let usage = self.store.usage().await;
        let map = self.store.map();
        let masters = || usage.iter().flat_map(|(_, copies)| copies).filter(|copy| copy.is_master);
        let sizes: HashMap<&Key, _> = masters().map(|copy| (&copy.start, copy.size)).collect();
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.take(counts(&usage), Instant::now());
        let partitions = map.design.partitions().map(|partition| {
            let start = &partition.range.start;
            let (size, rates) = (sizes.get(start), samples.rates.get(start));
            PartitionReport {
                start: start.to_string(),
                end: partition.range.end.as_ref().map(Key::to_string),
                master: partition.master.0,
                replicas: partition.replicas.iter().map(|site| site.0).collect(),
                pin: partition.pin.map(|site| site.0),
                is_available: self.store.absence(&map, partition.master).is_none(),
                rows: size.map(|size| size.rows),
                bytes: size.map(|size| size.bytes),
                writes_per_s: rates.map(|rates| rates.0),
                reads_per_s: rates.map(|rates| rates.1),
            }
        });
        let racks = self.store.racks();
        let sites = usage.iter().map(|(site, copies)| {
            let held = copies.iter().filter(|copy| copy.is_master).count() as u64;
            let absence = self.store.absence(&map, *site);
            // An absent site reports no copies, but it still masters partitions in the design.
            let of_design = || map.design.partitions().filter(|one| one.master == *site).count();
            let masters = if absence.is_some() { of_design() as u64 } else { held };
            SiteReport {
                site: site.0,
                epoch: count(map.design.epoch(*site)),
                is_live: is_live(&map.design, *site),
                is_used: self.store.is_used(*site),
                absence,
                rack: racks.get(&site.0).cloned(),
                transfer: self.store.transfer(*site),
                masters,
                replicas: copies.len() as u64 - held,
                rows: copies.iter().map(|copy| copy.size.rows).sum(),
                bytes: copies.iter().map(|copy| copy.size.bytes).sum(),
                log: self.store.log_traffic(*site).map(|traffic| LogTrafficReport {
                    sent_bytes: traffic.sent_bytes,
                    whole_bytes: traffic.whole_bytes,
                }),
            }
        });
        DesignReport {
            changed_at: map.known.0,
            partitions: partitions.collect(),
            sites: sites.collect(),
            trouble: self.store.trouble(),
            checkpoints: self
                .store
                .checkpoints()
                .map(|state| CheckpointsReport { newest: state.newest.0, failure: state.failure }),
            cut_tail: self.store.cut_tail().map(|CutTail { path, at, bytes }| CutTailReport {
                path: path.clone(),
                at: *at,
                bytes: *bytes,
            }),
            clients: self.store.output().map_or_else(ClientsReport::default, |output| {
                ClientsReport {
                    output_bytes: output.bytes() as u64,
                    output_memory_bytes: output.memory() as u64,
                    closed: output.closed(),
                }
            }),
            replicas_min: self.store.replicas_min() as u64,
            below_replicas_min: self.store.below_replicas_min() as u64,
        }
    }
}

impl Samples {
    fn take(&mut self, counts: Counts, now: Instant) {
        let Some((then, before)) = &self.last else {
            self.last = Some((now, counts));
            return;
        };
        let seconds = (now - *then).as_secs_f64();
        if seconds < RATES_OVER.as_secs_f64() {
            return;
        }
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let both = counts.iter().filter_map(|(start, now)| Some((start, now, before.get(start)?)));
        let rates = both.map(|(start, now, before)| {
            (start.clone(), (rate(now.0, before.0), rate(now.1, before.1)))
        });
        self.rates = rates.collect();
        self.last = Some((now, counts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Table;

    #[test]
    fn rates_are_of_the_last_seconds() {
        let (mut samples, began) = (Samples::default(), Instant::now());
        let key = Key::new(Table(0), b"user42");
        let mut take = |s: u64, writes: u64| {
            samples.take([(key.clone(), (writes, 0))].into(), began + Duration::from_secs(s));
            samples.rates.get(&key).map(|rates| rates.0)
        };
        assert_eq!(take(0, 0), None);
        // A hundred writes a second for five seconds, then none for an hour: counted every five seconds.
        assert_eq!(take(5, 500), Some(100.0));
        let idle = (2..720).map(|n| take(n * 5, 500)).last();
        assert_eq!(idle, Some(Some(0.0)));
        assert_eq!(take(3_600, 540), Some(8.0));
    }
}
