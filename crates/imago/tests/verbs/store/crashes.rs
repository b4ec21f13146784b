//! Sites of a store die one after the other and come back from the log, while the others go on.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_load::store::{Load, Options};
use imago_store::engine::{LogOptions, Options as StoreOptions, Store};
use imago_store::key::Key;
use imago_store::log::Sync;
use imago_store::record::{Operator, Site};
use imago_store::resp::Settings;
use imago_store::transaction::Abort;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::store::change::{self, Change};
use crate::store::proof::{is_long, prove, seed};

const SITES: u16 = 4;

async fn make(store: &Store, change: &Change) -> Result<(), Abort> {
    let key: Key = change.key.parse().unwrap();
    let operator = match change.verb {
        "split" => Operator::Split(key.clone()),
        "merge" => Operator::Merge,
        "remove-replica" => Operator::RemoveReplica(Site(change.site)),
        "remaster" => Operator::Remaster(Site(change.site)),
        "unpin" => Operator::Unpin,
        "pin" => return store.pin(&key, Site(change.site)).await,
        _ => return store.add_replica(&key, Site(change.site)).await,
    };
    store.change(&key, operator).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_crashes_of_sites() {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let log = LogOptions::Files {
        folder: folder.path().to_owned(),
        sync: Sync::Every(Duration::from_millis(5)),
        segment_bytes: 1024 * 1024,
    };
    let store = Arc::new(Store::start(&StoreOptions { sites: SITES, log: Some(log) }).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = store.listen(listener, Settings::new("test", 1), None).unwrap();
    let options = Options { sessions: 6, seed, pause: Duration::from_millis(1) };
    let load = Load::start(address, options).unwrap();
    for _ in 0..if is_long() { 40 } else { 8 } {
        let until = Instant::now() + Duration::from_millis(random.random_range(100..900));
        while Instant::now() < until {
            let change = change::draw(&mut random, SITES);
            let made = make(&store, &change).await;
            assert!(!matches!(made, Err(Abort::Undeclared(_) | Abort::TooLarge(_))), "{change:?}");
        }
        store.crash(Site(random.random_range(0..SITES))).await.unwrap();
    }
    assert_eq!(store.end(), None);
    let verdict = tokio::task::spawn_blocking(move || prove(load, address)).await.unwrap();
    assert!(verdict.done > 200, "{verdict:?}");
}
