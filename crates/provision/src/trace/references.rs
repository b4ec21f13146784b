//! Conversion of a trace into the references from which hit curves of a cache are computed.

use imago_plan::provision::reuse::Reference;

use super::{Read, Trace};

impl Trace {
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
