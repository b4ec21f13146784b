//! Parsers of limits on the command line: a number in a convenient unit, or `none`.

/// A limit in the unit of the job record (documents or bytes per second, or ms of lag); `None` for no limit, written
/// `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

/// Parses a limit as a whole number of documents or bytes, or `none`.
pub fn whole(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    text.parse()
        .map(|number| Limit(Some(number)))
        .map_err(|_| format!("{text:?} is neither a whole number nor `none`"))
}

/// Parses a limit in megabytes or `none`, and returns it in bytes.
pub fn millions(text: &str) -> Result<Limit, String> {
    scaled(text, 1e6)
}

/// Parses a limit in seconds or `none`, and returns it in milliseconds.
pub fn thousands(text: &str) -> Result<Limit, String> {
    scaled(text, 1e3)
}

/// Parses a factor from 1.05 to 100, and returns it in percent: 1.5 is 150.
pub fn times(text: &str) -> Result<u32, String> {
    let number: f64 = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if !(1.05..=100.0).contains(&number) {
        return Err(format!("{text} is out of range: it must be from 1.05 to 100"));
    }
    Ok((number * 100.0).round() as u32)
}

fn scaled(text: &str, by: f64) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let number: f64 =
        text.parse().map_err(|_| format!("{text:?} is neither a number nor `none`"))?;
    let scaled = (number * by).round();
    // Above 2^53, not every whole number can be represented as a float.
    let largest = 2_f64.powi(53);
    if !(0.0..=largest).contains(&scaled) {
        return Err(format!("{text} is out of range: it must be from 0 to {}", largest / by));
    }
    Ok(Limit(Some(scaled as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_number_or_none() {
        assert_eq!(whole("500"), Ok(Limit(Some(500))));
        assert_eq!(millions("2.5"), Ok(Limit(Some(2_500_000))));
        assert_eq!(thousands("0.2"), Ok(Limit(Some(200))));
        for parse in [whole, millions, thousands] {
            assert_eq!(parse("none"), Ok(Limit(None)));
        }
    }

    #[test]
    fn a_slowdown_is_a_factor_above_one() {
        assert_eq!(times("1.5"), Ok(150));
        for text in ["1", "0", "-2", "NaN", "inf", "half", "1000"] {
            assert!(times(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for text in ["", "-1", "fast", "1e300", "NaN", "inf"] {
            for parse in [whole, millions, thousands] {
                assert!(parse(text).is_err(), "{text}");
            }
        }
    }
}
