//! The new chunks, and the weight (size) of each on each shard: Morphus' `W[chunk][shard]` (§3.1), in documents and
//! in bytes.
//!
//! A sample estimates how the documents of a shard are distributed over the new chunks. The total for a shard is the
//! shard's own count, unless that includes orphans, which the sample reveals.
//!
//! Invariant: the weights of a shard add up to its documents; for a whole collection exactly.

use crate::bson::order::Id;
use crate::server::collection::Size;

use crate::reshard::plan::sample::{Sample, SampledDocument};
use crate::reshard::plan::survey::Shard;

use imago_plan::copy::split_points::{slice_of, weighted_cuts};

/// Number of standard deviations by which a sample may differ from a shard's own count; beyond it the sample counts.
const DEVIATIONS: f64 = 5.0;

/// The new chunks, with the size of each on each shard before the change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reshard) struct ChunkWeights {
    /// Lower bounds of the chunks, except the first chunk, which has none.
    pub(in crate::reshard) cuts: Vec<Id>,
    /// Size of each chunk's documents on each shard: `rows[chunk][shard]`.
    pub(in crate::reshard) rows: Vec<Vec<Size>>,
    /// The value of the new key with the most bytes, its bytes, and the number of sampled documents with it; `None`
    /// for an empty sample.
    pub(in crate::reshard) heaviest: Option<(Id, u64, u64)>,
}

impl ChunkWeights {
    /// Returns the size of the collection's documents on each shard.
    pub(in crate::reshard) fn held(&self) -> Vec<Size> {
        let shards = self.rows.first().map_or(0, Vec::len);
        (0..shards).map(|shard| sum(self.rows.iter().map(|row| row[shard]))).collect()
    }

    /// Returns the size of the collection's documents on all shards.
    pub(in crate::reshard) fn total(&self) -> Size {
        sum(self.held().into_iter())
    }
}

/// Returns the sum of `sizes`.
pub(in crate::reshard) fn sum(sizes: impl Iterator<Item = Size>) -> Size {
    sizes.fold(Size::default(), |sum, size| Size {
        documents: sum.documents + size.documents,
        bytes: sum.bytes + size.bytes,
    })
}

/// Returns the size of the collection's documents on each shard, without orphans.
pub(in crate::reshard) fn shard_sizes(sample: &Sample, shards: &[Shard]) -> Vec<Size> {
    let mut drawn = vec![Size::default(); shards.len()];
    for document in &sample.documents {
        drawn[document.shard].documents += 1;
        drawn[document.shard].bytes += document.bytes;
    }
    if sample.is_whole {
        return drawn;
    }
    { drawn.iter().zip(shards) }
        .map(|(drawn, shard)| shard_size(*drawn, shard, sample.rate))
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "an estimate")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "and not negative")]
fn shard_size(drawn: Size, shard: &Shard, rate: Option<f64>) -> Size {
    let counted = shard.stored.documents.saturating_sub(shard.orphans);
    let owned = Size {
        documents: counted,
        bytes: scaled(shard.stored.bytes, counted, shard.stored.documents),
    };
    let Some(rate) = rate else { return owned };
    let told = drawn.documents as f64 / rate;
    let deviation = (counted as f64 * (1.0 - rate) / rate).sqrt().max(1.0);
    if (told - counted as f64).abs() <= DEVIATIONS * deviation {
        return owned;
    }
    Size { documents: told as u64, bytes: (drawn.bytes as f64 / rate) as u64 }
}

