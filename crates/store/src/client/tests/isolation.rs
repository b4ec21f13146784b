//! Tests of a transaction's view of others, step by step.

use super::*;
use crate::engine::LogOptions;
use crate::log::Sync;

const NAMES: Table<(String, u64), String> = Table::named(2, "names");

fn transfer(client: &mut Client, from: u64, to: u64) -> Result<(), ClientError> {
    client.transaction(|tx| {
        for (account, change) in [(from, -1), (to, 1)] {
            let balance = tx.get(&ACCOUNTS, &account)?.unwrap_or(0);
            tx.put(&ACCOUNTS, &account, &(balance + change))?;
        }
        Ok(())
    })
}

#[test]
fn a_transaction_reads_what_it_wrote_and_others_do_not_before_it_commits() {
    let store = in_memory(1);
    let address = listen(&store, settings());
    let (mut client, mut other) = (connect(address), connect(address));
    let key = ("a".to_owned(), 7);
    client
        .transaction(|tx| {
            assert_eq!(tx.get(&NAMES, &key)?, None);
            tx.put(&NAMES, &key, &"one".to_owned())?;
            tx.put(&ACCOUNTS, &1, &1)?;
            assert_eq!(tx.get(&NAMES, &key)?.as_deref(), Some("one"));
            assert_eq!(other.get(&NAMES, &key)?, None);
            Ok::<_, ClientError>(())
        })
        .expect("it commits");
    let both = (other.get(&NAMES, &key), other.get(&ACCOUNTS, &1));
    assert!(matches!(both, (Ok(Some(name)), Ok(Some(1))) if name == "one"));
    client
        .transaction(|tx| {
            tx.delete(&NAMES, &key)?;
            assert_eq!(tx.get(&NAMES, &key)?, None);
            Ok::<_, ClientError>(())
        })
        .expect("it commits");
    assert_eq!(other.get(&NAMES, &key).expect("it answers"), None);
}

#[test]
fn what_changed_after_it_was_read_lets_the_closure_run_again() {
    let store = in_memory(1);
    let address = listen(&store, settings());
    let (mut client, mut other) = (connect(address), connect(address));
    client.put_many(&ACCOUNTS, &[(1, 10), (2, 10), (3, 0)]).expect("it is there");
    let mut runs = 0;
    let sum = client.transaction(|tx| {
        runs += 1;
        let first = tx.get(&ACCOUNTS, &1)?.unwrap_or(0);
        if runs == 1 {
            transfer(&mut other, 1, 2)?;
        }
        Ok::<_, ClientError>(first + tx.get(&ACCOUNTS, &2)?.unwrap_or(0))
    });
    // Though it wrote nothing: 10 and 11 were never there together.
    assert_eq!((sum.expect("it commits"), runs, client.counts().conflicts), (20, 2, 1));
}

#[test]
fn an_own_error_is_one_of_a_state_that_was_and_writes_nothing() {
    #[derive(Debug)]
    enum Own {
        Sum(i64),
        Client,
    }
    impl From<ClientError> for Own {
        fn from(_: ClientError) -> Self {
            Self::Client
        }
    }
    let store = in_memory(1);
    let address = listen(&store, settings());
    let (mut client, mut other) = (connect(address), connect(address));
    client.put_many(&ACCOUNTS, &[(1, 10), (2, 10)]).expect("it is there");
    let mut runs = 0;
    let refused: Result<(), Own> = client.transaction(|tx| {
        runs += 1;
        tx.put(&ACCOUNTS, &3, &1)?;
        let first = tx.get(&ACCOUNTS, &1)?.unwrap_or(0);
        if runs == 1 {
            transfer(&mut other, 1, 2)?;
        }
        Err(Own::Sum(first + tx.get(&ACCOUNTS, &2)?.unwrap_or(0)))
    });
    assert!(matches!(refused, Err(Own::Sum(20))), "{refused:?}");
    assert_eq!(
        client.get_many(&ACCOUNTS, &[1, 2, 3]).expect("they are"),
        [Some(9), Some(11), None]
    );
}

