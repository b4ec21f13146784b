//! Patterns of keys, in the syntax of MATCH: `*`, `?`, `[a-c]`, `[^a]`, and `\` before a literal character.
//!
//! The match is not recursive: if the text after a star does not match, the star takes one byte more. Stars before
//! the last one need not be retried, because their first matches are as good as any. So a match takes time at most
//! proportional to the product of the lengths of pattern and text.

/// Returns true if the pattern matches the whole text.
pub(super) fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The position after the last star in the pattern, and the position in the text after the bytes that the
    // star took.
    let mut star = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
        } else if let Some(length) = one(&pattern[p..], text[t]) {
            (p, t) = (p + length, t + 1);
        } else if let Some((behind, taken)) = star {
            (p, t) = (behind, taken + 1);
            star = Some((behind, t));
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Returns the length in bytes of the pattern's first part, which is not a star, if that part matches the byte;
/// otherwise `None`.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    let (does_fit, length) = match pattern {
        [] => (false, 0),
        [b'?', ..] => (true, 1),
        [b'[', set @ ..] => {
            let (does_fit, length) = in_set(set, byte);
            (does_fit, length + 1)
        }
        [b'\\', escaped, ..] => (*escaped == byte, 2),
        [literal, ..] => (*literal == byte, 1),
    };
    does_fit.then_some(length)
}

/// Returns whether the byte is in the set at the beginning of `set`, after its opening bracket, and the length of the
/// set in bytes with its closing bracket. A set that is not closed ends with the pattern.
fn in_set(set: &[u8], byte: u8) -> (bool, usize) {
    let is_negated = set.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    let mut is_in = false;
    loop {
        let length = match &set[at..] {
            [] => return (is_in != is_negated, at),
            [b'\\', escaped, ..] => {
                is_in |= *escaped == byte;
                2
            }
            [b']', ..] => return (is_in != is_negated, at + 1),
            [one, b'-', other, ..] => {
                is_in |= (*one.min(other)..=*one.max(other)).contains(&byte);
                3
            }
            [one, ..] => {
                is_in |= *one == byte;
                1
            }
        };
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Tries everything that a star may take.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], _) => text.is_empty(),
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|taken| naive(rest, &text[taken..])),
            (_, []) => false,
            (_, [byte, rest @ ..]) => {
                one(pattern, *byte).is_some_and(|length| naive(&pattern[length..], rest))
            }
        }
    }

    fn check(pattern: &str, fit: &[&str], unfit: &[&str]) {
        for text in fit {
            assert!(fits(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for text in unfit {
            assert!(!fits(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn each_kind_of_part_fits_what_it_says() {
        check("*", &["", "a", "abc"], &[]);
        check("a*c", &["ac", "abc", "abcc"], &["a", "ab", "bc", "acb"]);
        check("h?llo", &["hello", "hallo"], &["hllo", "heello"]);
        check("h[ae]llo", &["hello", "hallo"], &["hillo"]);
        check("h[^e]llo", &["hallo"], &["hello"]);
        check("[c-a]", &["a", "b", "c"], &["d", "", "-"]);
        check("[a-]", &["a", "^", "]"], &["b", "-"]);
        check(r"\*[\]]\", &[r"*]\"], &[r"a]\", "*]"]);
        check("[ab", &["a", "b"], &["c", "ab"]);
        check("[^", &["a"], &[""]);
        check("[]a]", &[], &["]a]", "a", "]"]);
    }

    #[test]
    fn many_stars_take_no_longer_than_their_product() {
        let pattern = "a*".repeat(5_000) + "b";
        assert!(!fits(pattern.as_bytes(), "a".repeat(20_000).as_bytes()));
    }

    proptest! {
        #[test]
        fn it_fits_what_trying_everything_fits(
            pattern in r"[ab*?\[\]^\\-]{0,9}",
            text in r"[ab\[\]\\-]{0,7}",
        ) {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(fits(pattern, text), naive(pattern, text));
        }
    }
}
