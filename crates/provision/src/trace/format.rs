//! The form of an `.imt` file.
//!
//! ```text
//! file   = magic version:u16 length:u32 header-json crc:u32 block*
//! block  = kind:u8 length:u32 payload crc:u32
//! ```
//!
//! Numbers are little-endian. A CRC (CRC-32C) covers all bytes of its block, or of the file's head, before it. Blocks:
//!
//! | kind | payload |
//! |---|---|
//! | 1, reads of the phase | for each read: type of the key `u8`, its length and bytes, 0 or 1 + the document's bytes |
//! | 2, end of a phase | number of the phase, its reads, its beginning and end in µs |
//! | 3, end of the file | JSON: totals, and how the recording ended; nothing follows |
//!
//! Lengths and numbers within payloads are variable-length integers (LEB128).

use serde::{Deserialize, Serialize};

use super::Ending;

/// The first bytes of a file. As with PNG, a byte that is no text comes first, and line breaks that a transfer as text
/// would change.
pub(super) const MAGIC: [u8; 8] = *b"\x89IMT\r\n\x1a\n";
/// The version that is written, and the only one that is read.
pub(super) const VERSION: u16 = 1;
/// Kind of a block of reads.
pub(super) const READS: u8 = 1;
/// Kind of the end of a phase.
pub(super) const PHASE_END: u8 = 2;
/// Kind of the closing block.
pub(super) const CLOSING: u8 = 3;
/// A block of reads is written when its payload has this many bytes.
pub(super) const BLOCK_BYTES: usize = 64 * 1024;
/// Longest payload: a block, and after it a key as long as a document may be.
pub(super) const PAYLOAD_BYTES_MAX: usize = BLOCK_BYTES + KEY_BYTES_MAX + 64;
/// Longest key: the longest document of MongoDB.
pub(super) const KEY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Longest header.
pub(super) const HEADER_BYTES_MAX: usize = 64 * 1024;

/// The closing block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Closing {
    pub(super) phases: u64,
    pub(super) reads: u64,
    pub(super) documents: u64,
    pub(super) document_bytes: u64,
    pub(super) other_reads: u64,
    pub(super) ending: Ending,
}

/// A block with its length and CRC.
pub(super) fn block(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(payload.len() + 9);
    block.push(kind);
    // At most `PAYLOAD_BYTES_MAX`.
    block.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    block.extend_from_slice(payload);
    block.extend_from_slice(&crc32c::crc32c(&block).to_le_bytes());
    block
}

/// The head of a file: all before its first block.
pub(super) fn head(header_json: &[u8]) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&(header_json.len() as u32).to_le_bytes());
    head.extend_from_slice(header_json);
    head.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
    head
}
