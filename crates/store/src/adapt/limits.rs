//! The limits of adaptation, and how they are changed at run time.
//!
//! A limit binds adaptation from the next decision on. Lowering a limit below the present state removes nothing: no
//! further partition is split, no replica is added, and existing ones are merged or removed only where the predicted
//! saving exceeds the cost. The memory limit is the exception: a value below the bytes that some site holds is
//! refused.
//!
//! Invariant: a request changes all of its limits, or none.

use std::fmt;

use imago_plan::store::guardrails::Limits;
use imago_plan::store::parameters::Parameters;
use serde::{Deserialize, Serialize};

use super::options::{Mode, Options};

/// Maximum valid horizon of a request, in seconds.
const HORIZON_S_MAX: f64 = 86_400.0;
/// Maximum valid value of `partitions_max`.
const PARTITIONS_MAX: u32 = 100_000;
/// Maximum valid value of `changes_s_max`, in operators per second.
const CHANGES_S_MAX: f64 = 1_000.0;
/// Number of bytes in a MB, the unit of memory limits.
const MB: u64 = 1_000_000;

/// The limits of adaptation that a user can change while the store runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdaptLimits {
    /// Whether plans whose predicted saving exceeds their cost are executed or only reported.
    pub mode: Mode,
    /// Horizon: time for which a change of the design is credited with its predicted savings, in seconds.
    pub horizon_s: f64,
    /// Maximum number of partitions of the store up to which adaptation splits.
    pub partitions_max: u32,
    /// Maximum number of replicas that adaptation gives a partition, its master not counted; `None`: no limit.
    pub replicas_max: Option<u16>,
    /// Maximum size of the keys and values that adaptation lets one site hold, in MB (10⁶ bytes); `None`: no limit.
    pub memory_max_mb: Option<u64>,
    /// Maximum number of operators per second that adaptation executes, on average.
    pub changes_s_max: f64,
}

impl Default for AdaptLimits {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            horizon_s: Parameters::default().horizon_s,
            partitions_max: 1_000,
            replicas_max: None,
            memory_max_mb: None,
            changes_s_max: Limits::default().changes_s_max,
        }
    }
}

/// A request to change limits of adaptation; `None` leaves a limit as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsRequest {
    /// Whether plans whose predicted saving exceeds their cost are executed or only reported; `None`: unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Horizon: time for which a change of the design is credited with its predicted savings, in seconds; `None`:
    /// unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon_s: Option<f64>,
    /// Maximum number of partitions of the store up to which adaptation splits; `None`: unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions_max: Option<u32>,
    /// Maximum number of replicas that adaptation gives a partition, its master not counted; `None`: unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas_max: Option<AtMost<u16>>,
    /// Maximum size of the keys and values that adaptation lets one site hold, in MB (10⁶ bytes); `None`: unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_max_mb: Option<AtMost<u64>>,
    /// Maximum number of operators per second that adaptation executes, on average; `None`: unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes_s_max: Option<f64>,
}

/// A limit in a request: a number, or `"none"` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a limit is a number, or \"none\"")]
pub enum AtMost<T> {
    /// The quantity is limited to this number.
    Some(T),
    /// The quantity is not limited.
    Any(Unlimited),
}

/// The word `none` in a request, which removes a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlimited {
    /// Removes the limit.
    None,
}

impl<T> AtMost<T> {
    fn some(self) -> Option<T> {
        match self {
            Self::Some(most) => Some(most),
            Self::Any(Unlimited::None) => None,
        }
    }
}

/// The limits of adaptation in force, and which of them the store exceeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitsReport {
    /// The limits in force.
    #[serde(flatten)]
    pub limits: AdaptLimits,
    /// A sentence for each limit that the store exceeds already, which says by how much.
    pub notes: Vec<String>,
}

/// The quantities of the store that limits of adaptation are compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoreUsage {
    pub partitions: usize,
    /// Number of replicas of the partition that has most, its master not counted.
    pub replicas: usize,
    /// For each site its number, and the bytes of keys and values that it holds.
    pub bytes: Vec<(u16, u64)>,
    pub sites: usize,
}

/// The reason why a request to change limits was not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitsFault {
    /// A requested value is invalid, for this reason.
    Senseless(String),
    /// The store already exceeds the requested memory limit; the text names the site and its size.
    Refused(String),
}

impl fmt::Display for LimitsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Senseless(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}

