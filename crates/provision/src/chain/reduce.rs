//! The reduce of a chain: its input is the output of the maps, sorted by bytes (`LC_ALL=C sort`, as Hadoop sorts);
//! its output has each key once.
//!
//! The reduce holds one line in memory. Input that is not sorted is an error with the number of the line, since equal
//! keys that are not adjacent would be written twice.

use std::io::{BufRead, Write};

use serde::Serialize;

use super::error::{Error, Result};
use super::input::Lines;
use super::merkle::{self, Hash};

/// Numbers of lines that a reduce read and wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reduced {
    /// Number of lines that were read from the input.
    pub lines: u64,
    /// Number of lines that were written to the output.
    pub written: u64,
}

/// Copies the lines of `input`, which must be sorted by bytes, to `output`, and writes repeated lines once.
///
/// # Errors
/// The input is not sorted, or cannot be read; the output cannot be written.
pub fn unique<R: BufRead, W: Write>(input: R, output: &mut W) -> Result<Reduced> {
    let mut lines = Lines::of(input);
    let (mut last, mut reduced) = (String::new(), Reduced::default());
    while let Some((line, text)) = lines.next()? {
        reduced.lines += 1;
        if line > 1 && text == last {
            continue;
        }
        if text.as_bytes() < last.as_bytes() {
            return Err(unsorted(line, &last, text));
        }
        text.clone_into(&mut last);
        writeln!(output, "{text}").map_err(Error::Write)?;
        reduced.written += 1;
    }
    output.flush().map_err(Error::Write)?;
    Ok(reduced)
}

/// Makes the error for the input line number `line` with the text `text`, which sorts before the previous one,
/// `last`.
fn unsorted(line: u64, last: &str, text: &str) -> Error {
    let problem = format!(
        "it is not sorted: `{text}` comes after `{last}`; sort by bytes first, with LC_ALL=C sort"
    );
    Error::Input { line, problem }
}

/// A level of a Merkle tree, and the size of the tree.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// Number of leaves of the whole tree.
    pub leaves: u64,
    /// Level of the nodes that are written, from 1 on; the leaves are level 0.
    pub level: u32,
}

/// Combines the two children of each node of a Merkle tree, and writes the nodes of the level `level`. The input must
/// be sorted by parent; the children of one parent may come in any order, since Hadoop sorts by the parent alone.
///
/// # Errors
/// As [`unique`]; and [`Error::Tree`] for a child that comes twice, or that lacks its sibling and is not the last node
/// of its level.
pub fn pairs<R: BufRead, W: Write>(input: R, output: &mut W, level: Level) -> Result<Reduced> {
    let mut lines = Lines::of(input);
    let mut reduced = Reduced::default();
    let mut open: Option<Parent> = None;
    while let Some((line, text)) = lines.next()? {
        reduced.lines += 1;
        let child = merkle::read_child(text).ok_or_else(|| Error::Input {
            line,
            problem: format!("`{text}` is no child: it is not what `map` writes"),
        });
        let (index, is_right, hash) = child?;
        match &mut open {
            Some(parent) if parent.index == index => parent.add(is_right, hash)?,
            Some(parent) if parent.index > index => {
                let last = parent.index.to_string();
                return Err(unsorted(line, &last, &index.to_string()));
            }
            _ => {
                if let Some(parent) = open.take() {
                    parent.write(level, output)?;
                    reduced.written += 1;
                }
                let mut parent = Parent { index, left: None, right: None };
                parent.add(is_right, hash)?;
                open = Some(parent);
            }
        }
    }
    if let Some(parent) = open {
        parent.write(level, output)?;
        reduced.written += 1;
    }
    output.flush().map_err(Error::Write)?;
    Ok(reduced)
}

/// A node of a Merkle tree whose children are being read.
struct Parent {
    /// Index of the node in its level, from 0 on.
    index: u64,
    /// Hash of the left child; `None` if it was not read yet.
    left: Option<Hash>,
    /// Hash of the right child; `None` if it was not read yet.
    right: Option<Hash>,
}

