//! The front beside a real server of Redis: the same random requests over the same connections, and the
//! same bytes back. Where there is no `redis-server` to start, nothing is compared.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rand::prelude::*;

use super::*;

mod libraries;
mod requests;
mod scripts;

use libraries::LIBRARIES;
use requests::{Requests, malformed};
use scripts::SCRIPTS;

/// A server, stopped with its last mention.
struct Redis {
    process: Child,
    port: u16,
    version: String,
}

impl Drop for Redis {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
    }
}

impl Redis {
    /// One without files, if there is any to be started.
    fn start(password: &str) -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        drop(listener);
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--appendonly", "no", "--databases", "16", "--requirepass", password])
            .args(["--dir", "/", "--logfile", "", "--maxclients", "1000"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(process) = process else {
            println!("there is no redis-server here: nothing is compared");
            return None;
        };
        let mut redis = Self { process, port, version: String::new() };
        for _ in 0..200 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                break;
            }
            sleep(Duration::from_millis(25));
        }
        let mut probe = redis.connect();
        if !password.is_empty() {
            probe.ask(&counted(&["AUTH", password]), 5);
        }
        let info = probe.ask(b"INFO server\r\n", 200);
        let info = String::from_utf8(info).expect("text");
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        redis.version = version.expect("a version").to_owned();
        Some(redis)
    }

    fn connect(&self) -> Socket {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.set_nodelay(true).expect("a socket");
        Socket { stream }
    }
}

struct Socket {
    stream: TcpStream,
}

impl Socket {
    /// Sends bytes; what comes back, at least so much if it comes within a second.
    fn ask(&mut self, bytes: &[u8], expected: usize) -> Vec<u8> {
        // It may have closed before it has all of it.
        _ = self.stream.write_all(bytes);
        let timeout = Some(Duration::from_secs(1));
        self.stream.set_read_timeout(timeout).expect("a socket");
        let (mut all, mut some) = (Vec::new(), [0; 65_536]);
        while all.len() < expected {
            match self.stream.read(&mut some) {
                Ok(count) if count > 0 => all.extend_from_slice(&some[..count]),
                _ => break,
            }
        }
        all
    }

    /// Further bytes, up to an end, within a second.
    fn rest(&mut self, end: &[u8]) -> Vec<u8> {
        let (mut all, mut some) = (Vec::new(), [0; 65_536]);
        while !all.ends_with(end) {
            match self.stream.read(&mut some) {
                Ok(count) if count > 0 => all.extend_from_slice(&some[..count]),
                _ => break,
            }
        }
        all
    }

    /// True if the server closed it without sending anything before.
    fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Connections to both.
struct Both {
    store: Store,
    sockets: Vec<Socket>,
}

impl Both {
    fn new(redis: &Redis, password: &str, connections: usize) -> Self {
        let mut settings = settings();
        settings.redis_version = redis.version.clone();
        settings.passwords =
            Some(password.to_owned()).filter(|it| !it.is_empty()).into_iter().collect();
        let settings = Arc::new(settings);
        let mut sockets: Vec<_> = (0..connections).map(|_| redis.connect()).collect();
        let connect = |socket: &mut Socket| {
            // A client with the password gets the number, and is then unauthenticated again.
            let (ask, skipped): (&[u8], _) = match password {
                "" => (b"CLIENT ID\r\n", 0),
                _ => (b"AUTH secret\r\nCLIENT ID\r\nRESET\r\n", 1),
            };
            let told = String::from_utf8(socket.ask(ask, 4 + skipped * 13)).expect("text");
            let id = told.lines().nth(skipped).expect("a number");
            ProtocolState::new(Arc::clone(&settings), id[1..].parse().expect("a number"))
        };
        let connections = sockets.iter_mut().map(connect).collect();
        let memory = Memory { settings, ..Memory::default() };
        Self { store: Store { memory, connections }, sockets }
    }

    /// Sends both the same, and compares what comes back.
    fn check(&mut self, at: usize, bytes: &[u8], what: &str) {
        let (ours, theirs) = self.ask(at, bytes);
        assert_eq!(ours, theirs, "{what}: {}", bytes.escape_ascii());
    }

