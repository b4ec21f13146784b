//! The settings of Redis 7 that tuning may change: type, bounds, default, and how a change is applied.
//!
//! Names and defaults are those of `redis.conf` of 7.0. Bounds are narrower than the server's own if it would start but
//! not serve with a value beyond; a value outside of them is refused before any node is changed. The paper tuned the
//! virtual memory that Redis no longer has (SOPHIA, §5.4): the thresholds of listpacks are its replacement, and trade
//! memory for CPU time.

use imago_plan::tune::roll::CostClass;

use super::Redis;
use crate::cluster::values::{Value, Values};
use crate::cluster::{Error, Result, Setting};
use crate::configurations::{Configuration, differences};
use crate::transition_costs::is_live;

/// How a change of a Redis setting is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `CONFIG SET` applies the value at once and without a restart; `CONFIG REWRITE` persists it for the next start.
    Live,
    /// The value is written to the file, and applies after a restart of the server.
    Restart,
}

impl Class {
    /// Returns the name of the cost class, as users approve it and as it is printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Restart => "restart",
        }
    }
}

/// A setting of Redis 7 that tuning may change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob {
    /// Name of the setting in `redis.conf`.
    pub name: &'static str,
    /// Value that applies if the file does not contain the setting.
    pub default: &'static str,
    /// Type, unit and bounds of the setting's values.
    pub values: Values,
    /// How a change of the setting is applied: live, or by a restart.
    pub class: Class,
    /// Description of the setting for users.
    pub about: &'static str,
}

const YES_OR_NO: Values = Values::Word(&["yes", "no"]);
const GB: u64 = 1 << 30;

/// Builds a setting that `CONFIG SET` changes in a running server.
const fn live(
    name: &'static str,
    default: &'static str,
    values: Values,
    about: &'static str,
) -> Knob {
    Knob { name, default, values, class: Class::Live, about }
}

/// Builds a setting whose change needs a restart of the server.
const fn restart(
    name: &'static str,
    default: &'static str,
    values: Values,
    about: &'static str,
) -> Knob {
    Knob { name, default, values, class: Class::Restart, about }
}

/// Beginnings of the names of live settings whose effect does not end with them: keys keep the encoding that they were written with,
/// or are evicted; a log or a snapshot of all data is written; memory is defragmented for minutes.
const LASTING: [&str; 11] = [
    "hash-max-",
    "zset-max-",
    "list-",
    "set-max-",
    "stream-node-",
    "hll-",
    "maxmemory",
    "appendonly",
    "auto-aof-",
    "save",
    "active",
];

/// Returns true if two configurations can take turns within a minute: all differences are live settings, and the effect of each
/// ends with it.
///
/// # Errors
/// Fails if a setting is unknown.
pub fn can_take_turns(from: &Configuration, to: &Configuration) -> Result<bool> {
    let differ = differences::<Redis>(from, to)?;
    let lasts = |name: &String| LASTING.iter().any(|prefix| name.starts_with(prefix));
    Ok(is_live::<Redis>(from, to)? && !differ.iter().any(lasts))
}

