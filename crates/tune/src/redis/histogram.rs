//! Latencies of commands since the server's start (`LATENCY HISTOGRAM`): buckets whose bounds are powers of two, in µs.
//! The difference of two readings has the latencies in between, so that an old load does not hide a new one, as it does
//! in the percentiles of INFO.

use std::collections::BTreeMap;

use redis::Value;

/// Number of commands in each bucket of latency, by the bucket's upper bound in µs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Histogram(BTreeMap<u64, u64>);

impl Histogram {
    /// Builds a histogram from buckets, each with its upper bound in µs and its count.
    #[cfg(test)]
    pub(super) fn of(buckets: &[(u64, u64)]) -> Self {
        Self(buckets.iter().copied().collect())
    }

    /// Adds the counts of another histogram to this one, bucket by bucket.
    pub(super) fn add(&mut self, other: &Self) {
        for (bound, count) in &other.0 {
            *self.0.entry(*bound).or_default() += count;
        }
    }

    /// Returns the counts since an earlier reading of the same server; all counts if the server has restarted in
    /// between.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let of = |bound: &u64| earlier.0.get(bound).copied().unwrap_or(0);
        let has = |bound: &u64| self.0.get(bound).copied().unwrap_or(0);
        if earlier.0.iter().any(|(bound, count)| has(bound) < *count) {
            return self.clone();
        }
        let new = self.0.iter().map(|(bound, count)| (*bound, count - of(bound)));
        Self(new.filter(|(_, count)| *count > 0).collect())
    }

    /// Returns the latency, in µs, that this share (0 to 1) of the commands did not exceed; None without commands.
    /// Latencies are assumed to be uniform by logarithm within a bucket, whose bounds differ by a factor of two.
    pub(super) fn quantile(&self, share: f64) -> Option<f64> {
        let all: u64 = self.0.values().sum();
        if all == 0 {
            return None;
        }
        let (wanted, mut below) = (share * all as f64, 0.0);
        for (bound, count) in &self.0 {
            let within = *count as f64;
            if below + within >= wanted {
                let part = ((wanted - below) / within).clamp(0.0, 1.0);
                return Some(*bound as f64 * (part - 1.0).exp2());
            }
            below += within;
        }
        unreachable!("the last bucket reaches the whole")
    }
}

/// Parses a reply to `LATENCY HISTOGRAM` into histograms by command; None if it has another structure.
pub(super) fn parse(answer: &Value) -> Option<BTreeMap<String, Histogram>> {
    pairs(answer)?
        .into_iter()
        .map(|(name, facts)| {
            let facts = pairs(facts)?;
            let buckets = facts.into_iter().find(|(name, _)| {
                redis::from_redis_value_ref::<String>(name)
                    .is_ok_and(|name| name == "histogram_usec")
            });
            let mut below = 0;
            let mut histogram = BTreeMap::new();
            for (bound, up_to) in pairs(buckets?.1)? {
                let bound = redis::from_redis_value_ref(bound).ok()?;
                let up_to: u64 = redis::from_redis_value_ref(up_to).ok()?;
                histogram.insert(bound, up_to.checked_sub(below)?);
                below = up_to;
            }
            Some((redis::from_redis_value_ref(name).ok()?, Histogram(histogram)))
        })
        .collect()
}

/// Returns the pairs of a map, which older protocol versions encode as a list; None for other values.
fn pairs(value: &Value) -> Option<Vec<(&Value, &Value)>> {
    match value {
        Value::Map(pairs) => Some(pairs.iter().map(|(name, value)| (name, value)).collect()),
        Value::Array(all) => Some(all.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn answer(buckets: &[(i64, i64)]) -> Value {
        let numbers =
            buckets.iter().flat_map(|(bound, count)| [Value::Int(*bound), Value::Int(*count)]);
        let facts = Value::Array(vec![
            text("calls"),
            Value::Int(buckets.last().map_or(0, |(_, count)| *count)),
            text("histogram_usec"),
            Value::Array(numbers.collect()),
        ]);
        Value::Array(vec![text("hset"), facts])
    }

    #[test]
    fn what_was_counted_before_does_not_hide_what_is_slow_now() {
        let of = |buckets: &[(i64, i64)]| parse(&answer(buckets)).unwrap()["hset"].clone();
        let before = of(&[(4, 900_000), (8, 990_000), (16, 1_000_000)]);
        assert!((before.quantile(0.5).unwrap() - 4.0 * 2_f64.powf(5.0 / 9.0 - 1.0)).abs() < 1e-9);
        let now = of(&[(4, 900_000), (8, 990_500), (16, 1_000_500), (256, 1_001_000)]);
        let new = now.since(&before);
        assert_eq!(new, Histogram::of(&[(8, 500), (256, 500)]));
        assert!(new.quantile(0.99).unwrap() > 200.0 && now.quantile(0.99).unwrap() < 16.0);
        // A server that has begun anew.
        assert_eq!(before.since(&now), before);
        assert_eq!(before.since(&before).quantile(0.5), None);
    }

    #[test]
    fn quantiles_are_those_of_the_times_within_a_factor_of_two() {
        let mut times: Vec<u64> = (0..5_000_u64).map(|n| 1 + n * n % 7_919).collect();
        let mut counts = BTreeMap::new();
        for time in &times {
            *counts.entry(time.next_power_of_two()).or_insert(0_u64) += 1;
        }
        times.sort_unstable();
        for share in [0.01, 0.25, 0.5, 0.9, 0.99, 1.0] {
            let told = Histogram(counts.clone()).quantile(share).unwrap();
            let rank = (share * 5_000.0_f64).ceil() as usize;
            let ratio = told / times[rank - 1] as f64;
            assert!((0.5..=2.0).contains(&ratio), "{share}: {told}, {ratio}");
        }
    }

    #[test]
    fn an_answer_of_another_form_is_none() {
        assert_eq!(parse(&Value::Okay), None);
        assert_eq!(parse(&answer(&[(4, 9), (8, 7)])), None);
    }
}
