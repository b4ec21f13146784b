//! `verify` writes the differences, `repair` mends them, `verify` is clean.

use bson::{Bson, RawDocumentBuf, Timestamp, doc, rawdoc};
use imago_mongo::copy::repair::{RepairReport, RepairSpec, repair};
use imago_mongo::verify::{Mismatch, Progress, Retries, Spec, Watch, read_mismatches, verify};

use crate::verify::world::{Sides, collection, control, create, insert, listed, quick, with_sides};

/// Keeps the text that is written to a file of mismatches.
#[derive(Default)]
struct File(String);

impl Watch for File {
    fn progress(&mut self, _: Progress) {}

    fn mismatch(&mut self, mismatch: &Mismatch) -> std::io::Result<()> {
        self.0.push_str(&mismatch.line());
        self.0.push('\n');
        Ok(())
    }
}

async fn repaired(sides: &Sides, spec: &Spec) -> (RepairReport, String) {
    let mut file = File::default();
    verify(&sides.source, &sides.destination, spec, &control(), &mut file).await.unwrap();
    let repair_spec = RepairSpec {
        retries: Retries { rounds: 2, first_ms: 10, pause_ms_max: 20 },
        filter: spec.filter.clone(),
        ..RepairSpec::default()
    };
    let report = repair(
        &sides.source.endpoint,
        &sides.destination.endpoint,
        read_mismatches(file.0.as_bytes()),
        &repair_spec,
        &control(),
        |_| {},
    )
    .await
    .unwrap();
    (report, file.0)
}

#[test]
fn repair_mends_what_verify_found() {
    with_sides("mend", |sides| async move {
        let all: Vec<bson::Document> = (0..1_000).map(|n| doc! {"_id": n, "v": n}).collect();
        sides.fill(all).await;
        let destination = collection(&sides.destination);
        destination.delete_many(doc! {"_id": {"$lt": 10}}).await.unwrap();
        destination
            .update_many(doc! {"_id": {"$gte": 990}}, doc! {"$inc": {"v": 1}})
            .await
            .unwrap();
        insert(&sides.destination, [doc! {"_id": "extra"}]).await;
        let (report, _) = repaired(&sides, &quick()).await;
        assert_eq!((report.named, report.repaired), (21, 21), "{report:?}");
        assert!(report.is_clean());
        assert!(sides.verify(&quick()).await.is_clean());
    });
}

#[test]
fn ids_of_every_type_pass_through_the_file() {
    with_sides("file", |sides| async move {
        let ids = [
            Bson::MinKey,
            Bson::Null,
            Bson::Double(f64::NAN),
            Bson::Double(-0.0),
            Bson::Int64((1 << 53) + 1),
            Bson::Decimal128("1.10".parse().unwrap()),
            Bson::String("a\0\"\u{1F600}".into()),
            Bson::Symbol("symbol".into()),
            Bson::Document(doc! {"z": 1_i64, "a": [1.0, {"r": Bson::MaxKey}]}),
            Bson::Binary(bson::Binary { subtype: 4u8.into(), bytes: vec![7; 16] }),
            Bson::Timestamp(Timestamp { time: 9, increment: 8 }),
            Bson::JavaScriptCode("f()".into()),
            Bson::MaxKey,
        ];
        let count = ids.len() as u64;
        insert(&sides.source, ids.map(|id| doc! {"_id": id, "v": 1})).await;
        create(&sides.destination, doc! {}).await;
        let (report, file) = repaired(&sides, &quick()).await;
        assert_eq!(report.repaired, count, "{file}");
        assert!(sides.verify(&quick()).await.is_clean());
    });
}

