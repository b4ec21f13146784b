//! Streams: cut anywhere, of any bytes, and half requests that never end.

use proptest::prelude::*;

use super::*;

/// Everything that is sent back for a stream in these pieces, and whether it is closed.
fn sent(pieces: &[&[u8]]) -> (Vec<u8>, bool) {
    let mut store = Store::new(settings(), 1);
    let (mut all, mut is_closed) = (Vec::new(), false);
    for piece in pieces {
        store.connections[0].feed(piece);
        let (sent, closed) = store.memory.serve(&mut store.connections[0]);
        all.extend(sent);
        is_closed = closed;
    }
    (all, is_closed)
}

/// Pieces of streams that make requests, or nearly.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<Vec<u8>> = [
        "*",
        "$",
        "1",
        "2",
        "3",
        "-1",
        "0",
        "\r\n",
        "\n",
        " ",
        "GET",
        "a",
        "\"",
        "'",
        "\\x41",
        "\\",
        "*1\r\n$4\r\nPING\r\n",
        "*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
        "SET a \"b c\"\r\n",
        "INCR n\r\n",
        "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3\r\n\r\n\0\r\n",
        "MULTI\r\n",
        "EXEC\r\n",
        "*0\r\n",
        "\r\n",
        "WATCH a\r\n",
        "HELLO 3\r\n",
        "MGET a n x\r\n",
    ]
    .map(|word| word.as_bytes().to_vec())
    .into();
    let word = prop_oneof![
        8 => prop::sample::select(words),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(word, 0..30).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn where_a_stream_is_cut_does_not_matter(
        stream in stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
        let bytes: Vec<_> = stream.chunks(1).collect();
        let whole = sent(&[&stream]);
        prop_assert_eq!(&sent(&pieces), &whole);
        prop_assert_eq!(&sent(&bytes), &whole);
    }

    #[test]
    fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        sent(&[&bytes]);
    }
}

