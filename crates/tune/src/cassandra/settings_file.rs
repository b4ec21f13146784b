//! Edits of `cassandra.yaml` that preserve everything else: comments, unknown keys, order, line ends.
//!
//! Only top-level keys with a value on one line can be changed, which is sufficient for all settings in
//! [`super::knobs`]. Other values under such a key are refused.

use super::error::Error;

/// Returns the value of a top-level key in the text of `cassandra.yaml`, without quotes and comment; `None` if the
/// key is absent or has no value.
///
/// # Errors
/// Fails if the key is there twice, or if its value spans several lines.
pub fn read(text: &str, key: &str) -> Result<Option<String>, Error> {
    let Some((_, line)) = line_of(text, key)? else { return Ok(None) };
    let value = split(line, key).0.trim_matches(|c| c == '"' || c == '\'');
    Ok((!value.is_empty() && value != "null" && value != "~").then(|| value.to_owned()))
}

/// Returns the text of `cassandra.yaml` with this value under the top-level key. None removes the key, so that the
/// setting's default applies.
///
/// # Errors
/// Fails in the same cases as [`read`].
pub fn write(text: &str, key: &str, value: Option<&str>) -> Result<String, Error> {
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let found = line_of(text, key)?;
    let mut changed = String::with_capacity(text.len() + 64);
    match (found, value) {
        (Some((at, line)), Some(value)) => {
            let comment = split(line, key).1;
            changed.push_str(&text[..at]);
            changed.push_str(&format!("{key}: {value}{comment}"));
            changed.push_str(&text[at + line.len()..]);
        }
        (Some((at, line)), None) => {
            changed.push_str(&text[..at]);
            let rest = &text[at + line.len()..];
            changed.push_str(rest.strip_prefix(end).unwrap_or(rest));
        }
        (None, Some(value)) => {
            changed.push_str(text);
            if !text.is_empty() && !text.ends_with('\n') {
                changed.push_str(end);
            }
            changed.push_str(&format!("{key}: {value}{end}"));
        }
        (None, None) => changed.push_str(text),
    }
    Ok(changed)
}

/// Returns the offset of a top-level key's line, in bytes, and the line without its end; None if the key is absent.
fn line_of<'a>(text: &'a str, key: &str) -> Result<Option<(usize, &'a str)>, Error> {
    let mut found: Option<(usize, &str)> = None;
    let mut at = 0;
    let mut lines = text.split_inclusive('\n').peekable();
    while let Some(whole) = lines.next() {
        let line = whole.trim_end_matches(['\n', '\r']);
        let rest = line.strip_prefix(key).and_then(|rest| rest.trim_start().strip_prefix(':'));
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t'])) {
            if found.is_some() {
                return Err(Error::Usage(format!("the file has {key} twice")));
            }
            let next =
                lines.clone().find(|line| !line.trim().is_empty() && !line.trim().starts_with('#'));
            let value = split(line, key).0;
            let goes_on = next.is_some_and(|next| next.starts_with([' ', '\t', '-']))
                || value.starts_with(['|', '>', '[', '{', '&', '*', '!']);
            if goes_on {
                let what = format!("the file has more than one plain value under {key}");
                return Err(Error::Usage(what));
            }
            found = Some((at, line));
        }
        at += whole.len();
    }
    Ok(found)
}

/// Splits the line of a key, and returns its value, and the comment after the value with the blanks in between.
fn split<'a>(line: &'a str, key: &str) -> (&'a str, &'a str) {
    let colon = line[key.len()..].find(':').map_or(line.len(), |at| key.len() + at + 1);
    let rest = &line[colon..];
    let is_comment = |at: &usize| rest[..*at].is_empty() || rest[..*at].ends_with([' ', '\t']);
    let comment = rest.match_indices('#').map(|(at, _)| at).find(is_comment);
    let value = rest[..comment.unwrap_or(rest.len())].trim_end();
    (value.trim_start(), &rest[value.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# Cassandra storage config YAML\n\
        cluster_name: 'shop'   # do not change\n\
        num_tokens: 16\n\
        # concurrent_reads: 32\n\
        concurrent_reads:   64\t# two disks\n\
        concurrent_writes:\n\
        data_file_directories:\n    - /var/lib/cassandra/data\n\
        hints_directory: /var/lib/cassandra/hints#1\n\
        memtable:\n  configurations:\n    skiplist:\n      class_name: SkipListMemtable\n\
        trickle_fsync: \"false\"\n\
        seeds: [10.0.0.1, 10.0.0.2]";

    #[test]
    fn values_are_read_without_comments_and_quotes() {
        let value = |key| read(FILE, key).unwrap();
        assert_eq!(value("concurrent_reads"), Some("64".into()));
        assert_eq!(value("cluster_name"), Some("shop".into()));
        assert_eq!(value("hints_directory"), Some("/var/lib/cassandra/hints#1".into()));
        assert_eq!(value("trickle_fsync"), Some("false".into()));
        assert_eq!(value("concurrent_writes"), None);
        assert_eq!(value("concurrent"), None);
        assert_eq!(value("class_name"), None, "it belongs to another key");
    }

    #[test]
    fn a_change_leaves_every_other_line_as_it_is() {
        for (key, value, line) in [
            ("concurrent_reads", "16", "concurrent_reads: 16\t# two disks"),
            ("concurrent_writes", "48", "concurrent_writes: 48"),
            ("trickle_fsync", "true", "trickle_fsync: true"),
            ("key_cache_size", "64MiB", "key_cache_size: 64MiB"),
        ] {
            let changed = write(FILE, key, Some(value)).unwrap();
            assert_eq!(read(&changed, key).unwrap().as_deref(), Some(value));
            let before: Vec<&str> = FILE.lines().collect();
            let after: Vec<&str> = changed.lines().collect();
            let new: Vec<&&str> = after.iter().filter(|line| !before.contains(line)).collect();
            assert_eq!(new, [&line], "{changed}");
            assert!(after.len() - before.len() <= 1);
        }
    }

    #[test]
    fn a_key_can_be_taken_out_and_put_back() {
        let without = write(FILE, "concurrent_reads", None).unwrap();
        assert_eq!(read(&without, "concurrent_reads").unwrap(), None);
        assert_eq!(without.lines().count(), FILE.lines().count() - 1);
        assert!(without.contains("# concurrent_reads: 32\n"), "that was a comment");
        assert_eq!(write(FILE, "no_such_key", None).unwrap(), FILE);
    }

    #[test]
    fn line_ends_of_windows_stay() {
        let file = FILE.replace('\n', "\r\n");
        let changed = write(&file, "concurrent_reads", Some("16")).unwrap();
        assert_eq!(changed.matches('\n').count(), changed.matches("\r\n").count());
        let added = write(&file, "key_cache_size", Some("64MiB")).unwrap();
        assert!(added.ends_with("\r\nkey_cache_size: 64MiB\r\n"));
    }

    #[test]
    fn what_is_no_plain_value_is_refused() {
        for key in ["data_file_directories", "memtable", "seeds"] {
            let error = write(FILE, key, Some("1")).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
        let twice = format!("{FILE}\nnum_tokens: 8\n");
        assert!(read(&twice, "num_tokens").unwrap_err().to_string().contains("twice"));
    }
}
