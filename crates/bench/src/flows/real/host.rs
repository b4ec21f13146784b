//! A host of the network: a process that opens connections, sends and gets, as it is told.
//!
//! It listens on a port of its own namespace from its first word on, and ends with its orders.

use std::io::{BufRead, Read as _, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::orders::{Answer, Order, Transfer, address, now_ns};
use super::path::{self, Path};

/// How long a connection may stand still.
const STILL_MAX: Duration = Duration::from_secs(30);
/// How TCP answers to loss. Linux' usual way for twenty years, and that of the paper's machines;
/// what a machine has set instead would be another experiment.
const CONGESTION: &str = "cubic";

/// Serves until the orders end.
///
/// # Errors
/// When an order or a connection fails; the answer says so as well.
pub fn serve(orders: impl BufRead, mut answers: impl Write) -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address(0).port()));
    let mut prepared = None;
    let listener = match listener {
        Ok(listener) => {
            say(&mut answers, &Answer::Listening)?;
            listener
        }
        Err(cause) => return fail(&mut answers, cause),
    };
    for line in orders.lines() {
        let answer = match serde_json::from_str(&line?)? {
            Order::Prepare { host, window_bytes, transfers } => {
                Prepared::open(&listener, host, window_bytes, transfers).map(|opened| {
                    prepared = Some(opened);
                    Answer::Prepared
                })
            }
            Order::Begin { at_ns } => {
                let all = prepared.take().ok_or_else(|| other("nothing was prepared"));
                all.and_then(|all| all.exchange(at_ns)).map(Answer::Arrived)
            }
        };
        match answer {
            Ok(answer) => say(&mut answers, &answer)?,
            Err(cause) => return fail(&mut answers, cause),
        }
    }
    Ok(())
}

fn say(answers: &mut impl Write, answer: &Answer) -> std::io::Result<()> {
    let line = serde_json::to_string(answer)? + "\n";
    answers.write_all(line.as_bytes())?;
    answers.flush()
}

fn fail(answers: &mut impl Write, cause: std::io::Error) -> std::io::Result<()> {
    say(answers, &Answer::Failed(cause.to_string()))?;
    Err(cause)
}

fn other(what: impl Into<String>) -> std::io::Error {
    std::io::Error::other(what.into())
}

/// Connections that stand and wait for the beginning.
struct Prepared {
    window_bytes: u64,
    outgoing: Vec<(Transfer, TcpStream)>,
    incoming: Vec<(u32, Transfer, TcpStream)>,
}

impl Prepared {
    /// Connects to whom this host sends to, then takes the connections of those who send to it.
    fn open(
        listener: &TcpListener,
        host: usize,
        window_bytes: u64,
        transfers: Vec<(u32, Transfer)>,
    ) -> std::io::Result<Self> {
        let mut outgoing = Vec::new();
        let mut expected = std::collections::BTreeMap::new();
        for (number, transfer) in transfers {
            if transfer.from != host {
                expected.insert(number, transfer);
                continue;
            }
            let to = address(transfer.to);
            let mut stream = TcpStream::connect_timeout(&to.into(), STILL_MAX)?;
            rustix::net::sockopt::set_tcp_congestion(&stream, CONGESTION)?;
            configure(&stream)?;
            stream.write_all(&number.to_be_bytes())?;
            outgoing.push((transfer, stream));
        }
        let mut incoming = Vec::new();
        while !expected.is_empty() {
            let (mut stream, _) = listener.accept()?;
            configure(&stream)?;
            let mut number = [0; 4];
            stream.read_exact(&mut number)?;
            let number = u32::from_be_bytes(number);
            let transfer = expected.remove(&number);
            let transfer = transfer.ok_or_else(|| other(format!("connection {number} is new")))?;
            incoming.push((number, transfer, stream));
        }
        Ok(Self { window_bytes, outgoing, incoming })
    }

    /// Sends and gets everything, from `at_ns` on.
    fn exchange(self, at_ns: u64) -> std::io::Result<Vec<(u32, Vec<f64>)>> {
        let path = |transfer: &Transfer| Path {
            window_bytes: self.window_bytes,
            latency: Duration::from_micros(transfer.latency_us.into()),
        };
        let wait = || thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
        thread::scope(|scope| {
            let send = |(transfer, stream): &(Transfer, TcpStream)| {
                let bytes = transfer.parts_bytes.iter().sum();
                let (path, stream) = (path(transfer), stream.try_clone());
                scope.spawn(move || {
                    wait();
                    path::send(&stream?, bytes, path)
                })
            };
            let get = |(number, transfer, stream): &(u32, Transfer, TcpStream)| {
                let (number, parts_bytes) = (*number, transfer.parts_bytes.clone());
                let (path, stream) = (path(transfer), stream.try_clone());
                scope.spawn(move || {
                    let now = || now_ns().saturating_sub(at_ns) as f64 / 1e9;
                    let arrived_s = path::get(&stream?, &parts_bytes, path, now)?;
                    Ok((number, arrived_s))
                })
            };
            let getting: Vec<_> = self.incoming.iter().map(get).collect();
            let sending: Vec<_> = self.outgoing.iter().map(send).collect();
            for sent in sending {
                sent.join().expect("a sender returns its errors")?;
            }
            getting.into_iter().map(|got| got.join().expect("as does a receiver")).collect()
        })
    }
}

fn configure(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STILL_MAX))?;
    stream.set_write_timeout(Some(STILL_MAX))
}
