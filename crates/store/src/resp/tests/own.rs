//! Commands that Redis does not have.

use super::*;

#[test]
fn watching_and_reading_are_of_one_state() {
    let mut store = Store::new(settings(), 2);
    store.ask(0, "SET a 1");
    // A row that came and went in between is no change: EXEC compares with what was read.
    for (between, reply) in [("SET b 2|DEL b", "*1|+OK|"), ("SET a 1", "*-1|"), ("DEL a", "*-1|")] {
        let there = if reply == "*-1|" || between.starts_with("SET b") { "$1|1|" } else { "$-1|" };
        assert_eq!(store.ask(0, "IMAGO.WATCH b a b"), format!("*3|$-1|{there}$-1|"));
        for request in between.split('|') {
            store.ask(1, request);
        }
        store.ask(0, "MULTI");
        store.ask(0, "SET y 1");
        assert_eq!(store.ask(0, "EXEC"), reply, "{between}");
    }
    store.ask(0, "MULTI");
    assert_eq!(store.ask(0, "IMAGO.WATCH a"), "-ERR WATCH inside MULTI is not allowed|");
}

#[test]
fn a_range_over_partitions_has_the_rows_between_its_keys() {
    let name = |n: usize| format!("{n:03}");
    let mut store = Store::new(settings(), 1);
    for n in 0..100 {
        store.ask(0, &format!("SET {} v{n}", name(n)));
    }
    store.ask(0, "SELECT 1");
    store.ask(0, "SET 050 other");
    store.ask(0, "SELECT 0");
    for n in [20, 21, 70] {
        store.memory.ends.push(Key::new(crate::key::Table(0), name(n).as_bytes()));
    }
    for (from, to, count) in
        [(0, 100, 7), (5, 21, 1), (20, 21, 5), (30, 30, 5), (60, 10, 3), (90, 0, 4)]
    {
        // The greatest name is the end of all.
        let end = if to == 0 { String::new() } else { name(to) };
        let last = if to == 0 { 100 } else { to };
        let (mut start, mut rows) = (name(from), Vec::new());
        loop {
            let (count, request) = (count.to_string(), ["IMAGO.RANGE", &start, &end, "COUNT"]);
            let reply = store.send(0, &counted(&[&request[..], &[&*count]].concat()));
            let text = String::from_utf8(reply).expect("text");
            let mut parts = text.split("\r\n").skip(1).filter(|part| !part.starts_with(['*', '$']));
            let is_last = text.starts_with("*2\r\n$-1\r\n");
            let next = if is_last { None } else { parts.next() };
            rows.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
            match next {
                // It may go on right behind the last one: there is a zero at its end.
                Some(next) => start = next.to_owned(),
                None => break,
            }
        }
        let expected: Vec<_> = (from..last).flat_map(|n| [name(n), format!("v{n}")]).collect();
        assert_eq!(rows, expected, "{from} to {to}");
    }
    dialogue(
        &mut store,
        &[
            ("IMAGO.RANGE a b COUNT 0", "-ERR syntax error|"),
            ("IMAGO.RANGE a b COUNT x", "-ERR value is not an integer or out of range|"),
            ("IMAGO.RANGE a b LIMIT 1", "-ERR syntax error|"),
            ("IMAGO.RANGE a", "-ERR wrong number of arguments for 'imago.range' command|"),
            ("MULTI", "+OK|"),
            (
                "IMAGO.RANGE a b",
                "-ERR 'IMAGO.RANGE' is not supported by Imago inside MULTI: it lists many partitions|",
            ),
        ],
    );
}

#[test]
fn a_procedure_is_called_over_its_keys_and_undone_as_a_whole() {
    let mut procedures = Procedures::default();
    procedures.register("move", |view, keys, arguments| {
        let refused = |text: &str| Abort::Refused(format!("ERR {text}"));
        let amount =
            arguments.first().and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let amount: i64 = amount.ok_or_else(|| refused("how much?"))?;
        for (key, change) in keys.iter().zip([-amount, amount]) {
            let old =
                view.get(key)?.and_then(|it| std::str::from_utf8(&it.value).ok()?.parse().ok());
            let new = old.unwrap_or(0) + change;
            view.put(key, new.to_string().into_bytes().into())?;
            if new < 0 {
                return Err(refused("it is not there"));
            }
        }
        assert!(amount != 13, "of all numbers");
        Ok(b"moved".to_vec())
    });
    let other = Key::new(crate::key::Table(0), b"other");
    procedures
        .register("astray", move |view, _, _| view.put(&other, [].into()).map(|()| Vec::new()));
    procedures.register("flood", |view, keys, _| {
        view.put(&keys[0], vec![0; crate::transaction::WRITTEN_BYTES_MAX].into())?;
        Ok(Vec::new())
    });
    let settings = Settings { procedures: Arc::new(procedures), ..settings() };
    let mut store = Store::new(settings, 1);
    dialogue(
        &mut store,
        &[
            ("SET a 20", "+OK|"),
            ("IMAGO.CALL move 2 a b 5", "$5|moved|"),
            ("IMAGO.CALL move 2 a b 5", "$5|moved|"),
            ("MGET a b", "*2|$2|10|$2|10|"),
            ("IMAGO.CALL move 2 a b 11", "-ERR it is not there|"),
            ("IMAGO.CALL move 2 b a 11", "-ERR it is not there|"),
            ("IMAGO.CALL move 2 a b", "-ERR how much?|"),
            ("IMAGO.CALL move 2 c d -13", "-ERR it is not there|"),
            ("MSET c 99", "+OK|"),
            ("IMAGO.CALL move 2 c d 13", "-ERR procedure 'move' panicked, and nothing happened|"),
            ("MGET a b c d", "*4|$2|10|$2|10|$2|99|$-1|"),
            ("IMAGO.CALL_RO move 2 a b 1", "-ERR 0:a is not among the declared keys|"),
            ("IMAGO.CALL_RW move 2 a b 0 1", "$5|moved|"),
            ("IMAGO.CALL_RW move 2 b a 0 1", "$5|moved|"),
            ("IMAGO.CALL_RW move 1 a 1 b 1", "-ERR 0:b is not among the declared keys|"),
            ("IMAGO.CALL_RW move 2 a b", "-ERR the number of keys that are only read is missing|"),
            (
                "IMAGO.CALL_RW move 1 a 2 b",
                "-ERR Number of keys can't be greater than number of args|",
            ),
            ("IMAGO.CALL_RW move 1 a x b", "-ERR value is not an integer or out of range|"),
            ("IMAGO.CALL astray 1 a", "-ERR 0:other is not among the declared keys|"),
            (
                "IMAGO.CALL nope 0",
                "-ERR there is no procedure called 'nope' where it would be run|",
            ),
            ("IMAGO.CALL move 3 a b", "-ERR Number of keys can't be greater than number of args|"),
            ("IMAGO.CALL move -1 a b", "-ERR Number of keys can't be negative|"),
            ("MULTI", "+OK|"),
            ("IMAGO.CALL move 2 a b 1", "+QUEUED|"),
            ("INCR a", "+QUEUED|"),
            ("EXEC", "*2|$5|moved|:10|"),
        ],
    );
    assert!(store.ask(0, "IMAGO.CALL flood 1 a").contains("are too many for one transaction"));
    assert_eq!(store.ask(0, "GET a"), "$2|10|");
}
