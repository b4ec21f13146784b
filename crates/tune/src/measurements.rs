//! Measurements: the throughput of each configuration for a mix of operations, in operations per second.
//!
//! The format is CSV: `configuration,operations_s,reads,updates,inserts,scans`, with the columns in any order. The
//! columns of operations may have any unit, as only their ratios matter. `record_bytes` and `reuse_distance` may
//! describe the records of a measurement. Configurations are numbered in the order of their first rows. Several
//! measurements of one mix count by their mean.

use std::io::Read;

use imago_plan::tune::records::Records;
use imago_plan::tune::throughput::{Measured, Throughputs};
use imago_plan::tune::workload::Mix;

use crate::error::{Error, Result};
use crate::table::{RECORDS, Table};

/// Names of the optional columns: the round of a measurement, its duration of warming up, the spread, the resource
/// consumption and the time to a reply, and the properties of the records.
pub const SAMPLED: [&str; 9] = [
    "round",
    "warm_s",
    "spread",
    "memory_bytes",
    "cpu_us",
    "median_us",
    "p99_us",
    RECORDS[0],
    RECORDS[1],
];

/// A file of measurements that is part of Imago's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// File name of the measurements, for messages.
    pub file: &'static str,
    /// Measurements as CSV, in the format of the module's documentation.
    pub text: &'static str,
    /// Description of the measured system and its load, for messages.
    pub origin: &'static str,
}

/// Measurements of two configurations of Cassandra, which are part of Imago.
pub const CASSANDRA: Shipped = Shipped {
    file: "cassandra-5.csv",
    text: include_str!("../data/cassandra-5.csv"),
    origin: "three Cassandra 5 nodes on one machine with two cores, RF 3, QUORUM, 40,000 rows of 1 KB",
};
/// Measurements of thirteen configurations of Redis, which are part of Imago.
pub const REDIS: Shipped = Shipped {
    file: "redis-7.csv",
    text: include_str!("../data/redis-7.csv"),
    origin: "one Redis 7 server on a machine with two cores, 20,000 records of 1 KB",
};

/// Metric by which measured configurations are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Operations per second (column `operations_s`).
    Throughput,
    /// Operations per second of the database's CPU time (from column `cpu_us`): the throughput under a sufficient load.
    Cpu,
}

/// Measurements of the candidate configurations; see the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurements {
    /// Names of the measured configurations; other fields refer to a configuration by its index here.
    pub names: Vec<String>,
    /// Throughput of each configuration as a function of the mix, in operations per second, by the configuration's
    /// index.
    pub throughputs: Throughputs,
    /// All single measurements, in the order of the file's rows.
    pub samples: Vec<Sample>,
    /// Medians over the measurements of the mean record size, in bytes, and of the reuse distance, in records.
    pub records: Records,
    /// Times to a reply as functions of the mix; `None` if some measurement lacks them.
    pub latencies: Option<Latencies>,
}

/// Times to a reply of each configuration as functions of the mix, while the database served as much as it could.
#[derive(Clone, Debug, PartialEq)]
pub struct Latencies {
    /// The reciprocal of the median, and that of the 99th percentile, in replies per second: interpolated like throughput.
    replies_s: [Throughputs; 2],
}

impl Latencies {
    /// Returns the median and the 99th percentile of the time to a reply with the configuration of index `to`, each divided by that
    /// with `from`, for this mix.
    #[must_use]
    pub fn ratios(&self, mix: Mix, (from, to): (usize, usize)) -> [f64; 2] {
        self.replies_s.each_ref().map(|replies| {
            let of = replies.of(mix);
            of[from] / of[to].max(f64::MIN_POSITIVE)
        })
    }
}

/// One row of the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Index of the measured configuration, mix of operations, and throughput in operations per second.
    pub measured: Measured,
    /// Index, from zero, of the round of rolls in which the sample was measured; None without the column `round`.
    pub round: Option<usize>,
}

impl Measurements {
    /// Reads measurements from CSV with the throughput as metric; `file` is the file's name in errors.
    ///
    /// # Errors
    /// Fails if the measurements are invalid; the error has the place and the reason.
    pub fn read(file: &str, from: impl Read) -> Result<Self> {
        Self::read_by(file, from, By::Throughput)
    }