/// All settings of Redis that tuning may change.
pub const KNOBS: &[Knob] = &[
    live(
        "hash-max-listpack-entries",
        "512",
        Values::Count(0, 65_536),
        "fields up to which a hash is kept compact; longer ones are read faster and take more memory",
    ),
    live(
        "hash-max-listpack-value",
        "64",
        Values::Bytes(0, 65_536),
        "size of a field or value up to which a hash is kept compact",
    ),
    live(
        "zset-max-listpack-entries",
        "128",
        Values::Count(0, 65_536),
        "elements up to which a sorted set is kept compact",
    ),
    live(
        "zset-max-listpack-value",
        "64",
        Values::Bytes(0, 65_536),
        "size of an element up to which a sorted set is kept compact",
    ),
    live(
        "list-max-listpack-size",
        "-2",
        Values::Integer(-5, 65_536),
        "size of a node of a list: -1 to -5 for 4, 8, 16, 32 and 64 KB, or so many elements",
    ),
    live(
        "list-compress-depth",
        "0",
        Values::Count(0, 65_536),
        "nodes at each end of a list that are not compressed; 0: none is",
    ),
    live(
        "set-max-intset-entries",
        "512",
        Values::Count(0, 65_536),
        "numbers up to which a set of them is kept compact",
    ),
    live(
        "stream-node-max-bytes",
        "4096",
        Values::Bytes(0, 1 << 20),
        "size of a node of a stream; 0 is no limit",
    ),
    live(
        "stream-node-max-entries",
        "100",
        Values::Count(0, 65_536),
        "entries of a node of a stream; 0 is no limit",
    ),
    live(
        "hll-sparse-max-bytes",
        "3000",
        Values::Bytes(0, 16_000),
        "size up to which a HyperLogLog is kept sparse",
    ),
    live(
        "maxmemory",
        "0",
        Values::Bytes(0, 1 << 44),
        "size of the data at which keys are evicted or writes refused; 0 is no limit",
    ),
    live(
        "maxmemory-policy",
        "noeviction",
        Values::Word(&[
            "noeviction",
            "allkeys-lru",
            "allkeys-lfu",
            "allkeys-random",
            "volatile-lru",
            "volatile-lfu",
            "volatile-random",
            "volatile-ttl",
        ]),
        "which keys are evicted at maxmemory",
    ),
    live(
        "maxmemory-samples",
        "5",
        Values::Count(1, 64),
        "keys among which the one to evict is chosen",
    ),
    live(
        "maxmemory-eviction-tenacity",
        "10",
        Values::Count(0, 100),
        "how much time eviction may take from clients",
    ),
    live("lfu-log-factor", "10", Values::Count(0, 1_000), "uses until a key counts as much used"),
    live("lfu-decay-time", "1", Values::Count(0, 10_080), "minutes in which a key's use halves"),
    live(
        "appendonly",
        "no",
        YES_OR_NO,
        "every write goes into a file; without it a restart finds the last snapshot",
    ),
    live(
        "appendfsync",
        "everysec",
        Values::Word(&["always", "everysec", "no"]),
        "when that file is on disk: before a write is acknowledged, each second, or when the \
         operating system decides",
    ),
    live(
        "no-appendfsync-on-rewrite",
        "no",
        YES_OR_NO,
        "that file is not put on disk while a child process writes",
    ),
    live(
        "auto-aof-rewrite-percentage",
        "100",
        Values::Count(0, 10_000),
        "growth of that file, in %, at which it is written anew; 0: never",
    ),
    live(
        "auto-aof-rewrite-min-size",
        "64mb",
        Values::Bytes(1 << 20, 1 << 40),
        "size below which it is not",
    ),
    live(
        "aof-rewrite-incremental-fsync",
        "yes",
        YES_OR_NO,
        "a file that is written anew is put on disk meanwhile, not at its end",
    ),
    live(
        "save",
        "3600 1 300 100 60 10000",
        Values::Pairs,
        "snapshots: after so many seconds if there were so many changes; nothing: none",
    ),
    live("rdbcompression", "yes", YES_OR_NO, "snapshots are compressed"),
    live(
        "rdb-save-incremental-fsync",
        "yes",
        YES_OR_NO,
        "snapshots are put on disk while they are written, not at their end",
    ),
    live("hz", "10", Values::Count(1, 500), "rounds of background work a second"),
    live("dynamic-hz", "yes", YES_OR_NO, "more rounds with more clients"),
    live(
        "lazyfree-lazy-eviction",
        "no",
        YES_OR_NO,
        "evicted keys are freed by a thread of its own",
    ),
    live("lazyfree-lazy-expire", "no", YES_OR_NO, "the same for keys whose time is over"),
    live("lazyfree-lazy-server-del", "no", YES_OR_NO, "the same for keys that a write replaces"),
    live("lazyfree-lazy-user-del", "no", YES_OR_NO, "DEL frees as UNLINK does"),
    live("lazyfree-lazy-user-flush", "no", YES_OR_NO, "FLUSHALL frees by a thread of its own"),
    live(
        "replica-lazy-flush",
        "no",
        YES_OR_NO,
        "the same for the old content of a replica that is sent all anew",
    ),
    live("activerehashing", "yes", YES_OR_NO, "tables are resized in the background, too"),
    live(
        "activedefrag",
        "no",
        YES_OR_NO,
        "memory is compacted in the background; needs the server's own jemalloc, which Debian's build lacks",
    ),
    live(
        "active-defrag-cycle-min",
        "1",
        Values::Count(1, 99),
        "share of the processor that it takes at least, in %",
    ),
    live(
        "active-defrag-cycle-max",
        "25",
        Values::Count(1, 99),
        "share of the processor that it takes at most, in %",
    ),
    live("jemalloc-bg-thread", "yes", YES_OR_NO, "freed memory goes back by a thread of its own"),
    live("maxclients", "10000", Values::Count(64, 100_000), "clients at once"),
    live(
        "timeout",
        "0",
        Values::Count(0, 86_400),
        "seconds after which an idle client is disconnected; 0: never",
    ),
    live(
        "tcp-keepalive",
        "300",
        Values::Count(0, 86_400),
        "seconds between TCP keepalive probes to clients",
    ),
    live(
        "repl-backlog-size",
        "1mb",
        Values::Bytes(16_384, 64 * GB),
        "size of the replication backlog, from which a replica that missed writes can \
         resynchronise",
    ),
    live(
        "repl-diskless-sync",
        "yes",
        YES_OR_NO,
        "a full resynchronisation is sent to a replica without a file",
    ),
    live(
        "repl-diskless-sync-delay",
        "5",
        Values::Count(0, 300),
        "seconds for which further replicas are waited for then",
    ),
    live(
        "repl-timeout",
        "60",
        Values::Count(2, 3_600),
        "seconds of silence between master and replica",
    ),
    live(
        "min-replicas-to-write",
        "0",
        Values::Count(0, 16),
        "replicas without which a master takes no writes",
    ),
    live(
        "min-replicas-max-lag",
        "10",
        Values::Count(0, 3_600),
        "seconds of silence after which a replica does not count for that",
    ),
    live(
        "cluster-node-timeout",
        "15000",
        Values::Count(500, 600_000),
        "milliseconds of silence after which a node counts as failed",
    ),
    live(
        "cluster-replica-validity-factor",
        "10",
        Values::Count(0, 1_000),
        "how old a replica's data may be for a fail-over, in node timeouts; 0: of any age",
    ),
    live(
        "cluster-migration-barrier",
        "1",
        Values::Count(0, 64),
        "replicas that a master keeps when another one has none",
    ),
    live(
        "cluster-require-full-coverage",
        "yes",
        YES_OR_NO,
        "no slot is served while one has no master",
    ),
    live(
        "cluster-allow-reads-when-down",
        "no",
        YES_OR_NO,
        "reads are served while the cluster is down",
    ),
    live(
        "latency-monitor-threshold",
        "0",
        Values::Count(0, 3_600_000),
        "milliseconds from which an event is noted for LATENCY; 0: none is",
    ),
    restart(
        "io-threads",
        "1",
        Values::Count(1, 64),
        "threads that write to clients; 1: the one that runs commands does",
    ),
    restart("io-threads-do-reads", "no", YES_OR_NO, "those threads read from clients, too"),
    restart("tcp-backlog", "511", Values::Count(16, 65_535), "connections that wait to be taken"),
];

