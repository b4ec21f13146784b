//! A host of the network: a process that opens connections, and sends and receives data by the tasks that it reads.
//!
//! It listens on the ports of its own namespace from its first message on, and ends when its input ends.

use std::collections::BTreeMap;
use std::io::{BufRead, Read as _, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::statistics::Figure;

use super::tasks::{Answer, PROBES_PORT, Task, Transfer, address, now_ns};
use super::wire::Wire;

/// Maximum time for which a connection may make no progress.
const STILL_MAX: Duration = Duration::from_secs(30);
/// TCP congestion control algorithm. Cubic has been the default of Linux for twenty years, and is that of the paper's
/// machines. The machine's own setting would make it a different experiment.
const CONGESTION: &str = "cubic";
/// Highest priority of a process without real-time scheduling.
const PRIORITY: i32 = -20;
/// Number of round trips whose median is reported.
const ROUND_TRIPS: usize = 15;
/// Maximum size of a write and of a read, in bytes.
const BUFFER_BYTES: usize = 64 * 1_024;
static DATA: [u8; BUFFER_BYTES] = [0x5a; BUFFER_BYTES];

/// Kernel settings in a host's namespace. TCP must not remember one exchange in the next, and must offer unscaled
/// windows ([`super::wire`]). Packets may arrive on a link other than the one that replies take.
const SETTINGS: [(&str, &str); 4] = [
    ("/proc/sys/net/ipv4/tcp_no_metrics_save", "1"),
    ("/proc/sys/net/ipv4/tcp_window_scaling", "0"),
    ("/proc/sys/net/ipv4/conf/all/rp_filter", "0"),
    ("/proc/sys/net/ipv4/conf/default/rp_filter", "0"),
];

/// Serves tasks until the input ends.
///
/// # Errors
/// Fails if a task is malformed, or if a task or connection fails. A failed task is also reported in its answer.
pub fn serve(orders: impl BufRead, mut answers: impl Write) -> std::io::Result<()> {
    let mut host = match Host::start() {
        Ok(host) => host,
        Err(cause) => return fail(&mut answers, cause),
    };
    say(&mut answers, &Answer::Listening)?;
    for line in orders.lines() {
        match host.handle(serde_json::from_str(&line?)?) {
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

struct Host {
    listener: TcpListener,
    wire: Option<Wire>,
    prepared: Option<Prepared>,
}

impl Host {
    fn start() -> std::io::Result<Self> {
        // Packets must be sent in time even if the CPUs are busy. Threads that this thread starts inherit its priority.
        rustix::process::setpriority_process(None, PRIORITY)?;
        for (setting, value) in SETTINGS {
            let said = |cause| other(format!("cannot write {value} to {setting}: {cause}"));
            std::fs::write(setting, value).map_err(said)?;
        }
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address(0).port()))?;
        let probes = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PROBES_PORT))?;
        // The thread ends with the process.
        thread::Builder::new()
            .name("probes".into())
            .spawn(move || probes.incoming().for_each(drop))?;
        Ok(Self { listener, wire: None, prepared: None })
    }

    fn handle(&mut self, order: Task) -> std::io::Result<Answer> {
        match order {
            Task::Lengthen { latencies_us } => {
                let latency = |us: &u32| Duration::from_micros((*us).into());
                let latencies: Vec<_> = latencies_us.iter().map(latency).collect();
                self.wire = Some(Wire::lengthen(&latencies)?);
                Ok(Answer::Lengthened)
            }
            Task::Measure { hosts } => {
                let measured: std::io::Result<_> =
                    hosts.into_iter().map(|host| round_trip_us(address(host))).collect();
                measured.map(Answer::Measured)
            }
            Task::Prepare { host, window_bytes, transfers } => {
                let wire = self.wire.as_ref().ok_or_else(|| other("there is no wire"))?;
                wire.set_window(window_bytes);
                self.prepared = Some(Prepared::open(&self.listener, host, transfers)?);
                Ok(Answer::Prepared)
            }
            Task::Begin { at_ns } => {
                let prepared = self.prepared.take();
                let prepared = prepared.ok_or_else(|| other("nothing was prepared"))?;
                prepared.exchange(at_ns).map(Answer::Arrived)
            }
        }
    }
}

