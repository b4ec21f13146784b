//! A record: the hash that a write leaves under a Redis key.
//!
//! Its fields are those of a review, with the text in pieces of 100 bytes, so that a record resembles those that
//! applications store in Redis: about sixteen fields, none of them large. The number of fields depends on the key
//! alone, so that a write replaces all fields of the previous one.

use std::collections::HashMap;

use imago_workload::review::Review;

use crate::Schema;

/// Maximum size of a piece of the review's text, which is the value of one field, in bytes.
const FIELD_BYTES: usize = 100;
/// Name of the field that has the number of the write.
const SEQ: &str = "seq";

impl Schema {
    /// Returns the names and values of the fields that the write number `seq` leaves under a key.
    pub(super) fn fields(&self, key: u64, seq: u64) -> Vec<(String, String)> {
        fields(self.reviews.review(key, seq), seq)
    }

    /// Returns the number of the write that left the fields `read` under `key`, and true if they are exactly the
    /// fields of that write. Returns `None` if the fields have no valid number.
    pub(super) fn write_of(&self, key: u64, read: &HashMap<String, String>) -> Option<(u64, bool)> {
        let seq = read.get(SEQ)?.parse::<u64>().ok()?;
        let written = self.fields(key, seq);
        let is_intact = written.len() == read.len()
            && written.iter().all(|(name, value)| read.get(name) == Some(value));
        Some((seq, is_intact))
    }
}

/// Returns the names and values of the fields of a record with this review, left by the write number `seq`.
pub(super) fn fields(review: Review, seq: u64) -> Vec<(String, String)> {
    let Review { product_id, title, price, user_id, profile_name, helpfulness, .. } = review;
    let Review { score, time, summary, text, .. } = review;
    let mut fields: Vec<(String, String)> = [
        (SEQ, seq.to_string()),
        ("productID", product_id),
        ("title", title),
        ("price", price.to_string()),
        ("userID", user_id),
        ("profileName", profile_name),
        ("helpfulness", helpfulness),
        ("score", score.to_string()),
        ("time", time.to_string()),
        ("summary", summary),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    // The text is ASCII, so it can be cut anywhere.
    for (number, piece) in text.as_bytes().chunks(FIELD_BYTES).enumerate() {
        fields.push((format!("text:{number}"), String::from_utf8_lossy(piece).into_owned()));
    }
    fields
}

#[cfg(test)]
mod tests {
    use imago_workload::history::IdForm;
    use imago_workload::review::Reviews;

    use super::*;

    #[test]
    fn a_record_has_some_sixteen_small_fields_and_tells_its_write() {
        let schema = Schema { id_form: IdForm::Text, reviews: Reviews::default() };
        let fields = schema.fields(42, 81_950);
        assert!((14..=18).contains(&fields.len()), "{}", fields.len());
        assert!(fields.iter().all(|(_, value)| value.len() <= FIELD_BYTES));
        let mut read: HashMap<String, String> = fields.into_iter().collect();
        assert_eq!(schema.write_of(42, &read), Some((81_950, true)));
        read.insert("price".into(), "0.01".into());
        assert_eq!(schema.write_of(42, &read), Some((81_950, false)));
        read.remove(SEQ);
        assert_eq!(schema.write_of(42, &read), None);
    }

    #[test]
    fn each_write_of_a_key_replaces_all_fields_of_the_one_before() {
        let schema = Schema { id_form: IdForm::Text, reviews: Reviews::default() };
        let names = |key, seq| -> Vec<String> {
            schema.fields(key, seq).into_iter().map(|(name, _)| name).collect()
        };
        for key in 0..200 {
            assert_eq!(names(key, key), names(key, 1_398_442_107));
        }
    }
}
