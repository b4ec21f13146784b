//! Predicts the memory of a server's data and the CPU time of its operations with other thresholds, and advises on
//! them.
//!
//! Redis stores a small hash, sorted set or set of integers in a compact encoding, and one above a threshold as a
//! table: the former takes less memory, the latter less time. The effect depends on the data, so a sample of the
//! server's own keys is written to a scratch server with the present thresholds and with the candidate ones, and
//! measured there. The server itself is only read. (SOPHIA, §5, tuned Redis's virtual memory, which no longer exists:
//! this trade-off remains.)
//!
//! The decision is made by [`imago_plan::tune::capacity`].

mod sample;
mod scratch;

use std::collections::BTreeMap;

use imago_plan::tune::capacity::{
    Assessment, Costs, Decision, Job, Limits, Verdict, choose, explains,
};
use imago_plan::tune::workload::{KINDS, Mix};
use serde::Serialize;

use super::connection::Node;
use super::knobs;
use crate::cluster::{Error, Result};

pub use sample::{Sample, Server};
pub use scratch::{Measured, Scratch, Times};

/// The settings that are compared: the thresholds of compact encodings.
pub const FITTED: [&str; 5] = [
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
    "set-max-intset-entries",
];

/// Minimum gain at which a change of thresholds is advised, as a share of the present throughput.
const GAIN_MIN: f64 = 0.05;
/// Number of operations whose total time is compared; the result of the comparison does not depend on it.
const OPERATIONS: f64 = 1e6;

/// Checks candidate thresholds, by the setting's name, and returns their values in the server's own format; None
/// stands for the setting's default.
///
/// # Errors
/// Fails if a setting is unknown, if it does not take the value, or if it is not a threshold of a compact encoding.
pub fn settings(asked: &BTreeMap<String, Option<String>>) -> Result<BTreeMap<String, String>> {
    if asked.is_empty() {
        return Err(Error::Usage("nothing is to be compared: name a setting and a value".into()));
    }
    let checked = |(name, value): (&String, &Option<String>)| {
        let knob = knobs::find(name)?;
        if !FITTED.contains(&knob.name) {
            return Err(Error::Usage(format!(
                "{name} does not say which keys are kept compact; these do: {}",
                FITTED.join(", ")
            )));
        }
        let value = knob.value(value.as_deref().unwrap_or(knob.default))?.to_string();
        Ok((name.clone(), value))
    };
    asked.iter().map(checked).collect()
}

/// Input of [`compare`]: the candidate thresholds, and the load to plan for.
#[derive(Clone, Debug)]
pub struct Question {
    /// Values of the candidate thresholds by the setting's name, as returned by [`settings`].
    pub asked: BTreeMap<String, String>,
    /// Number of keys to plan for; None: the server's present number.
    pub keys: Option<f64>,
    /// Memory to plan for, in bytes; None: the server's `maxmemory`.
    pub limit_bytes: Option<u64>,
    /// Share of the memory to plan for that must stay free, from 0 to 1.
    pub headroom: f64,
    /// Mix of the operations whose CPU time is compared.
    pub mix: Mix,
}

/// Values of the thresholds of compact encodings, and their predicted effects.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Configuration {
    /// Values of the thresholds, by the setting's name.
    pub settings: BTreeMap<String, String>,
    /// Memory and CPU times measured on the scratch server, extrapolated to the server's keys.
    #[serde(flatten)]
    pub measured: Measured,
    /// Predicted memory of the server itself and of the planned number of keys, in bytes.
    pub needed_bytes: f64,
    /// Maximum number of keys that fit into the limit less its headroom; None without a limit, or if the sample does
    /// not explain the memory in use.
    pub keys_max: Option<f64>,
    /// True if the planned number of keys fits into the limit less its headroom; None if the sample does not explain
    /// the memory in use.
    pub fits: Option<bool>,
    /// Mean CPU time of an operation of the mix, in µs; None if the sample has no hash, sorted set or set.
    pub operation_us: Option<f64>,
}

