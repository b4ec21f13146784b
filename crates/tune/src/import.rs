//! Imports traces from other tools: Prometheus' response to a range query, and the log of cassandra-stress.
//!
//! Both formats have sums over intervals with their end times; a trace has start times.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::trace::{most_common, unpacked};

/// Maximum size of a response of Prometheus, in bytes; a response has at most 11,000 points of each series.
const BYTES_MAX: u64 = 512 << 20;
/// Maximum number of intervals of an imported trace.
const INTERVALS_MAX: usize = 1_100_000;
/// Latest time that an imported trace may have, in seconds since 1970.
const TIME_MAX_S: f64 = 1e12;

/// Meaning of the values in a response of Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Operations per second, as `rate(…)` returns.
    Rate,
    /// Operations since the previous value, as `increase(…)` returns.
    Increase,
    /// Operations since the process started: an unprocessed counter.
    Counter,
}

/// Selects the series that count one kind of operations: the kind's index (reads, updates, inserts, scans), a label,
/// and the value of that label.
pub type Selector = (usize, String, String);

/// A trace that was imported from the output of another tool.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Imported {
    /// Length of an interval of the trace, in seconds.
    pub interval_s: u64,
    /// For each kind of operations (reads, updates, inserts, scans), the names of the series or of the kinds of lines
    /// that it was read from.
    pub from: [Vec<String>; 4],
    /// Start of each interval, in seconds since 1970, and its numbers of reads, updates, inserts and scans.
    #[serde(skip)]
    pub intervals: Vec<(u64, [u64; 4])>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

/// For each kind of operations, the values of labels by which a series of Prometheus is recognized as that kind.
const WORDS: [&[&str]; 4] = [
    &["read", "reads", "get", "select", "find", "query"],
    &["write", "writes", "update", "updates", "set", "put", "upsert"],
    &["insert", "inserts"],
    &["scan", "scans", "range", "rangeslice", "range_slice"],
];

/// Returns the error that `file` cannot be imported for this reason.
fn wrong(file: &str, reason: impl Into<String>) -> Error {
    Error::Table { file: file.to_owned(), reason: reason.into() }
}

/// Reads the response of Prometheus to a range query (`/api/v1/query_range`) as a trace; `file` is the name for
/// errors. The selectors `by` take precedence over the recognition of series by their labels.
///
/// # Errors
/// Fails if the response is invalid, or if a series cannot be assigned to reads, updates, inserts or scans.
pub fn prometheus(
    file: &str,
    from: impl Read,
    by: &[Selector],
    values: Values,
) -> Result<Imported> {
    let mut text = String::new();
    let mut from = unpacked(file, from)?.take(BYTES_MAX + 1);
    from.read_to_string(&mut text).map_err(|cause| wrong(file, cause.to_string()))?;
    if text.len() as u64 > BYTES_MAX {
        return Err(wrong(file, format!("it is larger than {} MB", BYTES_MAX >> 20)));
    }
    let answer: Answer = serde_json::from_str(&text)
        .map_err(|error| wrong(file, format!("it is not a reply of Prometheus: {error}")))?;
    let data = match answer {
        Answer { error: Some(error), .. } => {
            return Err(wrong(file, format!("Prometheus answered with an error: {error}")));
        }
        Answer { data: Some(data), .. } if data.result_type == "matrix" => data,
        Answer { data: Some(data), .. } => {
            let what =
                format!("it is a {}, and a range query answers with a matrix", data.result_type);
            return Err(wrong(file, what));
        }
        Answer { .. } => return Err(wrong(file, "it has no data")),
    };
    let seconds = |series: &Series| -> Vec<u64> {
        series.values.iter().map(|(at, _)| at.round().max(0.0) as u64).collect()
    };
    let all: Vec<Vec<u64>> = data.result.iter().map(seconds).collect();
    let distances =
        all.iter().flat_map(|at| at.windows(2).map(|two| two[1].saturating_sub(two[0])));
    let interval_s = most_common(distances.filter(|distance| *distance > 0)).ok_or_else(|| {
        wrong(file, "no series has two values, by which the length of an interval is told")
    })?;
    let mut sums = Sums::new(file, interval_s);
    let mut told: [Vec<String>; 4] = Default::default();
    for series in &data.result {
        let name = name(&series.metric);
        let kind = kind(&series.metric, by).ok_or_else(|| {
            wrong(
                file,
                format!(
                    "cannot determine whether the series {name} counts reads, updates, inserts or \
                     scans: name one of its labels, as --reads LABEL=VALUE, or leave it out of the \
                     query"
                ),
            )
        })?;
        told[kind].push(name);
        let mut before: Option<f64> = None;
        for (at, text) in &series.values {
            // A division by zero, and the end of a series, are not operations.
            let value = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
            let last = before;
            before = value.or(last);
            let count = match (values, value, last) {
                (_, None, _) | (Values::Counter, _, None) => continue,
                (Values::Rate, Some(value), _) => value * interval_s as f64,
                (Values::Increase, Some(value), _) => value,
                // A counter that decreased was reset by a restart of its process.
                (Values::Counter, Some(value), Some(last)) => {
                    if value >= last {
                        value - last
                    } else {
                        value
                    }
                }
            };
            sums.add(*at, kind, count)?;
        }
    }
    sums.imported(told)
}

