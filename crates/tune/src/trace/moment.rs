//! Parses times in the formats of monitoring systems: Prometheus (seconds, possibly fractional), Grafana (milliseconds,
//! or a date), InfluxDB (nanoseconds, or a date).

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Lower bounds of times in nanoseconds, microseconds and milliseconds since 1970, with the number of units per
/// second. As seconds, each bound would be at least 3,000 years from now, and in its own unit it is after 1973.
const UNITS: [(f64, f64); 3] = [(1e17, 1e9), (1e14, 1e6), (1e11, 1e3)];

/// Parses a time into seconds since 1970, rounded down; None if the text is invalid, or before 1970. A date without a
/// time zone is in UTC.
#[must_use]
pub fn seconds(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(number) = text.parse::<f64>() {
        let valid = (0.0..1e20).contains(&number);
        let unit = UNITS.iter().find(|(least, _)| number >= *least).map_or(1.0, |(_, unit)| *unit);
        return valid.then(|| (number / unit) as u64);
    }
    let with_t = text.replacen(' ', "T", 1);
    let at = [with_t.clone(), format!("{with_t}Z")];
    let at = at.iter().find_map(|text| OffsetDateTime::parse(text, &Rfc3339).ok())?;
    u64::try_from(at.unix_timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_known_in_each_form() {
        for text in [
            "1397088240",
            "1397088240.781",
            "1.39708824e9",
            "1397088240000",
            "1397088240123456",
            "1397088240000000000",
            "2014-04-10T00:04:00Z",
            "2014-04-10T00:04:00.250Z",
            "2014-04-10T02:04:00+02:00",
            "2014-04-10 00:04:00",
            "2014-04-10T00:04:00.000000000Z",
            " 1397088240 ",
        ] {
            assert_eq!(seconds(text), Some(1_397_088_240), "{text}");
        }
        assert_eq!(seconds("0"), Some(0));
        for text in
            ["", "-1", "NaN", "inf", "1e300", "yesterday", "2014-04-10", "1960-01-01T00:00:00Z"]
        {
            assert_eq!(seconds(text), None, "{text}");
        }
    }
}
