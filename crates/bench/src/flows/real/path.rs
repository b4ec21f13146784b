//! A long path made in user space, over a real connection that is short.
//!
//! The kernel here cannot delay packets, so the two ends do what a connection over a long path does
//! to them: a byte counts as arrived one latency after it was read, and its acknowledgement counts
//! as heard one latency after that, so two after it came back. Until then the sender may have at
//! most a window under way. What the links in between do (share, queue, lose) is the kernel's.
//!
//! Acknowledgements are counts of bytes, sent back over the same connection, at every second
//! segment, as TCP does.
//!
//! Invariant: never more than a window lies between what was sent and what counts as acknowledged.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Two segments of an Ethernet.
const ACKNOWLEDGED_BYTES: u64 = 2 * 1_448;
/// The largest write and the largest read.
const BUFFER_BYTES: usize = 64 * 1_024;
static BUFFER: [u8; BUFFER_BYTES] = [0x5a; BUFFER_BYTES];

/// What a connection's path is to be like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// What may be under way.
    pub window_bytes: u64,
    /// How much longer a byte is to take than it does, one way.
    pub latency: Duration,
}

/// An acknowledgement on its way: until when, and of how many bytes.
type Heard = (Instant, u64);

/// Sends so many bytes, and returns when all of them were read.
pub(super) fn send(stream: &TcpStream, bytes: u64, path: Path) -> std::io::Result<()> {
    let (ears, acknowledgements) = mpsc::channel();
    thread::scope(|scope| {
        let listening = scope.spawn(|| listen(stream, bytes, path.latency * 2, ears));
        let written = write(stream, bytes, path.window_bytes, &acknowledgements);
        let listened = listening.join().expect("the listener returns its errors");
        // If the listener failed, the writer only knows that it is gone.
        listened.and(written)
    })
}

fn write(
    mut stream: &TcpStream,
    bytes: u64,
    window_bytes: u64,
    acknowledgements: &Receiver<Heard>,
) -> std::io::Result<()> {
    let (mut sent, mut acknowledged) = (0, 0);
    while sent < bytes {
        // Acknowledgements matter only when the window is full, and they come in order.
        while sent - acknowledged >= window_bytes {
            let gone = |_| std::io::Error::other("no acknowledgement comes any more");
            let (at, count) = acknowledgements.recv().map_err(gone)?;
            thread::sleep(at.saturating_duration_since(Instant::now()));
            acknowledged = count;
        }
        let room = (window_bytes - (sent - acknowledged)).min(bytes - sent);
        sent += stream.write(&BUFFER[..BUFFER_BYTES.min(room as usize)])? as u64;
    }
    Ok(())
}

fn listen(
    mut stream: &TcpStream,
    bytes: u64,
    later: Duration,
    ears: Sender<Heard>,
) -> std::io::Result<()> {
    let (mut count, mut acknowledged) = ([0; 8], 0);
    while acknowledged < bytes {
        stream.read_exact(&mut count)?;
        acknowledged = u64::from_be_bytes(count);
        // A writer that has written everything hears no more.
        let _ = ears.send((Instant::now() + later, acknowledged));
    }
    Ok(())
}

/// Gets parts of these sizes; returns when each had arrived, by the clock `now_s`.
pub(super) fn get(
    mut stream: &TcpStream,
    parts_bytes: &[u64],
    path: Path,
    now_s: impl Fn() -> f64,
) -> std::io::Result<Vec<f64>> {
    let bytes: u64 = parts_bytes.iter().sum();
    // What is held back must not fill the window, or both would wait for each other.
    let held_back_max = ACKNOWLEDGED_BYTES.min(path.window_bytes.div_ceil(4));
    let mut buffer = BUFFER;
    let (mut got, mut acknowledged, mut complete) = (0, 0, 0);
    let mut arrived_s = Vec::with_capacity(parts_bytes.len());
    while got < bytes {
        let wanted = BUFFER_BYTES.min((bytes - got) as usize);
        match stream.read(&mut buffer[..wanted])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            read => got += read as u64,
        }
        while let Some(part_bytes) = parts_bytes.get(arrived_s.len())
            && complete + part_bytes <= got
        {
            complete += part_bytes;
            arrived_s.push(now_s() + path.latency.as_secs_f64());
        }
        if got - acknowledged >= held_back_max || got == bytes {
            stream.write_all(&got.to_be_bytes())?;
            acknowledged = got;
        }
    }
    Ok(arrived_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// When parts of these sizes arrive over such a path through loopback, and when the sender
    /// was done.
    fn through(parts_bytes: &[u64], path: Path) -> (Vec<f64>, f64) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        let began = Instant::now();
        let now_s = || began.elapsed().as_secs_f64();
        thread::scope(|scope| {
            let sending = scope.spawn(|| {
                send(&sender, parts_bytes.iter().sum(), path).unwrap();
                now_s()
            });
            let arrived_s = get(&receiver, parts_bytes, path, now_s).unwrap();
            (arrived_s, sending.join().unwrap())
        })
    }

    #[test]
    fn a_byte_at_a_time_takes_a_round_trip_each() {
        let path = Path { window_bytes: 1, latency: Duration::from_millis(5) };
        let (arrived_s, _) = through(&[1; 6], path);
        assert!(arrived_s[0] >= 0.005, "{arrived_s:?}");
        for pair in arrived_s.windows(2) {
            assert!(pair[1] - pair[0] > 0.009, "{arrived_s:?}");
        }
    }

    #[test]
    fn no_more_than_a_window_arrives_in_a_round_trip() {
        let path = Path { window_bytes: 10_000, latency: Duration::from_millis(5) };
        let (arrived_s, _) = through(&[10_000; 5], path);
        // The last of five windows is sent after four round trips at least.
        assert!(arrived_s[4] >= 0.045, "{arrived_s:?}");
    }

    #[test]
    fn parts_of_any_size_all_arrive_in_order() {
        let path = Path { window_bytes: 1 << 20, latency: Duration::ZERO };
        let (arrived_s, _) = through(&[1, 70_000, 3, 1_000_000, 1], path);
        assert_eq!(arrived_s.len(), 5);
        assert!(arrived_s.is_sorted(), "{arrived_s:?}");
    }
}
