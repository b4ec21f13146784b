//! The settings of Cassandra 5.0 that tuning may change: type, bounds, default, and how a change is applied.
//!
//! A node starts and serves with any value within the bounds; a value outside of them is refused before any node is
//! changed. Names, units and defaults are those of `cassandra.yaml`. Memory settings without a default follow the heap
//! size, and the heap size, which is a JVM option, follows the machine's memory.

use imago_plan::tune::roll::CostClass;

use super::error::{Error, Result};
use super::{Cassandra, jvm_options, settings_file};
pub use crate::cluster::values::{Value, Values};
use crate::cluster::{NodeAccess, Setting};
use crate::configurations::{Configuration, differences};
use crate::transition_costs::is_live;

/// How a change of a Cassandra setting is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A `nodetool` command applies the value at once and without a restart; the file is changed, too, for the next
    /// start.
    Live {
        /// The `nodetool` command that sets the value, with `{}` in place of the value without its unit.
        nodetool: &'static str,
    },
    /// The value is written to the file, and applies after a restart of the node.
    Restart,
}

impl Class {
    /// Returns the name of the cost class, as users approve it and as it is printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Live { .. } => "live",
            Self::Restart => "restart",
        }
    }
}

/// The file on a node that contains a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `cassandra.yaml`, the node's main configuration file.
    Settings,
    /// `jvm-server.options`, the options that the node's JVM is started with.
    JvmOptions,
}

/// A setting of Cassandra 5.0 that tuning may change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob {
    /// Key of the setting in `cassandra.yaml`; for a JVM option, the lower-case name in the start scripts.
    pub name: &'static str,
    /// Value that applies if the file does not contain the setting; `None` if it follows the heap size or the number
    /// of processors.
    pub default: Option<&'static str>,
    /// Type, unit and bounds of the setting's values.
    pub values: Values,
    /// How a change of the setting is applied: live, or by a restart.
    pub class: Class,
    /// The file on a node that contains the setting.
    pub file: File,
    /// Description of the setting for users.
    pub about: &'static str,
}

const YES_OR_NO: Values = Values::Word(&["true", "false"]);

/// Builds a setting of `cassandra.yaml` whose change needs a restart.
const fn restart(
    name: &'static str,
    default: Option<&'static str>,
    values: Values,
    about: &'static str,
) -> Knob {
    Knob { name, default, values, class: Class::Restart, file: File::Settings, about }
}

/// Builds a setting of `cassandra.yaml` that this `nodetool` command changes in a running node.
const fn live(
    name: &'static str,
    default: Option<&'static str>,
    values: Values,
    nodetool: &'static str,
    about: &'static str,
) -> Knob {
    let class = Class::Live { nodetool };
    Knob { name, default, values, class, file: File::Settings, about }
}

/// Live settings whose effect does not end with them: compaction that was put off is done later.
const LASTING: [&str; 2] = ["compaction_throughput", "concurrent_compactors"];

/// Returns true if two configurations can take turns within a minute: all differences are live settings, and the effect of each
/// ends with it.
///
/// # Errors
/// Fails if a setting is unknown.
pub fn can_take_turns(from: &Configuration, to: &Configuration) -> Result<bool> {
    let differ = differences::<Cassandra>(from, to)?;
    Ok(is_live::<Cassandra>(from, to)? && !differ.iter().any(|name| LASTING.contains(&&**name)))
}

/// All settings of Cassandra that tuning may change.
pub const KNOBS: &[Knob] = &[
    live(
        "concurrent_reads",
        Some("32"),
        Values::Count(1, 1_024),
        "setconcurrency ReadStage {}",
        "reads at once",
    ),
    live(
        "concurrent_writes",
        Some("32"),
        Values::Count(1, 1_024),
        "setconcurrency MutationStage {}",
        "writes at once",
    ),
    live(
        "compaction_throughput",
        Some("64MiB/s"),
        Values::Rate("MiB/s", 0, 10_000),
        "setcompactionthroughput {}",
        "how fast compaction may write; 0 is no limit",
    ),
    live(
        "concurrent_compactors",
        None,
        Values::Count(1, 64),
        "setconcurrentcompactors {}",
        "compactions at once",
    ),
    live(
        "hinted_handoff_throttle",
        Some("1024KiB"),
        Values::Size("KiB", 1, 1_048_576),
        "sethintedhandoffthrottlekb {}",
        "rate at which missed writes (hints) are sent to a node that was down, per second",
    ),
    live(
        "stream_throughput_outbound",
        Some("24MiB/s"),
        Values::Rate("MiB/s", 0, 10_000),
        "setstreamthroughput -m {}",
        "how fast data moves between nodes; 0 is no limit",
    ),
    restart(
        "native_transport_max_threads",
        Some("128"),
        Values::Count(2, 4_096),
        "requests of clients at once",
    ),
    restart(
        "memtable_heap_space",
        None,
        Values::Size("MiB", 16, 65_536),
        "memory for memtables, on the heap",
    ),
    restart(
        "memtable_offheap_space",
        None,
        Values::Size("MiB", 16, 65_536),
        "memory for memtables, off the heap",
    ),
    restart(
        "memtable_allocation_type",
        Some("heap_buffers"),
        Values::Word(&[
            "heap_buffers",
            "offheap_buffers",
            "offheap_objects",
            "unslabbed_heap_buffers",
        ]),
        "where memtables store their data",
    ),
    restart(
        "memtable_flush_writers",
        None,
        Values::Count(1, 64),
        "memtables that are written at once",
    ),
    restart(
        "memtable_cleanup_threshold",
        None,
        Values::Share(0.01, 0.99),
        "share of the memtables' memory at which the largest is written; deprecated since 4.0",
    ),
    restart(
        "commitlog_segment_size",
        Some("32MiB"),
        Values::Size("MiB", 4, 2_047),
        "size of a file of the commit log",
    ),
    restart(
        "commitlog_total_space",
        None,
        Values::Size("MiB", 64, 1_048_576),
        "size of the commit log at which memtables are written",
    ),
    restart(
        "commitlog_sync_period",
        Some("10000ms"),
        Values::Time("ms", 1, 60_000),
        "interval of commit log syncs in the periodic mode",
    ),
    restart(
        "key_cache_size",
        None,
        Values::Size("MiB", 0, 65_536),
        "cache of the positions of rows in files",
    ),
    restart("row_cache_size", Some("0MiB"), Values::Size("MiB", 0, 65_536), "cache of whole rows"),
    restart(
        "file_cache_size",
        None,
        Values::Size("MiB", 16, 65_536),
        "cache of file chunks, off the heap",
    ),
    restart(
        "trickle_fsync",
        Some("false"),
        YES_OR_NO,
        "files are put on disk while they are written, not at their end",
    ),
    restart(
        "trickle_fsync_interval",
        Some("10240KiB"),
        Values::Size("KiB", 64, 1_048_576),
        "how much of a file is put on disk at once then",
    ),
    restart(
        "column_index_size",
        Some("4KiB"),
        Values::Size("KiB", 1, 65_536),
        "part of a large row that is read at once",
    ),
    Knob {
        name: HEAP,
        default: None,
        values: Values::Size("MiB", 128, 1_048_576),
        class: Class::Restart,
        file: File::JvmOptions,
        about: "the JVM's heap, allocated at its start; a node needs about half as much memory in \
                addition",
    },
];