    /// Reads measurements from CSV, with the metric `by` in place of the throughput; `file` is the file's name in
    /// errors.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::read`], and if a measurement lacks the metric.
    pub fn read_by(file: &str, from: impl Read, by: By) -> Result<Self> {
        let table = Table::open(file, from, &["configuration", "operations_s"], &SAMPLED)?;
        let (mut names, mut samples) = (Vec::<String>::new(), Vec::new());
        let (mut records, mut latencies) = (Vec::new(), [Vec::new(), Vec::new()]);
        table.each(|row| {
            let name = row.text("configuration").unwrap_or_default().to_owned();
            if name.is_empty() {
                return Err(row.wrong("configuration", "a name"));
            }
            records.push(row.records()?);
            let mix = Mix::of(row.operations()?);
            let mix = mix.ok_or_else(|| {
                row.wrong("configuration", "measured with operations of some kind")
            })?;
            let rate_s = match by {
                By::Throughput => row.number("operations_s")?,
                By::Cpu => match row.number("cpu_us")? {
                    cpu_us if cpu_us > 0.0 => 1e6 / cpu_us,
                    _ => return Err(row.wrong("cpu_us", "above zero: it is measured of Redis")),
                },
            };
            let known = names.iter().position(|one| *one == name);
            let configuration = known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            let round = match row.text("round") {
                Some(text) => {
                    let round = text.parse().ok();
                    Some(
                        round
                            .ok_or_else(|| row.wrong("round", "a whole number, not below zero"))?,
                    )
                }
                None => None,
            };
            samples.push(Sample { measured: Measured { configuration, mix, rate_s }, round });
            for (column, all) in ["median_us", "p99_us"].into_iter().zip(&mut latencies) {
                let is_there = row.text(column).is_some_and(|text| !text.is_empty());
                let us = if is_there { row.number(column)? } else { 0.0 };
                if us > 0.0 {
                    all.push(Measured { configuration, mix, rate_s: 1e6 / us });
                }
            }
            Ok(())
        })?;
        if names.len() < 2 {
            return Err(Error::TooLittle {
                file: file.to_owned(),
                found: format!("{} configurations", names.len()),
                needed: "there is a choice only between two at least".to_owned(),
            });
        }
        let all: Vec<Measured> = samples.iter().map(|one| one.measured).collect();
        let throughputs = Throughputs::new(names.len(), &all).expect("each name has a measurement");
        let is_known = |all: &Vec<Measured>| all.len() == samples.len();
        let latencies = latencies.iter().all(is_known).then(|| Latencies {
            replies_s: latencies
                .each_ref()
                .map(|all| Throughputs::new(names.len(), all).expect("each measurement has one")),
        });
        let records = Records::median(&records);
        Ok(Self { names, throughputs, samples, records, latencies })
    }

    /// Returns the same measurements with inserts counted as updates: databases do not count them separately.
    #[must_use]
    pub fn with_inserts_as_updates(mut self) -> Self {
        self.throughputs = self.throughputs.map(Mix::with_inserts_as_updates);
        self.latencies = self.latencies.map(|Latencies { replies_s }| Latencies {
            replies_s: replies_s.map(|of| of.map(Mix::with_inserts_as_updates)),
        });
        self
    }

    /// Returns measurements that are part of Imago, such as [`CASSANDRA`], with the throughput as metric.
    ///
    /// # Panics
    /// Never: a test reads them.
    #[must_use]
    pub fn shipped(shipped: Shipped) -> Self {
        Self::read(shipped.file, shipped.text.as_bytes()).expect("what is shipped can be read")
    }

