//! A sample of the collection's documents: the values of their fields, their sizes, and the shards that have them.

use super::{Field, Key, Point, Value};

/// A document of a sample.
#[derive(Clone, Copy, Debug)]
pub struct SampledDocument {
    /// Size of the documents that this one stands for, in bytes.
    pub bytes: u64,
    /// Index of the shard that has the document.
    pub shard: u16,
}

/// The sampled documents. A document that lacks a field has null there, as in a shard key.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// Number of fields in the table of fields.
    fields: usize,
    documents: Vec<SampledDocument>,
    /// Values of the documents, `fields` of each.
    values: Vec<Value>,
}

impl Documents {
    /// Returns an empty sample, of documents with `fields` fields.
    #[must_use]
    pub fn new(fields: usize) -> Self {
        Self { fields, documents: Vec::new(), values: Vec::new() }
    }

    /// Adds a document with these values of all fields.
    ///
    /// # Panics
    /// If `values` has not one value of each field.
    pub fn push(&mut self, document: SampledDocument, values: &[Value]) {
        assert_eq!(values.len(), self.fields, "a value of each field");
        self.documents.push(document);
        self.values.extend_from_slice(values);
    }

    /// Returns the number of documents.
    #[must_use]
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// Returns true if there is no document.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Returns the number of fields.
    #[must_use]
    pub fn fields(&self) -> usize {
        self.fields
    }

    /// Returns the documents, without their values.
    #[must_use]
    pub fn documents(&self) -> &[SampledDocument] {
        &self.documents
    }

    /// Returns the value of `field` in the document at `index`.
    #[must_use]
    pub fn value(&self, index: usize, field: Field) -> Value {
        self.values[index * self.fields + usize::from(field)]
    }

    /// Returns the value of `key` in the document at `index`.
    pub(super) fn point(&self, index: usize, key: &Key) -> Point {
        let mut point = Point::default();
        for (at, part) in key.parts().iter().enumerate() {
            point[at] = part.position(self.value(index, part.field));
        }
        point
    }
}
