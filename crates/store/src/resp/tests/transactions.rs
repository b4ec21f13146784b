//! MULTI, EXEC and WATCH, where the driver takes part.

use super::*;

fn run(next: Next) -> Request {
    match next {
        Next::Run(request) => request,
        _ => panic!("a transaction"),
    }
}

#[test]
fn exec_is_one_transaction_and_an_error_in_it_stays_in_its_place() {
    let mut store = Store::new(settings(), 1);
    store.send(0, b"SET s x\r\nMULTI\r\nSET a 1\r\nINCR s\r\nGET a\r\nSET a\r\n");
    assert!(store.ask(0, "EXEC").starts_with("-EXECABORT "));
    store.send(0, b"MULTI\r\nSET a 1\r\nINCR s\r\nGET a\r\nMSET x\r\n");
    store.send(0, b"DISCARD\r\nMULTI\r\nSET a 1\r\nINCR s\r\nMGET a s\r\n");
    store.connections[0].feed(b"EXEC\r\n");
    let request = run(store.connections[0].next());
    assert_eq!((request.reads.len(), request.writes.len(), request.alone), (0, 2, false));
    let outcome = store.memory.run(request);
    let reply = store.connections[0].reply(outcome);
    let error = "-ERR value is not an integer or out of range\r\n";
    let expected = format!("*3\r\n+OK\r\n{error}*2\r\n$1\r\n1\r\n$1\r\nx\r\n");
    assert_eq!(String::from_utf8(reply.into_bytes()).expect("text"), expected);
}

#[test]
fn a_watched_key_that_changed_lets_nothing_happen() {
    let mut store = Store::new(settings(), 2);
    for (between, reply) in [("SET a 1", "*-1|"), ("GET a", "*1|+OK|"), ("SET b 1", "*1|+OK|")] {
        store.ask(0, "WATCH a x");
        store.ask(1, between);
        store.ask(0, "MULTI");
        store.ask(0, "SET y 1");
        assert_eq!(store.ask(0, "EXEC"), reply, "{between}");
    }
    // A key that does not exist yet can be watched; UNWATCH forgets all watched keys.
    for (forget, reply) in [("PING", "*-1|"), ("UNWATCH", "*0|")] {
        store.ask(1, "DEL c");
        store.ask(0, "WATCH c");
        store.ask(1, "SET c 1");
        store.ask(0, forget);
        store.ask(0, "MULTI");
        assert_eq!(store.ask(0, "EXEC"), reply, "{forget}");
    }
}

#[test]
fn what_is_next_waits_for_the_watched_versions() {
    let mut store = Store::new(settings(), 1);
    let connection = &mut store.connections[0];
    connection.feed(b"GET a\r\nWATCH a\r\nMULTI\r\nGET a\r\nEXEC\r\n");
    let first = run(connection.next());
    let watch = run(connection.next());
    assert!(!first.alone && watch.alone);
    assert!(matches!(connection.next(), Next::Wait));
    let outcome = store.memory.run(first);
    connection.reply(outcome);
    assert!(matches!(connection.next(), Next::Wait));
    let outcome = store.memory.run(watch);
    assert_eq!(connection.reply(outcome).into_bytes(), b"+OK\r\n");
    let (sent, _) = store.memory.serve(connection);
    assert_eq!(sent, b"+OK\r\n+QUEUED\r\n*1\r\n$-1\r\n");
}

#[test]
fn the_session_is_what_exec_made_it_only_if_it_happened() {
    let mut store = Store::new(settings(), 1);
    let connection = &mut store.connections[0];
    for (abort, database) in [(Some(Abort::Busy), 0), (None, 1)] {
        connection.feed(b"MULTI\r\nSELECT 1\r\nSET a 1\r\nEXEC\r\nGET b\r\n");
        for _ in 0..3 {
            assert!(matches!(connection.next(), Next::Reply(_)));
        }
        let exec = run(connection.next());
        assert!(exec.alone);
        assert_eq!(exec.writes, [Key::new(crate::key::Table(1), b"a")]);
        let outcome = abort.map_or_else(|| store.memory.run(exec), Err);
        connection.reply(outcome);
        let get = run(connection.next());
        assert_eq!(get.reads, [KeyRange::only(&Key::new(crate::key::Table(database), b"b"))]);
        connection.reply(Ok(Reply::default()));
    }
}

#[test]
fn what_a_queue_says_has_a_bound() {
    let mut store = Store::new(settings(), 1);
    store.ask(0, "MULTI");
    store.send(0, &b"COMMAND DOCS\r\n".repeat(80_000));
    assert_eq!(store.ask(0, "EXEC"), "-ERR the answer would be longer than 33554432 bytes|");
    assert_eq!(store.ask(0, "PING"), "+PONG|");
}

#[test]
fn a_queue_has_a_bound() {
    let mut store = Store::new(Settings { request_bytes_max: 1_000, ..settings() }, 1);
    store.ask(0, "MULTI");
    let mut replies = (0..30).map(|n| store.ask(0, &format!("SET key{n} value")));
    assert!(replies.any(|reply| reply.starts_with("-ERR too much is queued")));
    assert!(store.ask(0, "EXEC").starts_with("-EXECABORT "));
}
