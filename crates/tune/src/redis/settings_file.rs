//! `redis.conf` as text: one setting is changed, and everything else stays as it was written.
//!
//! A setting is a line of its name and its value; of several the last one holds. Comments are lines of their own.

/// The value that the text gives a setting, if it does.
pub(super) fn read<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().rev().find_map(|line| value(line, name))
}

/// The text with another value of a setting, or without any: where it was written last, else at the end.
pub(super) fn write(text: &str, name: &str, new: Option<&str>) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().rposition(|line| value(line, name).is_some());
    let mut written = String::with_capacity(text.len() + 64);
    let mut line_of = |text: &str| {
        written.push_str(text);
        written.push('\n');
    };
    for (number, line) in lines.iter().enumerate() {
        match (value(line, name), new) {
            (None, _) => line_of(line),
            (Some(_), Some(new)) if last == Some(number) => line_of(&format!("{name} {new}")),
            (Some(_), _) => {}
        }
    }
    if let (None, Some(new)) = (last, new) {
        line_of(&format!("{name} {new}"));
    }
    written
}

fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (word, rest) = line.trim().split_once(|c: char| c.is_ascii_whitespace())?;
    word.eq_ignore_ascii_case(name).then(|| rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "# io-threads 4: not yet\nport 6379\nIO-Threads  2\nsave \"\"\nio-threads 3\n# end\n";

    #[test]
    fn the_last_line_holds_and_is_changed() {
        assert_eq!(read(FILE, "io-threads"), Some("3"));
        assert_eq!(read(FILE, "tcp-backlog"), None);
        let new = write(FILE, "io-threads", Some("4"));
        assert_eq!(new, "# io-threads 4: not yet\nport 6379\nsave \"\"\nio-threads 4\n# end\n");
        assert_eq!(
            write(FILE, "io-threads", None),
            "# io-threads 4: not yet\nport 6379\nsave \"\"\n# end\n"
        );
        assert_eq!(write("port 1", "tcp-backlog", Some("64")), "port 1\ntcp-backlog 64\n");
        assert_eq!(read("port", "port"), None);
    }
}
