//! The client beside a store in this process, over real connections.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use super::*;
use crate::engine::{Options as StoreOptions, Store};
use crate::key::{Key, Table as Number};
use crate::record::{Operator, Site};
use crate::resp::Settings;

mod bank;
mod deaths;
mod isolation;
mod one_shot;

const ACCOUNTS: Table<u64, i64> = Table::new(1);

fn listen(store: &Store, settings: Settings) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    store.listen(listener, settings, None).expect("it listens")
}

fn settings() -> Settings {
    Settings::new("test", 1)
}

fn connect(address: SocketAddr) -> Client {
    Client::connect(&address.to_string(), Options::default()).expect("it is there")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// The store's key of a row.
fn place<K: OrderedKey, V>(table: &Table<K, V>, key: &K) -> Key {
    Key::new(Number(table.number()), &table.key(key).expect("a short key"))
}

/// Lets a site master what lies from a key on, up to the next cut.
async fn cut(store: &Store, at: &Key, site: Site) {
    store.change(at, Operator::Split(at.clone())).await.expect("it can be split");
    if site != Site(0) {
        store.add_replica(at, site).await.expect("it can have a replica");
        store.change(at, Operator::Remaster(site)).await.expect("it can move");
    }
}

fn in_memory(sites: u16) -> Store {
    Store::start(&StoreOptions { sites, log: None }).expect("a store in memory")
}

#[test]
fn a_password_is_said_and_a_wrong_one_is_an_error_at_once() {
    let store = in_memory(1);
    let address = listen(&store, Settings { passwords: vec!["s p".to_owned()], ..settings() });
    let connect = |password: Option<&str>| {
        let password = password.map(str::to_owned);
        let options = Options { password, ..Options::default() };
        Client::connect(&address.to_string(), options)
    };
    connect(Some("s p")).expect("it is right").put_many(&ACCOUNTS, &[(1, 1)]).expect("it is in");
    assert!(matches!(connect(Some("sp")).err(), Some(ClientError::NoEntry { .. })));
    // A client without a password may connect; its first request is refused.
    let refused = connect(None).and_then(|mut client| client.get(&ACCOUNTS, &1)).err();
    assert!(matches!(refused, Some(ClientError::Refused(_))), "{refused:?}");
}

#[test]
fn connecting_to_a_closed_port_is_tried_for_the_reach_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one").to_string();
    drop(listener);
    let options = Options { reach_wait: Duration::from_millis(30), ..Options::default() };
    let error = Client::connect(&address, options).err();
    assert!(
        matches!(error, Some(ClientError::Unreachable { waited, .. }) if waited.as_millis() >= 30),
        "{error:?}"
    );
}

#[test]
fn a_connection_that_ended_is_replaced() {
    let store = in_memory(1);
    let address = listen(&store, settings());
    let mut client = connect(address);
    client.put_many(&ACCOUNTS, &[(1, 5)]).expect("it is there");
    for _ in 0..2 {
        // Its next request finds the connection closed.
        let connection = client.connection.as_mut().expect("it is connected");
        connection.hang_up();
        let read = client.transaction(|tx| tx.get(&ACCOUNTS, &1));
        assert_eq!(read.expect("it connects again"), Some(5));
    }
    assert_eq!(client.counts().connections, 3);
}
