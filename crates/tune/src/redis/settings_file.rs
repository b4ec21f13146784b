//! Edits of `redis.conf`: one setting is changed, and everything else stays as it was written.
//!
//! A setting is a line of its name and its value; if there are several lines, the last one applies. Comments have lines
//! of their own.

/// Returns the value of a setting in the text of `redis.conf`; None if the text does not have the setting.
pub(super) fn read<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().rev().find_map(|line| value(line, name))
}

/// Returns the text of `redis.conf` with the value `new` of a setting, in place of the setting's last line or at the
/// end; None removes the setting.
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

/// Returns the text of `redis.conf` as `CONFIG REWRITE` would write it with the value `new` of a setting: in place of
/// the setting's first line, which may have the name with `slave`. If there is no such line, it is added at the end,
/// unless the value is the default.
pub(super) fn rewrite(text: &str, name: &str, new: &str, is_default: bool) -> String {
    let lines: Vec<String> = match (name, new) {
        ("save", "") => vec!["save \"\"".into()],
        ("save", pairs) => {
            let words: Vec<&str> = pairs.split_whitespace().collect();
            words.chunks(2).map(|pair| format!("save {}", pair.join(" "))).collect()
        }
        _ => vec![format!("{name} {new}")],
    };
    let (mut written, mut is_there) = (String::with_capacity(text.len() + 64), false);
    let mut add = |line: &str| {
        written.push_str(line);
        written.push('\n');
    };
    for line in text.lines() {
        let trimmed = line.trim();
        let word = trimmed.split_ascii_whitespace().next().unwrap_or_default();
        if !word.to_ascii_lowercase().replace("slave", "replica").eq(name) {
            add(line);
        } else if !std::mem::replace(&mut is_there, true) {
            lines.iter().for_each(|line| add(line));
        }
    }
    if !is_there && !is_default {
        lines.iter().for_each(|line| add(line));
    }
    written
}

/// Returns the value in a line of `redis.conf`; None if the line does not set the setting `name`.
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

    #[test]
    fn the_server_writes_the_first_line_anew_and_a_default_only_where_it_stood() {
        let text =
            "save 3600 1\nsave 300 100\nMin-Slaves-To-Write 1\ninclude /etc/redis/more.conf\n";
        assert_eq!(rewrite(text, "hz", "10", true), text);
        assert_eq!(rewrite(text, "hz", "20", false), format!("{text}hz 20\n"));
        let saves = rewrite(text, "save", "60 10000 5 1", false);
        assert!(saves.starts_with("save 60 10000\nsave 5 1\nMin-Slaves"), "{saves}");
        assert!(rewrite(text, "save", "", false).starts_with("save \"\"\nMin-Slaves"));
        let replicas = rewrite(text, "min-replicas-to-write", "0", true);
        assert!(replicas.contains("100\nmin-replicas-to-write 0\ninclude"), "{replicas}");
    }
}
