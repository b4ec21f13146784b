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
        let read = async {
            let drawn = documents.aggregate(vec![doc! {"$sample": {"size": SAMPLE}}]);
            let drawn = drawn.selection_criteria(prefer_secondary()).with_type::<RawDocumentBuf>();
            drawn.await?.try_collect::<Vec<_>>().await
        };
        let read = answer_within(SEARCH_MAX, &doing, read).await?.map_err(failed)?;
        Ok(Self::of(read.iter().map(AsRef::as_ref)))
    }

    fn of<'a>(documents: impl Iterator<Item = &'a RawDocument>) -> Self {
        let mut positions = Self::default();
        for document in documents {
            positions.add(document, "", 0);
        }
        positions.values.values_mut().for_each(|values| values.sort_unstable());
        positions
    }

    fn add(&mut self, document: &RawDocument, prefix: &str, depth: usize) {
        for (name, value) in document.iter().flatten() {
            let path = format!("{prefix}{}", name.as_str());
            match value {
                RawBsonRef::Array(_) => {}
                RawBsonRef::Document(inner) if path != "_id" && depth < DEPTH_MAX => {
                    self.add(inner, &format!("{path}."), depth + 1);
                }
                value => {
                    let has_room = self.values.len() < FIELDS_MAX;
                    if has_room || self.values.contains_key(&path) {
                        self.values.entry(path).or_default().push(Id::from_raw(value));
                    }
                }
            }
        }
    }

    /// Returns the part of the documents with a smaller value than `value` in the field at `path`, in 2⁻³² of all. Of an
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
        let positions = Positions::of(documents.iter().map(AsRef::as_ref));
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
