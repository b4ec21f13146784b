//! Options and indexes.

use bson::doc;
use imago_mongo::error::{Class, Error};
use imago_mongo::server::collection::Handle;
use imago_mongo::verify::{Mode, Spec, StructureDifference, Unwatched, verify};

use crate::verify::world::{Sides, control, create, insert, quick, with_sides};

async fn index(side: &Handle, spec: bson::Document) {
    side.create_indexes(&[spec]).await.unwrap();
}

fn names(differences: &[StructureDifference]) -> Vec<&str> {
    differences.iter().map(|difference| difference.name.as_str()).collect()
}

#[test]
fn options_that_differ_are_named() {
    with_sides("options", |sides| async move {
        let validator =
            |least: i32| doc! {"validator": {"v": {"$gte": least}}, "capped": true, "size": 4096};
        create(&sides.source, validator(0)).await;
        create(&sides.destination, validator(1)).await;
        let report = sides.verify(&quick()).await;
        assert_eq!(names(&report.options_differences), ["validator"]);
        assert!(!report.is_clean());
    });
}

#[test]
fn indexes_that_differ_are_named() {
    with_sides("indexes", |sides| async move {
        create(&sides.source, doc! {}).await;
        create(&sides.destination, doc! {}).await;
        let plain = |name: &str| doc! {"key": {"a": 1}, "name": name};
        index(&sides.source, plain("both")).await;
        index(&sides.destination, plain("both")).await;
        index(&sides.source, doc! {"key": {"b": 1}, "name": "unique", "unique": true}).await;
        index(&sides.destination, doc! {"key": {"b": 1}, "name": "unique"}).await;
        index(&sides.destination, doc! {"key": {"c": 1}, "name": "extra"}).await;
        let report = sides.verify(&quick()).await;
        assert_eq!(names(&report.index_differences), ["extra", "unique"]);
        assert!(report.options_differences.is_empty());
    });
}

#[test]
fn equal_structures_are_clean() {
    with_sides("structure", |sides| async move {
        for side in [&sides.source, &sides.destination] {
            create(side, doc! {"collation": {"locale": "de", "strength": 1}}).await;
            index(side, doc! {"key": {"a": 1}, "name": "a", "expireAfterSeconds": 60}).await;
            index(
                side,
                doc! {"key": {"t": "text"}, "name": "t", "collation": {"locale": "simple"}},
            )
            .await;
        }
        let report = sides.verify(&quick()).await;
        assert!(report.is_clean(), "{report:?}");
    });
}

async fn refused(sides: &Sides, spec: &Spec) -> Error {
    let (control, mut watch) = (control(), Unwatched);
    let verified = verify(&sides.source, &sides.destination, spec, &control, &mut watch);
    Box::pin(verified).await.expect_err("nothing can be compared")
}

#[test]
fn a_view_is_not_compared_with_a_collection() {
    with_sides("kinds", |sides| async move {
        insert(&sides.source, [doc! {"_id": 1}]).await;
        create(&sides.destination, doc! {"viewOn": "hidden", "pipeline": []}).await;
        let swapped =
            Sides { source: sides.destination.clone(), destination: sides.source.clone() };
        for sides in [&sides, &swapped] {
            for structure in [true, false] {
                for mode in [Mode::Full, Mode::Sample(10), Mode::LastOps(10)] {
                    let error = refused(sides, &Spec { mode, structure, ..quick() }).await;
                    assert_eq!(error.class(), Class::Precondition, "{error}");
                    let text = error.to_string();
                    assert!(text.contains("a view") && text.contains("a collection"), "{text}");
                }
            }
        }
    });
}

#[test]
fn views_are_compared_by_their_definitions_or_not_at_all() {
    with_sides("views", |sides| async move {
        for (side, limit) in [(&sides.source, 1), (&sides.destination, 2)] {
            create(side, doc! {"viewOn": "hidden", "pipeline": [{"$limit": limit}]}).await;
        }
        let report = sides.verify(&quick()).await;
        assert_eq!(names(&report.options_differences), ["pipeline"]);
        let error = refused(&sides, &Spec { structure: false, ..quick() }).await;
        assert_eq!(error.class(), Class::Usage, "{error}");
    });
}
