//! A client that sends encoded requests, and checks replies only for errors.
//!
//! It uses less processor time per request than the server does, so the server is the bottleneck. At most two batches
//! are in flight.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::requests::Batch;
use crate::error::{Error, Result, process};

/// Timeout of a connection attempt.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// Timeout of each read from and write to the connection.
const ANSWER_WAIT: Duration = Duration::from_secs(30);
/// Maximum number of batches in flight.
const UNDER_WAY: usize = 2;

/// A connection to one server.
pub(super) struct Client {
    address: SocketAddr,
    stream: BufReader<TcpStream>,
    line: Vec<u8>,
}

impl Client {
    pub(super) fn connect(address: SocketAddr) -> Result<Self> {
        let doing = || format!("connect to {address}");
        let stream =
            TcpStream::connect_timeout(&address, CONNECT_WAIT).map_err(process(doing()))?;
        stream.set_nodelay(true).map_err(process(doing()))?;
        stream.set_read_timeout(Some(ANSWER_WAIT)).map_err(process(doing()))?;
        stream.set_write_timeout(Some(ANSWER_WAIT)).map_err(process(doing()))?;
        Ok(Self { address, stream: BufReader::new(stream), line: Vec::new() })
    }

    /// Sends all requests, or stops after the first one that the server rejects. Returns the first error reply, if
    /// there is one, after the replies of all sent requests.
    pub(super) fn send(&mut self, batches: &[Batch]) -> Result<Option<String>> {
        let mut refusal = None;
        let mut sent = batches.iter();
        let mut unanswered = std::collections::VecDeque::new();
        loop {
            while unanswered.len() < UNDER_WAY && refusal.is_none() {
                let Some(batch) = sent.next() else { break };
                let written = self.stream.get_mut().write_all(&batch.bytes);
                written.map_err(process(format!("write to {}", self.address)))?;
                unanswered.push_back(batch.requests);
            }
            let Some(answers) = unanswered.pop_front() else { return Ok(refusal) };
            for _ in 0..answers {
                let told = self.answer()?;
                refusal = refusal.or(told);
            }
        }
    }

    /// Reads a reply. Returns its message if it is an error.
    fn answer(&mut self) -> Result<Option<String>> {
        self.read_line()?;
        match self.line.first() {
            Some(b'+' | b':') => Ok(None),
            Some(b'-') => Ok(Some(String::from_utf8_lossy(&self.line[1..]).trim_end().to_owned())),
            Some(b'$') if !self.line.starts_with(b"$-1") => {
                // No value has a line break.
                self.read_line()?;
                Ok(None)
            }
            _ => Err(Error::Wrong(format!(
                "{} answered {:?}",
                self.address,
                String::from_utf8_lossy(&self.line)
            ))),
        }
    }

    fn read_line(&mut self) -> Result<()> {
        self.line.clear();
        let read = self.stream.read_until(b'\n', &mut self.line);
        let length = read.map_err(process(format!("read from {}", self.address)))?;
        match length {
            0 => Err(Error::Wrong(format!("{} closed the connection", self.address))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Starts a server that sends each of these replies after it has read a batch of ten bytes.
    fn answering(answers: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for answer in answers {
                let mut request = [0; 10];
                stream.read_exact(&mut request).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
            // Wait until the client closes the connection.
            let _ = stream.read(&mut [0]);
        });
        address
    }

    fn batches(count: usize) -> Vec<Batch> {
        (0..count).map(|_| Batch { bytes: vec![b'x'; 10], requests: 2 }).collect()
    }

    #[test]
    fn sending_ends_at_the_first_refusal_when_all_that_was_sent_is_answered() {
        let address =
            answering(&["$3\r\nabc\r\n:1\r\n", ":0\r\n-OOM full\r\n", ":0\r\n-OOM 2\r\n"]);
        let mut client = Client::connect(address).unwrap();
        let refusal = client.send(&batches(9)).unwrap();
        assert_eq!(refusal.as_deref(), Some("OOM full"));
        let address = answering(&["+OK\r\n:1\r\n", ":0\r\n:0\r\n"]);
        assert_eq!(Client::connect(address).unwrap().send(&batches(2)).unwrap(), None);
    }

    #[test]
    fn a_record_that_is_not_there_is_no_answer() {
        let mut client = Client::connect(answering(&[":0\r\n$-1\r\n"])).unwrap();
        assert!(client.send(&batches(1)).unwrap_err().to_string().contains("$-1"));
    }
}