impl AdaptLimits {
    pub(super) fn of(options: &Options) -> Self {
        let Options { mode, parameters, limits, .. } = options;
        Self {
            mode: *mode,
            horizon_s: parameters.horizon_s,
            partitions_max: u32::try_from(parameters.thresholds.partitions_max).unwrap_or(u32::MAX),
            replicas_max: u16::try_from(parameters.thresholds.replicas_max).ok(),
            memory_max_mb: parameters.memory_max.map(|bytes| bytes / MB),
            changes_s_max: limits.changes_s_max,
        }
    }

    /// Sets these limits in the planner's options, and leaves the other options as they are.
    pub fn set(&self, options: &mut Options) {
        options.mode = self.mode;
        options.parameters.horizon_s = self.horizon_s;
        options.parameters.memory_max = self.memory_max_mb.map(|mb| mb.saturating_mul(MB));
        let thresholds = &mut options.parameters.thresholds;
        thresholds.partitions_max = self.partitions_max as usize;
        thresholds.replicas_max = self.replicas_max.map_or(usize::MAX, usize::from);
        options.limits.changes_s_max = self.changes_s_max;
    }

    /// Returns these limits with the changes of a request.
    #[must_use]
    pub fn with(&self, request: &LimitsRequest) -> Self {
        Self {
            mode: request.mode.unwrap_or(self.mode),
            horizon_s: request.horizon_s.unwrap_or(self.horizon_s),
            partitions_max: request.partitions_max.unwrap_or(self.partitions_max),
            replicas_max: request.replicas_max.map_or(self.replicas_max, AtMost::some),
            memory_max_mb: request.memory_max_mb.map_or(self.memory_max_mb, AtMost::some),
            changes_s_max: request.changes_s_max.unwrap_or(self.changes_s_max),
        }
    }

    /// Checks that the limits are valid in a store with the number of sites in `held`.
    pub(super) fn check(&self, held: &StoreUsage) -> Result<(), LimitsFault> {
        let within = |value: f64, most: f64| value.is_finite() && value > 0.0 && value <= most;
        let senseless = |why: String| Err(LimitsFault::Senseless(why));
        if !within(self.horizon_s, HORIZON_S_MAX) {
            return senseless(format!(
                "the horizon of {} s is not valid: it must be above 0 and at most {HORIZON_S_MAX} \
                 s",
                self.horizon_s
            ));
        }
        if !(1..=PARTITIONS_MAX).contains(&self.partitions_max) {
            return senseless(format!(
                "partitions-max {} is not valid: it must be from 1 to {PARTITIONS_MAX}",
                self.partitions_max
            ));
        }
        if !within(self.changes_s_max, CHANGES_S_MAX) {
            return senseless(format!(
                "changes-s-max {} is not valid: it must be above 0 and at most {CHANGES_S_MAX}; to \
                 stop changes, pause adaptation or set its mode to advise",
                self.changes_s_max
            ));
        }
        if let Some(most) = self.replicas_max.filter(|most| usize::from(*most) >= held.sites.max(1))
        {
            return senseless(format!(
                "replicas-max {most} is more than there can be: with {} sites a partition has at most {} replicas \
                 besides its master",
                held.sites,
                held.sites.saturating_sub(1)
            ));
        }
        if self.memory_max_mb == Some(0) {
            return senseless("memory-max 0 is not valid: it must be 1 MB at least".to_owned());
        }
        Ok(())
    }

    /// Checks that no site holds more keys and values than the memory limit allows; the error names the site that
    /// holds most.
    pub(super) fn check_memory(&self, held: &StoreUsage) -> Result<(), LimitsFault> {
        let Some(mb) = self.memory_max_mb else { return Ok(()) };
        let fullest = held.bytes.iter().max_by_key(|(_, bytes)| *bytes);
        match fullest.filter(|(_, bytes)| *bytes > mb.saturating_mul(MB)) {
            Some((site, bytes)) => Err(LimitsFault::Refused(format!(
                "memory-max {mb} MB is less than site {site} holds now, {:.1} MB of keys and values: remove replicas \
                 there, or move partitions away, first",
                *bytes as f64 / MB as f64
            ))),
            None => Ok(()),
        }
    }

