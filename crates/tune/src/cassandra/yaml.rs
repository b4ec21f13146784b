//! A parser of `cassandra.yaml`, as strict as the node's own at its next start, and a comparison of two versions of the
//! file.
//!
//! Invariants:
//! - A text that Cassandra's own parser (SnakeYAML) refuses is refused here, with its line. SnakeYAML does not accept
//!   tabs between tokens, which YAML 1.2 allows.
//! - A duplicate key is refused: Cassandra takes the last one, which is rarely the intended one.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

/// Maximum nesting depth of values in `cassandra.yaml`.
const DEPTH_MAX: usize = 64;

/// Reason why a text is not a valid `cassandra.yaml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Invalid {
    /// Number of the invalid line; the first line is 1.
    pub(super) line: usize,
    /// Description of the problem in that line.
    pub(super) problem: String,
}

/// A value in `cassandra.yaml`, or a key.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    Scalar { text: String, is_plain: bool, tag: Option<String> },
    Alias(usize),
    Sequence(Vec<Node>),
    Mapping(Vec<(Node, Node)>),
}

/// A parsed `cassandra.yaml`: the top-level keys with their values.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document {
    keys: BTreeMap<String, Node>,
}

/// A sequence or mapping whose end has not been parsed yet.
enum Open {
    Sequence(Vec<Node>),
    Mapping { pairs: Vec<(Node, Node)>, key: Option<Node>, lines: BTreeMap<String, usize> },
}

impl Document {
    /// Parses the text of `cassandra.yaml`.
    ///
    /// # Errors
    /// Fails at the first line with which Cassandra would not start.
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let (mut open, mut root, mut spans) = (Vec::<Open>::new(), None, Vec::new());
        let mut documents = 0;
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| Invalid {
                line: error.marker().line(),
                problem: error.info().to_owned(),
            })?;
            let line = span.start.line();
            let wrong = |problem: &str| Err(Invalid { line, problem: problem.to_owned() });
            if open.len() > DEPTH_MAX {
                return wrong("values are nested too deeply");
            }
            let node = match event {
                Event::DocumentStart(..) => {
                    documents += 1;
                    if documents > 1 {
                        return wrong("a second document begins");
                    }
                    continue;
                }
                Event::SequenceStart(..) => {
                    open.push(Open::Sequence(Vec::new()));
                    continue;
                }
                Event::MappingStart(..) => {
                    let (pairs, lines) = (Vec::new(), BTreeMap::new());
                    open.push(Open::Mapping { pairs, key: None, lines });
                    continue;
                }
                Event::Scalar(text, style, _, tag) => {
                    let is_plain = matches!(style, ScalarStyle::Plain);
                    spans.push((span.start.index(), span.end.index(), is_plain));
                    let tag = tag.map(|tag| tag.to_string());
                    Node::Scalar { text: text.into_owned(), is_plain, tag }
                }
                Event::Alias(id) => {
                    spans.push((span.start.index(), span.end.index(), false));
                    Node::Alias(id)
                }
                Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                    Some(Open::Sequence(items)) => Node::Sequence(items),
                    Some(Open::Mapping { pairs, .. }) => Node::Mapping(pairs),
                    None => return wrong("a collection ends that has not begun"),
                },
                _ => continue,
            };
            match open.last_mut() {
                None => root = Some(node),
                Some(Open::Sequence(items)) => items.push(node),
                Some(Open::Mapping { pairs, key, lines }) => match key.take() {
                    Some(key) => pairs.push((key, node)),
                    None => {
                        if let Node::Scalar { text, .. } = &node
                            && let Some(first) = lines.insert(text.clone(), line)
                        {
                            return wrong(&format!("{text} is there twice, first in line {first}"));
                        }
                        *key = Some(node);
                    }
                },
            }
        }
        if let Some(line) = tab_between(text, &spans) {
            return Err(Invalid { line, problem: "a tab stands where blanks have to".into() });
        }
        let Some(Node::Mapping(pairs)) = root else {
            return Err(Invalid { line: 1, problem: "it holds no settings".into() });
        };
        let mut keys = BTreeMap::new();
        for (key, value) in pairs {
            let Node::Scalar { text, .. } = key else {
                return Err(Invalid { line: 1, problem: "a key is not a plain word".into() });
            };
            keys.insert(text, value);
        }
        Ok(Self { keys })
    }

    /// Returns the value of a top-level key with a scalar value, as Cassandra reads it; None if the value is null,
    /// absent or not a scalar.
    pub(super) fn scalar(&self, key: &str) -> Option<&str> {
        match self.keys.get(key)? {
            Node::Scalar { text, is_plain, .. } => {
                let is_null = *is_plain && matches!(&**text, "" | "null" | "Null" | "NULL" | "~");
                (!is_null).then_some(text)
            }
            _ => None,
        }
    }

    /// Returns the key by which versions before Cassandra 4.1 name a setting (with a unit), if the file has that key;
    /// None if it does not. With both keys the node does not start.
    pub(super) fn old_name(&self, setting: &str) -> Option<&str> {
        const UNITS: [&str; 6] =
            ["_in_mb", "_in_kb", "_in_ms", "_mb_per_sec", "_megabits_per_sec", "_in_kib"];
        let is_old =
            |key: &&String| key.strip_prefix(setting).is_some_and(|unit| UNITS.contains(&unit));
        self.keys.keys().find(is_old).map(String::as_str)
    }

    /// Returns the first top-level key, except those in `but`, that only one of the two files has, or with different
    /// values; None if there is none.
    pub(super) fn other_change(&self, other: &Self, but: &[&str]) -> Option<String> {
        let all = self.keys.keys().chain(other.keys.keys());
        let is_changed = |key: &&String| {
            !but.contains(&key.as_str()) && self.keys.get(*key) != other.keys.get(*key)
        };
        all.into_iter().find(is_changed).cloned()
    }
}

