//! The front over rows in memory: what each command answers, streams cut anywhere, and a real server of
//! Redis beside it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::key::Value;
use crate::transaction::{ReadRows, Seen, View};

mod commands;
mod differential;
mod fuzz;
mod own;
mod scripts;
mod stream;
mod transactions;

/// The rows, and the keys at which partitions end.
#[derive(Default)]
struct Memory {
    rows: BTreeMap<Key, Seen>,
    version: u64,
    ends: Vec<Key>,
    /// Those of where procedures run.
    settings: Arc<Settings>,
}

impl ReadRows for Memory {
    fn get(&self, key: &Key) -> Option<Seen> {
        self.rows.get(key).cloned()
    }

    fn visit(&self, range: &KeyRange, limit: usize, visit: &mut dyn FnMut(&Key, u64, &Value)) {
        let rows = self.rows.range(range.start.clone()..);
        let rows = rows.take_while(|(key, _)| range.contains(key)).take(limit);
        rows.for_each(|(key, seen)| visit(key, seen.version, &seen.value));
    }
}

impl Memory {
    /// Every other time in another process, as far as the procedure can tell.
    fn run(&mut self, mut request: Request) -> Result<Reply, Abort> {
        if self.version % 2 == 1 {
            let sent = request.procedure.encode().expect("what clients ask for can be sent");
            assert!(
                decode(&sent[..sent.len() - 1], &self.settings).is_none(),
                "a part of it is none"
            );
            request.procedure = decode(&sent, &self.settings).expect("it was sent");
        }
        let (reads, writes) = (&request.reads, &request.writes);
        assert!(reads.is_sorted_by(|one, other| one.start < other.start));
        assert!(writes.is_sorted_by(|one, other| one < other));
        let mut view = View::new(&*self, reads, writes);
        let answer = request.procedure.run(&mut view)?;
        let written = view.written;
        self.version += 1;
        for (key, value) in written {
            match value {
                Some(value) => _ = self.rows.insert(key, Seen { version: self.version, value }),
                None => _ = self.rows.remove(&key),
            }
        }
        Ok(answer)
    }

    fn end_of(&self, key: &Key) -> Option<&Key> {
        self.ends.iter().find(|end| *end > key)
    }

    /// Does what a connection wants done, until it waits; what it sends, and whether it closed.
    fn serve(&mut self, connection: &mut ProtocolState) -> (Vec<u8>, bool) {
        let mut sent = Vec::new();
        loop {
            match connection.next() {
                Next::Wait => return (sent, false),
                Next::Reply(reply) => sent.extend(reply.into_bytes()),
                Next::Info => sent.extend(connection.describe().into_bytes()),
                Next::Run(request) => {
                    let outcome = self.run(request);
                    sent.extend(connection.reply(outcome).into_bytes());
                }
                Next::Scan(scan) => {
                    let outcome = self.run(scan.within(self.end_of(scan.start())));
                    sent.extend(connection.reply(outcome).into_bytes());
                }
                Next::Close(reply) => {
                    sent.extend(reply.into_bytes());
                    return (sent, true);
                }
            }
        }
    }
}

fn settings() -> Settings {
    Settings::new("0.1.0", 1_700_000_000_000)
}

/// Connections to the same rows.
struct Store {
    memory: Memory,
    connections: Vec<ProtocolState>,
}

impl Store {
    fn new(settings: Settings, connections: u64) -> Self {
        let settings = Arc::new(settings);
        let connect = |id| ProtocolState::new(Arc::clone(&settings), id);
        let connections = (1..=connections).map(connect).collect();
        Self { memory: Memory { settings, ..Memory::default() }, connections }
    }

    fn send(&mut self, at: usize, bytes: &[u8]) -> Vec<u8> {
        self.connections[at].feed(bytes);
        self.memory.serve(&mut self.connections[at]).0
    }

    /// Sends an inline request; its reply, with bars for ends of lines.
    fn ask(&mut self, at: usize, line: &str) -> String {
        let reply = self.send(at, format!("{line}\r\n").as_bytes());
        reply.escape_ascii().to_string().replace("\\r\\n", "|").replace("\\'", "'")
    }
}

/// Requests of one connection, each with its reply.
fn dialogue(store: &mut Store, lines: &[(&str, &str)]) {
    for (line, reply) in lines {
        assert_eq!(store.ask(0, line), *reply, "{line}");
    }
}

/// A request as clients send it.
fn counted<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
