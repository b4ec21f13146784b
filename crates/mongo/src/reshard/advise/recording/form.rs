//! The form of recorded operations, and its document in a file.

use bson::raw::{RawBsonRef, RawDocument};
use bson::{Bson, Document, doc};
use imago_plan::shard_key::Kind;

use crate::reshard::advise::operation::Operation;
use crate::reshard::advise::predicate::{Bound, Ignored};

/// The form of an operation in a file: everything but its values, its number of documents and its transaction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub(super) kind: Kind,
    /// Paths with conditions, in the order of the values, and the form of each condition.
    pub(super) bounds: Vec<(String, BoundForm)>,
    pub(super) sets: Vec<String>,
    pub(super) ignored: Vec<Ignored>,
    pub(super) is_upsert: bool,
    pub(super) is_unknown: bool,
    pub(super) is_unseen_insert: bool,
}

/// The form of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum BoundForm {
    Equal,
    In,
    Between,
    From,
    To,
    /// A range without bounds, which no query has, but which a file may.
    Open,
}

const BOUND_FORMS: [(BoundForm, &str); 6] = [
    (BoundForm::Equal, "eq"),
    (BoundForm::In, "in"),
    (BoundForm::Between, "between"),
    (BoundForm::From, "from"),
    (BoundForm::To, "to"),
    (BoundForm::Open, "open"),
];
pub(super) const KINDS: [(Kind, &str); 6] = [
    (Kind::Read, "read"),
    (Kind::Insert, "insert"),
    (Kind::UpdateOne, "updateOne"),
    (Kind::DeleteOne, "deleteOne"),
    (Kind::WriteMany, "writeMany"),
    (Kind::FindAndModify, "findAndModify"),
];
pub(super) const IGNORED: [(Ignored, &str); 7] = [
    (Ignored::Or, "or"),
    (Ignored::Expression, "expression"),
    (Ignored::Operator, "operator"),
    (Ignored::Array, "array"),
    (Ignored::TooMany, "tooMany"),
    (Ignored::Shortened, "shortened"),
    (Ignored::Collation, "collation"),
];

fn name_of<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> &'static str {
    names.iter().find(|(of, _)| of == value).map_or("", |(_, name)| name)
}

fn named<T: Copy>(names: &[(T, &'static str)], name: &str) -> Option<T> {
    names.iter().find(|(_, of)| *of == name).map(|(value, _)| *value)
}

impl Form {
    /// Returns the document of the form with this number.
    pub(super) fn document(&self, number: i32) -> Document {
        let bounds = self.bounds.iter().map(|(path, bound)| {
            Bson::Array(vec![path.clone().into(), name_of(&BOUND_FORMS, bound).into()])
        });
        let ignored = self.ignored.iter().map(|kind| Bson::from(name_of(&IGNORED, kind)));
        doc! {
            "form": number,
            "kind": name_of(&KINDS, &self.kind),
            "bounds": bounds.collect::<Vec<Bson>>(),
            "sets": self.sets.clone(),
            "ignored": ignored.collect::<Vec<Bson>>(),
            "upsert": self.is_upsert,
            "unknown": self.is_unknown,
            "unseen": self.is_unseen_insert,
        }
    }
}

pub(super) fn form_of(operation: &Operation) -> Form {
    let bound = |(path, bound): &(String, Bound)| {
        let form = match bound {
            Bound::Equal(_) => BoundForm::Equal,
            Bound::In(_) => BoundForm::In,
            Bound::Between(Some(_), Some(_)) => BoundForm::Between,
            Bound::Between(Some(_), None) => BoundForm::From,
            Bound::Between(None, Some(_)) => BoundForm::To,
            Bound::Between(None, None) => BoundForm::Open,
        };
        (path.clone(), form)
    };
    Form {
        kind: operation.kind,
        bounds: operation.bounds.iter().map(bound).collect(),
        sets: operation.sets.clone(),
        ignored: operation.ignored.clone(),
        is_upsert: operation.is_upsert,
        is_unknown: operation.is_unknown,
        is_unseen_insert: operation.is_unseen_insert,
    }
}

/// Returns an operation of this form, whose values are set later.
pub(super) fn template(form: Form) -> Operation {
    let open = |(path, _)| (path, Bound::Between(None, None));
    Operation {
        kind: form.kind,
        bounds: form.bounds.into_iter().map(open).collect(),
        sets: form.sets,
        documents: 0,
        transaction: None,
        ignored: form.ignored,
        is_upsert: form.is_upsert,
        is_unknown: form.is_unknown,
        is_unseen_insert: form.is_unseen_insert,
    }
}

pub(super) fn read_form(document: &RawDocument) -> Option<Form> {
    let texts = |name: &str| -> Option<Vec<String>> {
        let array = document.get_array(name).ok()?;
        array.into_iter().map(|text| Some(text.ok()?.as_str()?.to_owned())).collect()
    };
    let bound = |bound: bson::error::Result<RawBsonRef<'_>>| {
        let mut pair = bound.ok()?.as_array()?.into_iter();
        let path = pair.next()?.ok()?.as_str()?.to_owned();
        Some((path, named(&BOUND_FORMS, pair.next()?.ok()?.as_str()?)?))
    };
    let bounds =
        document.get_array("bounds").ok()?.into_iter().map(bound).collect::<Option<_>>()?;
    let ignored = texts("ignored")?.iter().map(|name| named(&IGNORED, name)).collect::<Option<_>>();
    Some(Form {
        kind: named(&KINDS, document.get_str("kind").ok()?)?,
        bounds,
        sets: texts("sets")?,
        ignored: ignored?,
        is_upsert: document.get_bool("upsert").ok()?,
        is_unknown: document.get_bool("unknown").ok()?,
        is_unseen_insert: document.get_bool("unseen").ok()?,
    })
}