    /// Returns a sentence for each limit that the store exceeds, which says by how much. The excess stays.
    pub(super) fn notes(&self, held: &StoreUsage) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(most) = self.memory_max_mb {
            let full = held.bytes.iter().filter(|(_, bytes)| *bytes > most.saturating_mul(MB));
            notes.extend(full.map(|(site, bytes)| {
                format!(
                    "site {site} holds {:.1} MB, more than memory-max {most} MB: adaptation adds \
                     no copies there, and removes them only where that pays",
                    *bytes as f64 / MB as f64
                )
            }));
        }
        if held.partitions > self.partitions_max as usize {
            notes.push(format!(
                "there are {} partitions, more than partitions-max {}: adaptation splits none, and merges only where \
                 that pays",
                held.partitions, self.partitions_max
            ));
        }
        if let Some(most) = self.replicas_max.filter(|most| held.replicas > usize::from(*most)) {
            notes.push(format!(
                "a partition has {} replicas, more than replicas-max {most}: adaptation adds none to it, and removes \
                 them only where that pays",
                held.replicas
            ));
        }
        notes
    }
}

impl LimitsRequest {
    /// Merges two requests into one; where both set a limit, that of `newer` has priority.
    #[must_use]
    pub fn and(self, newer: &Self) -> Self {
        Self {
            mode: newer.mode.or(self.mode),
            horizon_s: newer.horizon_s.or(self.horizon_s),
            partitions_max: newer.partitions_max.or(self.partitions_max),
            replicas_max: newer.replicas_max.or(self.replicas_max),
            memory_max_mb: newer.memory_max_mb.or(self.memory_max_mb),
            changes_s_max: newer.changes_s_max.or(self.changes_s_max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> StoreUsage {
        StoreUsage {
            partitions: 12,
            replicas: 2,
            bytes: vec![(0, 3_200_000), (1, 900_000)],
            sites: 3,
        }
    }

    fn asked(json: &str) -> Result<AdaptLimits, String> {
        let request =
            serde_json::from_str::<LimitsRequest>(json).map_err(|fault| fault.to_string())?;
        let limits = AdaptLimits::default().with(&request);
        limits.check(&usage()).map_err(|fault| fault.to_string())?;
        limits.check_memory(&usage()).map_err(|fault| fault.to_string())?;
        Ok(limits)
    }

    #[test]
    fn only_named_limits_change_and_none_lifts_one() {
        let limits = asked(r#"{"mode":"on","replicas_max":1,"memory_max_mb":4}"#).unwrap();
        let expected = AdaptLimits {
            mode: Mode::On,
            replicas_max: Some(1),
            memory_max_mb: Some(4),
            ..AdaptLimits::default()
        };
        assert_eq!(limits, expected);
        let lifted =
            serde_json::from_str(r#"{"replicas_max":"none","memory_max_mb":"none"}"#).unwrap();
        assert_eq!(limits.with(&lifted), AdaptLimits { mode: Mode::On, ..AdaptLimits::default() });
        assert_eq!(asked("{}").unwrap(), AdaptLimits::default());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (json, why) in [
            (r#"{"horizon_s":0}"#, "horizon of 0 s"),
            (r#"{"horizon_s":1e9}"#, "at most 86400"),
            (r#"{"partitions_max":0}"#, "partitions-max 0"),
            (r#"{"partitions_max":-1}"#, "-1"),
            (r#"{"changes_s_max":0}"#, "pause adaptation"),
            (r#"{"replicas_max":3}"#, "at most 2 replicas"),
            (r#"{"replicas_max":"some"}"#, "a number, or \"none\""),
            (r#"{"memory_max_mb":0}"#, "1 MB at least"),
            (r#"{"memory_max_mb":3}"#, "site 0 holds now, 3.2 MB"),
            (r#"{"mode":"off"}"#, "off"),
            (r#"{"partition_max":5}"#, "partition_max"),
        ] {
            let fault = asked(json).expect_err(json);
            assert!(fault.contains(why), "{json}: {fault}");
        }
    }

    #[test]
    fn what_is_beyond_a_limit_stays_and_is_told() {
        let limits = asked(r#"{"partitions_max":8,"replicas_max":1}"#).unwrap();
        let notes = limits.notes(&usage());
        assert!(notes[0].contains("12 partitions") && notes[1].contains("2 replicas"), "{notes:?}");
        assert_eq!(AdaptLimits::default().notes(&usage()), Vec::<String>::new());
    }

    #[test]
    fn options_hold_them() {
        let limits = asked(
            r#"{"mode":"on","horizon_s":3.5,"partitions_max":8,"replicas_max":1,"memory_max_mb":4}"#,
        );
        let limits = limits.unwrap();
        let mut options = Options {
            mode: Mode::Advise,
            parameters: Parameters::default(),
            limits: Limits::default(),
            seed: 1,
        };
        limits.set(&mut options);
        assert_eq!(AdaptLimits::of(&options), limits);
        AdaptLimits::default().set(&mut options);
        assert_eq!(AdaptLimits::of(&options), AdaptLimits::default());
    }
}
