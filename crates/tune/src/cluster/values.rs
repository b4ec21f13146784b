//! The values that a setting takes: types, units and bounds.

use std::fmt;

/// The values that a setting takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Whole numbers between these.
    Count(u64, u64),
    /// Whole numbers between these, below zero too.
    Integer(i64, i64),
    /// Sizes in this unit, between these numbers of it.
    Size(&'static str, u64, u64),
    /// Sizes between these numbers of bytes; `kb`, `mb` and `gb` may stand behind the number, as in `redis.conf`.
    Bytes(u64, u64),
    /// Rates in this unit, between these numbers of it; 0 is no limit.
    Rate(&'static str, u64, u64),
    /// Times in this unit, between these numbers of it.
    Time(&'static str, u64, u64),
    /// Fractions between these.
    Share(f64, f64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Pairs of whole numbers above zero, or nothing.
    Pairs,
}

/// A value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Without its unit, as a command takes it.
    pub number: String,
    /// Its unit; empty if it has none.
    pub unit: String,
}

impl Value {
    /// A value that a file had, as it was written there.
    pub(crate) fn as_written(text: &str) -> Self {
        Self { number: text.to_owned(), unit: String::new() }
    }
}

/// As the file has it.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, self.unit)
    }
}

impl Values {
    /// The value that the text is, if it is one of these.
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

/// A number of bytes: `k` is 1000 and `kb` 1024, and so on.
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

/// The values, as a message names them.
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

/// A number of bytes in the largest unit that it is whole in.
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
