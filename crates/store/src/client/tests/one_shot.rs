//! Rows at once, and walks.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::resp::Procedures;
use crate::transaction::Abort;

const ORDERS: Table<(String, i64), u32> = Table::named(3, "orders");
const OTHERS: Table<(String, i64), u32> = Table::named(3, "order");

fn rows(table: &Table<(String, i64), u32>, client: &mut Client) -> Vec<((String, i64), u32)> {
    let rows: Vec<_> = ["", "a", "a\0", "b"]
        .iter()
        .flat_map(|name| [i64::MIN, -1, 0, 7].map(|n| ((*name).to_owned(), n)))
        .zip(0..)
        .collect();
    client.put_many(table, &rows).expect("it is there");
    rows
}

#[test]
fn rows_at_once_are_those_of_their_tables() {
    let store = in_memory(2);
    let address = listen(&store, settings());
    runtime().block_on(cut(&store, &place(&ORDERS, &("a".to_owned(), 0)), Site(1)));
    let mut client = connect(address);
    let orders = rows(&ORDERS, &mut client);
    rows(&OTHERS, &mut client);
    client.put_many(&ACCOUNTS, &[]).expect("nothing to do");
    let keys: Vec<_> = orders.iter().map(|(key, _)| key.clone()).collect();
    client.delete_many(&ORDERS, &keys[..8]).expect("they are there");
    let found = client.get_many(&ORDERS, &keys).expect("they are read");
    let expected = (0..16).map(|n| (n >= 8).then_some(n)).collect::<Vec<_>>();
    assert_eq!(found, expected);
    assert_eq!(client.scan(&OTHERS, .., 100).expect("they are read").len(), 16);
    assert_eq!(client.scan(&ORDERS, .., 100).expect("they are read"), orders[8..]);
}

#[test]
fn a_row_of_another_type_is_named() {
    const TEXTS: Table<u64, String> = Table::new(1);
    let store = in_memory(1);
    let mut client = connect(listen(&store, settings()));
    client.put_many(&ACCOUNTS, &[(1, -1)]).expect("it is there");
    let error = client.get(&TEXTS, &1).expect_err("it is none");
    assert!(error.to_string().starts_with("row \\x00\\x00"), "{error}");
    let long: Table<String, u8> = Table::new(4);
    let error = client.put_many(&long, &[("k".repeat(70_000), 1)]).expect_err("it is long");
    assert!(matches!(error, ClientError::KeyTooLong(70_002)), "{error:?}");
}

#[test]
fn a_walk_has_the_rows_of_its_range_in_their_order() {
    let store = in_memory(2);
    let address = listen(&store, settings());
    runtime().block_on(async {
        cut(&store, &place(&ORDERS, &("a".to_owned(), -1)), Site(1)).await;
        cut(&store, &place(&ORDERS, &("a".to_owned(), 7)), Site(0)).await;
    });
    let client = std::cell::RefCell::new(connect(address));
    let all = rows(&ORDERS, &mut client.borrow_mut());
    rows(&OTHERS, &mut client.borrow_mut());
    let bound = |at: usize, kind: u8| match kind {
        0 => Bound::Unbounded,
        1 => Bound::Included(all[at].0.clone()),
        _ => Bound::Excluded(all[at].0.clone()),
    };
    let any = (0..16_usize, 0..3_u8, 0..16_usize, 0..3_u8, 0..20_usize);
    proptest!(ProptestConfig::with_cases(200), |((from, starts, to, ends, limit) in any)| {
        let range = (bound(from, starts), bound(to, ends));
        let within = |(key, _): &&((String, i64), u32)| range.contains(key);
        let expected: Vec<_> = all.iter().filter(within).take(limit).cloned().collect();
        let found = client.borrow_mut().scan(&ORDERS, range.clone(), limit);
        prop_assert_eq!(found.expect("it answers"), expected);
    });
    let found = client.borrow_mut().scan_prefix(&ORDERS, &"a".to_owned(), 100);
    assert_eq!(found.expect("it answers"), all[4..8]);
}

#[test]
fn a_walk_goes_on_behind_what_one_request_brings() {
    let store = in_memory(1);
    let mut client = connect(listen(&store, settings()));
    let all: Vec<(u64, i64)> = (0..2_500).map(|n| (n * 3, n as i64)).collect();
    client.put_many(&ACCOUNTS, &all).expect("it is there");
    assert_eq!(client.scan(&ACCOUNTS, .., usize::MAX).expect("it answers"), all);
    assert_eq!(client.scan(&ACCOUNTS, 3.., 2_001).expect("it answers"), all[1..2_002]);
}

#[test]
fn a_procedure_runs_over_rows_of_two_sites() {
    let mut procedures = Procedures::default();
    procedures.register("take", |view, keys, arguments| {
        let refused = || Abort::Refused("ERR too little".to_owned());
        let [amount] = arguments else { return Err(refused()) };
        let amount: i64 = postcard::from_bytes(amount).map_err(|_| refused())?;
        let mut left = amount;
        for key in keys {
            let seen = view.get(key)?.ok_or_else(refused)?;
            let balance: i64 = postcard::from_bytes(&seen.value).map_err(|_| refused())?;
            let taken = balance.min(left);
            left -= taken;
            let balance = postcard::to_stdvec(&(balance - taken)).map_err(|_| refused())?;
            view.put(key, balance.into())?;
        }
        if left > 0 { Err(refused()) } else { Ok(b"taken".to_vec()) }
    });
    let store = in_memory(2);
    let address = listen(&store, Settings { procedures: Arc::new(procedures), ..settings() });
    runtime().block_on(cut(&store, &place(&ACCOUNTS, &2), Site(1)));
    let mut client = connect(address);
    client.put_many(&ACCOUNTS, &[(1, 10), (2, 10)]).expect("it is there");
    let mut take = |amount: i64| {
        let amount = postcard::to_stdvec(&amount).expect("it has a form");
        client.call("take", &ACCOUNTS, &[1, 2], &[&amount])
    };
    assert_eq!(take(15).expect("there is as much"), b"taken");
    let error = take(15).expect_err("there is less");
    assert!(matches!(&error, ClientError::Refused(text) if text == "ERR too little"), "{error:?}");
    let error = client.call("give", &ACCOUNTS, &[1], &[]).expect_err("there is none");
    assert!(error.to_string().contains("no procedure called 'give'"), "{error}");
    assert_eq!(client.get_many(&ACCOUNTS, &[1, 2]).expect("they are read"), [Some(0), Some(5)]);
}