    /// Returns the index of the configuration with this name.
    ///
    /// # Errors
    /// Fails if no configuration has this name; the error lists the names.
    pub fn number(&self, name: &str) -> Result<usize> {
        let found = self.names.iter().position(|one| one == name);
        found.ok_or_else(|| Error::Unknown { name: name.to_owned(), known: self.names.join(", ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_can_be_read() {
        assert_eq!(Measurements::shipped(CASSANDRA).names, ["uploads", "analysis"]);
        assert_eq!(Measurements::shipped(REDIS).names.len(), 13);
    }

    const FILE: &str = "\
configuration,operations_s,reads,updates
size-tiered,41000,0,1
leveled,30000,0,1
size-tiered,26000,100,0
leveled,44000,100,0
";

    #[test]
    fn configurations_are_numbered_as_they_come() {
        let read = Measurements::read("here.csv", FILE.as_bytes()).unwrap();
        assert_eq!(
            (read.names.clone(), read.samples.len()),
            (vec!["size-tiered".into(), "leveled".into()], 4)
        );
        assert_eq!(read.throughputs.of(Mix::of_reads(1.0)), [26_000.0, 44_000.0]);
        assert_eq!(read.number("leveled"), Ok(1));
        let unknown = read.number("unified").unwrap_err().to_string();
        assert_eq!(unknown, "no configuration is named unified; there are size-tiered, leveled");
    }

    #[test]
    fn rounds_are_known_where_they_were_written() {
        let read = |text: &str| Measurements::read("here.csv", text.as_bytes()).unwrap().samples;
        assert!(read(FILE).iter().all(|one| one.round.is_none()));
        let text = "configuration,operations_s,reads,round,warm_s,spread\na,9,1,0,4.0,0.1\nb,8,1,1,4.0,0.1\n";
        assert_eq!(read(text).iter().map(|one| one.round).collect::<Vec<_>>(), [Some(0), Some(1)]);
    }

    #[test]
    fn latencies_are_known_if_each_measurement_has_them() {
        let text = "configuration,operations_s,reads,updates,median_us,p99_us\n\
                    a,4000,1,0,16000,90000\nb,5000,1,0,12000,60000\na,3000,0,1,20000,80000\nb,2000,0,1,30000,80000\n";
        let read = |text: &str| Measurements::read("here.csv", text.as_bytes()).unwrap().latencies;
        let latencies = read(text).unwrap();
        let near = |found: [f64; 2], wanted: [f64; 2]| {
            assert!((found[0] - wanted[0]).abs() < 1e-9, "{found:?}");
            assert!((found[1] - wanted[1]).abs() < 1e-9, "{found:?}");
        };
        near(latencies.ratios(Mix::of_reads(1.0), (0, 1)), [0.75, 2.0 / 3.0]);
        near(latencies.ratios(Mix::of_reads(0.0), (0, 1)), [1.5, 1.0]);
        assert_eq!(read(&text.replace("16000", "")), None);
        assert_eq!(read(FILE), None);
    }

    #[test]
    fn configurations_are_compared_by_processor_time_where_it_was_measured() {
        let text =
            "configuration,operations_s,reads,cpu_us\ntables,15000,1,12.5\ncompact,15000,1,8\n";
        let read = |text: &str| Measurements::read_by("here.csv", text.as_bytes(), By::Cpu);
        let by_cpu = read(text).unwrap();
        assert_eq!(by_cpu.throughputs.of(Mix::of_reads(1.0)), [80_000.0, 125_000.0]);
        for unknown in [text.replace("12.5", ""), text.replace("12.5", "0")] {
            let error = read(&unknown).unwrap_err().to_string();
            assert!(error.starts_with("here.csv, line 2: cpu_us is "), "{error}");
        }
        let error = read(FILE).unwrap_err().to_string();
        assert!(error.contains("line 2: cpu_us is \"\""), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, said) in [
            ("configuration,reads\na,1\n", "the column operations_s is missing"),
            (
                "configuration,operations_s,reads\na,100,1\n",
                "1 configurations, and there is a choice",
            ),
            (
                "configuration,operations_s,reads\na,100,1\n,100,1\n",
                "line 3: configuration is \"\"",
            ),
            (
                "configuration,operations_s,reads\na,100,0\n",
                "line 2: configuration is \"a\", and it must be measured",
            ),
            ("configuration,operations_s,reads\na,fast,1\n", "line 2: operations_s is \"fast\""),
            ("configuration,operations_s,reads,round\na,1,1,x\n", "line 2: round is \"x\""),
        ] {
            let error = Measurements::read("here.csv", text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