#[test]
fn a_transaction_that_always_meets_others_says_how_often() {
    let store = in_memory(1);
    let address = listen(&store, settings());
    let options = Options { attempts: 3, ..Options::default() };
    let mut client = Client::connect(&address.to_string(), options).expect("it is there");
    let mut other = connect(address);
    let done = client.transaction(|tx| {
        let balance = tx.get(&ACCOUNTS, &1)?.unwrap_or(0);
        other.put_many(&ACCOUNTS, &[(1, 5)])?;
        tx.put(&ACCOUNTS, &1, &(balance + 1))
    });
    let error = done.expect_err("there is always another");
    assert!(matches!(error, ClientError::Exhausted { attempts: 3, conflicts: 3, .. }), "{error:?}");
    assert!(
        error.to_string().contains("no effect after 3 attempts, 3 of which conflicted"),
        "{error}"
    );
    // Nothing of it is left behind.
    client.transaction(|tx| tx.put(&ACCOUNTS, &2, &2)).expect("no other transaction is in the way");
}

#[test]
fn a_row_that_came_and_went_is_no_conflict() {
    let store = in_memory(1);
    let address = listen(&store, settings());
    let (mut client, mut other) = (connect(address), connect(address));
    let mut runs = 0;
    let read = client.transaction(|tx| {
        runs += 1;
        let read = tx.get(&ACCOUNTS, &1)?;
        other.put_many(&ACCOUNTS, &[(1, 5)])?;
        assert_eq!(tx.get(&ACCOUNTS, &1)?, read);
        other.delete_many(&ACCOUNTS, &[1])?;
        tx.put(&ACCOUNTS, &2, &1)?;
        Ok::<_, ClientError>(read)
    });
    assert_eq!((read.expect("nothing changed"), runs), (None, 1));
}

/// Two that each read both rows and write one, where each row has a master of its own and a replica at
/// the other's. Says how often both found the other's row as it was.
fn skews(isolation: Isolation, rounds: u32) -> u32 {
    let folder = tempfile::tempdir().expect("a folder");
    // A log entry that is durable late is seen late elsewhere.
    let log = LogOptions::Files {
        folder: folder.path().to_owned(),
        sync: Sync::Always,
        segment_bytes: 1024 * 1024,
    };
    let store = Store::start(&StoreOptions { sites: 2, log: Some(log) }).expect("a store");
    let address = listen(&store, settings());
    let runtime = runtime();
    let part = async {
        for account in [1, 2] {
            cut(&store, &place(&ACCOUNTS, &account), Site(0)).await;
        }
    };
    runtime.block_on(part);
    let options = Options { isolation, ..Options::default() };
    let connect = || Client::connect(&address.to_string(), options.clone()).expect("it is there");
    let mut clients = [connect(), connect()];
    let mut skews = 0;
    for _ in 0..rounds {
        // Those before may have brought them together.
        runtime.block_on(async {
            for (account, master) in [(1, 0), (2, 1)] {
                let at = place(&ACCOUNTS, &account);
                for site in [0, 1].map(Site) {
                    _ = store.add_replica(&at, site).await;
                }
                _ = store.change(&at, Operator::Remaster(Site(master))).await;
            }
        });
        for account in [1, 2] {
            clients[0].put_many(&ACCOUNTS, &[(account, 1)]).expect("it is there");
        }
        let begun = std::sync::Barrier::new(2);
        // Each takes what is its own only as long as the other's is still there.
        let take = |client: &mut Client, own: u64| {
            let mut is_first = true;
            client.transaction(|tx| {
                let both = tx.get_many(&ACCOUNTS, &[1, 2])?;
                if std::mem::take(&mut is_first) {
                    begun.wait();
                }
                if both == [Some(1), Some(1)] {
                    tx.put(&ACCOUNTS, &own, &0)?;
                }
                Ok::<_, ClientError>(())
            })
        };
        let [one, other] = &mut clients;
        thread::scope(|scope| {
            let one = scope.spawn(|| take(one, 1));
            take(other, 2).expect("it commits");
            one.join().expect("it ends").expect("it commits");
        });
        // A transaction that writes the row reads its newest state.
        let left = [1, 2].map(|account| {
            let left = clients[0].transaction(|tx| {
                let left = tx.get(&ACCOUNTS, &account)?;
                tx.put(&ACCOUNTS, &account, &left.unwrap_or(0))?;
                Ok::<_, ClientError>(left)
            });
            left.expect("it commits")
        });
        skews += u32::from(left == [Some(0), Some(0)]);
    }
    skews
}

#[test]
fn two_that_read_what_the_other_writes_do_not_both_commit() {
    assert_eq!(skews(Isolation::Serializable, 50), 0);
}

#[test]
fn under_snapshot_isolation_they_may() {
    // This shows that the check above would see it.
    assert!(skews(Isolation::Snapshot, 50) > 0);
}
