//! The format of an `.imt` file.
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
//! | 2, end of a phase | number of the phase, its reads, its beginning and end in µs; from version 2 on, if they are known: the number of requests, the sum of their times in µs, and the most at once |
//! | 3, end of the file | JSON: totals, and how the recording ended; nothing follows |
//!
//! Lengths and numbers within payloads are variable-length integers (LEB128).

use serde::{Deserialize, Serialize};

use super::Ending;

/// The magic number: the first bytes of an `.imt` file. As in PNG, it begins with a byte that is not text, and
/// contains line breaks that a transfer in text mode would change.
pub(super) const MAGIC: [u8; 8] = *b"\x89IMT\r\n\x1a\n";
/// Version of the `.imt` format that is written; earlier ones are read, too.
pub(super) const VERSION: u16 = 2;
/// Kind of a block that has reads of the current phase.
pub(super) const READS: u8 = 1;
/// Kind of the block that ends a phase.
pub(super) const PHASE_END: u8 = 2;
/// Kind of the closing block, the last one of a file.
pub(super) const CLOSING: u8 = 3;
/// Size of the collected reads, in bytes, at which they are written as a block.
pub(super) const BLOCK_BYTES: usize = 64 * 1024;
/// Maximum size of a block's payload, in bytes: [`BLOCK_BYTES`] of reads, followed by a read with a key of maximum
/// length.
pub(super) const PAYLOAD_BYTES_MAX: usize = BLOCK_BYTES + KEY_BYTES_MAX + 64;
/// Maximum length of a key's value, in bytes: the maximum size of a MongoDB document.
pub(super) const KEY_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Maximum length of the header's JSON, in bytes.
pub(super) const HEADER_BYTES_MAX: usize = 64 * 1024;

/// The content of the closing block: totals of the file, and how the recording ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Closing {
    /// Number of phases in the file.
    pub(super) phases: u64,
    /// Number of reads in all phases.
    pub(super) reads: u64,
    /// Number of reads in the file that found a document.
    pub(super) documents: u64,
    /// Total size of the documents found, in bytes.
    pub(super) document_bytes: u64,
    /// Number of the job's reads that are not in the file because they were not by `_id`.
    pub(super) other_reads: u64,
    /// Whether the job was recorded to its end, and if not, the reason.
    pub(super) ending: Ending,
}

/// Encodes a block of an `.imt` file: kind, length, payload and CRC.
pub(super) fn block(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(payload.len() + 9);
    block.push(kind);
    // At most `PAYLOAD_BYTES_MAX`.
    block.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    block.extend_from_slice(payload);
    block.extend_from_slice(&crc32c::crc32c(&block).to_le_bytes());
    block
}

/// Encodes the head of an `.imt` file, all bytes before its first block; `header_json` is the header as JSON.
pub(super) fn head(header_json: &[u8]) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&(header_json.len() as u32).to_le_bytes());
    head.extend_from_slice(header_json);
    head.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
    head
}