/// Returns the index of the kind of operations that a series with these labels counts; None if it is unknown.
fn kind(metric: &BTreeMap<String, String>, by: &[Selector]) -> Option<usize> {
    let is_of = |(_, label, value): &&Selector| metric.get(label) == Some(value);
    if let Some((kind, ..)) = by.iter().find(is_of) {
        return Some(*kind);
    }
    let labels =
        metric.iter().filter(|(label, _)| !matches!(&***label, "__name__" | "instance" | "job"));
    let of_word = |(_, value): (&String, &String)| {
        let word = value.to_ascii_lowercase();
        WORDS.iter().position(|words| words.contains(&&*word))
    };
    labels.filter_map(of_word).next()
}

/// Formats the labels of a series as its name.
fn name(metric: &BTreeMap<String, String>) -> String {
    let labels = metric.iter().filter(|(label, _)| *label != "__name__");
    let labels: Vec<String> = labels.map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    format!("{}{{{}}}", metric.get("__name__").map_or("", String::as_str), labels.join(","))
}

/// Reads the log of cassandra-stress (4.1 and 5.0) as a trace; `begin_s` is the start of the load, in seconds since
/// 1970, and `file` the log's name for errors.
///
/// # Errors
/// Fails if the log has no lines of operations, or lines of an unknown kind.
pub fn cassandra_stress(file: &str, from: impl Read, begin_s: u64) -> Result<Imported> {
    let mut columns: Option<(usize, usize)> = None;
    let mut running = String::new();
    let mut lines: Vec<(String, f64, f64)> = Vec::new();
    // A load with several thread counts is several runs, each of which starts at time zero.
    let mut before_s = 0.0;
    let mut ended: BTreeMap<String, f64> = BTreeMap::new();
    for line in BufReader::new(unpacked(file, from)?).lines() {
        let line = line.map_err(|cause| wrong(file, cause.to_string()))?;
        let words: Vec<&str> = line.split(',').map(str::trim).collect();
        if words[0] == "type" {
            let at = |name: &str| words.iter().position(|word| *word == name);
            columns = at("total ops").zip(at("time"));
        } else if let Some(rest) = line.strip_prefix("Running ") {
            running = rest.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
            before_s = ended.values().copied().fold(before_s, f64::max);
            ended.clear();
        } else if let Some((ops, time)) = columns
            && let Some((count, at)) = words.get(ops).zip(words.get(time))
            && let (Ok(count), Ok(at)) = (count.parse::<f64>(), at.parse::<f64>())
            && count.is_finite()
            && at.is_finite()
        {
            if lines.len() >= 4 * INTERVALS_MAX {
                return Err(wrong(file, "it has too many lines"));
            }
            ended.insert(words[0].to_owned(), before_s + at);
            let kind = if words[0] == "total" {
                format!("total {running}")
            } else {
                words[0].to_ascii_lowercase()
            };
            lines.push((kind, count, before_s + at));
        }
    }
    // If there are lines per kind, the lines of totals would count the same operations again.
    if lines.iter().any(|(kind, ..)| !kind.starts_with("total")) {
        lines.retain(|(kind, ..)| !kind.starts_with("total"));
    }
    let kind_of = |name: &str| {
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        match () {
            () if has(&["scan", "range"]) => Some(3),
            () if has(&["read", "select"]) => Some(0),
            () if has(&["write", "insert", "update", "counter"]) => Some(1),
            () => None,
        }
    };
    let mut by_kind: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    lines.iter().for_each(|(kind, count, at)| by_kind.entry(kind).or_default().push((*count, *at)));
    let distances = by_kind
        .values()
        .flat_map(|all| all.windows(2).map(|two| (two[1].1 - two[0].1).round() as u64));
    let interval_s = most_common(distances.filter(|distance| *distance > 0)).ok_or_else(|| {
        wrong(file, "it has no two lines of operations behind its line `type, total ops, …`")
    })?;
    let mut sums = Sums::new(file, interval_s);
    let mut told: [Vec<String>; 4] = Default::default();
    for (name, all) in by_kind {
        let kind = kind_of(name).ok_or_else(|| {
            wrong(
                file,
                format!("its lines of \"{name}\" cannot be told to be reads, writes or scans"),
            )
        })?;
        told[kind].push(name.to_owned());
        let mut before = 0.0;
        for (count, at) in all {
            let new = if count >= before { count - before } else { count };
            before = count;
            // The first interval of a run is a little shorter, and counts as a whole one.
            let place = (at / interval_s as f64).round().max(1.0);
            sums.add(begin_s as f64 + place * interval_s as f64, kind, new)?;
        }
    }
    sums.imported(told)
}