#[test]
fn half_a_request_does_not_grow_without_bound() {
    let argument = b"$1\r\nx\r\n$1\r\nx\r\n$1\r\nx\r\n$1\r\nx\r\n".as_slice();
    let endless: [(&[u8], &[u8]); 6] = [
        (b"*1000000\r\n", argument),
        (b"*1000000\r\n$60000\r\n", argument),
        (b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$99999\r\n", b"xxxxxxxxxxxxxxxxxxxxxxxx"),
        (b"*", b"1111111111111111111111"),
        (b"*1\r\n$", b"1111111111111111111111"),
        (b"GET ", b"a b c d e f g h i j k l"),
    ];
    for (start, more) in endless {
        let settings = Settings { request_bytes_max: 100_000, ..settings() };
        let mut connection = ProtocolState::new(Arc::new(settings), 1);
        connection.feed(start);
        let mut closed = false;
        for _ in 0..10_000 {
            connection.feed(more);
            assert!(connection.parser.bytes() < 1_000_000, "{}", connection.parser.bytes());
            closed |= matches!(connection.next(), Next::Close(_));
        }
        assert!(closed, "{}", start.escape_ascii());
    }
}

#[test]
fn all_connections_together_hold_no_more_than_their_bound() {
    const ALL_MAX: usize = 4_000_000;
    let settings = Arc::new(Settings { input_quota: InputQuota::new(ALL_MAX), ..settings() });
    let mut memory = Memory::default();
    let mut clients: Vec<_> =
        (0..50).map(|id| ProtocolState::new(Arc::clone(&settings), id)).collect();
    let large = counted(&[b"SET".as_slice(), b"a", &vec![b'x'; 1_000_000]]);
    let (half, rest) = large.split_at(large.len() - 10);
    let mut refused = vec![Vec::new(); clients.len()];
    for piece in half.chunks(10_000) {
        for (client, refused) in clients.iter_mut().zip(&mut refused) {
            client.feed(piece);
            refused.extend(memory.serve(client).0);
        }
        let held =
            |client: &ProtocolState| client.parser.bytes().saturating_sub(input_quota::OWN_BYTES);
        let open = clients.iter().zip(&refused).filter(|(_, refused)| refused.is_empty());
        assert!(open.map(|(client, _)| held(client)).sum::<usize>() <= ALL_MAX);
    }
    let error = b"-ERR Protocol error: unfinished requests of all clients together are too big: \
                  at most 4000000 bytes, try later\r\n";
    let (open, closed): (Vec<_>, Vec<_>) =
        refused.iter().enumerate().partition(|(_, refused)| refused.is_empty());
    assert!(closed.iter().all(|(_, refused)| *refused == error));
    assert!(!open.is_empty() && !closed.is_empty());
    // Small requests are taken meanwhile, and complete ones are no longer in the way.
    let mut another = ProtocolState::new(Arc::clone(&settings), 99);
    another.feed(b"PING\r\n");
    assert_eq!(memory.serve(&mut another).0, b"+PONG\r\n");
    for (at, _) in open {
        clients[at].feed(rest);
        assert_eq!(memory.serve(&mut clients[at]).0, b"+OK\r\n");
    }
    another.feed(&large);
    assert_eq!(memory.serve(&mut another).0, b"+OK\r\n");
}

#[test]
fn what_is_queued_counts_among_what_all_hold() {
    let settings = Settings { input_quota: InputQuota::new(1_000_000), ..settings() };
    let mut store = Store::new(settings, 2);
    let piece = counted(&[b"SET".as_slice(), b"a", &vec![b'x'; 100_000]]);
    store.send(0, b"MULTI\r\n");
    let mut said = Vec::new();
    for _ in 0..20 {
        said.extend(store.send(0, &piece));
    }
    let said = String::from_utf8_lossy(&said);
    assert!(said.ends_with("at most 1000000 bytes, try later\r\n"), "{said}");
    assert_eq!(store.send(1, &counted(&[b"SET".as_slice(), b"a", &[0; 900_000]])), b"+OK\r\n");
}

#[test]
fn who_feeds_without_asking_is_cut_off_behind_what_was_kept() {
    let mut settings = settings();
    settings.request_bytes_max = 10_000;
    let mut connection = ProtocolState::new(Arc::new(settings), 1);
    for _ in 0..1_000 {
        connection.feed(&b"PING\r\n".repeat(100));
    }
    assert!(connection.parser.bytes() < 400_000);
    let mut pongs = 0;
    let end = loop {
        match connection.next() {
            Next::Reply(_) => pongs += 1,
            Next::Close(reply) => break reply.into_bytes(),
            _ => panic!("a reply"),
        }
    };
    assert!(pongs > 1_000);
    assert_eq!(end, b"-ERR Protocol error: too big request\r\n");
}

#[test]
fn a_large_request_gives_its_memory_back() {
    let mut store = Store::new(settings(), 1);
    store.send(0, &counted(&[b"SET".as_slice(), b"a", &vec![0; 10_000_000]]));
    store.send(0, &counted(&vec!["EXISTS"; 9_000]));
    store.ask(0, "PING");
    assert!(store.connections[0].parser.bytes() < 300_000);
}

#[test]
fn strangers_are_given_less() {
    let replies = |request: &[u8]| {
        let mut settings = settings();
        settings.passwords.push("secret".to_owned());
        let reply = Store::new(settings, 1).send(0, request);
        String::from_utf8(reply).expect("text")
    };
    let error = |what| format!("-ERR Protocol error: unauthenticated {what} length\r\n");
    assert_eq!(replies(b"*11\r\n"), error("multibulk"));
    assert_eq!(replies(b"*2\r\n$16385\r\n"), error("bulk"));
    assert_eq!(replies(b"AUTH secret\r\n*11\r\n"), "+OK\r\n");
}

#[test]
fn a_request_of_a_browser_closes_the_connection() {
    assert_eq!(sent(&[b"POST / HTTP/1.1\r\nGET a\r\n"]), (Vec::new(), true));
    assert_eq!(sent(&[b"Host: a\r\n"]), (Vec::new(), true));
}
