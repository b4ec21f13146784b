//! A trace as the references from which curves of reuse are made.

use imago_plan::reuse::Reference;

use super::{Key, Trace};

impl Trace {
    /// The trace's references, phase by phase: for each read the hash of its key, and the bytes that its entry takes in
    /// a cache, which are those of its document and `entry_overhead_bytes`.
    ///
    /// A read that found no document is asked of the database each time, since a job caches documents only: it is
    /// a reference of 0 bytes to a key of its own, which no other read has.
    #[must_use]
    pub fn references(&self, entry_overhead_bytes: f64) -> Vec<Vec<Reference>> {
        let mut missing = 0_i64;
        let phases = self.phases.iter().map(|phase| {
            let references = phase.iter().map(|read| {
                let Some(bytes) = read.document_bytes else {
                    missing += 1;
                    return Reference { key: unshared(missing), bytes: 0 };
                };
                // A conversion of a float stays within the type's range.
                let bytes = (f64::from(bytes) + entry_overhead_bytes).round() as u32;
                Reference { key: read.key.hash64(), bytes }
            });
            references.collect()
        });
        phases.collect()
    }
}

/// A hash that no key of a document has but by chance.
fn unshared(number: i64) -> u64 {
    Key::from(number).hash64() ^ 0xa5a5_5a5a_0f0f_f0f0
}

#[cfg(test)]
mod tests {
    use imago_plan::reuse::{Start, exact};

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
        assert_eq!(bytes, [120, 0, 70]);
        let curve = exact(&references, Start::Cold);
        assert_eq!((curve.hits(0, 1_000), curve.hits(1, 1_000)), (0.0, 2.0));
        assert_eq!(curve.distinct_bytes(), 190);
    }
}
