//! Tests of answers that differ from those of a real server of Redis, or for which none is needed.

use super::*;

fn check(lines: &[(&str, &str)]) {
    dialogue(&mut Store::new(settings(), 1), lines);
}

const INTEGER: &str = "-ERR value is not an integer or out of range|";

#[test]
fn values_are_set_and_read() {
    check(&[
        ("GET a", "$-1|"),
        ("SET a 1", "+OK|"),
        ("SET a 2 NX", "$-1|"),
        ("SET b 2 XX", "$-1|"),
        ("SET a 2 XX GET", "$1|1|"),
        ("SET a 3 KEEPTTL", "+OK|"),
        ("SET a 3 NX XX", "-ERR syntax error|"),
        ("GETSET a 4", "$1|3|"),
        ("SETNX a 5", ":0|"),
        ("MSET b 1 c 2", "+OK|"),
        ("MSETNX c 3 d 4", ":0|"),
        ("MSETNX d 4 e 5", ":1|"),
        ("MGET a x d", "*3|$1|4|$-1|$1|4|"),
        ("APPEND a 56", ":3|"),
        ("STRLEN a", ":3|"),
        ("TYPE a", "+string|"),
        ("TYPE x", "+none|"),
        ("EXISTS a a x", ":2|"),
        ("GETDEL a", "$3|456|"),
        ("DEL b b c x", ":2|"),
    ]);
}

#[test]
fn numbers_are_counted_up_to_the_end_of_their_range() {
    check(&[
        ("INCR n", ":1|"),
        ("DECRBY n 3", ":-2|"),
        ("INCRBY n 9223372036854775807", ":9223372036854775805|"),
        ("INCRBY n 3", "-ERR increment or decrement would overflow|"),
        ("DECRBY n -9223372036854775808", "-ERR decrement would overflow|"),
        ("INCRBY n 01", INTEGER),
        ("SET n \" 1\"", "+OK|"),
        ("INCR n", INTEGER),
        ("GET n", "$2| 1|"),
    ]);
}

