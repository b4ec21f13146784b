//! The settings of Cassandra 5.0 that tuning may change: type, bounds, default, and how each is applied.
//!
//! Bounds are those within which a node starts and serves; a value outside of them is refused before anything is
//! touched. Names, units and defaults are those of `cassandra.yaml`; memory settings without a default follow the heap, and
//! the heap, which stands in the options of the JVM, follows the machine's memory.

use imago_plan::tune::roll::CostClass;

use super::error::{Error, Result};
use super::{jvm_options, settings_file};
pub use crate::cluster::values::{Value, Values};
use crate::cluster::{NodeAccess, Setting};

/// What a change costs, and how it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// By `nodetool`, at once and without a restart; the file is changed, too, for the next start.
    Live {
        /// The command, with `{}` in place of the value.
        nodetool: &'static str,
    },
    /// By the file, and a restart of the node.
    Restart,
}

impl Class {
    /// Its name, as it is approved and printed.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Live { .. } => "live",
            Self::Restart => "restart",
        }
    }
}

/// The file that a setting stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum File {
    /// `cassandra.yaml`.
    Settings,
    /// `jvm-server.options`.
    JvmOptions,
}

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knob {
    /// Its key in `cassandra.yaml`, or as the JVM's start scripts call it, in small letters.
    pub name: &'static str,
    /// Its value unless the file has another one; `None`: it follows the heap or the processors.
    pub default: Option<&'static str>,
    /// The values that it takes.
    pub values: Values,
    /// How it is applied.
    pub class: Class,
    /// The file that it stands in.
    pub file: File,
    /// Its column in `system_views.settings`, where it does not have the setting's name.
    pub about: &'static str,
}

const YES_OR_NO: Values = Values::Word(&["true", "false"]);

const fn restart(
    name: &'static str,
    default: Option<&'static str>,
    values: Values,
    about: &'static str,
) -> Knob {
    Knob { name, default, values, class: Class::Restart, file: File::Settings, about }
}

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

/// All of them.
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
        "how fast a node that was away is sent what it missed, per second",
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
        "memory for writes that are in no file yet, on the heap",
    ),
    restart(
        "memtable_offheap_space",
        None,
        Values::Size("MiB", 16, 65_536),
        "the same, beside the heap",
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
        "where memtables keep their content",
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
        "interval at which the commit log is on disk, where it is not waited for",
    ),
    restart(
        "key_cache_size",
        None,
        Values::Size("MiB", 0, 65_536),
        "cache of where rows begin in files",
    ),
    restart("row_cache_size", Some("0MiB"), Values::Size("MiB", 0, 65_536), "cache of whole rows"),
    restart(
        "file_cache_size",
        None,
        Values::Size("MiB", 16, 65_536),
        "cache of pieces of files, beside the heap",
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
        about: "the JVM's heap, from its start on; a node needs about half as much beside it",
    },
];

/// The setting of the heap.
pub(super) const HEAP: &str = "max_heap_size";

/// The setting of this name.
///
/// # Errors
/// There is none: the message lists those that there are.
pub fn find(name: &str) -> Result<&'static Knob> {
    KNOBS.iter().find(|knob| knob.name == name).ok_or_else(|| {
        let known: Vec<&str> = KNOBS.iter().map(|knob| knob.name).collect();
        Error::Usage(format!("there is no setting {name}; there are {}", known.join(", ")))
    })
}

impl Knob {
    /// What tuning has to know of it.
    #[must_use]
    pub fn setting(&self) -> Setting {
        let class = match self.class {
            Class::Live { .. } => CostClass::Live,
            Class::Restart => CostClass::Restart,
        };
        let Self { name, default, values, .. } = *self;
        Setting { name, default, values, class }
    }

    /// The value as the file has it, checked.
    ///
    /// # Errors
    /// It is none of the values that the setting takes.
    pub fn value(&self, text: &str) -> Result<Value> {
        self.setting().value(text)
    }

    /// The path of the file that it stands in, on a node.
    ///
    /// # Errors
    /// The cluster file does not name it.
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

    /// Its value in the text of its file; nothing if it is not there.
    ///
    /// # Errors
    /// The text has it twice, or in a form that cannot be changed.
    pub(super) fn read(&self, text: &str) -> Result<Option<String>> {
        match self.file {
            File::Settings => settings_file::read(text, self.name),
            File::JvmOptions => jvm_options::heap(text),
        }
    }

    /// The text of its file with this value; without one its default holds.
    ///
    /// # Errors
    /// As [`Self::read`].
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
