//! What a server's data would take, and its operations would cost, with other thresholds; and which of both holds more keys.
//!
//! Redis keeps a small hash, sorted set or set of numbers compact, and one beyond a threshold as a table: the one takes less
//! memory, the other less time. What that amounts to depends on the data, so a sample of the server's own keys is written to a
//! scratch server with the present thresholds and with the ones in question, and measured there. The server itself is only
//! read. (SOPHIA, §5, tuned Redis's virtual memory, which is gone: this trade is left.)
//!
//! What is right is decided by [`imago_plan::tune::capacity`].

mod sample;
mod scratch;

use std::collections::BTreeMap;

use imago_plan::tune::capacity::{Assessment, Costs, Decision, Job, Limits, Verdict, choose};
use imago_plan::tune::workload::{KINDS, Mix};
use serde::Serialize;

use super::connection::Node;
use super::knobs;
use crate::cluster::{Error, Result};

pub use sample::{Sample, Server};
pub use scratch::{Measured, Scratch, Times};

/// The settings that are measured: those by which a key is compact or not.
pub const FITTED: [&str; 5] = [
    "hash-max-listpack-entries",
    "hash-max-listpack-value",
    "zset-max-listpack-entries",
    "zset-max-listpack-value",
    "set-max-intset-entries",
];

/// The gain below which thresholds are better left as they are.
const GAIN_MIN: f64 = 0.05;
/// Operations in whose time configurations are compared; any number would do.
const OPERATIONS: f64 = 1e6;

/// Values of settings, checked, as the server tells them.
///
/// # Errors
/// There is no such setting, it takes no such value, or it does not make keys compact.
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

/// What is asked.
#[derive(Clone, Debug)]
pub struct Question {
    /// The thresholds to compare the present ones with, as [`settings`] checks them.
    pub asked: BTreeMap<String, String>,
    /// Keys that the server should hold; none: those that it has.
    pub keys: Option<f64>,
    /// Memory to plan for, in bytes; none: the server's `maxmemory`.
    pub limit_bytes: Option<u64>,
    /// The share of it that is to stay free.
    pub headroom: f64,
    /// The mix of operations.
    pub mix: Mix,
}

/// Thresholds, and what they amount to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Configuration {
    /// Their values.
    pub settings: BTreeMap<String, String>,
    /// What was measured.
    #[serde(flatten)]
    pub measured: Measured,
    /// Memory that all keys would take, in bytes, with what is not for keys.
    pub needed_bytes: f64,
    /// Keys that fit, with the headroom; none without a limit.
    pub keys_max: Option<f64>,
    /// True if the keys that are asked for do.
    pub fits: bool,
    /// Processor time of an operation of the mix, in microseconds; none if no key of the sample has any.
    pub operation_us: Option<f64>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The server, `host:port`.
    pub server: String,
    /// Its version, and that of the server for measuring.
    pub versions: [String; 2],
    /// Its keys.
    pub keys: u64,
    /// Keys that were read.
    pub sampled: usize,
    /// Keys that were seen and are too large to be read.
    pub too_large: u64,
    /// Memory that counts towards its limit now, in bytes.
    pub used_bytes: u64,
    /// What of it is not for keys.
    pub base_bytes: u64,
    /// What the sample, taken for all keys, makes of `used_bytes`, as a ratio to that: near one, the sample is a fair one.
    pub explained: f64,
    /// What a key takes on the server now, in bytes: as it tells (`MEMORY USAGE`), and as much more as keys really took when
    /// they were measured with the present thresholds.
    pub key_bytes: f64,
    /// How the sampled keys are kept there.
    pub encodings: BTreeMap<String, u64>,
    /// Memory that is planned for, in bytes; none without a limit.
    pub limit_bytes: Option<u64>,
    /// The share of it that is to stay free.
    pub headroom: f64,
    /// What happens at the limit (`maxmemory-policy`).
    pub policy: String,
    /// Keys that are planned for.
    pub keys_wanted: f64,
    /// With the present thresholds, if all keys were written anew.
    pub present: Configuration,
    /// With the ones that are asked for.
    pub asked: Configuration,
    /// `present`, `asked`, or neither; none without a limit.
    pub choice: Option<&'static str>,
    /// The same in a sentence or two.
    pub advice: String,
}

/// Compares the server's present thresholds with others, by a sample of its keys on a scratch server.
///
/// # Errors
/// The server holds no key, or one of both does not do what is asked.
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
    scratch.take(sample).await?;
    let measured = scratch.measure(&[present.clone(), asked.clone()]).await?;
    let [of_present, of_asked] = <[Measured; 2]>::try_from(measured).expect("as many as asked for");
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
    let configuration = |number: usize, settings, measured: Measured| {
        let one: &Assessment = &decision.assessments[number];
        Configuration {
            settings,
            needed_bytes: one.peak_bytes,
            keys_max: Some(one.entries_max).filter(|most| most.is_finite()),
            fits: !matches!(one.verdict, Verdict::TooLarge { .. }),
            operation_us: measured.times.map(|_| 1e6 * one.job_s / OPERATIONS),
            measured,
        }
    };
    let really = of_present.key_bytes / of_present.told_bytes.max(1.0);
    let mut answer = Answer {
        server: node.address.clone(),
        versions: [server.version.clone(), scratch.version.clone()],
        keys: server.keys,
        sampled: sample.len(),
        too_large: sample.too_large.0,
        used_bytes: server.used_bytes,
        base_bytes: server.base_bytes,
        explained: (base + server.keys as f64 * sample.key_bytes_of_all() * really)
            / (server.used_bytes as f64).max(1.0),
        key_bytes: sample.key_bytes() * really,
        encodings: sample.encodings(),
        limit_bytes,
        headroom: question.headroom,
        policy: server.policy.clone(),
        keys_wanted: wanted,
        present: configuration(0, present, of_present),
        asked: configuration(1, asked, of_asked),
        choice: limit_bytes.and(decision.choice).map(|number| ["present", "asked"][number]),
        advice: String::new(),
    };
    answer.advice = advice(&answer, &decision, question);
    Ok(answer)
}

/// A measured configuration as the decision takes it; inserts and scans are none of the operations.
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

/// The decision in words.
fn advice(answer: &Answer, decision: &Decision, question: &Question) -> String {
    let names: Vec<String> =
        question.asked.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (names, wanted) = (names.join(" "), number(answer.keys_wanted));
    let (present, asked) = (&answer.present, &answer.asked);
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
        Some(_) if present.fits => {
            format!("Change to {names}: {wanted} keys fit both ways; {amounts}.")
        }
        Some(_) => format!(
            "Change to {names}: {wanted} keys do not fit with the present thresholds, but up to {}; then up to {} do; \
             {amounts}. Keys that are there keep their encoding until they are written anew.",
            most(present),
            most(asked)
        ),
        None => {
            let (lacking, over) = decision.least_lacking().unwrap_or((0, 0.0));
            let with = if lacking == 0 { "as it is".into() } else { format!("with {names}") };
            format!(
                "Neither holds {wanted} keys: {with} up to {} fit, and {:.1} MB more are needed for all.",
                most([present, asked][lacking]),
                over / 1e6 / (1.0 - question.headroom)
            )
        }
    }
}

/// How much less or more one is than another.
fn compared(old: f64, new: f64) -> String {
    let percent = 100.0 * (new / old.max(f64::MIN_POSITIVE) - 1.0);
    let word = if percent < 0.0 { "less" } else { "more" };
    format!("{:.0} % {word}", percent.abs())
}

/// A whole number with its thousands apart.
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
            fits: true,
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
        present.fits = keys <= 1_000.0;
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
