//! The Merkle tree of §4.3: a binary tree of SHA-256 hashes over documents, computed level by level.
//!
//! A leaf is `H(document)`, of its BSON as the collection has it; a node is `H(left ‖ right)`, of the 64 bytes of its
//! children's hashes. A last node without a sibling is promoted unchanged. Leaves are numbered from 0 in the order of
//! the keys, so level L has ⌈n / 2^L⌉ nodes, and the root is at level ⌈log2 n⌉ (level 1 for a single leaf).
//!
//! As a chained job: a map writes for each node its parent, its side, and its hash; a reduce combines the nodes with
//! the same parent. A line is `PARENT<TAB>SIDE HASH`, with PARENT padded to equal width, so that the order of bytes is
//! that of numbers; a reduce writes `INDEX<TAB>HASH`, which is the input of the next level's map.

use std::io::Write as _;

use sha2::{Digest, Sha256};

/// The SHA-256 hash of a leaf or a node of a Merkle tree.
pub type Hash = [u8; 32];

/// Width of a node's index in a line, in decimal digits; shorter numbers are padded with zeros.
const INDEX_DIGITS: usize = 12;
/// Maximum number of leaves of a tree, so that each index fits into 12 digits.
pub const LEAVES_MAX: u64 = 1_000_000_000_000;

/// Returns the hash of a leaf: the SHA-256 of the document's BSON.
#[must_use]
pub fn leaf(document: &[u8]) -> Hash {
    Sha256::digest(document).into()
}

/// Returns the hash of a node: the SHA-256 of its children's hashes, one after the other.
#[must_use]
pub fn node(left: &Hash, right: &Hash) -> Hash {
    Sha256::new().chain_update(left).chain_update(right).finalize().into()
}

/// Returns the number of nodes at a level of a tree with this number of leaves; the leaves are level 0.
#[must_use]
pub fn nodes(leaves: u64, level: u32) -> u64 {
    leaves.div_ceil(1_u64.checked_shl(level).unwrap_or(u64::MAX))
}

/// Computes the hashes of the nodes one level above `level`; a last hash without a sibling is taken over unchanged.
#[must_use]
pub fn combine(level: &[Hash]) -> Vec<Hash> {
    let pairs = level.chunks(2);
    pairs.map(|pair| pair.get(1).map_or(pair[0], |right| node(&pair[0], right))).collect()
}

/// Returns a hash as 64 lower-case hexadecimal digits.
#[must_use]
pub fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a hash of exactly 64 lower-case hexadecimal digits; `None` for any other text.
#[must_use]
pub fn from_hex(text: &str) -> Option<Hash> {
    let digits = text.as_bytes();
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut hash = [0; 32];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != hash.len() || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(hash)
}

/// Appends to `lines` the output line of a map for the node at `index`: `PARENT<TAB>SIDE HASH`.
pub fn write_child(index: u64, hash: &Hash, lines: &mut Vec<u8>) {
    let (parent, side) = (index / 2, index % 2);
    writeln!(lines, "{parent:0INDEX_DIGITS$}\t{side} {}", hex(hash)).expect("into memory");
}

/// Parses an output line of a map (`PARENT<TAB>SIDE HASH`) into the index of the parent, whether the node is its
/// right child, and the node's hash; `None` for any other text.
#[must_use]
pub fn read_child(line: &str) -> Option<(u64, bool, Hash)> {
    let (parent, rest) = line.split_once('\t')?;
    let (side, hash) = rest.split_once(' ')?;
    let is_right = match side {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    Some((parent.parse().ok()?, is_right, from_hex(hash)?))
}

/// Appends to `lines` the output line of a reduce for the node at `index`: `INDEX<TAB>HASH`.
pub fn write_node(index: u64, hash: &Hash, lines: &mut Vec<u8>) {
    writeln!(lines, "{index:0INDEX_DIGITS$}\t{}", hex(hash)).expect("into memory");
}

/// Parses an output line of a reduce (`INDEX<TAB>HASH`) into the node's index and hash; `None` for any other text.
#[must_use]
pub fn read_node(line: &str) -> Option<(u64, Hash)> {
    let (index, hash) = line.split_once('\t')?;
    Some((index.parse().ok()?, from_hex(hash)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    /// The definition, from the root down: the left subtree has the largest power of two that is below n.
    fn root(documents: &[Vec<u8>]) -> Hash {
        match documents {
            [one] => Sha256::digest(one).into(),
            all => {
                let half = all.len().next_power_of_two() / 2;
                let pair = [root(&all[..half]), root(&all[half..])].concat();
                Sha256::digest(pair).into()
            }
        }
    }

    #[test]
    fn levels_lead_to_the_root_of_the_definition() {
        for count in 1..=70_u8 {
            let documents: Vec<Vec<u8>> = (0..count).map(|number| vec![number; 5]).collect();
            let mut level: Vec<Hash> = documents.iter().map(|document| leaf(document)).collect();
            let mut levels = 0;
            while level.len() > 1 {
                level = combine(&level);
                levels += 1;
                assert_eq!(level.len() as u64, nodes(u64::from(count), levels));
            }
            assert_eq!(level, [root(&documents)], "{count}");
            assert_eq!(levels, u32::from(count).next_power_of_two().ilog2(), "{count}");
        }
    }

    #[test]
    fn lines_are_read_as_they_were_written() {
        let hash = leaf(b"a review");
        let mut lines = Vec::new();
        write_child(7, &hash, &mut lines);
        write_node(7, &hash, &mut lines);
        let lines = String::from_utf8(lines).unwrap();
        let (child, node) = lines.trim_end().split_once('\n').unwrap();
        assert!(child.starts_with("000000000003\t1 "), "{child}");
        assert_eq!(read_child(child), Some((3, true, hash)));
        assert_eq!(read_node(node), Some((7, hash)));
        for wrong in ["", "7", "7\t", "x\t1 00", &node[..node.len() - 1], &node.to_uppercase()] {
            assert_eq!((read_child(wrong), read_node(wrong)), (None, None), "{wrong}");
        }
    }
}
