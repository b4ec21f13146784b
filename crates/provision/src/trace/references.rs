//! Conversion of a trace into the references from which hit curves of a cache are computed.

use imago_plan::provision::reuse::Reference;
use imago_plan::provision::reuse::pages::StoredRead;

use super::{Read, Trace};

impl Trace {
    /// Returns the reads of each phase, each with its reference as of [`Self::references`] and the position of its document among
    /// the `documents` stored ones. The trace's documents are taken to be spread evenly over the collection: those whose keys
    /// grow with the time of their insertion in that order, others by chance.
    #[must_use]
    pub fn stored_reads(&self, entry_overhead_bytes: f64, documents: u64) -> Vec<Vec<StoredRead>> {
        let found = |read: &&Read| read.document_bytes.is_some();
        let all = self.phases.iter().flatten().filter(found);
        let mut order: Vec<(u8, u128)> = all.map(|read| read.key.storage_order()).collect();
        order.sort_unstable();
        order.dedup();
        let spread = (documents as f64 / order.len().max(1) as f64).max(1.0);
        let references = self.references(entry_overhead_bytes);
        let phases = self.phases.iter().zip(references).map(|(phase, references)| {
            let stored = phase.iter().filter(found).zip(references).map(|(read, reference)| {
                let rank = order.partition_point(|other| *other < read.key.storage_order());
                StoredRead { reference, position: (rank as f64 * spread) as u64 }
            });
            stored.collect()
        });
        phases.collect()
    }

    /// Returns the references of each phase. The reference of a read is the hash of its key, and the size of its cache
    /// entry in bytes: the document's size plus `entry_overhead_bytes`.
    ///
    /// A read that found no document has no reference, because the cache holds documents only. So a phase may have
    /// fewer references than reads.
    #[must_use]
    pub fn references(&self, entry_overhead_bytes: f64) -> Vec<Vec<Reference>> {
        let reference = |read: &Read| {
            // A conversion of a float saturates at the bounds of the integer type.
            let bytes = (f64::from(read.document_bytes?) + entry_overhead_bytes).round() as u32;
            Some(Reference { key: read.key.hash64(), bytes })
        };
        self.phases.iter().map(|phase| phase.iter().filter_map(reference).collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use imago_plan::provision::reuse::{Start, exact};

    use crate::trace::tests::header;
    use crate::trace::{Ending, Key, Read, Span, Trace};

    #[test]
    fn documents_are_stored_in_the_order_of_keys_that_grow_with_time() {
        let read = |key: Key| Read { key, document_bytes: Some(200) };
        let of = |keys: Vec<Key>| Trace {
            header: header(),
            phases: vec![keys.into_iter().map(read).collect()],
            spans: vec![Span::default()],
            other_reads: 0,
            ending: Ending::Complete,
        };
        let positions = |trace: Trace, documents| -> Vec<u64> {
            trace.stored_reads(80.0, documents)[0].iter().map(|read| read.position).collect()
        };
        let orders = [4_711_i64, -3, 90_000, 4_711, 12];
        assert_eq!(positions(of(orders.map(Key::from).to_vec()), 400), [200, 0, 300, 200, 100]);
        // Fewer documents than the trace has keys cannot be.
        assert_eq!(positions(of(orders.map(Key::from).to_vec()), 1), [2, 0, 3, 2, 1]);
        let name = |n: u32| Key::from_raw(bson::raw::RawBsonRef::String(&format!("user:{n:06}")));
        let mut named = positions(of((0..1_000).map(name).collect()), 1_000);
        assert!(!named.is_sorted(), "names are stored by chance");
        named.sort_unstable();
        assert!(named.into_iter().eq(0..1_000));
    }

    #[test]
    fn what_is_read_again_is_a_hit_unless_there_is_no_such_document() {
        let read = |key: i64, document_bytes| Read { key: Key::from(key), document_bytes };
        let phase = vec![read(1, Some(100)), read(2, None), read(3, Some(50))];
        let trace = Trace {
            header: header(),
            phases: vec![phase.clone(), phase],
            spans: vec![Span::default(); 2],
            other_reads: 0,
            ending: Ending::Complete,
        };
        let references = trace.references(20.4);
        let bytes: Vec<u32> = references[0].iter().map(|reference| reference.bytes).collect();
        assert_eq!(bytes, [120, 70]);
        let warm = exact(&references, Start::Warm);
        assert_eq!(warm.hits(0, 1_000), 2.0, "what is not there is no hit of a second run either");
        let curve = exact(&references, Start::Cold);
        assert_eq!((curve.hits(0, 1_000), curve.hits(1, 1_000)), (0.0, 2.0));
        assert_eq!(curve.distinct_bytes(), 190);
    }
}
