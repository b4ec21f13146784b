//! Encodes and decodes batches of Kafka records, as they are appended and fetched: not compressed, or compressed with
//! gzip or LZ4.

use std::io::{Read, Write as _};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use kafka_protocol::records::{
    Compression, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, Record,
    RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};

use super::fault::Fault;

/// Version of the format of record batches, which Kafka has since 0.11.
const VERSION: i8 = 2;
/// Size of the offset and the length at the start of a batch, which the batch's length does not count, in bytes.
const HEAD_BYTES: usize = 8 + 4;
/// Maximum size of a batch's decompressed records, in bytes; a fetch has one record of the largest group at least.
const RECORDS_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Encodes a batch with one record that has this value. The broker sets its offset and time.
pub(super) fn encode(value: &[u8], compression: Compression) -> Result<Bytes, Fault> {
    let record = Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
        producer_id: NO_PRODUCER_ID,
        producer_epoch: NO_PRODUCER_EPOCH,
        timestamp_type: TimestampType::Creation,
        offset: 0,
        sequence: NO_SEQUENCE,
        timestamp: 0,
        key: None,
        value: Some(Bytes::copy_from_slice(value)),
        headers: Default::default(),
    };
    let mut batch = BytesMut::new();
    let options = RecordEncodeOptions { version: VERSION, compression };
    RecordBatchEncoder::encode_with_custom_compression(
        &mut batch,
        [&record],
        &options,
        Some(compress),
    )
    .map_err(|error| Fault::Lasting(format!("a batch cannot be encoded: {error}")))?;
    Ok(batch.freeze())
}

/// Removes the next batch from the fetched bytes, and returns its records; returns `None` if only a part of a batch
/// or nothing is left.
pub(super) fn decode(fetched: &mut Bytes) -> Result<Option<Vec<Record>>, Fault> {
    let Some(mut length) = fetched.get(8..HEAD_BYTES) else { return Ok(None) };
    let length = usize::try_from(length.get_i32()).unwrap_or(0);
    if fetched.len() < HEAD_BYTES + length {
        return Ok(None);
    }
    let mut batch = fetched.split_to(HEAD_BYTES + length);
    RecordBatchDecoder::decode_with_custom_compression(&mut batch, Some(decompress))
        .map(|batch| Some(batch.records))
        .map_err(|error| Fault::Lasting(format!("a batch cannot be decoded: {error}")))
}

/// Appends the compressed records of a batch to `into`.
fn compress(
    records: &mut BytesMut,
    into: &mut BytesMut,
    compression: Compression,
) -> anyhow::Result<()> {
    match compression {
        Compression::None => into.put_slice(records),
        Compression::Gzip => {
            let mut encoder = GzEncoder::new(into.writer(), flate2::Compression::fast());
            encoder.write_all(records)?;
            encoder.finish()?;
        }
        Compression::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(into.writer());
            encoder.write_all(records)?;
            encoder.finish()?;
        }
        other => anyhow::bail!("compression {other:?} is not supported"),
    }
    Ok(())
}

/// Returns the decompressed records of a batch, which are limited in size.
fn decompress(records: &mut Bytes, compression: Compression) -> anyhow::Result<Bytes> {
    let compressed = std::mem::take(records);
    let mut decompressor: Box<dyn Read> = match compression {
        Compression::None => return Ok(compressed),
        Compression::Gzip => Box::new(GzDecoder::new(compressed.reader())),
        Compression::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(compressed.reader())),
        other => anyhow::bail!("compression {other:?} is not supported"),
    };
    let mut content = Vec::new();
    decompressor.by_ref().take(RECORDS_BYTES_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > RECORDS_BYTES_MAX {
        anyhow::bail!("its records take more than {RECORDS_BYTES_MAX} bytes");
    }
    Ok(content.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Compression; 3] = [Compression::None, Compression::Gzip, Compression::Lz4];

    #[test]
    fn a_batch_is_decoded_as_it_was_encoded() {
        for compression in ALL {
            for length in [0, 1, 63, 64, 8_191, 8_192, 100_000] {
                let value: Vec<u8> = (0..length).map(|n: u32| n.to_le_bytes()[0]).collect();
                let mut fetched = encode(&value, compression).unwrap();
                let read = decode(&mut fetched).unwrap().unwrap();
                let read: Vec<_> = read.into_iter().map(|it| (it.offset, it.value)).collect();
                assert_eq!(read, [(0, Some(Bytes::from(value)))]);
                assert!(decode(&mut fetched).unwrap().is_none());
            }
        }
    }

    #[test]
    fn a_part_of_a_batch_is_none_and_a_damaged_one_is_an_error() {
        for compression in ALL {
            let whole = encode(b"a value that is long enough to be compressed at all", compression);
            let whole = whole.unwrap();
            for end in 0..whole.len() {
                assert!(decode(&mut whole.slice(..end)).unwrap().is_none());
            }
            // From the format's version on, everything is under the checksum.
            for at in 16..whole.len() {
                let mut damaged = BytesMut::from(&whole[..]);
                damaged[at] ^= 1;
                assert!(decode(&mut damaged.freeze()).is_err(), "{at}");
            }
        }
    }
}
