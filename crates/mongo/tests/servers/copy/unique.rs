//! Values of a unique index that wander between documents of different slices and lanes.

use bson::doc;
use mongodb::error::{Error, ErrorKind, WriteFailure};

use crate::copy::world::{Between, Dice, Ends, documents, fill, run};

const DOCUMENTS: i32 = 1_500;

/// Another writer was there first, or not yet: both are as it should be.
fn accept(outcome: Result<impl Sized, Error>) {
    let Err(error) = outcome else { return };
    let ErrorKind::Write(WriteFailure::WriteError(refused)) = error.kind.as_ref() else {
        panic!("{error}")
    };
    assert_eq!(refused.code, 11_000, "{error}");
}

/// Swaps the values of two documents, moves a chain of them on by one, or deletes one and gives
/// its value to a new one.
async fn wander(ends: &Ends, dice: &mut Dice, spare: &mut i32) {
    let docs = documents(&ends.source("unique"));
    let mut any = || i32::try_from(dice.below(DOCUMENTS as usize)).unwrap();
    let (a, b, c) = (any(), any(), any());
    let set = |id: i32, u: i32| docs.update_one(doc! {"_id": id}, doc! {"$set": {"u": u}});
    let mut held = Vec::new();
    for id in [a, b, c] {
        let found = docs.find_one(doc! {"_id": id}).await.unwrap();
        held.push(found.map(|found| found.get_i32("u").unwrap()));
    }
    let [Some(ua), Some(ub), Some(uc)] = held[..] else {
        *spare += 1;
        let new = doc! {"_id": a, "u": *spare, "filler": "y".repeat(300)};
        return accept(docs.insert_one(new).await);
    };
    *spare += 1;
    match dice.below(4) {
        0 => {
            accept(docs.delete_one(doc! {"_id": a}).await);
            accept(set(b, ua).await);
            accept(docs.insert_one(doc! {"_id": a, "u": ub, "new": true}).await);
        }
        1 => {
            accept(set(a, *spare).await);
            for (id, value) in [(b, ua), (c, ub), (a, uc)] {
                accept(set(id, value).await);
            }
        }
        _ => {
            accept(set(a, *spare).await);
            accept(set(b, ua).await);
            accept(set(a, ub).await);
        }
    }
}

async fn writer(ends: Ends, seed: u64, rounds: usize) {
    let (mut dice, mut spare) = (Dice::new(seed), 1_000_000 * (1 + i32::try_from(seed).unwrap()));
    for _ in 0..rounds {
        wander(&ends, &mut dice, &mut spare).await;
    }
}

#[test]
fn values_of_a_unique_index_wander_while_they_are_copied() {
    run(Between::ReplicaSets, "unique", |ends| async move {
        fill(&ends.source("unique"), DOCUMENTS).await;
        let index = mongodb::IndexModel::builder().keys(doc! {"u": 1});
        let unique = mongodb::options::IndexOptions::builder().unique(true).build();
        let source = documents(&ends.source("unique"));
        source.create_index(index.options(unique).build()).await.unwrap();

        let mut job = ends.copy(&ends.all()).await;
        let writers: Vec<_> =
            (0..3).map(|seed| tokio::spawn(Box::pin(writer(ends.clone(), seed, 300)))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
        // The index is there now: it refuses changes that are applied in the wrong order.
        job.reaches("follow").await;
        let writers: Vec<_> =
            (3..6).map(|seed| tokio::spawn(Box::pin(writer(ends.clone(), seed, 300)))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
        job.catches_up().await;
        ends.assert_same("unique").await;
        job.stop().await;
        let clash = doc! {"_id": "clash", "u": 1_000_000_000};
        let destination = documents(&ends.destination("unique"));
        destination.insert_one(clash.clone()).await.unwrap();
        let again = doc! {"_id": "again", "u": 1_000_000_000};
        accept(Err::<(), _>(destination.insert_one(again).await.unwrap_err()));
    });
}

#[test]
fn values_wander_under_a_unique_index_that_the_destination_has_from_the_start() {
    run(Between::ReplicaSets, "unique_early", |ends| async move {
        fill(&ends.source("unique"), DOCUMENTS).await;
        for side in [ends.source("unique"), ends.destination("unique")] {
            let index = mongodb::IndexModel::builder().keys(doc! {"u": 1});
            let unique = mongodb::options::IndexOptions::builder().unique(true).build();
            documents(&side).create_index(index.options(unique).build()).await.unwrap();
        }
        let mut job = ends.copy(&ends.all()).await;
        let writers: Vec<_> =
            (6..9).map(|seed| tokio::spawn(Box::pin(writer(ends.clone(), seed, 300)))).collect();
        for writer in writers {
            writer.await.unwrap();
        }
        job.catches_up().await;
        ends.assert_same("unique").await;
        job.stop().await;
    });
}
