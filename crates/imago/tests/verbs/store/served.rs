//! A store in a process of its own, which ends with the test that started it.

use imago_testbed::port::Port;
use imago_testbed::wait;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

/// See the module's documentation.
pub struct Served {
    child: Child,
    /// Collects the process's standard error, and copies it to the test's output.
    complaints: Option<JoinHandle<String>>,
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    /// Its line of output once it had begun.
    pub said: Value,
}

pub fn imago(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.args(words);
    command
}

/// A request as clients of Redis send it.
pub fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// An address at which nothing listens, and which stays free for a process that is started there again: no other test
/// takes it until this program ends, nor does any outgoing connection.
pub fn anywhere() -> SocketAddr {
    let port = Port::reserve().unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
    std::mem::forget(port);
    address
}

/// Several of them, of which none is another.
pub fn addresses<const N: usize>() -> [SocketAddr; N] {
    [(); N].map(|()| anywhere())
}

impl Served {
    /// Starts it with its log in a folder, and waits until clients can come.
    pub fn start(folder: &Path, sites: u16, listen: SocketAddr, admin: SocketAddr) -> Self {
        Self::start_with(folder, sites, listen, admin, &[])
    }

    /// The same, with more to be said.
    pub fn start_with(
        folder: &Path,
        sites: u16,
        listen: SocketAddr,
        admin: SocketAddr,
        more: &[&str],
    ) -> Self {
        let data = ["--data", folder.to_str().unwrap()];
        Self::start_on(&[&data, more].concat(), sites, listen, admin)
    }

    /// The same, with the log that these arguments name.
    pub fn start_on(log: &[&str], sites: u16, listen: SocketAddr, admin: SocketAddr) -> Self {
        Self::start_as("serve", log, sites, [listen, admin])
    }

    /// The same, or a router.
    pub fn start_as(verb: &str, log: &[&str], sites: u16, at: [SocketAddr; 2]) -> Self {
        let started = Self::try_start_as(verb, log, sites, at);
        started.unwrap_or_else(|(exit, why)| panic!("it ended with {exit:?}: {why}"))
    }

    /// The same; its exit code and why, if it ends before it has begun.
    pub fn try_start_as(
        verb: &str,
        log: &[&str],
        sites: u16,
        at: [SocketAddr; 2],
    ) -> Result<Self, (Option<i32>, String)> {
        let mut command = imago(&["store", verb, "--json", "--sites", &sites.to_string()]);
        command.args(["--listen", &at[0].to_string(), "--admin", &at[1].to_string()]);
        command.args(log);
        Self::try_start(command, at)
    }

    /// The same, by a command that becomes the store.
    pub fn try_start(
        mut command: Command,
        [listen, admin]: [SocketAddr; 2],
    ) -> Result<Self, (Option<i32>, String)> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let complaints = std::thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.inspect(|line| eprintln!("{line}")).collect::<Vec<_>>().join("\n")
        });
        // It is there before a word is read that may be wrong: so it ends also then.
        let complaints = Some(complaints);
        let mut served = Self { child, complaints, listen, admin, said: Value::Null };
        if BufReader::new(stdout).read_line(&mut line).unwrap() == 0 {
            return Err(served.ended_saying());
        }
        served.said = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it said {line:?}"));
        let address = |name: &str| served.said[name].as_str().unwrap().parse().unwrap();
        (served.listen, served.admin) = (address("listen"), address("admin"));
        Ok(served)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// One of its numbers for Prometheus.
    pub fn metric(&self, name: &str) -> f64 {
        let url = format!("http://{}/metrics", self.admin);
        let config = ureq::Agent::config_builder().proxy(None).build();
        let mut answer = ureq::Agent::new_with_config(config).get(&url).call().unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
    }

    /// As `kill -9` does, without warning.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, as Ctrl-C does, and returns its exit code; none when it does not within 20 s.
    pub fn interrupted(self) -> Option<i32> {
        self.signal(Signal::INT);
        self.ended()
    }

    /// Stops it where it is, as if its machine were away, or lets it go on.
    pub fn signal(&self, signal: Signal) {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, signal).unwrap();
    }

    /// True if it has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until it has ended, and returns its exit code.
    pub fn ended(mut self) -> Option<i32> {
        wait::until_blocking("the store ends", || !self.runs());
        self.child.try_wait().unwrap().and_then(|status| status.code())
    }

    /// The same, and what it said of why.
    pub fn ended_saying(mut self) -> (Option<i32>, String) {
        let complaints = self.complaints.take().unwrap();
        (self.ended(), complaints.join().unwrap())
    }

    /// Tells it by HTTP; returns the status and the body, or nothing if it did not answer.
    pub fn post(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(20)))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let url = format!("http://{}/{path}", self.admin);
        let mut answer = agent.post(&url).send_json(body).ok()?;
        Some((answer.status().as_u16(), answer.body_mut().read_json().ok()?))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
