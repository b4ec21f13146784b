//! Valid values of a database's settings: types, units and bounds.

use std::fmt;

/// Type, unit and bounds (inclusive) of the values that a setting accepts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Whole numbers from the first to the second, neither of them negative.
    Count(u64, u64),
    /// Whole numbers from the first to the second; they may be negative.
    Integer(i64, i64),
    /// Sizes in whole numbers of this unit, such as `MiB`, from the first number to the second.
    Size(&'static str, u64, u64),
    /// Sizes from the first number to the second, in bytes; suffixes such as `kb`, `mb` and `gb` are accepted, as in
    /// `redis.conf`.
    Bytes(u64, u64),
    /// Rates in whole numbers of this unit, such as `MiB/s`, from the first number to the second; 0 is no limit.
    Rate(&'static str, u64, u64),
    /// Durations in whole numbers of this unit, such as `ms`, from the first number to the second.
    Time(&'static str, u64, u64),
    /// Fractions from the first number to the second.
    Share(f64, f64),
    /// One of these words, which have no order.
    Word(&'static [&'static str]),
    /// A list of pairs of whole numbers above zero (as in Redis's `save`: seconds and changes), which may be empty.
    Pairs,
}

/// A valid value of a setting, split into number and unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value without its unit, as a command of the database takes it; for words, the word.
    pub number: String,
    /// Unit of the value, such as `MiB`; empty if the value has none.
    pub unit: String,
}

impl Value {
    /// Wraps a value that a node's file had, without parsing or checking it.
    pub(crate) fn as_written(text: &str) -> Self {
        Self { number: text.to_owned(), unit: String::new() }
    }
}

/// Formats the value with its unit, as in a configuration file.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, self.unit)
    }
}

impl Values {
    /// Parses the text of a value; None if it is not within these types and bounds.
    #[must_use]
    pub fn value(&self, text: &str) -> Option<Value> {
        let text = text.trim();
        let plain = |number: String| Value { number, unit: String::new() };
        let whole = |number: &str, unit: &str, least: u64, most: u64| {
            let number = number.trim().parse::<u64>().ok();
            let number = number.filter(|number| (least..=most).contains(number));
            number.map(|number| Value { number: number.to_string(), unit: unit.to_owned() })
        };
        match *self {
            Self::Count(least, most) => whole(text, "", least, most),
            Self::Integer(least, most) => {
                let number = text.parse::<i64>().ok();
                let number = number.filter(|number| (least..=most).contains(number));
                number.map(|number| plain(number.to_string()))
            }
            Self::Size(unit, least, most)
            | Self::Rate(unit, least, most)
            | Self::Time(unit, least, most) => {
                text.strip_suffix(unit).and_then(|number| whole(number, unit, least, most))
            }
            Self::Bytes(least, most) => {
                let number = bytes(text).filter(|number| (least..=most).contains(number));
                number.map(|number| plain(number.to_string()))
            }
            Self::Share(least, most) => {
                let number = text.parse::<f64>().ok();
                let number = number.filter(|number| (least..=most).contains(number));
                number.map(|number| plain(number.to_string()))
            }
            Self::Word(words) => words.contains(&text).then(|| plain(text.to_owned())),
            Self::Pairs => {
                let text = if text == "\"\"" { "" } else { text };
                let numbers: Vec<&str> = text.split_ascii_whitespace().collect();
                let are_numbers =
                    numbers.iter().all(|number| number.parse::<u32>().is_ok_and(|n| n > 0));
                (numbers.len().is_multiple_of(2) && are_numbers).then(|| plain(numbers.join(" ")))
            }
        }
    }
}

/// Parses a number of bytes in the syntax of `redis.conf` (`k` is 1000 and `kb` 1024, and so on); None if it is
/// invalid.
fn bytes(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 7] = [
        ("kb", 1 << 10),
        ("mb", 1 << 20),
        ("gb", 1 << 30),
        ("k", 1_000),
        ("m", 1_000_000),
        ("g", 1_000_000_000),
        ("b", 1),
    ];
    let text = text.to_ascii_lowercase();
    let found = UNITS.iter().find_map(|(unit, size)| Some((text.strip_suffix(unit)?, *size)));
    let (number, size) = found.unwrap_or((&text, 1));
    number.parse::<u64>().ok()?.checked_mul(size)
}

/// Formats a description of the valid values, for messages.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(least, most) => write!(f, "a whole number from {least} to {most}"),
            Self::Integer(least, most) => write!(f, "a whole number from {least} to {most}"),
            Self::Size(unit, least, most)
            | Self::Rate(unit, least, most)
            | Self::Time(unit, least, most) => write!(f, "{least}{unit} to {most}{unit}"),
            Self::Bytes(least, most) => write!(f, "{} to {}", shown(*least), shown(*most)),
            Self::Share(least, most) => write!(f, "a number from {least} to {most}"),
            Self::Word(words) => write!(f, "one of {}", words.join(", ")),
            Self::Pairs => f.write_str("pairs of seconds and changes, or nothing"),
        }
    }
}

/// Formats a number of bytes in the largest unit that gives a whole number.
fn shown(bytes: u64) -> String {
    let units = [("gb", 1_u64 << 30), ("mb", 1 << 20), ("kb", 1 << 10)];
    let whole = units.into_iter().find(|(_, size)| bytes > 0 && bytes.is_multiple_of(*size));
    whole.map_or(bytes.to_string(), |(unit, size)| format!("{}{unit}", bytes / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_as_redis_tells_them() {
        let value = |text| Values::Bytes(0, 1 << 40).value(text).map(|value| value.to_string());
        for (text, bytes) in [
            ("0", "0"),
            ("64mb", "67108864"),
            ("64M", "64000000"),
            ("1GB", "1073741824"),
            ("512b", "512"),
        ] {
            assert_eq!(value(text).as_deref(), Some(bytes), "{text}");
        }
        for text in ["", "mb", "-1", "1tb", "99999999999gb", "1.5gb"] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(Values::Bytes(1 << 20, 3 << 30).to_string(), "1mb to 3gb");
    }

    #[test]
    fn pairs_and_numbers_below_zero() {
        let value = |values: Values, text| values.value(text).map(|value| value.to_string());
        assert_eq!(value(Values::Pairs, "3600  1 300 100").as_deref(), Some("3600 1 300 100"));
        assert_eq!(value(Values::Pairs, "").as_deref(), Some(""));
        assert_eq!(value(Values::Pairs, "\"\"").as_deref(), Some(""));
        assert_eq!(value(Values::Pairs, "3600"), None);
        assert_eq!(value(Values::Pairs, "3600 0"), None);
        assert_eq!(value(Values::Integer(-5, 64), "-2").as_deref(), Some("-2"));
        assert_eq!(value(Values::Integer(-5, 64), "-6"), None);
    }
}