/// Returns the setting of Redis with this name.
///
/// # Errors
/// Fails if there is no such setting; the message lists all.
pub fn find(name: &str) -> Result<&'static Knob> {
    KNOBS.iter().find(|knob| knob.name == name).ok_or_else(|| {
        let known: Vec<&str> = KNOBS.iter().map(|knob| knob.name).collect();
        Error::Usage(format!("there is no setting {name}; there are {}", known.join(", ")))
    })
}

impl Knob {
    /// Returns the database-independent description of this setting.
    #[must_use]
    pub fn setting(&self) -> Setting {
        let class = match self.class {
            Class::Live => CostClass::Live,
            Class::Restart => CostClass::Restart,
        };
        let Self { name, default, values, .. } = *self;
        Setting { name, default: Some(default), values, class }
    }

    /// Parses a value of this setting, and checks that the setting accepts it; sizes are returned in bytes, as the
    /// server reports them.
    ///
    /// # Errors
    /// Fails if the setting does not take this value.
    pub fn value(&self, text: &str) -> Result<Value> {
        self.setting().value(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_setting_and_every_name_is_there_once() {
        for knob in KNOBS {
            assert!(knob.value(knob.default).is_ok(), "{}", knob.name);
            assert_eq!(find(knob.name).unwrap(), knob);
        }
    }

    #[test]
    fn values_are_kept_within_their_bounds() {
        let value = |name: &str, text: &str| {
            let value = find(name).unwrap().value(text);
            value.map(|value| value.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(value("maxmemory", "256mb"), Ok("268435456".into()));
        assert_eq!(value("list-max-listpack-size", "-2"), Ok("-2".into()));
        assert_eq!(value("save", ""), Ok(String::new()));
        for (name, text, said) in [
            ("hash-max-listpack-entries", "-1", "a whole number from 0 to 65536"),
            ("hash-max-listpack-value", "1gb", "0 to 64kb"),
            ("maxmemory-policy", "lru", "one of noeviction"),
            ("appendonly", "true", "one of yes, no"),
            ("save", "60", "pairs of seconds"),
            ("io-threads", "0", "from 1 to 64"),
            ("appendfsync", "no\nrequirepass x", "one of always"),
        ] {
            let error = value(name, text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(find("io_threads").unwrap_err().to_string().contains("io-threads"));
    }
}