#[test]
fn documents_that_a_plain_write_would_change_arrive_as_they_are() {
    with_sides("literal", |sides| async move {
        let source = collection(&sides.source);
        // Put there through a pipeline, as no plain write takes them unchanged.
        let odd: Vec<RawDocumentBuf> = vec![
            rawdoc! {"_id": 1, "at": Timestamp { time: 0, increment: 0 }},
            rawdoc! {"_id": 2, "$set": {"a": 1}, "b": 1},
            rawdoc! {"_id": 3, "a.b": 1},
        ];
        for document in &odd {
            let command = rawdoc! {
                "update": sides.source.ns.coll.as_str(),
                "updates": [{
                    "q": {"_id": document.get("_id").unwrap().unwrap()},
                    "u": [{"$replaceWith": {"$literal": document.clone()}}],
                    "upsert": true,
                }],
            };
            sides.source.endpoint.run_raw(&sides.source.ns.db, "update", command).await.unwrap();
        }
        let held = source.find_one(doc! {"_id": 1}).await.unwrap().unwrap();
        assert_eq!(held.as_bytes(), odd[0].as_bytes(), "the source does not hold what it should");
        create(&sides.destination, doc! {}).await;
        let (report, _) = repaired(&sides, &quick()).await;
        assert!(report.is_clean(), "{report:?}");
        assert!(sides.verify(&quick()).await.is_clean());
    });
}

#[test]
fn swapped_unique_values_are_untangled() {
    with_sides("unique", |sides| async move {
        for side in [&sides.source, &sides.destination] {
            create(side, doc! {}).await;
            side.create_indexes(&[doc! {"key": {"u": 1}, "name": "u", "unique": true}])
                .await
                .unwrap();
        }
        insert(&sides.source, [doc! {"_id": 1, "u": "a"}, doc! {"_id": 2, "u": "b"}]).await;
        insert(&sides.destination, [doc! {"_id": 1, "u": "b"}, doc! {"_id": 2, "u": "a"}]).await;
        let (report, _) = repaired(&sides, &quick()).await;
        assert!(report.is_clean(), "{report:?}");
        assert!(sides.verify(&quick()).await.is_clean());
    });
}

#[test]
fn a_document_that_blocks_is_named_and_the_others_are_mended() {
    with_sides("blocked", |sides| async move {
        for side in [&sides.source, &sides.destination] {
            create(side, doc! {}).await;
        }
        let unique = doc! {"key": {"u": 1}, "name": "u", "unique": true};
        sides.destination.create_indexes(&[unique]).await.unwrap();
        // Two documents of the source that the destination's index cannot hold together.
        let source = [doc! {"_id": 1, "u": 1}, doc! {"_id": 2, "u": 1}, doc! {"_id": 3, "u": 3}];
        insert(&sides.source, source).await;
        let spec = Spec { structure: false, ..quick() };
        let (report, _) = repaired(&sides, &spec).await;
        assert_eq!((report.named, report.repaired), (3, 2), "{report:?}");
        assert_eq!((report.refused, report.remaining), (1, 0), "{report:?}");
        assert!(!report.is_clean() && report.differences.is_empty(), "{report:?}");
        // The first was written before it and is not stale, so it is the second that is refused.
        let refused = listed(&[report.refusals[0].mismatch.clone()]);
        assert_eq!(refused, [r#"missing {"$numberInt":"2"}"#]);
        assert!(report.refusals[0].cause.contains(r#"{"$numberInt":"2"}"#), "{report:?}");
        assert!(report.refusals[0].help.is_some(), "{report:?}");
        let left = sides.verify(&spec).await;
        assert_eq!((left.missing, left.document_differences()), (1, 1), "{left:?}");
        assert_eq!(listed(&left.differences), refused);
    });
}

#[test]
fn an_id_that_changed_its_type_is_mended() {
    with_sides("retyped", |sides| async move {
        insert(&sides.source, [doc! {"_id": 1_i64, "v": 1}]).await;
        insert(&sides.destination, [doc! {"_id": 1_i32, "v": 1}]).await;
        let (report, _) = repaired(&sides, &quick()).await;
        assert!(report.is_clean(), "{report:?}");
        assert!(sides.verify(&quick()).await.is_clean());
    });
}
