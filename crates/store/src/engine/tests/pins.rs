//! Pins on a store with threads: what is pinned stays where it is, and the rest comes to it.

use super::*;

fn master(store: &Store, n: u32) -> (Site, Option<Site>) {
    let map = store.map();
    let partition = map.design.of(&key(n));
    (partition.master, partition.pin)
}

/// Three partitions, which begin at 0, 3 and 6, all at site 0.
async fn divide(store: &Store) {
    for n in [3, 6] {
        store.change(&key(n), Operator::Split(key(n))).await.expect("it can be split");
    }
}

#[test]
fn what_is_pinned_stays_and_the_rest_comes_to_it() {
    let store = Store::start(&options(None, 3)).expect("a store in memory");
    runtime().block_on(async {
        divide(&store).await;
        // It has no replica there yet.
        store.pin(&key(3), Site(2)).await.expect("it can be pinned");
        assert_eq!(master(&store, 4), (Site(2), Some(Site(2))));
        store.pin(&key(3), Site(2)).await.expect("it is");
        let mut session = store.session();
        // Most of it is at site 0, and goes.
        assert_eq!(add(&mut session, &[1, 3, 7]).await, Ok(vec![1, 1, 1]));
        assert_eq!([1, 4, 7].map(|n| master(&store, n).0), [Site(2); 3]);
        store.add_replica(&key(3), Site(1)).await.expect("it can have a replica");
        let refused = store.change(&key(3), Operator::Remaster(Site(1))).await;
        assert!(matches!(&refused, Err(Abort::Refused(why)) if why.contains("pinned to site 2")));
        let refused = store.change(&key(1), Operator::Merge).await;
        assert!(matches!(&refused, Err(Abort::Refused(_))), "{refused:?}");
        store.change(&key(4), Operator::Split(key(4))).await.expect("it can be split");
        assert_eq!(master(&store, 4), (Site(2), Some(Site(2))));
        store.change(&key(3), Operator::Merge).await.expect("both are pinned there");
        store.pin(&key(3), Site(1)).await.expect("it is pinned elsewhere in one step");
        assert_eq!(master(&store, 3), (Site(1), Some(Site(1))));
        let refused = store.pin(&key(3), Site(3)).await;
        assert!(matches!(&refused, Err(Abort::Refused(why)) if why.contains("3 sites")));
    });
}

#[test]
fn what_is_pinned_to_two_sites_is_not_written_by_one_transaction() {
    let store = Store::start(&options(None, 3)).expect("a store in memory");
    runtime().block_on(async {
        divide(&store).await;
        store.pin(&key(3), Site(1)).await.expect("it can be pinned");
        store.pin(&key(6), Site(2)).await.expect("it can be pinned");
        let mut session = store.session();
        let apart = Abort::PinnedApart(key(3), Site(1), key(7), Site(2));
        assert_eq!(add(&mut session, &[1, 3, 7]).await, Err(apart));
        assert_eq!(add(&mut session, &[3]).await, Ok(vec![1]));
        // It is read wherever it is.
        assert_eq!(all(&mut session).await, BTreeMap::from([(key(3), 1)]));
    });
    let mut client = Raw::connect(&store);
    client.send("GET 0001\r\nMSET 0003 a 0007 b\r\nSET 0007 c\r\n");
    client.expect(
        "$-1\r\n-ERR 0:0003 is pinned to site 1 and 0:0007 to site 2: no transaction writes both \
         until one is unpinned\r\n+OK\r\n",
    );
    runtime().block_on(async {
        store.change(&key(6), Operator::Unpin).await.expect("it is pinned");
    });
    client.send("MSET 0003 a 0007 b\r\n");
    client.expect("+OK\r\n");
    assert_eq!(master(&store, 7), (Site(1), None));
}

#[test]
fn a_pin_outlives_its_site_and_the_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = options(Some(folder.path()), 3);
    for round in 0..3 {
        let store = Store::start(&options).expect("a store with a log");
        runtime().block_on(async {
            let mut session = store.session();
            if round == 0 {
                divide(&store).await;
                store.pin(&key(3), Site(1)).await.expect("it can be pinned");
            }
            assert_eq!(master(&store, 3), (Site(1), Some(Site(1))));
            // From the second round on it has one.
            _ = store.add_replica(&key(3), Site(2)).await;
            assert!(store.map().design.of(&key(3)).is_at(Site(2)));
            let epoch = store.map().design.epoch(Site(1));
            store.crash(Site(1)).await.expect("it can crash");
            // The site that has the replica inherits the partition, and gives it back.
            let until = Instant::now() + Duration::from_secs(20);
            let is_back = |map: &Map| map.design.epoch(Site(1)) > epoch;
            while !is_back(&store.map()) || master(&store, 3).0 != Site(1) {
                assert!(Instant::now() < until, "it never comes back");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // In the last round from a checkpoint.
            for n in 0..if round == 1 { 400 } else { 10 } {
                add(&mut session, &[3, n % 3 + 3]).await.expect("it can be written");
            }
        });
    }
}
