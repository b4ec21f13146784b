//! `--maxmemory`: a number of bytes, with the units of Redis's configuration.

/// Parses a number of bytes as in `redis.conf`: `100mb` is 100 × 1024 × 1024, `100m` is 100 × 1000 × 1000.
pub fn bytes(typed: &str) -> Result<u64, String> {
    let wrong = || "it is a number of bytes, such as 2gb, 500mb or 1073741824".to_owned();
    let lower = typed.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: u64 = match &lower[digits.len()..] {
        "" | "b" => 1,
        "k" => 1_000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn units_are_those_of_redis() {
        let typed = ["0", "1073741824", "1gb", "1G", "512mb", "3k", "7b"];
        let read = [0, 1 << 30, 1 << 30, 1_000_000_000, 512 << 20, 3_000, 7];
        assert_eq!(typed.map(|typed| bytes(typed).unwrap()), read);
        for wrong in ["", "mb", "-1", "1.5gb", "1tb", "99999999999999999999", "9999999999999gb"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