/// Result of [`compare`]: the predictions for present and candidate thresholds, and the advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Address of the server whose thresholds are compared, `host:port`.
    pub server: String,
    /// Versions of Redis on the server and on the scratch server, in this order.
    pub versions: [String; 2],
    /// Number of keys that the server has now.
    pub keys: u64,
    /// Number of sampled keys whose content was read.
    pub sampled: usize,
    /// Number of inspected keys that were too large to be read, or beyond the sample's maximum size.
    pub too_large: u64,
    /// Memory in use on the server that counts towards its limit `maxmemory`, in bytes.
    pub used_bytes: u64,
    /// Part of [`Self::used_bytes`] that is not for keys, in bytes.
    pub base_bytes: u64,
    /// Memory in use as extrapolated from the sample, divided by [`Self::used_bytes`]: the sample is representative
    /// if the quotient is near one.
    pub explained: f64,
    /// Mean memory of a key on the server, in bytes: `MEMORY USAGE`, corrected by the ratio of measured to reported
    /// sizes that the scratch server shows with the present thresholds.
    pub key_bytes: f64,
    /// Number of sampled keys on the server by type and encoding, such as `hash listpack`.
    pub encodings: BTreeMap<String, u64>,
    /// Memory to plan for, in bytes; None if neither the question nor the server has a limit.
    pub limit_bytes: Option<u64>,
    /// Share of the memory to plan for that must stay free, from 0 to 1.
    pub headroom: f64,
    /// Policy by which the server evicts keys at its limit (`maxmemory-policy`).
    pub policy: String,
    /// Number of keys that the advice plans for.
    pub keys_wanted: f64,
    /// Prediction for the present thresholds, provided that all keys are rewritten.
    pub present: Configuration,
    /// Prediction for the candidate thresholds, provided that all keys are rewritten.
    pub asked: Configuration,
    /// Advised thresholds: `present` or `asked`. None if neither fits, without a limit, or if the sample is not
    /// within a tenth of the memory in use.
    pub choice: Option<&'static str>,
    /// Explanation of the choice in a sentence or two.
    pub advice: String,
}