/// Returns the number of the line of the first tab that is not within a value, within a comment, or after an unquoted
/// value; None if there is none. `spans` has the start and the end of each value, in characters, and whether the
/// value is unquoted.
fn tab_between(text: &str, spans: &[(usize, usize, bool)]) -> Option<usize> {
    let mut spans = spans.iter().copied().peekable();
    let (mut line, mut is_comment, mut is_behind_plain, mut last) = (1, false, false, '\n');
    let mut until = 0;
    let chars: Vec<char> = text.chars().collect();
    for (at, c) in chars.iter().copied().enumerate() {
        while let Some((start, end, is_plain)) = spans.next_if(|(start, ..)| *start <= at) {
            // The parser's span of a quoted value continues past the closing quote.
            let end = quote_end(&chars, start).unwrap_or(end);
            if end > start && end > at {
                (until, is_comment, is_behind_plain) = (end, false, is_plain);
            }
        }
        if c == '\n' {
            line += 1;
        }
        if at >= until {
            match c {
                '\n' => (is_comment, is_behind_plain) = (false, false),
                _ if is_comment => {}
                '#' if last.is_whitespace() => is_comment = true,
                '\t' if !is_behind_plain => return Some(line),
                c if !c.is_whitespace() => is_behind_plain = false,
                _ => {}
            }
        }
        last = c;
    }
    None
}

