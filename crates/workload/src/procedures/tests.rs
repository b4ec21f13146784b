//! The procedures over rows in memory: their mixes, and the checks, which notice what is broken on purpose.

use std::collections::BTreeMap;

use rand::SeedableRng as _;
use rand::rngs::StdRng;

use super::memory::Memory;
use super::{Answer, Kind, Procedure, decode, encode, smallbank, tpcc, twitter, ycsb};

/// A small TPC-C: all rows of the specification, fewer of each.
const TPCC: tpcc::Parameters = tpcc::Parameters {
    warehouses: 3,
    items: 1_000,
    customers: 60,
    mix: tpcc::Mix::Five,
    cross_warehouse: None,
};

/// Runs transactions, and returns the rows and the acknowledged transactions.
fn tpcc_day(many: u64) -> (Memory, Vec<(tpcc::Transaction, i64)>, BTreeMap<Kind, u64>) {
    let mut rows = Memory(TPCC.fill(1).collect());
    let mut rng = StdRng::seed_from_u64(7);
    let (mut acknowledged, mut kinds) = (Vec::new(), BTreeMap::new());
    for unique in 1..=many {
        let mut procedure = Procedure::TpcC(TPCC.draw(&mut rng, unique << 20));
        *kinds.entry(procedure.kind()).or_default() += 1;
        match rows.run(&mut procedure) {
            None | Some(Answer::RolledBack) => {}
            Some(Answer::Done(done)) => {
                let Procedure::TpcC(transaction) = procedure else { unreachable!() };
                acknowledged.push((transaction, done));
            }
            Some(other) => panic!("{procedure:?}: {other:?}"),
        }
    }
    (rows, acknowledged, kinds)
}

fn tpcc_contradictions(rows: &Memory, acknowledged: &[(tpcc::Transaction, i64)]) -> Vec<String> {
    let mut check = tpcc::Check::default();
    acknowledged.iter().for_each(|(transaction, done)| check.acknowledged(transaction, *done));
    rows.0.iter().for_each(|(key, value)| check.row(key, value).unwrap());
    check.contradictions()
}

#[test]
fn tpcc_is_consistent_at_the_start_and_after_a_day() {
    let (rows, acknowledged, kinds) = tpcc_day(0);
    assert_eq!(tpcc_contradictions(&rows, &acknowledged), [""; 0]);
    assert!(kinds.is_empty());
    let (rows, acknowledged, kinds) = tpcc_day(5_000);
    assert_eq!(tpcc_contradictions(&rows, &acknowledged), [""; 0]);
    let share = |kind| kinds[&kind] as f64 / 5_000.0;
    for (kind, expected) in [
        (Kind::NewOrder, 0.45),
        (Kind::Payment, 0.43),
        (Kind::OrderStatus, 0.04),
        (Kind::Delivery, 0.04),
        (Kind::StockLevel, 0.04),
    ] {
        assert!((share(kind) - expected).abs() < 0.03, "{kind:?}: {}", share(kind));
    }
    let orders =
        acknowledged.iter().filter(|(one, _)| matches!(one, tpcc::Transaction::NewOrder(_)));
    let rolled_back = kinds[&Kind::NewOrder] - orders.count() as u64;
    assert!((5..50).contains(&rolled_back), "{rolled_back} of 2,250 are rolled back");
}

#[test]
fn each_condition_of_tpcc_is_seen_to_be_broken() {
    let (rows, acknowledged, _) = tpcc_day(2_000);
    let broken = |prefix: &str, expected: &str, change: &dyn Fn(&mut Memory, String)| {
        let mut rows = rows.clone();
        let key = rows.0.keys().rfind(|key| key.starts_with(prefix)).unwrap().clone();
        change(&mut rows, key);
        let found = tpcc_contradictions(&rows, &acknowledged);
        assert!(found.iter().any(|one| one.contains(expected)), "{prefix} {expected}: {found:?}");
    };
    let remove = |rows: &mut Memory, key: String| _ = rows.0.remove(&key);
    broken("h0001", "acknowledged payment", &remove);
    broken("h0001", "9: warehouse 1", &remove);
    broken("h0001", "8: warehouse 1", &remove);
    broken("l0002", "4 and 6: warehouse 2", &remove);
    broken("o0002", "acknowledged order", &remove);
    broken("o0002", "6: warehouse 2", &remove);
    broken("v0003", "5: warehouse 3", &remove);
    broken("v0003", "2: warehouse 3", &remove);
    broken("d0003", "2: warehouse 3", &remove);
    broken("y0003", "3: warehouse 3", &remove);
    broken("w0001", "1: warehouse 1", &|rows, key| {
        let mut row: tpcc::Warehouse = decode(&rows.0[&key]).unwrap();
        row.ytd_cents += 1;
        rows.0.insert(key, encode(&row));
    });
    broken("c0001", "10: warehouse 1", &|rows, key| {
        let mut row: tpcc::Customer = decode(&rows.0[&key]).unwrap();
        row.balance_cents += 1;
        rows.0.insert(key, encode(&row));
    });
    broken("c0001", "12: warehouse 1", &|rows, key| {
        let mut row: tpcc::Customer = decode(&rows.0[&key]).unwrap();
        row.ytd_payment_cents += 1;
        rows.0.insert(key, encode(&row));
    });
    broken("l0002", "7: warehouse 2", &|rows, key| {
        let mut row: tpcc::OrderLine = decode(&rows.0[&key]).unwrap();
        row.is_delivered = !row.is_delivered;
        rows.0.insert(key, encode(&row));
    });
}