impl Parent {
    /// Adds the hash of the right or the left child; an error if that child was added before.
    fn add(&mut self, is_right: bool, hash: Hash) -> Result<()> {
        let side = if is_right { &mut self.right } else { &mut self.left };
        match side.replace(hash) {
            None => Ok(()),
            Some(_) => {
                let node = self.index * 2 + u64::from(is_right);
                Err(Error::Tree(format!("the node {node} comes twice")))
            }
        }
    }

    /// Writes the line of the node with its combined hash. A missing child is an error, unless its sibling is the
    /// last node of the level below.
    fn write<W: Write>(self, level: Level, output: &mut W) -> Result<()> {
        let (index, below) = (self.index, level.level.saturating_sub(1));
        let nodes = merkle::nodes(level.leaves, below);
        let lacks = |node: u64| Error::Tree(format!("the node {node} of level {below} is missing"));
        let hash = match (self.left, self.right) {
            (Some(left), Some(right)) if index * 2 + 1 < nodes => merkle::node(&left, &right),
            (Some(left), None) if index * 2 + 1 == nodes => left,
            (Some(_), None) if index * 2 + 1 < nodes => return Err(lacks(index * 2 + 1)),
            (None, _) if index * 2 < nodes => return Err(lacks(index * 2)),
            _ => {
                let leaves = level.leaves;
                let what =
                    format!("level {below} of {leaves} leaves has no node {}", index * 2 + 1);
                return Err(Error::Tree(what));
            }
        };
        let mut line = Vec::new();
        merkle::write_node(index, &hash, &mut line);
        output.write_all(&line).map_err(Error::Write)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn reduce(input: &str) -> Result<String> {
        let mut output = Vec::new();
        unique(input.as_bytes(), &mut output)?;
        Ok(String::from_utf8(output).unwrap())
    }

    #[test]
    fn a_line_that_is_not_sorted_is_named() {
        let error = reduce("1\n10\n2\n19\n").unwrap_err().to_string();
        assert!(error.starts_with("line 4 of the input: it is not sorted: `19`"), "{error}");
        assert_eq!(reduce("1\n1\t\n10\n2").unwrap(), "1\n10\n2\n", "a tab at the end is Hadoop's");
        assert!(reduce("1\n\n").is_err());
        assert!(reduce(&"x".repeat(70_000)).unwrap_err().to_string().contains("longer than"));
    }

    proptest! {
        #[test]
        fn sorted_keys_come_out_once(keys in prop::collection::vec(0_u64..300, 0..200)) {
            let mut lines: Vec<String> = keys.iter().map(u64::to_string).collect();
            lines.sort();
            let expected: BTreeSet<String> = lines.iter().cloned().collect();
            let expected: String = expected.into_iter().map(|line| line + "\n").collect();
            let input: String = lines.into_iter().map(|line| line + "\n").collect();
            prop_assert_eq!(reduce(&input).unwrap(), expected);
        }

        #[test]
        fn levels_are_those_of_the_tree_or_the_lack_is_said(
            count in 2_u64..40, dropped in prop::option::of(0_u64..40), is_turned: bool,
        ) {
            let hashes: Vec<Hash> = (0..count).map(|number| merkle::leaf(&[number as u8])).collect();
            let mut lines = Vec::new();
            for (index, hash) in (0..).zip(&hashes).filter(|(index, _)| Some(*index) != dropped) {
                let mut line = Vec::new();
                merkle::write_child(index, hash, &mut line);
                lines.push(line);
            }
            if is_turned {
                lines.chunks_mut(2).for_each(<[_]>::reverse);
                lines.sort_by_key(|line| line[..12].to_vec());
            }
            let mut output = Vec::new();
            let level = Level { leaves: count, level: 1 };
            let reduced = pairs(&*lines.concat(), &mut output, level);
            let expected: Vec<u8> = (0..).zip(merkle::combine(&hashes)).flat_map(|(index, hash)| {
                let mut line = Vec::new();
                merkle::write_node(index, &hash, &mut line);
                line
            }).collect();
            let is_whole_pair_gone = dropped == Some(count - 1) && count % 2 == 1;
            if dropped.is_none_or(|dropped| dropped >= count) {
                prop_assert_eq!(reduced.unwrap().written, count.div_ceil(2));
                prop_assert_eq!(output, expected);
            } else if !is_whole_pair_gone {
                prop_assert!(matches!(reduced, Err(Error::Tree(_))));
            }
        }
    }
}
