//! Parsers of the values of options that several verbs share.

use std::time::Duration;

use imago_tune::cassandra::{self, Consistency};

/// Parses a time span such as 250ms, 90s, 5m or 1h.
pub fn duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit_s = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err("write a number and a unit: ms, s, m or h".into()),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{number}` is not a number"))?;
    Duration::try_from_secs_f64(number * unit_s).map_err(|error| error.to_string())
}

/// Parses a share, a number from 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "it must be from 0 to 1".into())
}

/// Parses the name of a Cassandra consistency level.
pub fn consistency(text: &str) -> Result<Consistency, String> {
    let known = cassandra::connection::CONSISTENCIES;
    cassandra::connection::consistency(text).ok_or_else(|| format!("it must be {known}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spans_need_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("1.5h"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
        assert!(duration("10").is_err());
        assert!(duration("s").is_err());
        assert!(duration("1e400h").is_err());
    }
}