/// Compares the present thresholds of `server`, to which `node` is a connection, with the candidate ones, by
/// measuring a sample of its keys on a scratch server.
///
/// # Errors
/// Fails if the sample is empty, or if one of the servers refuses a command.
#[crate::boxed]
pub async fn compare(
    node: &Node,
    server: &Server,
    sample: &Sample,
    scratch: &mut Scratch,
    question: &Question,
) -> Result<Answer> {
    if sample.is_empty() {
        return Err(Error::precondition(
            format!("{} holds no key that can be read", node.address),
            "name a server that holds data: of a Redis Cluster, a node that has slots",
        ));
    }
    let present = server.settings.clone();
    let mut asked = present.clone();
    asked.extend(question.asked.clone());
    let (mut of_common, mut of_large) = (Vec::new(), Vec::new());
    for (keys, measured) in [(&sample.keys, &mut of_common), (&sample.large, &mut of_large)] {
        if !keys.is_empty() {
            scratch.load_keys(keys).await?;
            *measured = scratch.measure(&[present.clone(), asked.clone()]).await?;
        }
    }
    let extrapolated = |number: usize| {
        extrapolate(sample, server.keys as f64, of_common.get(number), of_large.get(number))
    };
    let [of_present, of_asked] = [extrapolated(0), extrapolated(1)];
    let base = server.base_bytes as f64;
    let limit_bytes = question.limit_bytes.or(Some(server.limit_bytes)).filter(|limit| *limit > 0);
    let wanted = question.keys.unwrap_or(server.keys as f64);
    let all = [costs(base, &of_present), costs(base, &of_asked)];
    let job = Job { present: wanted, loaded: 0.0, operations: OPERATIONS, mix: question.mix };
    let limits = Limits {
        memory_bytes: limit_bytes.map_or(f64::INFINITY, |limit| limit as f64),
        headroom: question.headroom,
        gain_min: GAIN_MIN,
    };
    let decision = choose(&all, 0, &job, &limits);
    let really = of_present.key_bytes / of_present.told_bytes.max(1.0);
    let explained = (base + server.keys as f64 * sample.key_bytes() * really)
        / (server.used_bytes as f64).max(1.0);
    let is_explained = explains(explained);
    let configuration = |number: usize, settings, measured: Measured| {
        let one: &Assessment = &decision.assessments[number];
        Configuration {
            settings,
            needed_bytes: one.peak_bytes,
            keys_max: Some(one.entries_max).filter(|most| most.is_finite() && is_explained),
            fits: is_explained.then_some(!matches!(one.verdict, Verdict::TooLarge { .. })),
            operation_us: measured.times.map(|_| 1e6 * one.job_s / OPERATIONS),
            measured,
        }
    };
    let mut answer = Answer {
        server: node.address.clone(),
        versions: [server.version.clone(), scratch.version.clone()],
        keys: server.keys,
        sampled: sample.len(),
        too_large: sample.too_large.0,
        used_bytes: server.used_bytes,
        base_bytes: server.base_bytes,
        explained,
        key_bytes: sample.key_bytes() * really,
        encodings: sample.encodings(),
        limit_bytes,
        headroom: question.headroom,
        policy: server.policy.clone(),
        keys_wanted: wanted,
        present: configuration(0, present, of_present),
        asked: configuration(1, asked, of_asked),
        choice: limit_bytes
            .and(decision.choice)
            .filter(|_| is_explained)
            .map(|number| ["present", "asked"][number]),
        advice: String::new(),
    };
    answer.advice = advice(&answer, &decision, question);
    Ok(answer)
}

/// Extrapolates the measurements of a sample's two groups (the common keys and the outliers) to a server with `keys`
/// keys, weighted by the number of keys that each group represents.
fn extrapolate(
    sample: &Sample,
    keys: f64,
    common: Option<&Measured>,
    large: Option<&Measured>,
) -> Measured {
    let groups = sample.groups(keys);
    let all: Vec<(f64, f64, &Measured)> = groups
        .into_iter()
        .zip([common, large])
        .filter_map(|((keys, larger), measured)| Some((keys, larger, measured?)))
        .collect();
    let sum = |of: fn(&Measured) -> f64| -> f64 {
        all.iter().map(|(keys, larger, measured)| keys * larger * of(measured)).sum()
    };
    let (taken, told) = (sum(|one| one.key_bytes), sum(|one| one.told_bytes));
    // A key that is too large to be read has the same encoding with any threshold.
    let unread = sample.unread_bytes(keys);
    let timed: Vec<(f64, Times)> =
        all.iter().filter_map(|(keys, _, measured)| Some((*keys, measured.times?))).collect();
    let weight: f64 = timed.iter().map(|(keys, _)| keys).sum();
    let mean = |of: fn(&Times) -> f64| {
        timed.iter().map(|(keys, times)| keys * of(times)).sum::<f64>() / weight
    };
    let mut encodings = BTreeMap::new();
    for (name, count) in all.iter().flat_map(|(.., measured)| &measured.encodings) {
        *encodings.entry(name.clone()).or_default() += count;
    }
    Measured {
        encodings,
        key_bytes: (taken + unread) / keys.max(1.0),
        told_bytes: (told + unread) / keys.max(1.0),
        times: (weight > 0.0).then(|| Times {
            load_us: mean(|one| one.load_us),
            read_us: mean(|one| one.read_us),
            write_us: mean(|one| one.write_us),
        }),
    }
}

