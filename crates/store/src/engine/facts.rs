//! Statistics of the store for Redis's INFO: memory, clients, keys and uptime; and the limit of the memory of rows.
//!
//! `used_memory` is the memory of the rows of all copies: their keys, their values, and [`ROW_BYTES`] for each row's
//! place in its tree. The memory limit applies to the same sum over the sites of this process. Each site compares it
//! with the limit at every tick of its clock.

use std::collections::BTreeMap;
use std::fs;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Shared;
use super::client::listener::CLIENTS_MAX;
use super::site::mailbox::{SiteEvent, SiteSender};
use crate::output_buffer::OutputBuffers;
use crate::record::Site;
use crate::resp::{DATABASES, Sections};
use crate::rows::ROW_BYTES;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Time allowed for all sites to report their counts for INFO; a site that does not reply in time is left out.
const COUNT_WAIT: Duration = Duration::from_secs(1);
/// Size of a memory page in bytes, the unit of `/proc/self/statm`.
const PAGE_BYTES: u64 = 4_096;

/// The memory of the rows of all sites in this process, and its limit.
pub(in crate::engine) struct Memory {
    /// Limit on the memory of all sites' rows together, in bytes; 0 for no limit.
    max: AtomicU64,
    /// Memory of each site's rows in bytes, by site number; updated only while there is a limit.
    used: Vec<AtomicU64>,
}

impl Memory {
    pub fn of(sites: u16, max: u64) -> Self {
        let used = (0..sites).map(|_| AtomicU64::new(0)).collect();
        Self { max: AtomicU64::new(max), used }
    }

    /// Sets the limit on the memory of all sites' rows together, in bytes; 0 for no limit.
    pub fn limit(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// Records the memory `used` by the rows of a site, in bytes, if there is a limit. Returns true if the sum over
    /// all sites of this process exceeds the limit.
    pub fn is_full(&self, site: Site, used: impl FnOnce() -> u64) -> bool {
        let max = self.max();
        let Some(of_site) = self.used.get(usize::from(site.0)).filter(|_| max > 0) else {
            return false;
        };
        of_site.store(used(), Ordering::Relaxed);
        self.used.iter().map(|used| used.load(Ordering::Relaxed)).sum::<u64>() > max
    }
}

/// The sums of the counts that the sites reported last, for INFO.
#[derive(Clone, Default)]
pub(in crate::engine) struct Counts {
    /// Number of rows of each numbered table (Redis: database), over all partitions.
    keys: BTreeMap<u32, u64>,
    /// Memory of the rows of all copies at all sites, in bytes.
    used_memory: u64,
}

impl Shared {
    /// Requests the counts of all sites, and stores their sums for the next INFO.
    pub(in crate::engine) async fn count(&self) {
        let ask = |sender: &SiteSender| {
            let (answer, counted) = oneshot::channel();
            let tell = move |usage| _ = answer.send(usage);
            sender.send(SiteEvent::Count(Box::new(tell))).then_some(counted)
        };
        let asked: Vec<_> = self.site_senders().iter().filter_map(ask).collect();
        let (mut counts, until) = (Counts::default(), Instant::now() + COUNT_WAIT);
        for counted in asked {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(Ok(copies)) = tokio::time::timeout(left, counted).await else { continue };
            for copy in copies {
                counts.used_memory += copy.size.bytes + copy.size.rows * ROW_BYTES;
                for (table, rows) in copy.tables {
                    *counts.keys.entry(table).or_default() += rows;
                }
            }
        }
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// Returns the sections of Redis's INFO, except those about versions; `output` counts the clients.
    pub(in crate::engine) fn sections(&self, output: &OutputBuffers) -> Sections {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let uptime_s = self.began.elapsed().as_secs();
        let (rss, max) = (resident(), self.memory.max());
        let line = |name: &str, value: &dyn ToString| (name.to_owned(), value.to_string());
        let keyspace = counts.keys.iter().filter(|(table, _)| **table < DATABASES);
        let keyspace = keyspace.map(|(table, keys)| {
            (format!("db{table}"), format!("keys={keys},expires=0,avg_ttl=0"))
        });
        [
            (
                "Server",
                vec![
                    line("process_id", &std::process::id()),
                    line("uptime_in_seconds", &uptime_s),
                    line("uptime_in_days", &(uptime_s / 86_400)),
                ],
            ),
            (
                "Clients",
                vec![
                    line("connected_clients", &output.connections()),
                    line("maxclients", &CLIENTS_MAX),
                ],
            ),
            (
                "Memory",
                vec![
                    line("used_memory", &counts.used_memory),
                    line("used_memory_human", &human(counts.used_memory)),
                    line("used_memory_rss", &rss),
                    line("used_memory_rss_human", &human(rss)),
                    line("maxmemory", &max),
                    line("maxmemory_human", &human(max)),
                    line("maxmemory_policy", &"noeviction"),
                ],
            ),
            ("Replication", vec![line("role", &"master"), line("connected_slaves", &0)]),
            ("Cluster", vec![line("cluster_enabled", &0)]),
            ("Keyspace", keyspace.collect()),
        ]
        .map(|(name, lines)| (name.to_owned(), lines))
        .into()
    }
}

/// Returns the resident memory of this process in bytes, or 0 if the operating system does not report it.
fn resident() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * PAGE_BYTES
}

/// Formats a number of bytes with a unit as Redis does in INFO.
fn human(bytes: u64) -> String {
    let units = [(1_u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_redis_does() {
        let all = [0, 1_023, 1_024, 1_536, 10 << 20, (5 << 30) + (1 << 29), 3 << 40];
        let expected = ["0B", "1023B", "1.00K", "1.50K", "10.00M", "5.50G", "3.00T"];
        assert_eq!(all.map(human), expected);
    }

    #[test]
    fn sites_of_one_process_share_its_limit() {
        let memory = Memory::of(2, 0);
        assert!(!memory.is_full(Site(0), || unreachable!("nothing is counted without a limit")));
        memory.limit(1_000);
        assert!(!memory.is_full(Site(0), || 700) && !memory.is_full(Site(1), || 300));
        assert!(memory.is_full(Site(1), || 301) && memory.is_full(Site(0), || 700));
        assert!(!memory.is_full(Site(0), || 10) && !memory.is_full(Site(7), || 5_000));
    }
}
