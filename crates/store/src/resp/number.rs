//! Parses and formats integers in the only form that Redis accepts, without surrounding blanks, and numbers with
//! fractions in the format of C.

/// Parses a decimal integer of 64 bits; returns `None` for another text, also for one with blanks, a plus sign,
/// leading zeros, or minus zero.
pub(super) fn integer(digits: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match digits {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !is_negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut value = 0_u64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // The value of nineteen digits is below 2^64.
        value = value * 10 + u64::from(digit);
    }
    if is_negative { 0_i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() }
}

/// Appends the decimal form of an integer to `out`.
pub(super) fn decimal(value: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut first = digits.len();
    let mut left = value.unsigned_abs();
    loop {
        first -= 1;
        digits[first] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        first -= 1;
        digits[first] = b'-';
    }
    out.extend_from_slice(&digits[first..]);
}

/// Formats a number with at most `digits` significant digits, as `%.*g` of C does.
pub(super) fn general(value: f64, digits: usize) -> String {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    if value.is_nan() {
        return format!("{sign}nan");
    }
    if value.is_infinite() {
        return format!("{sign}inf");
    }
    let digits = digits.max(1);
    let scientific = format!("{:.*e}", digits - 1, value.abs());
    let (mantissa, exponent) = scientific.split_once('e').expect("it has an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    let without_zeros = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= digits as i32 {
        let mantissa = without_zeros(mantissa);
        let exponent_sign = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{exponent_sign}{:02}", exponent.abs());
    }
    let places = usize::try_from(digits as i32 - 1 - exponent).expect("it is not negative");
    format!("{sign}{}", without_zeros(&format!("{:.places$}", value.abs())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_one_form_is_an_integer() {
        for wrong in ["", "-", "+1", "01", "-0", "-01", " 1", "1 ", "1.0", "9223372036854775808"] {
            assert_eq!(integer(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(integer(b"-9223372036854775809"), None);
        assert_eq!(integer(b"99999999999999999999"), None);
    }

    #[test]
    fn fractions_are_written_as_in_c() {
        for (value, of_17, of_14) in [
            (0.0, "0", "0"),
            (-0.0, "-0", "-0"),
            (0.1, "0.10000000000000001", "0.1"),
            (2.71, "2.71", "2.71"),
            (1.1, "1.1000000000000001", "1.1"),
            (1e15, "1000000000000000", "1e+15"),
            (123_456_789_012_345_678.0, "1.2345678901234568e+17", "1.2345678901235e+17"),
            (0.0001, "0.0001", "0.0001"),
            (0.000_012_3, "1.2300000000000001e-05", "1.23e-05"),
            (-2.5, "-2.5", "-2.5"),
            (1e300, "1.0000000000000001e+300", "1e+300"),
            (f64::INFINITY, "inf", "inf"),
            (f64::NEG_INFINITY, "-inf", "-inf"),
        ] {
            assert_eq!((&*general(value, 17), &*general(value, 14)), (of_17, of_14));
        }
    }

    proptest! {
        #[test]
        fn an_integer_is_read_as_it_was_written(value: i64, small in -100..100_i64) {
            for value in [value, small] {
                let mut out = Vec::new();
                decimal(value, &mut out);
                prop_assert_eq!(&out, &value.to_string().into_bytes());
                prop_assert_eq!(integer(&out), Some(value));
            }
        }

        #[test]
        fn what_is_read_is_written_the_same(digits in "-?[0-9]{0,21}") {
            let value = integer(digits.as_bytes());
            let oracle = digits.parse::<i64>().ok().filter(|value| value.to_string() == digits);
            prop_assert_eq!(value, oracle);
        }
    }
}