#[test]
fn an_order_whose_number_is_too_late_declares_its_keys_anew() {
    let mut rows = Memory(TPCC.fill(1).collect());
    let mut rng = StdRng::seed_from_u64(3);
    let of_district_one = |rng: &mut StdRng, unique| loop {
        let one = TPCC.draw(rng, unique);
        if let tpcc::Transaction::NewOrder(order) = &one
            && order.district == (tpcc::DistrictId { warehouse: 1, district: 1 })
            && order.lines.iter().all(|line| line.item <= TPCC.items)
        {
            return Procedure::TpcC(one);
        }
    };
    let mut late = of_district_one(&mut rng, 1 << 20);
    let declared = rows.declare(&mut late).unwrap();
    let mut answers = Vec::new();
    for n in 2..6_u64 {
        let mut other = of_district_one(&mut rng, n << 20);
        answers.extend(rows.run(&mut other));
        if n == 3 {
            // Two came before it, and it has declared the keys of four.
            let mut between = rows.clone();
            assert_eq!(between.run_declared(&late, &declared), Answer::Done(63));
        }
    }
    assert_eq!(answers, [61, 62, 63, 64].map(Answer::Done));
    assert_eq!(rows.run_declared(&late, &declared), Answer::Moved);
    assert_eq!(rows.run(&mut late), Some(Answer::Done(65)));
}

#[test]
fn cross_warehouse_transactions_are_as_many_as_was_asked() {
    let crossing = |share: Option<f64>| {
        let parameters = tpcc::Parameters { cross_warehouse: share, ..TPCC };
        let mut rng = StdRng::seed_from_u64(11);
        let (mut all, mut crossing) = ([0_u32; 2], [0_u32; 2]);
        for unique in 1..=8_000 {
            match parameters.draw(&mut rng, unique) {
                tpcc::Transaction::NewOrder(order) => {
                    all[0] += 1;
                    let own = order.district.warehouse;
                    crossing[0] +=
                        u32::from(order.lines.iter().any(|line| line.supply_warehouse != own));
                }
                tpcc::Transaction::Payment(payment) => {
                    all[1] += 1;
                    crossing[1] += u32::from(payment.at.warehouse != payment.home.warehouse);
                }
                _ => {}
            }
        }
        [0, 1].map(|at| f64::from(crossing[at]) / f64::from(all[at]))
    };
    assert_eq!(crossing(Some(0.0)), [0.0, 0.0]);
    let [orders, payments] = crossing(Some(0.33));
    assert!((orders - 0.33).abs() < 0.03 && (payments - 0.33).abs() < 0.03, "{orders} {payments}");
    let [orders, payments] = crossing(None);
    assert!((orders - 0.095).abs() < 0.02 && (payments - 0.15).abs() < 0.02, "{orders} {payments}");
}

#[test]
fn smallbank_keeps_its_money_and_notices_what_is_missing() {
    let parameters = smallbank::Parameters { customers: 500 };
    let mut rows = Memory(parameters.fill().collect());
    let mut rng = StdRng::seed_from_u64(5);
    let mut check = smallbank::Check::default();
    let mut kinds: BTreeMap<Kind, u64> = BTreeMap::new();
    for _ in 0..20_000 {
        let transaction = parameters.draw(&mut rng);
        let mut procedure = Procedure::SmallBank(transaction.clone());
        *kinds.entry(procedure.kind()).or_default() += 1;
        match rows.run(&mut procedure) {
            Some(Answer::Done(done)) => check.acknowledged(&transaction, done),
            Some(Answer::RolledBack) => {}
            other => panic!("{transaction:?}: {other:?}"),
        }
    }
    let several = kinds[&Kind::SendPayment] + kinds[&Kind::Amalgamate];
    assert!((7_600..8_400).contains(&several), "40 % update several rows: {kinds:?}");
    let contradictions = |rows: &Memory| {
        let mut check = check.clone();
        rows.0.iter().for_each(|(key, value)| check.row(key, value).unwrap());
        check.contradictions(&parameters)
    };
    assert_eq!(contradictions(&rows), [""; 0]);
    let key = "c000000123".to_owned();
    let balance: i64 = decode(&rows.0[&key]).unwrap();
    rows.0.insert(key.clone(), encode(&(balance - 1)));
    assert!(contradictions(&rows)[0].contains("cents"), "a cent is missing");
    rows.0.remove(&key);
    assert!(contradictions(&rows)[0].contains("999 accounts"), "an account is missing");
}

