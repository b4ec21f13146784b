//! Clients that send half of a request: for how long, and how much all of them together.

use super::*;
use crate::record::Position;
use crate::resp::InputQuota;

const WAIT: Duration = Duration::from_millis(150);
const CUT_OFF: &str = "-ERR Protocol error: half a request, and nothing more for 0.15 s\r\n";

fn store() -> (Store, SocketAddr) {
    let store = Store::start(&options(None, 2)).expect("a store in memory");
    let address = listen(&store, Settings { request_wait: WAIT, ..Settings::new("test", 1) });
    (store, address)
}

#[test]
fn who_does_not_go_on_with_half_a_request_is_cut_off() {
    let (_store, address) = store();
    let halves = [
        "*1\r\n$4\r\nPIN",
        "*2\r\n",
        "*",
        "GET a",
        "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\n",
        "MULTI\r\nSET a b\r\n*1",
    ];
    let clients = halves.map(|half| {
        let mut client = Raw::to(address);
        client.send(half);
        client
    });
    for (mut client, half) in clients.into_iter().zip(halves) {
        if half.starts_with("MULTI") {
            client.expect("+OK\r\n+QUEUED\r\n");
        }
        client.expect(CUT_OFF);
        client.expect_end();
    }
}

#[test]
fn a_byte_now_and_then_is_not_going_on() {
    let (_store, address) = store();
    let mut client = Raw::to(address);
    client.send("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100000\r\n");
    let until = Instant::now() + Duration::from_secs(20);
    client.0.set_read_timeout(Some(WAIT / 10)).expect("a bound");
    let mut answer = [0; CUT_OFF.len()];
    while std::io::Read::read_exact(&mut client.0, &mut answer).is_err() {
        assert!(Instant::now() < until, "it goes on for ever");
        _ = std::io::Write::write_all(&mut client.0, b"x");
    }
    assert_eq!(String::from_utf8_lossy(&answer), CUT_OFF);
}

#[test]
fn who_is_idle_between_requests_or_waits_for_an_answer_is_not() {
    let (store, address) = store();
    let (mut idle, mut queues, mut waits) = (Raw::to(address), Raw::to(address), Raw::to(address));
    idle.send("SET a b\r\n");
    idle.expect("+OK\r\n");
    queues.send("MULTI\r\nGET a\r\n");
    queues.expect("+OK\r\n+QUEUED\r\n");
    // Site 0 has something else to do for much longer than half a request may take.
    let begin = |ms: u64| {
        let procedure = move |_: &mut View<'_>| {
            thread::sleep(Duration::from_millis(ms));
            Ok(Vec::new())
        };
        let (reads, writes) = (Vec::new(), vec![key(1)]);
        let procedure = Box::new(procedure);
        let transaction = Transaction {
            reads,
            writes,
            session: Position(0),
            client: None,
            at_masters: false,
            is_distributed: false,
            output: None,
            procedure,
        };
        let (answer, done) = oneshot::channel();
        let batch = vec![(ReplyTo::Channel(answer), transaction, Instant::now() + PATIENCE)];
        _ = store.shared.senders[0].send(SiteEvent::Transact(batch));
        done
    };
    waits.send("PING\r\n");
    waits.expect("+PONG\r\n");
    let done = begin(600);
    waits.send("GET a\r\nGET ");
    assert!(done.blocking_recv().is_ok());
    waits.expect("$1\r\nb\r\n");
    idle.send("GET a\r\n");
    idle.expect("$1\r\nb\r\n");
    queues.send("EXEC\r\n");
    queues.expect("*1\r\n$1\r\nb\r\n");
}

#[test]
fn all_half_requests_together_are_bounded_and_small_ones_are_taken_meanwhile() {
    let store = Store::start(&options(None, 2)).expect("a store in memory");
    let input_quota = InputQuota::new(2_000_000);
    let address = listen(&store, Settings { input_quota, ..Settings::new("test", 1) });
    let request = format!("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$700000\r\n{}\r\n", "x".repeat(700_000));
    let mut clients: Vec<Raw> = (0..8).map(|_| Raw::to(address)).collect();
    for client in &mut clients {
        // One that is refused may be closed before it has sent all of it.
        _ = std::io::Write::write_all(&mut client.0, &request.as_bytes()[..600_000]);
        client.0.set_nonblocking(true).expect("a socket");
    }
    let until = Instant::now() + Duration::from_secs(20);
    let refused = |client: &Raw| {
        let mut answer = [0; 10];
        match client.0.peek(&mut answer) {
            Ok(read) => b"-ERR Protocol error: unfinished".starts_with(&answer[..read]),
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    };
    while !clients.iter().any(refused) {
        assert!(Instant::now() < until, "no client is refused");
        thread::sleep(Duration::from_millis(1));
    }
    let mut small = Raw::to(address);
    small.send("SET b c\r\nGET b\r\n");
    small.expect("+OK\r\n$1\r\nc\r\n");
    // A connection that ends frees what it held.
    drop(clients);
    let is_taken = || {
        let mut client = Raw::to(address);
        let mut answer = [0; 5];
        let sent = std::io::Write::write_all(&mut client.0, request.as_bytes());
        let read = std::io::Read::read_exact(&mut client.0, &mut answer);
        sent.is_ok() && read.is_ok() && answer == *b"+OK\r\n"
    };
    while !is_taken() {
        assert!(Instant::now() < until, "a large request is never taken again");
    }
}
