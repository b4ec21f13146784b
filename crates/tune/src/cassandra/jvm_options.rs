//! Edits of `jvm-server.options`, the options that Cassandra's JVM is started with, one on each line. All other lines
//! stay as they are.
//!
//! The heap has a fixed size (`-Xms` equals `-Xmx`), as in Cassandra's own start script: each growth of the heap would
//! pause the node.

use super::error::{Error, Result};

const LEAST: &str = "-Xms";
const MOST: &str = "-Xmx";

/// Returns the maximum heap size in the text of a JVM options file, in MiB if it is a whole number of them; None if
/// the text has none, so that the start script chooses it.
///
/// # Errors
/// Fails if the text has the option twice.
pub fn heap(text: &str) -> Result<Option<String>> {
    let Some(size) = option(text, MOST)? else { return Ok(None) };
    Ok(Some(in_mib(size).map_or_else(|| size.to_owned(), |mib| format!("{mib}MiB"))))
}

/// Returns the text of a JVM options file with this heap size, in the format of [`heap`]; None removes the options,
/// so that the start script chooses the size.
///
/// # Errors
/// Fails if the text has one of the options twice.
pub fn with_heap(text: &str, heap: Option<&str>) -> Result<String> {
    let heap =
        heap.map(|heap| heap.strip_suffix("MiB").map_or(heap.to_owned(), |mib| format!("{mib}M")));
    let mut changed = text.to_owned();
    for name in [LEAST, MOST] {
        changed = with_option(&changed, name, heap.as_ref().map(|heap| format!("{name}{heap}")))?;
    }
    Ok(changed)
}

/// Returns the value of the JVM option that begins with `name`; None if the text does not have it.
fn option<'t>(text: &'t str, name: &str) -> Result<Option<&'t str>> {
    let mut found = text.lines().filter_map(|line| line.trim().strip_prefix(name));
    let first = found.next();
    if found.next().is_some() {
        return Err(Error::Usage(format!("the JVM's options have {name} twice")));
    }
    Ok(first)
}

/// Returns the text with `line` in place of the JVM option that begins with `name`; None removes the option.
fn with_option(text: &str, name: &str, line: Option<String>) -> Result<String> {
    let end = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let is_there = option(text, name)?.is_some();
    let mut changed = String::with_capacity(text.len() + 16);
    for whole in text.split_inclusive('\n') {
        let old = whole.trim_end_matches(['\n', '\r']);
        if !old.trim().starts_with(name) {
            changed.push_str(whole);
        } else if let Some(new) = &line {
            changed.push_str(new);
            changed.push_str(&whole[old.len()..]);
        }
    }
    if let Some(new) = line.filter(|_| !is_there) {
        if !changed.is_empty() && !changed.ends_with('\n') {
            changed.push_str(end);
        }
        changed.push_str(&new);
        changed.push_str(end);
    }
    Ok(changed)
}

/// Parses a size in the JVM's syntax, such as `8G`; returns MiB, or None if it is not a whole number of them.
fn in_mib(size: &str) -> Option<u64> {
    let (number, bytes) = match size.char_indices().next_back()? {
        (at, 'g' | 'G') => (&size[..at], 1 << 30),
        (at, 'm' | 'M') => (&size[..at], 1 << 20),
        (at, 'k' | 'K') => (&size[..at], 1 << 10),
        _ => (size, 1),
    };
    let bytes = number.parse::<u64>().ok()?.checked_mul(bytes)?;
    (bytes % (1 << 20) == 0).then_some(bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# HEAP SETTINGS #
#-Xms4G
-Xms8G
  -Xmx8G
-XX:+HeapDumpOnOutOfMemoryError
-Xss256k
";

    #[test]
    fn the_heap_is_read_in_mib_whatever_its_unit() {
        assert_eq!(heap(FILE).unwrap().as_deref(), Some("8192MiB"));
        for (size, read) in [
            ("512m", "512MiB"),
            ("1048576k", "1024MiB"),
            ("268435456", "256MiB"),
            ("1000000", "1000000"),
            ("$HEAP", "$HEAP"),
        ] {
            assert_eq!(heap(&format!("-Xmx{size}\n")).unwrap().as_deref(), Some(read));
        }
        assert_eq!(heap("#-Xmx4G\n-Xms4G\n").unwrap(), None);
    }

    #[test]
    fn a_change_sets_both_bounds_and_leaves_every_other_line() {
        let changed = with_heap(FILE, Some("12288MiB")).unwrap();
        assert_eq!(heap(&changed).unwrap().as_deref(), Some("12288MiB"));
        let expected = FILE.replace("\n-Xms8G\n  -Xmx8G", "\n-Xms12288M\n-Xmx12288M");
        assert_eq!(changed, expected);
        let without = with_heap(&changed, None).unwrap();
        assert_eq!(without, FILE.replace("-Xms8G\n  -Xmx8G\n", ""));
        let added = with_heap("-Xss256k\r\n# end", Some("512MiB")).unwrap();
        assert_eq!(added, "-Xss256k\r\n# end\r\n-Xms512M\r\n-Xmx512M\r\n");
        assert_eq!(with_heap("", Some("512MiB")).unwrap(), "-Xms512M\n-Xmx512M\n");
    }

    #[test]
    fn a_heap_in_another_unit_can_be_put_back() {
        let file = "-Xms1000000\n-Xmx1000000\n";
        let changed = with_heap(file, Some("512MiB")).unwrap();
        assert_eq!(with_heap(&changed, heap(file).unwrap().as_deref()).unwrap(), file);
    }

    #[test]
    fn a_heap_that_is_there_twice_is_left_alone() {
        let twice = format!("{FILE}-Xmx16G\n");
        assert!(heap(&twice).unwrap_err().to_string().contains("-Xmx twice"));
        assert!(with_heap(&twice, Some("512MiB")).is_err());
    }
}