/// Converts a measurement to the costs of a configuration of a server that needs `base_bytes` without keys; inserts
/// and scans have no cost, as they are not measured.
#[must_use]
pub fn costs(base_bytes: f64, measured: &Measured) -> Costs {
    let times = measured.times.unwrap_or(Times { load_us: 0.0, read_us: 0.0, write_us: 0.0 });
    let Times { load_us, read_us, write_us } = times;
    let mut operation_s = [0.0; KINDS];
    operation_s[..2].copy_from_slice(&[read_us / 1e6, write_us / 1e6]);
    Costs {
        base_bytes,
        entry_bytes: measured.key_bytes,
        load_s: load_us / 1e6,
        operation_s,
        change_s: 0.0,
    }
}

/// Describes the decision between present and candidate thresholds in words.
fn advice(answer: &Answer, decision: &Decision, question: &Question) -> String {
    let names: Vec<String> =
        question.asked.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (names, wanted) = (names.join(" "), number(answer.keys_wanted));
    let (present, asked) = (&answer.present, &answer.asked);
    if !explains(answer.explained) {
        return format!(
            "No verdict: the sample explains {:.0} % of the memory in use, and within a tenth of it is needed. Sample more keys \
             (--keys), or find out what else takes memory there (MEMORY STATS).",
            100.0 * answer.explained
        );
    }
    if present.measured.encodings == asked.measured.encodings {
        return format!(
            "Stay: no key of the sample is kept another way with {names}, so that nothing is gained."
        );
    }
    let memory = compared(present.measured.key_bytes, asked.measured.key_bytes);
    let time = match (present.operation_us, asked.operation_us) {
        (Some(old), Some(new)) => {
            let share = compared(old, new);
            format!("an operation {share} processor time ({old:.2} to {new:.2} µs)")
        }
        _ => "the time of operations is not known".into(),
    };
    let amounts = format!("a key takes {memory} memory, and {time}");
    if answer.limit_bytes.is_none() {
        return format!(
            "No limit is known, as the server's maxmemory is 0: say one. With {names} {amounts}."
        );
    }
    let most = |one: &Configuration| one.keys_max.map_or_else(|| "any".into(), number);
    match decision.choice {
        Some(0) => format!(
            "Stay: {wanted} keys fit, and up to {} would. With {names} up to {} would; {amounts}.",
            most(present),
            most(asked)
        ),
        Some(_) if present.fits == Some(true) => {
            format!("Change to {names}: {wanted} keys fit both ways; {amounts}.")
        }
        Some(_) => format!(
            "Change to {names}: {wanted} keys do not fit with the present thresholds, but up to {}; then up to {} do; \
             {amounts}. Keys that are there keep their encoding until they are written anew.",
            most(present),
            most(asked)
        ),
        None => {
            let (lacking, over) = decision.smallest_shortfall().unwrap_or((0, 0.0));
            let with = if lacking == 0 { "as it is".into() } else { format!("with {names}") };
            format!(
                "Neither holds {wanted} keys: {with} up to {} fit, and {:.1} MB more are needed for all.",
                most([present, asked][lacking]),
                over / 1e6 / (1.0 - question.headroom)
            )
        }
    }
}

/// Describes the relative difference of two values, such as `12 % less`.
fn compared(old: f64, new: f64) -> String {
    let percent = 100.0 * (new / old.max(f64::MIN_POSITIVE) - 1.0);
    let word = if percent < 0.0 { "less" } else { "more" };
    format!("{:.0} % {word}", percent.abs())
}

