//! Random requests, of a seed.

use rand::prelude::*;

use super::super::counted;
use super::scripts::{SCRIPTS, hash};

/// Requests of two connections.
pub(super) struct Requests {
    random: StdRng,
}

/// Keys that are never deleted, so that they may be watched: what came and went is not seen here as
/// changed.
const WATCHED: [&[u8]; 3] = [b"w", b"w2", b"w3"];
/// Scripts that are known from the start, but for the last. Of others it is not asked whether they are:
/// here they are once they are queued, there once they run.
const KNOWN: [&str; 4] = [
    "return ARGV",
    "return redis.call('GET', KEYS[1])",
    "return redis.call('SET', KEYS[1], ARGV[1], 'XX')",
    "return 'never seen'",
];
const KEYS: [&[u8]; 5] = [b"a", b"b", b"c", b"\0\r\n\xff", b""];
const VALUES: [&[u8]; 14] = [
    b"",
    b"0",
    b"1",
    b"-1",
    b"17",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"9223372036854775806",
    b"x",
    b" 1",
    b"01",
    b"a b\r\n",
    b"\xff\0'\"\\",
    b"long value with words in it",
];

impl Requests {
    pub fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed) }
    }

    /// The first requests of the first connection.
    pub fn start(&mut self) -> Vec<u8> {
        let set: Vec<&[u8]> = WATCHED.iter().flat_map(|key| [*key, b"1"]).collect();
        let loaded = KNOWN[..3].iter().map(|text| counted(&["SCRIPT", "LOAD", text]));
        let set = counted(&[vec![b"MSET".as_slice()], set].concat());
        loaded.chain([set]).collect::<Vec<_>>().concat()
    }

    /// The connection, and some requests.
    pub fn next(&mut self) -> (usize, Vec<u8>) {
        let at = usize::from(self.random.random_bool(0.3));
        let count = if self.random.random_bool(0.8) { 1 } else { 5 };
        let requests = (0..count).map(|_| {
            let arguments = self.request();
            self.encoded(arguments)
        });
        (at, requests.collect::<Vec<_>>().concat())
    }

    pub fn next_of_stranger(&mut self) -> (usize, Vec<u8>) {
        let at = usize::from(self.random.random_bool(0.5));
        let arguments = if self.random.random_bool(0.6) {
            self.request()
        } else {
            let words: Vec<_> = self
                .pick(&[
                    "AUTH secret",
                    "AUTH wrong",
                    "AUTH default secret",
                    "AUTH other secret",
                    "AUTH a b c",
                    "HELLO 3 AUTH default secret",
                    "HELLO 3 AUTH default no",
                    "RESET",
                    "HELLO 2",
                    "HELLO 3 AUTH default",
                    "HELLO 3 SETNAME x",
                    "EXEC",
                    "MULTI",
                ])
                .split(' ')
                .map(|word| word.as_bytes().to_vec())
                .collect();
            words
        };
        let bytes = self.encoded(arguments);
        // Its number is not known here.
        let is_number = bytes.windows(2).any(|two| two.eq_ignore_ascii_case(b"id"));
        (at, if is_number { Vec::new() } else { bytes })
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        *from.choose(&mut self.random).expect("there is one")
    }

    fn key(&mut self) -> Vec<u8> {
        if self.random.random_bool(0.3) { self.pick(&WATCHED) } else { self.pick(&KEYS) }.to_vec()
    }

    fn value(&mut self) -> Vec<u8> {
        self.pick(&VALUES).to_vec()
    }

    fn several(&mut self, one: fn(&mut Self) -> Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        (0..self.random.random_range(1..4)).flat_map(|_| one(self)).collect()
    }

    /// Arguments, rarely too many or too few.
    fn request(&mut self) -> Vec<Vec<u8>> {
        let mut arguments = self.right_request();
        if self.random.random_bool(0.04) {
            arguments.push(self.value());
        } else if self.random.random_bool(0.04) && arguments.len() > 1 {
            arguments.pop();
        }
        if arguments.len() == 1 && arguments[0] == b"COMMAND" {
            // There are fewer here.
            arguments.push(b"NOPE".to_vec());
        }
        if self.random.random_bool(0.2) {
            arguments[0].make_ascii_lowercase();
        }
        arguments
    }

    fn right_request(&mut self) -> Vec<Vec<u8>> {
        let name = self.pick(&[
            "GET", "GET", "SET", "SET", "SETNX", "GETSET", "GETDEL", "MGET", "MSET", "MSETNX",
            "DEL", "UNLINK", "EXISTS", "TYPE", "STRLEN", "APPEND", "INCR", "DECR", "INCRBY",
            "DECRBY", "MULTI", "MULTI", "EXEC", "EXEC", "DISCARD", "WATCH", "WATCH", "UNWATCH",
            "EVAL", "EVAL", "EVALSHA", "SCRIPT", "other",
        ]);
        if name == "other" {
            return self.other();
        }
        let behind = match name {
            "GET" | "TYPE" | "STRLEN" | "INCR" | "DECR" => vec![self.key()],
            // Watched keys are not deleted.
            "GETDEL" => vec![self.pick(&KEYS).to_vec()],
            "DEL" | "UNLINK" => self.several(|it| vec![it.pick(&KEYS).to_vec()]),
            "SET" => {
                let mut all = vec![self.key(), self.value()];
                if self.random.random_bool(0.4) {
                    let options = [
                        "NX", "XX", "GET", "KEEPTTL", "nx", "get", "NX GET", "XX GET", "NX XX",
                        "FOO",
                    ];
                    all.extend(self.pick(&options).split(' ').map(|word| word.as_bytes().to_vec()));
                }
                all
            }
            "SETNX" | "GETSET" | "APPEND" => vec![self.key(), self.value()],
            "INCRBY" | "DECRBY" => vec![self.key(), self.value()],
            "MGET" | "EXISTS" => self.several(|it| vec![it.key()]),
            "EVAL" => {
                let text = self.pick(SCRIPTS).as_bytes().to_vec();
                [vec![text], self.keys_and_values()].concat()
            }
            "EVALSHA" => {
                let hash = hash(self.pick(&KNOWN)).into_bytes();
                [vec![hash], self.keys_and_values()].concat()
            }
            "SCRIPT" => {
                let (text, hash) = (self.pick(SCRIPTS), hash(self.pick(&KNOWN)));
                let [one, other]: [&str; 2] = self.pick(&[
                    ["LOAD", text],
                    ["LOAD", text],
                    ["EXISTS", &hash],
                    ["FLUSH", "NOW"],
                    ["FOO", "x"],
                ]);
                [one, other].map(|word| word.as_bytes().to_vec()).into()
            }
            "WATCH" => self.several(|it| vec![it.pick(&WATCHED).to_vec()]),
            "MSET" | "MSETNX" => self.several(|it| vec![it.key(), it.value()]),
            _ => Vec::new(),
        };
        [vec![name.as_bytes().to_vec()], behind].concat()
    }

    /// The keys and values behind the text of a script.
    fn keys_and_values(&mut self) -> Vec<Vec<u8>> {
        let keys: Vec<_> = (0..self.random.random_range(0..3)).map(|_| self.key()).collect();
        let values: Vec<_> = (0..self.random.random_range(0..3)).map(|_| self.value()).collect();
        let count = match self.random.random_range(0..30) {
            0 => "-1".to_owned(),
            1 => "7".to_owned(),
            2 => "x".to_owned(),
            _ => keys.len().to_string(),
        };
        [vec![count.into_bytes()], keys, values].concat()
    }

    fn other(&mut self) -> Vec<Vec<u8>> {
        let line = self.pick(&[
            "SELECT 0",
            "SELECT 0",
            "SELECT 1",
            "SELECT 15",
            "SELECT 16",
            "SELECT -1",
            "SELECT x",
            "SELECT 99999999999",
            "HELLO 2",
            "HELLO 3",
            "HELLO 3 SETNAME me",
            "HELLO 4",
            "HELLO x",
            "HELLO",
            "HELLO 3 FOO",
            "HELLO 2 AUTH default any",
            "HELLO 2 AUTH other any",
            "HELLO 2 SETNAME a\nb",
            "RESET",
            "CLIENT SETNAME one",
            "CLIENT SETNAME ",
            "CLIENT SETNAME a\tb",
            "CLIENT GETNAME",
            "CLIENT GETNAME",
            "CLIENT ID",
            "CLIENT NO-EVICT on",
            "CLIENT NO-EVICT x",
            "CLIENT FOO",
            "CLIENT",
            "ECHO x",
            "PING",
            "PING x",
            "PING x y",
            "COMMAND GETKEYS GET a",
            "COMMAND GETKEYS MSET a 1 b 2 c",
            "COMMAND GETKEYS PING",
            "COMMAND GETKEYS FOO",
            "COMMAND GETKEYS GET",
            "COMMAND GETKEYS EXISTS a b c",
            "COMMAND FOO",
            "CONFIG GET nothing-of-it",
            "CONFIG GET save",
            "CONFIG GET databas?s nothing",
            "CONFIG",
            "AUTH x",
            "AUTH default x",
            "AUTH other x",
            "AUTH a b c",
            "NOPE",
            "NOPE a b",
            "NOPE a\r\nb \0c",
            "SCAN x",
            "SCAN 0 COUNT 0",
            "SCAN 0 COUNT x",
            "SCAN 0 COUNT",
            "SCAN 0 FOO 1",
            "QUIET",
            "EXEC x",
            "MULTI x",
            "UNWATCH x",
            "WATCH",
        ]);
        // Inside MULTI it is refused here.
        let line = if line.starts_with("SCAN") { "PING scan" } else { line };
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    /// As clients send it, or inline.
    fn encoded(&mut self, arguments: Vec<Vec<u8>>) -> Vec<u8> {
        if self.random.random_bool(0.8) {
            return counted(&arguments);
        }
        let quoted = arguments.iter().map(|argument| {
            let is_plain = !argument.is_empty() && argument.iter().all(u8::is_ascii_alphanumeric);
            if is_plain && self.random.random_bool(0.7) {
                return argument.clone();
            }
            let mut text = b"\"".to_vec();
            for byte in argument {
                match byte {
                    b'"' | b'\\' => text.extend([b'\\', *byte]),
                    b' '..=b'~' => text.push(*byte),
                    _ => text.extend(format!("\\x{byte:02x}").bytes()),
                }
            }
            text.push(b'"');
            text
        });
        let mut line = quoted.collect::<Vec<_>>().join(b" ".as_slice());
        line.extend_from_slice(if self.random.random_bool(0.5) { b"\r\n" } else { b"\n" });
        line
    }
}

/// Bytes that are nearly requests.
pub(super) fn malformed(seed: u64) -> Vec<u8> {
    const WHOLE: [&[u8]; 8] = [
        b"*1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n$3\r\nGET\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"*x\r\n",
        b"*1\r\n$-1\r\n",
        b"*99999999999999999999\r\n",
    ];
    const WORDS: [&[u8]; 21] = [
        b"*", b"$", b"1", b"2", b"3", b"-1", b"0", b"\r\n", b"\r\n", b"\n", b" ", b"GET", b"a",
        b"\"", b"'", b"\\x41", b"\\n", b"PING", b"ECHO", b"+1", b"\t",
    ];
    let mut random = StdRng::seed_from_u64(seed);
    let mut bytes = Vec::new();
    for _ in 0..random.random_range(1..12) {
        let from = if random.random_bool(0.3) { &WHOLE[..] } else { &WORDS[..] };
        bytes.extend_from_slice(from.choose(&mut random).expect("there is one"));
    }
    [&bytes, b"\r\n".as_slice()].concat()
}