/// Returns the index after a quoted value's closing quote; None if there is no quote at `start`, or it is not closed.
fn quote_end(chars: &[char], start: usize) -> Option<usize> {
    let quote = *chars.get(start).filter(|c| ['"', '\''].contains(c))?;
    let mut at = start + 1;
    loop {
        match *chars.get(at)? {
            '\\' if quote == '"' => at += 2,
            c if c == quote && quote == '\'' && chars.get(at + 1) == Some(&quote) => at += 2,
            c if c == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# Cassandra storage config YAML\n\
        cluster_name: 'shop'   # do not\tchange\n\
        num_tokens: 16\n\
        concurrent_reads:   64\t# two disks\n\
        concurrent_writes:\n\
        data_file_directories:\n    - /var/lib/cassandra/data\n\
        seed_provider:\n    - class_name: org.apache.cassandra.locator.SimpleSeedProvider\n      parameters:\n\
        \x20         - seeds: \"10.0.0.1:7000,10.0.0.2:7000\"\n\
        memtable:\n  configurations:\n    skiplist:\n      class_name: SkipListMemtable\n    default:\n\
        \x20     inherits: skiplist\n\
        audit_logging_options:\n  enabled: false\n  logger:\n    - class_name: BinAuditLogger\n";

    /// Of each text, whether SnakeYAML 2.1, the parser of Cassandra 5.0.9, loads it: asked of it on 28 November 2026.
    const BY_SNAKE_YAML: [(&str, bool); 27] = [
        ("a: 1\nb:\t2\n", false),
        ("a: 1\n\tb: 2\n", false),
        ("a: 64\t# two\nb: 1\n", true),
        ("b: \"x\"\t# c\n", false),
        ("a:\n  - x\n   - y\n", true),
        ("a:\n b: 1\n  c: 2\n", false),
        ("a: 'x\n", false),
        ("a: b: c\n", false),
        ("a: [1, 2\n", false),
        ("\t\na: 1\n", false),
        ("a: *x\n", false),
        ("a: 1\n---\nb: 2\n", false),
        ("k: |\n  a\tb\n  c\nd: 1\n", true),
        ("a: @x\n", false),
        ("a: %x\n", false),
        ("a: `x`\n", false),
        ("a: \t1\n", false),
        ("a:\n\t- x\n", false),
        ("a:\n  b: 1 # c\tx\n  # c\td\n  c: 'q\tr'\n", true),
        ("a:1\nb: 2\n", false),
        ("{a: 1, b: 2}\n", true),
        ("? a\n: b\n", true),
        ("a: x\n b: y\n", false),
        ("é: 1\na: \t\n", false),
        ("a: x\t\nb: 1\n", true),
        ("a: [1,\t2]\n", false),
        ("a: x\n\t# c\nb: 1\n", false),
    ];

    #[test]
    fn what_cassandras_parser_refuses_is_refused() {
        for (text, loads) in BY_SNAKE_YAML {
            let parsed = Document::parse(text);
            assert_eq!(parsed.is_ok(), loads, "{text:?}: {parsed:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        assert!(Document::parse(FILE).is_ok(), "{:?}", Document::parse(FILE));
        for (text, line, problem) in [
            (FILE.replace("num_tokens: 16", "\tnum_tokens: 16"), 3, "tab"),
            (FILE.replace("num_tokens: 16", "num_tokens:\t16"), 3, "YAML whitespace"),
            (FILE.replace("  enabled", "   enabled"), 20, ""),
            (format!("{FILE}num_tokens: 8\n"), 22, "num_tokens is there twice, first in line 3"),
            (FILE.replace("      inherits", "      class_name: x\n      class_name"), 18, "twice"),
            ("- a\n".to_owned(), 1, "holds no settings"),
            (String::new(), 1, "holds no settings"),
        ] {
            let invalid = Document::parse(&text).unwrap_err();
            assert!(invalid.problem.contains(problem), "{invalid:?}");
            assert_eq!(invalid.line, line, "{invalid:?}: {text}");
        }
    }

    #[test]
    fn a_change_of_another_key_is_found() {
        let parse = |text: &str| Document::parse(text).unwrap();
        let old = parse(FILE);
        assert_eq!(old.scalar("concurrent_reads"), Some("64"));
        assert_eq!(old.scalar("concurrent_writes"), None);
        assert_eq!(old.scalar("memtable"), None);
        let new = parse(&FILE.replace("64", "32"));
        assert_eq!(old.other_change(&new, &["concurrent_reads"]), None);
        assert_eq!(old.other_change(&new, &["num_tokens"]).as_deref(), Some("concurrent_reads"));
        let new = parse(&FILE.replace("SkipListMemtable", "TrieMemtable"));
        assert_eq!(old.other_change(&new, &[]).as_deref(), Some("memtable"));
        let new = parse(&FILE.replace("num_tokens: 16\n", ""));
        assert_eq!(new.other_change(&old, &[]).as_deref(), Some("num_tokens"));
    }

    #[test]
    fn a_setting_by_its_name_of_before_is_found() {
        let file =
            parse_of("compaction_throughput_mb_per_sec: 64\nmemtable_heap_space_in_mb: 512\n");
        assert_eq!(
            file.old_name("compaction_throughput"),
            Some("compaction_throughput_mb_per_sec")
        );
        assert_eq!(file.old_name("memtable_heap_space"), Some("memtable_heap_space_in_mb"));
        assert_eq!(file.old_name("memtable"), None);
    }

    fn parse_of(text: &str) -> Document {
        Document::parse(text).unwrap()
    }
}