/// Returns the round trip to a host in µs, the median of several. A connection is open once a packet has gone to the
/// other end and one has come back.
fn round_trip_us(to: SocketAddrV4) -> std::io::Result<f64> {
    let to = SocketAddrV4::new(*to.ip(), PROBES_PORT);
    let mut round_trips_us = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        drop(TcpStream::connect_timeout(&to.into(), STILL_MAX)?);
        round_trips_us.push(began.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Figure::of(round_trips_us).median)
}

/// Open connections that wait for the start.
struct Prepared {
    outgoing: Vec<(Transfer, TcpStream)>,
    incoming: Vec<(u32, Transfer, TcpStream)>,
}

impl Prepared {
    /// Connects to the hosts to which this host sends, then accepts the connections of the hosts that send to it.
    fn open(
        listener: &TcpListener,
        host: usize,
        transfers: Vec<(u32, Transfer)>,
    ) -> std::io::Result<Self> {
        let mut outgoing = Vec::new();
        let mut expected = BTreeMap::new();
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
        Ok(Self { outgoing, incoming })
    }

    /// Sends and receives all data from `at_ns` on. Returns the arrival times of the parts of each incoming
    /// connection, in seconds since then.
    fn exchange(self, at_ns: u64) -> std::io::Result<Vec<(u32, Vec<f64>)>> {
        let now_s = || now_ns().saturating_sub(at_ns) as f64 / 1e9;
        let wait = || thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
        thread::scope(|scope| {
            let get = |(number, transfer, stream): (u32, Transfer, TcpStream)| {
                let get = move || get(&stream, &transfer.parts_bytes, now_s);
                scope.spawn(move || get().map(|arrived_s| (number, arrived_s)))
            };
            let send = |(transfer, stream): (Transfer, TcpStream)| {
                scope.spawn(move || {
                    wait();
                    send(&stream, transfer.parts_bytes.iter().sum())
                })
            };
            let getting: Vec<_> = self.incoming.into_iter().map(get).collect();
            let sending: Vec<_> = self.outgoing.into_iter().map(send).collect();
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

fn send(mut stream: &TcpStream, bytes: u64) -> std::io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        left -= stream.write(&DATA[..left.min(BUFFER_BYTES as u64) as usize])? as u64;
    }
    Ok(())
}

/// Receives parts of these sizes. Returns the arrival time of each, in seconds on this clock.
fn get(
    mut stream: &TcpStream,
    parts_bytes: &[u64],
    now_s: impl Fn() -> f64,
) -> std::io::Result<Vec<f64>> {
    let mut buffer = DATA;
    let mut arrived_s = Vec::with_capacity(parts_bytes.len());
    for part_bytes in parts_bytes {
        let mut left = *part_bytes;
        while left > 0 {
            let read = stream.read(&mut buffer[..left.min(BUFFER_BYTES as u64) as usize])?;
            if read == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            left -= read as u64;
        }
        arrived_s.push(now_s());
    }
    Ok(arrived_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_size_all_arrive_in_order() {
        let parts_bytes = [1, 70_000, 3, 1_000_000, 1];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        let began = Instant::now();
        thread::scope(|scope| {
            let sending = scope.spawn(|| send(&sender, parts_bytes.iter().sum()));
            let arrived_s = get(&receiver, &parts_bytes, || began.elapsed().as_secs_f64()).unwrap();
            assert!(arrived_s.len() == 5 && arrived_s.is_sorted(), "{arrived_s:?}");
            sending.join().unwrap().unwrap();
        });
    }
}
