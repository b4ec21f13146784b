//! The design of a store as it is told: partitions with their sizes and rates, and sites.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Admin;
use crate::engine::site::epoch::count;
use crate::engine::unused::is_live;
use crate::key::Key;
use crate::log::CutTail;

/// Shortest time over which rates are averaged.
const RATES_OVER: Duration = Duration::from_secs(1);

/// The design of a store now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DesignReport {
    /// The place in the log of its last change.
    pub changed_at: u64,
    /// In the order of their keys.
    pub partitions: Vec<PartitionReport>,
    /// From 0 on.
    pub sites: Vec<SiteReport>,
    /// The reason why nothing can be written now; none if writes go on.
    pub trouble: Option<String>,
    /// State of the checkpoints; none without a log.
    pub checkpoints: Option<CheckpointsReport>,
    /// The end of the log that was cut off when the store began, if there was one.
    pub cut_tail: Option<CutTailReport>,
    /// Replies that clients have not received.
    pub clients: ClientsReport,
}

/// The end of a log that was no whole group of commits: the process or the machine stopped while it was
/// written, or the disk has damaged it since.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CutTailReport {
    /// The file that it was cut off.
    pub path: PathBuf,
    /// Position of the cut, in bytes.
    pub at: u64,
    /// Bytes behind the cut.
    pub bytes: u64,
}

/// The clients' replies that wait to be received.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ClientsReport {
    /// Their bytes.
    pub output_bytes: u64,
    /// Connections that were closed because their clients did not receive.
    pub closed: u64,
}

/// The checkpoints of a store's log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckpointsReport {
    /// The place in the log that the newest is of; 0 before the first.
    pub newest: u64,
    /// The reason why the last one that was due was not written, if it was not: the log before it is kept
    /// meanwhile.
    pub failure: Option<String>,
}

/// A partition. What only its master can tell is missing where that is not alive, and rates until it
/// has been looked at for a second.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PartitionReport {
    /// Its first key; empty for the least of all.
    pub start: String,
    /// The first key behind it; none for the last partition.
    pub end: Option<String>,
    /// The site that writes it.
    pub master: u16,
    /// The sites with replicas.
    pub replicas: Vec<u16>,
    /// The site that it is pinned to.
    pub pin: Option<u16>,
    /// Its rows.
    pub rows: Option<u64>,
    /// Bytes of their keys and values.
    pub bytes: Option<u64>,
    /// Transactions that write to it, a second.
    pub writes_per_s: Option<f64>,
    /// Transactions that read it, a second, at all sites.
    pub reads_per_s: Option<f64>,
}

/// A site.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SiteReport {
    /// Its number.
    pub site: u16,
    /// The number of its epoch, from 1 on; with the log in Kafka, since the router or the process with all
    /// sites was started. 0 if it has not come.
    pub epoch: u64,
    /// True if it takes part.
    pub is_live: bool,
    /// True if it is given partitions and replicas: it is not drained, or declared for later.
    pub is_used: bool,
    /// Partitions that it masters.
    pub masters: u64,
    /// Partitions of which it has replicas.
    pub replicas: u64,
    /// Rows of its copies.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// The part of the log that the router has sent it; none of a site in the router's process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogTrafficReport>,
}

/// The log traffic from a router to a site, since the router started, in bytes of messages.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LogTrafficReport {
    /// The part that the site has a use for.
    pub sent_bytes: u64,
    /// The whole log, for comparison.
    pub whole_bytes: u64,
}

/// Writes and reads of each partition, by its first key.
type Counts = HashMap<Key, (u64, u64)>;

/// Counts as they were some time ago, and rates since an earlier time.
#[derive(Default)]
pub(super) struct Samples {
    last: Option<(Instant, Counts)>,
    rates: HashMap<Key, (f64, f64)>,
}

impl Admin {
    pub(super) async fn report(&self) -> DesignReport {
        let usage = self.store.usage().await;
        let map = self.store.map();
        let mut counts = Counts::new();
        let mut sizes = HashMap::new();
        for copy in usage.iter().flat_map(|(_, copies)| copies) {
            let counted = counts.entry(copy.start.clone()).or_default();
            counted.1 += copy.reads;
            if copy.is_master {
                counted.0 = copy.version;
                sizes.insert(copy.start.clone(), copy.size);
            }
        }
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.take(counts, Instant::now());
        let partitions = map.design.partitions().map(|partition| {
            let start = &partition.range.start;
            let (size, rates) = (sizes.get(start), samples.rates.get(start));
            PartitionReport {
                start: start.to_string(),
                end: partition.range.end.as_ref().map(Key::to_string),
                master: partition.master.0,
                replicas: partition.replicas.iter().map(|site| site.0).collect(),
                pin: partition.pin.map(|site| site.0),
                rows: size.map(|size| size.rows),
                bytes: size.map(|size| size.bytes),
                writes_per_s: rates.map(|rates| rates.0),
                reads_per_s: rates.map(|rates| rates.1),
            }
        });
        let sites = usage.iter().map(|(site, copies)| {
            let masters = copies.iter().filter(|copy| copy.is_master).count() as u64;
            SiteReport {
                site: site.0,
                epoch: count(map.design.epoch(*site)),
                is_live: is_live(&map.design, *site),
                is_used: self.store.is_used(*site),
                masters,
                replicas: copies.len() as u64 - masters,
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
                ClientsReport { output_bytes: output.bytes() as u64, closed: output.closed() }
            }),
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