    /// Sends both the same; what comes back of each.
    fn ask(&mut self, at: usize, bytes: &[u8]) -> (String, String) {
        // The command behind the requests ends the replies, so that none is left for the next time.
        let bytes = [bytes, b"PING end\r\n"].concat();
        let ours = self.store.send(at, &bytes);
        let mut theirs = self.sockets[at].ask(&bytes, ours.len());
        let end = b"$3\r\nend\r\n";
        if ours != theirs && !theirs.ends_with(end) {
            theirs.extend(self.sockets[at].rest(end));
        }
        (ours.escape_ascii().to_string(), theirs.escape_ascii().to_string())
    }
}

#[test]
fn random_requests_are_answered_as_redis_answers_them() {
    let Some(redis) = Redis::start("") else { return };
    for seed in 0..200 {
        redis.connect().ask(b"FLUSHALL\r\nSCRIPT FLUSH\r\n", 10);
        let mut both = Both::new(&redis, "", 2);
        let mut requests = Requests::new(seed);
        let start = requests.start();
        both.check(0, &start, "the start");
        for step in 0..60 {
            let (at, bytes) = requests.next();
            both.check(at, &bytes, &format!("seed {seed}, step {step}, connection {at}"));
        }
    }
}

#[test]
fn every_script_is_answered_as_redis_answers_it() {
    let Some(redis) = Redis::start("") else { return };
    let mut differences = Vec::new();
    let mut both = Both::new(&redis, "", 2);
    both.check(1, b"HELLO 3\r\n", "the third version");
    for text in SCRIPTS.iter().chain(LIBRARIES) {
        both.check(0, b"DEL cart:7d444840 total\r\n", "a new beginning");
        for at in [0, 1] {
            let eval = counted(&["EVAL", text, "2", "cart:7d444840", "total", "7", "x y"]);
            let (ours, theirs) = both.ask(at, &eval);
            if ours != theirs {
                differences.push(format!("{text}\n  ours   {ours}\n  redis's {theirs}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn strangers_are_answered_as_redis_answers_them() {
    let Some(redis) = Redis::start("secret") else { return };
    for seed in 0..100 {
        redis.connect().ask(b"AUTH secret\r\nFLUSHALL\r\nSCRIPT FLUSH\r\n", 15);
        let mut both = Both::new(&redis, "secret", 2);
        let mut requests = Requests::new(seed);
        for step in 0..20 {
            let (at, bytes) = requests.next_of_stranger();
            both.check(at, &bytes, &format!("seed {seed}, step {step}, connection {at}"));
        }
    }
}

#[test]
fn malformed_requests_end_a_connection_as_with_redis() {
    let Some(redis) = Redis::start("") else { return };
    for seed in 0..300 {
        let bytes = malformed(seed);
        let mut both = Both::new(&redis, "", 1);
        both.store.connections[0].feed(&bytes);
        let (ours, is_closed) = both.store.memory.serve(&mut both.store.connections[0]);
        let theirs = both.sockets[0].ask(&bytes, ours.len());
        let shown = format!("seed {seed}: {}", bytes.escape_ascii());
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string(), "{shown}");
        if is_closed {
            assert!(both.sockets[0].is_closed(), "{shown}");
        }
    }
}

#[test]
fn the_table_says_of_commands_what_redis_says() {
    let Some(redis) = Redis::start("") else { return };
    // These are of later versions than the first that has all of the others.
    let later = ["client|no-touch", "client|setinfo"];
    let mut both = Both::new(&redis, "", 1);
    let following = command_table::COMMANDS.iter().flat_map(|command| command.following);
    for command in command_table::COMMANDS.iter().chain(following) {
        if later.contains(&command.name) || command.name.starts_with("imago.") {
            continue;
        }
        let request = counted(&["COMMAND", "INFO", command.name]);
        let ours = both.store.send(0, &request);
        let theirs = both.sockets[0].ask(&request, ours.len());
        assert_eq!(head(&ours), head(&theirs), "{}", command.name);
        // Theirs says more, which is not to be taken for the next answer.
        both.sockets[0] = redis.connect();
    }
}

/// The name, arity, flags in their order, and places of keys in the answer to COMMAND INFO of one.
fn head(bytes: &[u8]) -> Vec<String> {
    let text = bytes.escape_ascii().to_string();
    let mut parts = text.split("\\r\\n").skip(3).map(str::to_owned);
    let mut head: Vec<_> = parts.by_ref().take(2).collect();
    let flags = parts.next().expect("a count of flags");
    let flags = flags[1..].parse().unwrap_or_else(|_| panic!("{text}"));
    let mut flags: Vec<_> = parts.by_ref().take(flags).collect();
    flags.sort();
    head.extend(flags);
    head.extend(parts.take(3));
    head
}

#[test]
fn a_walk_finds_the_keys_that_redis_finds() {
    let Some(redis) = Redis::start("") else { return };
    let mut random = StdRng::seed_from_u64(1);
    let mut both = Both::new(&redis, "", 1);
    let letters = b"abc-]^";
    for _ in 0..200 {
        let name: Vec<_> = (0..random.random_range(1..5))
            .map(|_| *letters.choose(&mut random).expect("one"))
            .collect();
        both.check(0, &counted(&[b"SET", name.as_slice(), b"1"]), "set");
    }
    let parts = ["*", "?", "a", "b", "[a-c]", "[^a]", "[", "]", "\\", "\\*", "[b^", "[\\]]", "-"];
    for _ in 0..150 {
        let pattern: String = (0..random.random_range(1..4))
            .map(|_| *parts.choose(&mut random).expect("one"))
            .collect();
        let request = counted(&["SCAN", "0", "COUNT", "5000", "MATCH", &pattern]);
        let names = |reply: Vec<u8>| {
            let text = String::from_utf8(reply).expect("text");
            let mut lines: Vec<_> = text.lines().skip(4).map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let ours = both.store.send(0, &request);
        let theirs = both.sockets[0].ask(&request, ours.len());
        assert_eq!(names(ours), names(theirs), "{pattern}");
    }
}