#[test]
fn what_is_missing_says_why() {
    check(&[
        ("EXPIRE a 1", "-ERR 'EXPIRE' is not supported by Imago: keys do not expire here|"),
        ("SET a 1 EX 5", "-ERR 'SET' with EX is not supported by Imago: keys do not expire here|"),
        (
            "client kill id 1",
            "-ERR 'CLIENT KILL' is not supported by Imago: a connection knows of itself only|",
        ),
        (
            "CONFIG SET save x",
            "-ERR 'CONFIG SET' is not supported by Imago: it is configured where it is started|",
        ),
        ("MULTI", "+OK|"),
        ("SCAN 0", "-ERR 'SCAN' is not supported by Imago inside MULTI: it lists many partitions|"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors.|"),
        ("Nope a", "-ERR unknown command 'Nope', with args beginning with: 'a' |"),
        ("CLIENT nope", "-ERR unknown subcommand 'nope'. Try CLIENT HELP.|"),
    ]);
}

#[test]
fn long_keys_and_many_keys_are_refused() {
    let mut store = Store::new(settings(), 1);
    let long = vec![b'k'; crate::key::KEY_BYTES_MAX + 1];
    let reply = store.send(0, &counted(&[b"GET".as_slice(), &long]));
    assert_eq!(reply, b"-ERR a key of 65537 bytes is too long: at most 65536\r\n");
    let many: Vec<_> = (0..=KEYS_MAX).map(|n| n.to_string()).collect();
    let request = [vec!["DEL".to_owned()], many].concat();
    let reply = store.send(0, &counted(&request));
    assert_eq!(reply, b"-ERR 10001 keys are too many for one transaction: at most 10000\r\n");
}

#[test]
fn an_answer_has_a_bound() {
    let mut store = Store::new(settings(), 1);
    store.send(0, &counted(&[b"SET".as_slice(), b"a", &vec![0; 1_000_000]]));
    let request = [vec!["MGET"], vec!["a"; 300]].concat();
    assert_eq!(
        store.send(0, &counted(&request)),
        b"-ERR the answer would be longer than 33554432 bytes\r\n"
    );
}

#[test]
fn a_transaction_that_writes_too_much_ends_there() {
    let mut store = Store::new(settings(), 1);
    store.send(0, &counted(&[b"SET".as_slice(), b"a", &vec![0; 40_000_000]]));
    store.send(0, b"MULTI\r\nAPPEND a x\r\nAPPEND a y\r\nAPPEND a z\r\n");
    assert_eq!(store.ask(0, "EXEC"), "*3|:40000001|:40000002|:40000003|");
    store.send(0, b"MSET b 1\r\n");
    store.send(0, &counted(&[b"SET".as_slice(), b"b", &vec![0; 40_000_000]]));
    store.send(0, b"MULTI\r\nAPPEND a x\r\nAPPEND b x\r\n");
    assert!(store.ask(0, "EXEC").starts_with("-ERR 80000"));
    assert_eq!(store.ask(0, "STRLEN a"), ":40000003|");
}

#[test]
fn the_server_describes_itself() {
    let mut settings = settings();
    settings.info = Arc::new(|| {
        let line = |key: &str, value: &str| vec![(key.to_owned(), value.to_owned())];
        vec![
            ("Server".to_owned(), line("tcp_port", "6379")),
            ("Clients".to_owned(), line("connected_clients", "1")),
        ]
    });
    let mut store = Store::new(settings, 1);
    dialogue(
        &mut store,
        &[
            ("INFO clients", "$32|# Clients|connected_clients:1||"),
            ("CONFIG GET sav* appendonly", "*4|$4|save|$0||$10|appendonly|$3|yes|"),
            ("CONFIG GET nothing", "*0|"),
            ("COMMAND GETKEYS MSET a 1 b 2", "*2|$1|a|$1|b|"),
            ("COMMAND LIST FILTERBY PATTERN get*", "*3|$3|get|$6|getdel|$6|getset|"),
            (
                "COMMAND INFO nope client|id",
                "*2|*-1|*10|$9|client|id|:2|*3|+noscript|+loading|+stale|:0|:0|:0|*0|*0|*0|*0|",
            ),
        ],
    );
    let info = store.ask(0, "INFO");
    assert!(info.contains("redis_mode:standalone|tcp_port:6379||# Clients|"), "{info}");
    assert!(store.ask(0, "COMMAND DOCS get").contains("$7|summary|$14|Reads a value."));
    assert!(store.ask(0, "CLIENT LIST").contains("id=1 name= "));
}

#[test]
fn a_library_may_name_itself() {
    check(&[
        ("CLIENT SETINFO lib-name redis-py", "+OK|"),
        ("CLIENT SETINFO lib-ver 1.2", "+OK|"),
        ("CLIENT SETINFO lib-nme x", "-ERR Unrecognized option 'lib-nme'|"),
        (
            "CLIENT SETINFO lib-ver \"a b\"",
            "-ERR lib-ver cannot contain spaces, newlines or special characters.|",
        ),
        ("RESET", "+RESET|"),
        ("CLIENT NO-TOUCH on", "+OK|"),
    ]);
}

#[test]
fn a_walk_over_partitions_lists_every_key_once() {
    let mut store = Store::new(settings(), 1);
    for n in 0..100 {
        store.ask(0, &format!("SET k{n} v"));
    }
    store.ask(0, "SELECT 1");
    store.ask(0, "SET other v");
    store.ask(0, "SELECT 0");
    let key = |table, name: &str| Key::new(crate::key::Table(table), name.as_bytes());
    store.memory.ends = vec![key(0, "k2"), key(0, "k21"), key(0, "k7"), key(3, "")];
    for (options, expected) in [
        ("", 100),
        ("COUNT 1", 100),
        ("COUNT 30 MATCH k*1", 10),
        ("TYPE STRING", 100),
        ("TYPE hash", 0),
        ("MATCH [^k]*", 0),
    ] {
        let (mut cursor, mut names) = ("0".to_owned(), Vec::new());
        loop {
            let reply = store.ask(0, &format!("SCAN {cursor} {options}"));
            let parts: Vec<_> = reply.split('|').collect();
            names.extend(parts[4..].iter().skip(1).step_by(2).map(|name| (*name).to_owned()));
            cursor = parts[2].to_owned();
            if cursor == "0" {
                break;
            }
        }
        names.retain(|name| !name.is_empty());
        let listed = names.len();
        names.sort();
        names.dedup();
        assert_eq!((listed, names.len()), (expected, expected), "{options}");
    }
}

#[test]
fn a_cursor_is_of_its_database_and_may_be_used_again() {
    let mut store = Store::new(settings(), 2);
    store.ask(0, "MSET a 1 b 2");
    let first = store.ask(0, "SCAN 0 COUNT 1");
    let cursor = first.split('|').nth(2).expect("a cursor").to_owned();
    for at in [0, 1] {
        let again = store.ask(at, &format!("SCAN {cursor}"));
        assert!(again.starts_with("*2|$1|0|*1|$1|b|"), "{again}");
    }
    store.ask(0, "SELECT 1");
    assert!(store.ask(0, &format!("SCAN {cursor}")).starts_with("-ERR unknown cursor"));
    assert!(store.ask(1, "SCAN 77").starts_with("-ERR unknown cursor"));
}

#[test]
fn what_aborts_a_transaction_is_told() {
    let settings = Arc::new(settings());
    let mut connection = ProtocolState::new(settings, 1);
    connection.feed(b"SET a 1\r\nGET a\r\nGET a\r\n");
    let mut texts = Vec::new();
    for abort in [Abort::Deposed, Abort::Busy, Abort::Refused("MOVED x".to_owned())] {
        assert!(matches!(connection.next(), Next::Run(Request { alone: false, .. })));
        texts.push(String::from_utf8(connection.reply(Err(abort)).into_bytes()).expect("text"));
    }
    assert!(texts[0].starts_with("-TRYAGAIN it may or may not have happened: "));
    assert!(texts[1].starts_with("-TRYAGAIN nothing happened: "));
    assert_eq!(texts[2], "-MOVED x\r\n");
}

#[test]
fn a_password_is_asked_for_first() {
    let mut settings = settings();
    settings.passwords = vec!["old".to_owned(), "new".to_owned()];
    let mut store = Store::new(settings, 1);
    dialogue(
        &mut store,
        &[
            ("GET a", "-NOAUTH Authentication required.|"),
            ("AUTH ne", "-WRONGPASS invalid username-password pair or user is disabled.|"),
            ("AUTH root new", "-WRONGPASS invalid username-password pair or user is disabled.|"),
            ("AUTH new", "+OK|"),
            ("GET a", "$-1|"),
            ("RESET", "+RESET|"),
            ("PING", "-NOAUTH Authentication required.|"),
            ("AUTH default old", "+OK|"),
            ("PING", "+PONG|"),
        ],
    );
}