/// Name of the setting of the JVM's heap size.
pub(super) const HEAP: &str = "max_heap_size";

/// Returns the setting of Cassandra with this name.
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
            Class::Live { .. } => CostClass::Live,
            Class::Restart => CostClass::Restart,
        };
        let Self { name, default, values, .. } = *self;
        Setting { name, default, values, class }
    }

    /// Parses a value of this setting, and checks that the setting accepts it.
    ///
    /// # Errors
    /// Fails if the setting does not take this value.
    pub fn value(&self, text: &str) -> Result<Value> {
        self.setting().value(text)
    }

    /// Returns the path, on the node's machine, of the file that contains the setting.
    ///
    /// # Errors
    /// Fails if the cluster file does not name this file.
    pub(super) fn path<'n>(&self, node: &'n NodeAccess) -> Result<&'n str> {
        match self.file {
            File::Settings => Ok(&node.configuration),
            File::JvmOptions => node.jvm_options.as_deref().ok_or_else(|| {
                Error::Usage(format!(
                    "{} stands in the JVM's options: have the cluster file name that file of {} as jvm_options",
                    self.name, node.name
                ))
            }),
        }
    }

    /// Reads the value of the setting from `text`, the content of its file; None if the file does not have it.
    ///
    /// # Errors
    /// Fails if the text has the setting twice, or in a form that cannot be changed.
    pub(super) fn read(&self, text: &str) -> Result<Option<String>> {
        match self.file {
            File::Settings => settings_file::read(text, self.name),
            File::JvmOptions => jvm_options::heap(text),
        }
    }

    /// Returns `text`, the content of the setting's file, with this value; None removes the setting, so that its
    /// default applies.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::read`].
    pub(super) fn write(&self, text: &str, value: Option<&str>) -> Result<String> {
        match self.file {
            File::Settings => settings_file::write(text, self.name, value),
            File::JvmOptions => jvm_options::with_heap(text, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_setting() {
        for knob in KNOBS {
            if let Some(default) = knob.default {
                assert_eq!(knob.value(default).unwrap().to_string(), default, "{}", knob.name);
            }
            assert_eq!(find(knob.name).unwrap(), knob);
        }
    }

    #[test]
    fn values_are_kept_within_their_bounds_and_units() {
        let value = |name: &str, text: &str| {
            let value = find(name).unwrap().value(text);
            value.map(|value| value.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(value("concurrent_reads", "64"), Ok("64".into()));
        assert_eq!(value("memtable_heap_space", "256MiB"), Ok("256MiB".into()));
        assert_eq!(value("compaction_throughput", " 0MiB/s "), Ok("0MiB/s".into()));
        assert_eq!(value("trickle_fsync", "true"), Ok("true".into()));
        assert_eq!(value("memtable_cleanup_threshold", "0.25"), Ok("0.25".into()));
        for (name, text, said) in [
            ("concurrent_reads", "0", "a whole number from 1 to 1024"),
            ("concurrent_reads", "-1", "a whole number"),
            ("concurrent_reads", "many", "a whole number"),
            ("memtable_heap_space", "256", "16MiB to 65536MiB"),
            ("memtable_heap_space", "1GiB", "16MiB to 65536MiB"),
            ("memtable_heap_space", "1MiB", "16MiB to 65536MiB"),
            ("trickle_fsync", "yes", "one of true, false"),
            ("memtable_cleanup_threshold", "NaN", "a number from 0.01 to 0.99"),
            ("memtable_allocation_type", "true\nseeds: x", "one of heap_buffers"),
        ] {
            let error = value(name, text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(find("concurrent_read").unwrap_err().to_string().contains("concurrent_reads"));
    }
}
