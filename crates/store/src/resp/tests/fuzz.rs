//! Damaged streams of requests: what is understood does not depend on where they are cut and says the same
//! when it is written again, and no memory is taken for what is only announced.

use rand::RngExt;
use rand::rngs::StdRng;

use super::super::parse::{Limits, Malformed, Parser};
use super::*;
use crate::fuzz::{ValidBytes, allocation, many};

/// The longest request here, which some are near.
const REQUEST_BYTES_MAX: usize = 200_000;
/// Largest memory per byte sent: an argument of one byte and a blank is a place of eight, and vectors
/// double, once more for both at the same time.
const PER_BYTE_MAX: usize = 20;
const ALLOWANCE_BYTES: usize = 256 * 1024;

fn corpus() -> Vec<ValidBytes> {
    let long = vec![b'x'; 70_000];
    let nearly = vec![b'y'; REQUEST_BYTES_MAX - 100];
    let mut many_keys = vec![b"MGET".to_vec()];
    many_keys.extend((0..400).map(|n| format!("key{n}").into_bytes()));
    let streams: Vec<Vec<u8>> = vec![
        counted(&["PING"]),
        [counted(&["SET", "a", "1"]), counted(&["GET", "a"]), counted(&["INCR", "a"])].concat(),
        counted(&[b"SET".as_slice(), b"\0\r\n$", b"\xff\xfe*3\r\n"]),
        counted(&[b"SET".as_slice(), b"a", &long]),
        counted(&[b"SET".as_slice(), b"a", &nearly]),
        counted(&many_keys),
        b"PING\r\nSET a \"b c\\x41\\n\"\r\nGET 'a'\n\r\nEXISTS a b  c\r\n".to_vec(),
        [b"*0\r\n*-1\r\n\r\n".to_vec(), counted(&["MSET", "a", "", "b", "2"])].concat(),
        [&["MULTI"][..], &["INCR", "n"], &["EXEC"], &["WATCH", "a"], &["SCAN", "0", "COUNT", "2"]]
            .map(counted)
            .concat(),
        [&["HELLO", "3", "SETNAME", "c"][..], &["CLIENT", "INFO"], &["SELECT", "3"], &["RESET"]]
            .map(counted)
            .concat(),
    ];
    let seams = |bytes: &[u8]| {
        let behind = (0..bytes.len()).filter(|at| *at > 0 && bytes[at - 1] == b'\n');
        behind.take(1_000).collect()
    };
    let right = |bytes: Vec<u8>| ValidBytes { seams: seams(&bytes), bytes, lengths: Vec::new() };
    streams.into_iter().map(right).collect()
}

/// Requests, and whether what follows is none. Why not may depend on the cuts: where a line is too long and
/// the request too, one of the two is noticed first.
type Parsed = (Vec<Vec<Vec<u8>>>, bool);

fn parsed<'a>(pieces: impl Iterator<Item = &'a [u8]>, is_stranger: bool) -> Parsed {
    let limits = Limits { request_bytes_max: REQUEST_BYTES_MAX, is_stranger };
    let (mut parser, mut requests) = (Parser::new(), Vec::new());
    for piece in pieces {
        parser.feed(piece, REQUEST_BYTES_MAX);
        loop {
            match parser.advance(limits) {
                Ok(true) => {
                    requests.push(parser.arguments().from(0).map(<[u8]>::to_vec).collect());
                }
                Ok(false) => break,
                Err(Malformed(why)) => {
                    assert!(why.starts_with(b"ERR Protocol error: "));
                    return (requests, true);
                }
            }
        }
    }
    (requests, false)
}

fn cut<'a>(dice: &mut StdRng, mut stream: &'a [u8]) -> Vec<&'a [u8]> {
    let longest = [3, 100, 16_384][dice.random_range(0..3)];
    let mut pieces = Vec::new();
    while !stream.is_empty() {
        let at = dice.random_range(1..=longest).min(stream.len());
        let (piece, rest) = stream.split_at(at);
        pieces.push(piece);
        stream = rest;
    }
    pieces
}

#[test]
fn damaged_streams_are_understood_alike_however_they_are_cut() {
    let corpus = corpus();
    many(1_500, |dice| {
        let stream = corpus[dice.random_range(0..corpus.len())].damaged(dice, &corpus);
        let is_stranger = dice.random_bool(0.2);
        let pieces = cut(dice, &stream);
        let whole = parsed(stream.chunks(16_384), is_stranger);
        assert_eq!(parsed(pieces.into_iter(), is_stranger), whole);
        if is_stranger {
            return;
        }
        for request in &whole.0 {
            let again = counted(request);
            if again.len() <= REQUEST_BYTES_MAX {
                assert_eq!(parsed(again.chunks(16_384), false), (vec![request.clone()], false));
            }
        }
    });
}

#[test]
fn no_memory_is_taken_for_what_is_only_announced() {
    let corpus = corpus();
    many(1_500, |dice| {
        let stream = corpus[dice.random_range(0..corpus.len())].damaged(dice, &corpus);
        let limits = Limits { request_bytes_max: REQUEST_BYTES_MAX, is_stranger: false };
        let ((), bytes) = allocation::peak(|| {
            let mut parser = Parser::new();
            for piece in stream.chunks(1_000) {
                parser.feed(piece, REQUEST_BYTES_MAX);
                while parser.advance(limits) == Ok(true) {}
            }
        });
        assert!(
            bytes <= PER_BYTE_MAX * stream.len() + ALLOWANCE_BYTES,
            "{bytes} for {}",
            stream.len()
        );
    });
}

#[test]
fn damaged_streams_are_answered_or_end_the_connection() {
    let corpus = corpus();
    many(1_500, |dice| {
        let stream = corpus[dice.random_range(0..corpus.len())].damaged(dice, &corpus);
        let settings = Settings { request_bytes_max: REQUEST_BYTES_MAX, ..settings() };
        let mut store = Store::new(settings, 1);
        let mut sent = Vec::new();
        for piece in cut(dice, &stream) {
            store.connections[0].feed(piece);
            let (more, is_closed) = store.memory.serve(&mut store.connections[0]);
            sent.extend(more);
            if is_closed {
                break;
            }
        }
        // The replies are answers, each of them whole.
        let mut rest = sent.as_slice();
        while !rest.is_empty() {
            rest = behind_answer(rest).expect("an answer");
        }
    });
}

/// The bytes behind an answer of the protocol; nothing if there is no answer.
fn behind_answer(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let (line, rest) = (&bytes[1..end], &bytes[end + 2..]);
    let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    let times = |many: usize| (0..many).try_fold(rest, |rest, _| behind_answer(rest));
    match bytes[0] {
        b'+' | b'-' => Some(rest),
        b':' => number().map(|_| rest),
        b'_' => line.is_empty().then_some(rest),
        b'$' | b'=' | b'!' => match usize::try_from(number()?) {
            Ok(length) => (rest.get(length..length + 2)? == b"\r\n").then(|| &rest[length + 2..]),
            Err(_) => Some(rest),
        },
        b'*' | b'~' => usize::try_from(number()?).map_or(Some(rest), times),
        b'%' => times(2 * usize::try_from(number()?).ok()?),
        _ => None,
    }
}
