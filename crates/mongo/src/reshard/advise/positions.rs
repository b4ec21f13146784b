//! The order of the values of each field, from a sample of documents: where a value lies among those of the documents, which
//! a recording keeps in place of the value.

use std::collections::HashMap;

use bson::RawDocumentBuf;
use bson::doc;
use bson::raw::{RawBsonRef, RawDocument};
use futures_util::TryStreamExt;

use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::endpoint::{Endpoint, answer_within, prefer_secondary};
use crate::server::timing::SEARCH_MAX;

/// Number of sampled documents: a position is then known to about half a hundredth of the documents.
const SAMPLE: i64 = 10_000;
/// Largest size of the documents that are sampled, in bytes; of larger ones there are fewer.
const BYTES_MAX: usize = 256 << 20;
/// Largest size of a value that is kept, in bytes: longer ones do not occur in shard keys.
const VALUE_MAX: usize = 1_024;
/// Largest number of fields whose values are kept.
const FIELDS_MAX: usize = 200;
/// Largest depth of fields in documents.
const DEPTH_MAX: usize = 4;

/// The values of each field in a sample of documents.
#[derive(Clone, Debug, Default)]
pub(super) struct Positions {
    /// Values by the path of their field, in order.
    values: HashMap<String, Vec<Id>>,
}

impl Positions {
    /// Samples the collection `ns`.
    ///
    /// # Errors
    /// Fails if the cluster does not reply.
    pub(super) async fn sample(cluster: &Endpoint, ns: &Namespace) -> Result<Self> {
        let doing = format!("sampling {ns}");
        let failed = |cause| Error::server(doing.clone(), cause);
        let documents = cluster.client().database(&ns.db);
        let documents = documents.collection::<RawDocumentBuf>(&ns.coll);
        let mut positions = Self::default();
        let mut bytes = 0;
        let read = async {
            let drawn = documents.aggregate(vec![doc! {"$sample": {"size": SAMPLE}}]);
            let drawn = drawn.selection_criteria(prefer_secondary()).with_type::<RawDocumentBuf>();
            let mut drawn = drawn.await?;
            while let Some(document) = drawn.try_next().await? {
                bytes += document.as_bytes().len();
                positions.add(&document, "", 0);
                if bytes > BYTES_MAX {
                    break;
                }
            }
            Ok(())
        };
        answer_within(SEARCH_MAX, &doing, read).await?.map_err(failed)?;
        positions.sort();
        Ok(positions)
    }

    fn sort(&mut self) {
        self.values.values_mut().for_each(|values| values.sort_unstable());
    }

    fn add(&mut self, document: &RawDocument, prefix: &str, depth: usize) {
        for (name, value) in document.iter().flatten() {
            let path = format!("{prefix}{}", name.as_str());
            match value {
                RawBsonRef::Array(_) => {}
                RawBsonRef::Document(inner) if depth < DEPTH_MAX => {
                    self.add(inner, &format!("{path}."), depth + 1);
                }
                value if value.as_str().is_some_and(|text| text.len() > VALUE_MAX) => {}
                value => {
                    let has_room = self.values.len() < FIELDS_MAX;
                    if has_room || self.values.contains_key(&path) {
                        self.values.entry(path).or_default().push(Id::from_raw(value));
                    }
                }
            }
        }
    }

    /// Returns the part of the documents with the field at `path` that have a smaller value there than `value`, in 2⁻³² of all. Of an
    /// unknown field it is a half.
    pub(super) fn below(&self, path: &str, value: &Id) -> u32 {
        let Some(values) = self.values.get(path) else { return 1 << 31 };
        let below = values.partition_point(|other| other < value) as u64;
        let part = (below << 32) / values.len() as u64;
        u32::try_from(part).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn a_position_is_the_part_of_the_documents_below() {
        let documents: Vec<_> = (0..100_i32)
            .map(|n| rawdoc! {"_id": n, "address": {"zip": 60_000 + n}, "tags": ["a"]})
            .collect();
        let mut positions = Positions::default();
        documents.iter().for_each(|document| positions.add(document, "", 0));
        positions.sort();
        let part = |path: &str, value: i32| {
            let below = positions.below(path, &Id::from_raw(RawBsonRef::Int32(value)));
            f64::from(below) / 2_f64.powi(32)
        };
        assert!((part("address.zip", 60_025) - 0.25).abs() < 1e-9);
        assert!(part("_id", -5) < 1e-9);
        assert!(part("_id", 500) > 0.999);
        assert!((part("tags", 1) - 0.5).abs() < 1e-9, "a field that is not known");
    }
}