#[test]
fn twitter_has_every_tweet_and_popular_users_have_most_followers() {
    let parameters = twitter::Parameters { users: 2_000, exponent: 0.99 };
    let mut rows = Memory(parameters.fill(1).collect());
    let drawing = parameters.drawing();
    let mut rng = StdRng::seed_from_u64(5);
    let mut check = twitter::Check::default();
    let mut writes = 0;
    for unique in 1..=10_000 {
        let mut procedure = Procedure::Twitter(drawing.draw(&mut rng, unique));
        let answer = rows.run(&mut procedure);
        writes += u32::from(procedure.kind() == Kind::InsertTweet);
        let Some(Answer::Done(done)) = answer else { panic!("{procedure:?}: {answer:?}") };
        let Procedure::Twitter(transaction) = procedure else { unreachable!() };
        check.acknowledged(&transaction, done);
    }
    assert!((1_000..1_200).contains(&writes), "11 % write: {writes}");
    let contradictions = |rows: &Memory| {
        let mut check = check.clone();
        rows.0.iter().for_each(|(key, value)| check.row(key, value).unwrap());
        check.contradictions()
    };
    assert_eq!(contradictions(&rows), [""; 0]);
    let last =
        rows.0.keys().rfind(|key| key.starts_with('t') && &key[9..] > "000010").unwrap().clone();
    rows.0.remove(&last);
    let found = contradictions(&rows);
    assert!(found.iter().any(|one| one.contains("is lost")), "{found:?}");
    assert!(found.iter().any(|one| one.contains("its profile says")), "{found:?}");
}

#[test]
fn ycsb_counts_several_users_and_notices_a_lost_increment() {
    let parameters =
        ycsb::Parameters { users: 5_000, rows: 1, partners: 2, ..ycsb::Parameters::default() };
    let mut rows = Memory(parameters.fill().collect());
    let drawing = parameters.drawing();
    let mut rng = StdRng::seed_from_u64(6);
    let mut check = ycsb::Check::default();
    let mut several = 0;
    for _ in 0..2_000 {
        let mut procedure = Procedure::Ycsb(drawing.draw(&mut rng));
        let answer = rows.run(&mut procedure);
        let Some(Answer::Done(done)) = answer else { panic!("{procedure:?}: {answer:?}") };
        let Procedure::Ycsb(transaction) = procedure else { unreachable!() };
        check.acknowledged(&transaction, done);
        if let ycsb::Transaction::ReadModifyWrite { users, .. } = transaction {
            assert!(users.iter().all(|user| user.abs_diff(users[0]) <= 300), "{users:?}");
            several += usize::from(users.len() == 3);
        }
    }
    assert!(several > 800, "half of them write three users: {several}");
    let contradictions = |rows: &Memory| {
        let mut check = check.clone();
        rows.0.iter().for_each(|(key, value)| check.row(key, value).unwrap());
        check.contradictions(&parameters)
    };
    assert_eq!(contradictions(&rows), [""; 0]);
    let (key, value) = rows.0.iter().find(|(_, value)| ycsb::count(value) == Some(1)).unwrap();
    let (key, (_, filler)) = (key.clone(), decode::<(u64, String)>(value).unwrap());
    rows.0.insert(key, encode(&(0_u64, filler)));
    assert!(contradictions(&rows)[0].contains("counts 0, and 1 was acknowledged"));
}

#[test]
fn ycsb_counts_together_and_notices_a_torn_user() {
    let parameters = ycsb::Parameters { users: 1_000, ..ycsb::Parameters::default() };
    let mut rows = Memory(parameters.fill().collect());
    let drawing = parameters.drawing();
    let mut rng = StdRng::seed_from_u64(5);
    let mut check = ycsb::Check::default();
    let mut scans = 0;
    for _ in 0..2_000 {
        let mut procedure = Procedure::Ycsb(drawing.draw(&mut rng));
        let answer = rows.run(&mut procedure);
        scans += u32::from(procedure.kind() == Kind::Scan);
        let Some(Answer::Done(done)) = answer else { panic!("{procedure:?}: {answer:?}") };
        let Procedure::Ycsb(transaction) = procedure else { unreachable!() };
        check.acknowledged(&transaction, done);
    }
    assert!((900..1_100).contains(&scans), "half of them scan: {scans}");
    let contradictions = |rows: &Memory| {
        let mut check = check.clone();
        rows.0.iter().for_each(|(key, value)| check.row(key, value).unwrap());
        check.contradictions(&parameters)
    };
    assert_eq!(contradictions(&rows), [""; 0]);
    let first = "user00000000:1".to_owned();
    let (count, filler): (u64, String) = decode(&rows.0[&first]).unwrap();
    assert!(count > 50, "the first user is the most popular: {count}");
    rows.0.insert(first, encode(&(count - 1, filler)));
    assert!(contradictions(&rows)[0].contains("user 0 have the counts"));
    let mut scan = Procedure::Ycsb(ycsb::Transaction::Scan { user: 0, users: 100, rows: 3 });
    assert_eq!(rows.run(&mut scan), Some(Answer::Contradiction("user00000000:1".into())));
}
