//! Splits lines of `redis.conf` into words, like the server (`sdssplitargs`), and shell commands into words.

/// Splits a line of `redis.conf` into words; None if a quote is not closed, or is directly followed by text.
pub(super) fn split(line: &str) -> Option<Vec<String>> {
    let (mut words, mut rest) = (Vec::new(), line.trim_start());
    while !rest.is_empty() {
        let word;
        (word, rest) = first(rest)?;
        words.push(word);
        rest = rest.trim_start();
    }
    Some(words)
}

/// Returns the first word of a text, without its quotes, and the rest of the text; None if the word's quotes are
/// invalid.
fn first(text: &str) -> Option<(String, &str)> {
    let (mut word, mut chars) = (String::new(), text.char_indices().peekable());
    while let Some((at, c)) = chars.next() {
        match c {
            c if c.is_ascii_whitespace() || c == '\0' => return Some((word, &text[at..])),
            '"' | '\'' => {
                quoted(c, &mut word, &mut chars)?;
                let end = chars.peek().map_or(text.len(), |(at, _)| *at);
                let is_closed = text[end..].chars().next().is_none_or(|c| c.is_ascii_whitespace());
                return is_closed.then_some((word, &text[end..]));
            }
            c => word.push(c),
        }
    }
    Some((word, ""))
}

/// Appends the text up to the closing quote `quote` to the word; None if the quote is not closed.
fn quoted(
    quote: char,
    word: &mut String,
    chars: &mut std::iter::Peekable<std::str::CharIndices<'_>>,
) -> Option<()> {
    loop {
        match chars.next()?.1 {
            c if c == quote => return Some(()),
            '\\' if quote == '"' => match chars.next()?.1 {
                'n' => word.push('\n'),
                'r' => word.push('\r'),
                't' => word.push('\t'),
                'b' => word.push('\u{8}'),
                'a' => word.push('\u{7}'),
                'x' => {
                    let digits: Vec<char> = chars
                        .clone()
                        .take(2)
                        .map(|(_, c)| c)
                        .filter(char::is_ascii_hexdigit)
                        .collect();
                    match &digits[..] {
                        [high, low] => {
                            let byte = high.to_digit(16)? * 16 + low.to_digit(16)?;
                            word.push(char::from_u32(byte)?);
                            chars.nth(1);
                        }
                        _ => word.push('x'),
                    }
                }
                c => word.push(c),
            },
            '\\' if quote == '\'' && chars.peek().is_some_and(|(_, c)| *c == '\'') => {
                word.push('\'');
                chars.next();
            }
            c => word.push(c),
        }
    }
}

/// Splits a shell script into its commands, and each command into words. Quotes and backslashes are removed; nothing
/// else is expanded.
pub(super) fn of_shell(script: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut is_word) = (String::new(), false);
    let mut chars = script.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' => {
                is_word = true;
                while let Some(inner) = chars.next().filter(|inner| *inner != c) {
                    match (c, inner) {
                        ('"', '\\') => word.extend(chars.next()),
                        _ => word.push(inner),
                    }
                }
            }
            '\\' => {
                is_word = true;
                word.extend(chars.next());
            }
            c if c.is_whitespace() || ";&|()<>".contains(c) => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                    is_word = false;
                }
                if !c.is_whitespace() || c == '\n' {
                    commands.push(std::mem::take(&mut words));
                }
            }
            c => {
                is_word = true;
                word.push(c);
            }
        }
    }
    if is_word {
        words.push(word);
    }
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_as_the_server_does() {
        let split = |line: &str| split(line).map(|words| words.join("|"));
        for (line, words) in [
            ("save 3600 1  300 100", "save|3600|1|300|100"),
            ("save \"\"", "save|"),
            ("dir '/var/lib/it\\'s here'", "dir|/var/lib/it's here"),
            (r#"requirepass "a\x41\t\"b\\""#, "requirepass|aA\t\"b\\"),
            (r#"requirepass "\xzz""#, "requirepass|xzz"),
            ("\tport\t6379 ", "port|6379"),
            ("user alice on >p#ss ~* +@all", "user|alice|on|>p#ss|~*|+@all"),
        ] {
            assert_eq!(split(line).as_deref(), Some(words), "{line}");
        }
        for open in ["dir \"/var", "dir '/var", "dir \"/var\"x", "dir \"/var\\"] {
            assert_eq!(split(open), None, "{open}");
        }
    }

    #[test]
    fn a_script_is_split_into_commands() {
        let told = of_shell(
            "cd /srv/redis && '/opt/my redis/redis-server' redis.conf --save '' --maxmemory \"100mb\" >log 2>&1 &\nexit",
        );
        let told: Vec<String> = told.into_iter().map(|words| words.join("|")).collect();
        assert_eq!(
            told,
            [
                "cd|/srv/redis",
                "/opt/my redis/redis-server|redis.conf|--save||--maxmemory|100mb",
                "log|2",
                "1",
                "exit"
            ]
        );
    }
}