/// Returns `amount` × `part` / `whole`, rounded down.
fn scaled(amount: u64, part: u64, whole: u64) -> u64 {
    let product = u128::from(amount) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// Cuts the new key's space into at most `chunks` ranges of about equal size in bytes, and estimates the size of each
/// range on each shard. `held` is the size of the documents on each shard.
pub(in crate::reshard) fn weigh(sample: &Sample, held: &[Size], chunks: usize) -> ChunkWeights {
    let drawn = drawn_on(sample, held.len());
    let key = |document: &SampledDocument| {
        let scale = (held[document.shard].bytes, drawn[document.shard].bytes);
        (document.at.clone(), scaled(document.bytes, scale.0, scale.1).max(1))
    };
    let mut keys: Vec<(Id, u64)> = sample.documents.iter().map(key).collect();
    keys.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    let heaviest = heaviest(&keys);
    let cuts = weighted_cuts(keys, chunks);
    let mut found = vec![vec![Size::default(); held.len()]; cuts.len() + 1];
    for document in &sample.documents {
        let size = &mut found[slice_of(&cuts, &document.at)][document.shard];
        size.documents += 1;
        size.bytes += document.bytes;
    }
    let rows = scale(found, &drawn, held);
    ChunkWeights { cuts, rows, heaviest }
}

fn drawn_on(sample: &Sample, shards: usize) -> Vec<Size> {
    let mut drawn = vec![Size::default(); shards];
    for document in &sample.documents {
        let size = &mut drawn[document.shard];
        size.documents += 1;
        size.bytes += document.bytes;
    }
    drawn
}

/// Scales the sampled size of each chunk on each shard up to the whole content of the shard. A remainder of rounding
/// goes to a later chunk, so that nothing is lost.
fn scale(mut found: Vec<Vec<Size>>, drawn: &[Size], held: &[Size]) -> Vec<Vec<Size>> {
    for shard in 0..held.len() {
        let (mut before, mut given) = (Size::default(), Size::default());
        for row in &mut found {
            let size = &mut row[shard];
            before = sum([before, *size].into_iter());
            let upto = Size {
                documents: scaled(held[shard].documents, before.documents, drawn[shard].documents),
                bytes: scaled(held[shard].bytes, before.bytes, drawn[shard].bytes),
            };
            size.documents = upto.documents - given.documents;
            size.bytes = upto.bytes - given.bytes;
            given = upto;
        }
    }
    found
}

/// Returns the key value with the most bytes, its bytes, and its number of documents. `keys` are the sorted key
/// values of the sampled documents with their bytes.
fn heaviest(keys: &[(Id, u64)]) -> Option<(Id, u64, u64)> {
    let alike = keys.chunk_by(|a, b| a.0 == b.0);
    let sums = alike.map(|alike| {
        let bytes: u64 = alike.iter().map(|(_, bytes)| bytes).sum();
        (&alike[0].0, bytes, alike.len() as u64)
    });
    let (at, bytes, documents) = sums.max_by_key(|(_, bytes, _)| *bytes)?;
    Some((at.clone(), bytes, documents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::RawBsonRef;
    use proptest::prelude::*;

    fn drawn((at, shard, bytes): (i32, usize, u64)) -> SampledDocument {
        SampledDocument { at: Id::from_raw(RawBsonRef::Int32(at)), shard, bytes }
    }

    fn documents() -> impl Strategy<Value = Vec<SampledDocument>> {
        prop::collection::vec((0..200_i32, 0..3_usize, 20..2_000_u64).prop_map(drawn), 0..200)
    }

    fn shard(documents: u64, bytes: u64, orphans: u64) -> Shard {
        Shard {
            name: "s".into(),
            host: "s/h:1".into(),
            is_draining: false,
            stored: Size { documents, bytes },
            orphans,
            index_bytes: 0,
        }
    }

    fn of_rate(documents: u64, rate: f64) -> Sample {
        let documents = (0..documents).map(|n| drawn((i32::try_from(n).unwrap(), 0, 100)));
        Sample { documents: documents.collect(), rate: Some(rate), ..Sample::default() }
    }

    #[test]
    fn a_shards_own_count_is_finer_than_the_samples() {
        let held = shard_sizes(&of_rate(980, 0.01), &[shard(100_000, 10_000_000, 0)]);
        assert_eq!(held, [Size { documents: 100_000, bytes: 10_000_000 }]);
    }

    #[test]
    fn documents_that_a_shard_does_not_own_are_left_out_told_or_not() {
        let told = shard_sizes(&of_rate(500, 0.01), &[shard(100_000, 10_000_000, 50_000)]);
        assert_eq!(told, [Size { documents: 50_000, bytes: 5_000_000 }]);
        let untold = shard_sizes(&of_rate(500, 0.01), &[shard(100_000, 10_000_000, 0)]);
        assert_eq!(untold, [Size { documents: 50_000, bytes: 5_000_000 }]);
    }

    #[test]
    fn the_heaviest_value_is_that_of_most_bytes() {
        let documents = [(1, 0, 10), (2, 0, 30), (1, 1, 25)].map(drawn).to_vec();
        let sample = Sample { documents, is_whole: true, ..Sample::default() };
        let held = shard_sizes(&sample, &[shard(0, 0, 0), shard(0, 0, 0)]);
        let (at, bytes, documents) = weigh(&sample, &held, 1).heaviest.unwrap();
        assert_eq!((at.to_string().as_str(), bytes, documents), (r#"{"$numberInt":"1"}"#, 35, 2));
    }

    proptest! {
        #[test]
        fn of_a_whole_collection_weights_are_what_is_there(
            documents in documents(), chunks in 1..12_usize,
        ) {
            let sample = Sample { documents, is_whole: true, ..Sample::default() };
            let held = shard_sizes(&sample, &[shard(0, 0, 0), shard(0, 0, 0), shard(0, 0, 0)]);
            let weighed = weigh(&sample, &held, chunks);
            for (chunk, row) in weighed.rows.iter().enumerate() {
                for (shard, size) in row.iter().enumerate() {
                    let here = sample.documents.iter().filter(|document| {
                        document.shard == shard && slice_of(&weighed.cuts, &document.at) == chunk
                    });
                    prop_assert_eq!(size.bytes, here.clone().map(|d| d.bytes).sum::<u64>());
                    prop_assert_eq!(size.documents, here.count() as u64);
                }
            }
        }

        #[test]
        fn of_a_sample_each_shards_weights_sum_up_to_what_it_holds(
            documents in documents(), chunks in 1..12_usize,
            held in prop::collection::vec((1..1_000_000_u64, 1..1_000_000_000_u64), 3),
        ) {
            let sample = Sample { documents, ..Sample::default() };
            let held: Vec<Size> =
                held.into_iter().map(|(documents, bytes)| Size { documents, bytes }).collect();
            let weighed = weigh(&sample, &held, chunks);
            let summed = weighed.held();
            for shard in 0..3 {
                if sample.documents.iter().any(|document| document.shard == shard) {
                    prop_assert_eq!(summed[shard], held[shard]);
                }
            }
        }
    }
}
