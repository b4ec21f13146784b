//! Commands that Redis does not have.

use super::*;

#[test]
fn watching_and_reading_are_of_one_state() {
    let mut store = Store::new(settings(), 2);
    store.ask(0, "SET a 1");
    // A row that came and went in between is seen by nobody: what was read is what EXEC looks for.
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
fn a_range_has_the_rows_between_its_keys_whatever_the_partitions() {
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