/// Sums of operations of each kind, by the end time of the interval in seconds since 1970.
struct Sums<'f> {
    file: &'f str,
    interval_s: u64,
    by_end: BTreeMap<u64, [f64; 4]>,
}

impl<'f> Sums<'f> {
    fn new(file: &'f str, interval_s: u64) -> Self {
        Self { file, interval_s, by_end: BTreeMap::new() }
    }

    fn add(&mut self, end_s: f64, kind: usize, count: f64) -> Result<()> {
        if !(0.0..=TIME_MAX_S).contains(&end_s) {
            return Err(wrong(self.file, format!("{end_s} is no time in seconds since 1970")));
        }
        let interval = self.interval_s as f64;
        let end = (end_s / interval).round().max(1.0) as u64 * self.interval_s;
        self.by_end.entry(end).or_default()[kind] += count;
        if self.by_end.len() <= INTERVALS_MAX {
            return Ok(());
        }
        Err(wrong(self.file, format!("it has more than {INTERVALS_MAX} intervals")))
    }

    fn imported(self, from: [Vec<String>; 4]) -> Result<Imported> {
        if self.by_end.len() < 2 {
            return Err(wrong(self.file, "it has fewer than two intervals"));
        }
        let start = |(end, counts): (u64, [f64; 4])| {
            (end - self.interval_s, counts.map(|count| count.round() as u64))
        };
        let intervals = self.by_end.into_iter().map(start).collect();
        Ok(Imported { interval_s: self.interval_s, from, intervals })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: &str = r#"{"status":"success","data":{"resultType":"matrix","result":[
        {"metric":{"__name__":"ops","instance":"10.0.0.1:9103","operation":"read"},"values":[[1795737660,"12.5"],[1795737720.012,"10"],[1795737840,"NaN"]]},
        {"metric":{"instance":"10.0.0.2:9103","operation":"Read"},"values":[[1795737660,"2.5"],[1795737720,"5"],[1795737780,"1"]]},
        {"metric":{"instance":"10.0.0.1:9103","operation":"write"},"values":[[1795737660,"100"],[1795737720,"0"]]}]}}"#;

    #[test]
    fn series_of_a_range_query_are_summed_by_kind() {
        let read = |values| prometheus("range.json", RANGE.as_bytes(), &[], values);
        let told = read(Values::Rate).unwrap();
        assert_eq!(told.interval_s, 60);
        assert_eq!(
            told.intervals,
            [
                (1_795_737_600, [900, 6_000, 0, 0]),
                (1_795_737_660, [900, 0, 0, 0]),
                (1_795_737_720, [60, 0, 0, 0])
            ]
        );
        assert_eq!(told.from.each_ref().map(Vec::len), [2, 1, 0, 0]);
        let increase = read(Values::Increase).unwrap();
        assert_eq!(increase.intervals[0], (1_795_737_600, [15, 100, 0, 0]));
        // A counter that begins anew.
        let counter = read(Values::Counter).unwrap();
        assert_eq!(
            counter.intervals,
            [(1_795_737_660, [13, 0, 0, 0]), (1_795_737_720, [1, 0, 0, 0])]
        );
    }

    #[test]
    fn a_label_may_say_what_a_series_counts() {
        let text = RANGE.replace("\"write\"", "\"cas\"");
        let error =
            prometheus("range.json", text.as_bytes(), &[], Values::Rate).unwrap_err().to_string();
        assert!(
            error.contains("operation=\"cas\"") && error.contains("--reads LABEL=VALUE"),
            "{error}"
        );
        let by = [(1, "operation".to_owned(), "cas".to_owned())];
        let told = prometheus("range.json", text.as_bytes(), &by, Values::Rate).unwrap();
        assert_eq!(told.intervals[0].1, [900, 6_000, 0, 0]);
        for (text, said) in [
            ("{\"status\":\"error\",\"error\":\"bad_data\"}".to_owned(), "an error: bad_data"),
            (RANGE.replace("matrix", "vector"), "it is a vector"),
            ("start,reads".to_owned(), "not a reply of Prometheus"),
            ("{}".to_owned(), "it has no data"),
        ] {
            let error = prometheus("range.json", text.as_bytes(), &[], Values::Rate)
                .unwrap_err()
                .to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    /// As cassandra-stress 5.0 writes it, with columns left out.
    const LOG: &str = "\
Connected to cluster: shop, max pending requests per connection 128\n\
Running [WRITE, READ] with 8 threads for 4 seconds\n\
Failed to connect over JMX; not collecting these stats\n\
type,      total ops,    op/s,    pk/s,   row/s,    mean,     max,   time,   stderr, errors,  gc: #\n\
READ,            610,     610,     610,     610,     0.9,    12.1,    1.0,  0.00000,      0,      0\n\
WRITE,           190,     190,     190,     190,     0.9,    12.1,    1.0,  0.00000,      0,      0\n\
total,           800,     800,     800,     800,     0.9,    12.1,    1.0,  0.00000,      0,      0\n\
READ,           1510,     900,     900,     900,     0.9,    12.1,    2.0,  0.00000,      0,      0\n\
WRITE,           490,     300,     300,     300,     0.9,    12.1,    2.0,  0.00000,      0,      0\n\
total,          2000,    1200,    1200,    1200,     0.9,    12.1,    2.0,  0.00000,      0,      0\n\
\n\
Results:\n\
Op rate                   :    1,000 op/s  [READ: 755 op/s, WRITE: 245 op/s]\n";

    #[test]
    fn a_log_of_cassandra_stress_is_counted_by_kind_once() {
        let told = cassandra_stress("stress.log", LOG.as_bytes(), 1_795_737_600).unwrap();
        assert_eq!(told.interval_s, 1);
        assert_eq!(
            told.intervals,
            [(1_795_737_600, [610, 190, 0, 0]), (1_795_737_601, [900, 300, 0, 0])]
        );
        // Of one kind there are totals alone; and two runs, one behind the other.
        let lines: Vec<&str> = LOG
            .lines()
            .filter(|line| !line.starts_with("READ") && !line.starts_with("WRITE"))
            .collect();
        let run = lines.join("\n").replace("[WRITE, READ]", "WRITE") + "\n";
        let told = cassandra_stress("stress.log", format!("{run}{run}").as_bytes(), 0).unwrap();
        let starts: Vec<u64> = told.intervals.iter().map(|(start, _)| *start).collect();
        assert_eq!(starts, [0, 1, 2, 3]);
        assert_eq!(told.intervals[3].1, [0, 1_200, 0, 0]);
        assert_eq!(told.intervals[2].1, [0, 800, 0, 0]);
        for (text, said) in [
            (LOG.replace("WRITE", "simple1"), "\"simple1\" cannot be told"),
            ("nothing\n".to_owned(), "no two lines of operations"),
        ] {
            let error = cassandra_stress("stress.log", text.as_bytes(), 0).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