/// Formats a number as an integer with thousands separators.
fn number(of: f64) -> String {
    let digits = format!("{of:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_settings_that_keep_keys_compact_are_compared() {
        let asked = |name: &str, value: Option<&str>| {
            let asked = BTreeMap::from([(name.to_owned(), value.map(str::to_owned))]);
            settings(&asked).map_err(|error| error.to_string())
        };
        let told = asked("hash-max-listpack-value", Some("1kb")).unwrap();
        assert_eq!(told["hash-max-listpack-value"], "1024");
        assert_eq!(
            asked("hash-max-listpack-entries", None).unwrap()["hash-max-listpack-entries"],
            "512"
        );
        for (name, value, said) in [
            ("maxmemory", "1gb", "does not say which keys are kept compact"),
            ("hash-max-listpack-entries", "many", "a whole number"),
            ("hash-max", "1", "there is no setting"),
        ] {
            let error = asked(name, Some(value)).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(settings(&BTreeMap::new()).is_err());
        for name in FITTED {
            assert!(knobs::find(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn numbers_are_told_in_thousands() {
        let told = [0.0, 999.0, 1_000.0, 1_234_567.0].map(number);
        assert_eq!(told, ["0", "999", "1,000", "1,234,567"]);
    }

    fn configuration(key_bytes: f64, operation_us: f64, encoding: &str) -> Configuration {
        Configuration {
            settings: BTreeMap::new(),
            measured: Measured {
                encodings: BTreeMap::from([(encoding.to_owned(), 10)]),
                key_bytes,
                told_bytes: key_bytes,
                times: None,
            },
            needed_bytes: 0.0,
            keys_max: Some(1e5 / key_bytes),
            fits: Some(true),
            operation_us: Some(operation_us),
        }
    }

    /// The advice for so many keys, of which 1,000 fit now, and 4,000 with the other thresholds.
    fn advised(keys: f64, encodings: [&str; 2]) -> String {
        let costs = |entry_bytes, operation_s| Costs {
            base_bytes: 0.0,
            entry_bytes,
            load_s: 0.0,
            operation_s: [operation_s; KINDS],
            change_s: 0.0,
        };
        let mix = Mix::of_reads(0.5);
        let job = Job { present: keys, loaded: 0.0, operations: 1.0, mix };
        let limits = Limits { memory_bytes: 1e5, headroom: 0.0, gain_min: GAIN_MIN };
        let decision = choose(&[costs(100.0, 1.0), costs(25.0, 3.0)], 0, &job, &limits);
        let question = Question {
            asked: BTreeMap::from([("hash-max-listpack-entries".into(), "1024".into())]),
            keys: Some(keys),
            limit_bytes: None,
            headroom: 0.0,
            mix,
        };
        let mut present = configuration(100.0, 1.0, encodings[0]);
        present.fits = Some(keys <= 1_000.0);
        let answer = Answer {
            server: "10.0.0.1:6379".into(),
            versions: ["7.0.15".into(), "7.0.15".into()],
            keys: 900,
            sampled: 10,
            too_large: 0,
            used_bytes: 0,
            base_bytes: 0,
            explained: 1.0,
            key_bytes: 100.0,
            encodings: BTreeMap::new(),
            limit_bytes: Some(100_000),
            headroom: 0.0,
            policy: "noeviction".into(),
            keys_wanted: keys,
            present,
            asked: configuration(25.0, 3.0, encodings[1]),
            choice: None,
            advice: String::new(),
        };
        advice(&answer, &decision, &question)
    }

    #[test]
    fn advice_says_what_is_gained_what_it_costs_and_what_is_lacking() {
        let both = ["hash hashtable", "hash listpack"];
        for (keys, parts) in [
            (
                900.0,
                ["Stay: 900 keys fit, and up to 1,000", "200 % more processor time (1.00 to 3.00"],
            ),
            (
                1_001.0,
                [
                    "1,001 keys do not fit with the present thresholds, but up to 1,000; then up to 4,000 do",
                    "75 % less memory",
                ],
            ),
            (4_400.0, ["Neither holds 4,400 keys", "up to 4,000 fit, and 0.0 MB more"]),
        ] {
            let text = advised(keys, both);
            for part in parts {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        let same = advised(1_001.0, ["hash listpack"; 2]);
        assert!(same.contains("no key of the sample is kept another way"), "{same}");
    }
}
