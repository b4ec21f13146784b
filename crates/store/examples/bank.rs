//! A bank on a store: transfers as transactions, in a program of its own.
//!
//! Run it against `imago store serve` by its address, or without one against a store in this process.

use std::error::Error;
use std::io::{Write, stdout};
use std::net::TcpListener;

use imago_store::client::{Client, ClientError, Options, Table};
use imago_store::engine::{Options as StoreOptions, Store};
use imago_store::resp::Settings;
use serde::{Deserialize, Serialize};

/// By the bank's branch and a number in it.
const ACCOUNTS: Table<(String, u64), Account> = Table::named(1, "accounts");
/// The transfers that were made, by their numbers.
const TRANSFERS: Table<u64, u64> = Table::named(1, "transfers");

#[derive(Debug, Serialize, Deserialize)]
struct Account {
    owner: String,
    cents: u64,
}

/// Largest number of repetitions of a transfer of unknown outcome.
const REPEATS_MAX: u32 = 10;

/// The reason why no money was moved.
#[derive(Debug, thiserror::Error)]
enum NotMoved {
    #[error("there is no account {0:?}")]
    NoAccount((String, u64)),
    #[error("{0} has {1} cents only")]
    TooLittle(String, u64),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Moves money under a number that no other transfer has. It looks for the number first, so that it may be
/// repeated: also when its outcome is unknown, and even if it is still about to happen.
fn transfer(
    client: &mut Client,
    number: u64,
    [from, to]: [&(String, u64); 2],
    cents: u64,
) -> Result<(), NotMoved> {
    let mut repeats = 0..REPEATS_MAX;
    loop {
        let moved = client.transaction(|tx| {
            if tx.get(&TRANSFERS, &number)?.is_some() {
                return Ok(());
            }
            let no_account = |key: &(String, u64)| NotMoved::NoAccount(key.clone());
            let mut payer = tx.get(&ACCOUNTS, from)?.ok_or_else(|| no_account(from))?;
            let mut payee = tx.get(&ACCOUNTS, to)?.ok_or_else(|| no_account(to))?;
            let left = payer.cents.checked_sub(cents);
            payer.cents =
                left.ok_or_else(|| NotMoved::TooLittle(payer.owner.clone(), payer.cents))?;
            payee.cents += cents;
            tx.put(&ACCOUNTS, from, &payer)?;
            tx.put(&ACCOUNTS, to, &payee)?;
            tx.put(&TRANSFERS, &number, &cents)?;
            Ok(())
        });
        match moved {
            Err(NotMoved::Client(ClientError::Unknown(_))) if repeats.next().is_some() => {}
            moved => return moved,
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let (address, _store) = match std::env::args().nth(1) {
        Some(address) => (address, None),
        None => {
            let store = Store::start(&StoreOptions { sites: 2, log: None })?;
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = store.listen(listener, Settings::new("example", 1), None)?;
            (address.to_string(), Some(store))
        }
    };
    let mut client = Client::connect(&address, Options::default())?;
    let account = |owner: &str, cents| Account { owner: owner.to_owned(), cents };
    let [ann, bob] = [1, 2].map(|number| ("main street".to_owned(), number));
    let opening = [(ann.clone(), account("Ann", 500)), (bob.clone(), account("Bob", 0))];
    client.put_many(&ACCOUNTS, &opening)?;
    let mut out = stdout();
    for (number, cents) in [300, 300].into_iter().enumerate() {
        match transfer(&mut client, number as u64, [&ann, &bob], cents) {
            Ok(()) => writeln!(out, "{cents} cents moved")?,
            Err(error) => writeln!(out, "not moved: {error}")?,
        }
    }
    for ((_, number), account) in client.scan_prefix(&ACCOUNTS, &"main street".to_owned(), 100)? {
        writeln!(out, "{number}: {} has {} cents", account.owner, account.cents)?;
    }
    Ok(())
}
