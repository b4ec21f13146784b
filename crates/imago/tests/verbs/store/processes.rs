//! A store's router and its sites, each in a process of its own, which end with the test that started them.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use imago_testbed::wait;

use crate::store::served::{Served, imago};

/// Number of sites of a router.
pub const SITES: u16 = 3;
/// Silence after which a site is given up for dead.
pub const SILENCE: Duration = Duration::from_millis(1_000);
/// Deadline for every event that has to come.
pub const WAIT: Duration = Duration::from_secs(20);

/// A router's process.
pub fn router(log: &[&str], at: [SocketAddr; 3]) -> Served {
    let started = try_router(log, at);
    started.unwrap_or_else(|(exit, why)| panic!("it ended with {exit:?}: {why}"))
}

/// The same; its exit code and why, if it ends before it has begun.
pub fn try_router(
    log: &[&str],
    [listen, admin, peers]: [SocketAddr; 3],
) -> Result<Served, (Option<i32>, String)> {
    let (peers, silence) = (peers.to_string(), SILENCE.as_millis().to_string());
    let more = ["--peers", &peers, "--site-timeout-ms", &silence];
    Served::try_start_as("router", &[log, &more].concat(), SITES, [listen, admin])
}

/// The address for its sites.
pub fn peers(router: &Served) -> SocketAddr {
    router.said["peers"].as_str().unwrap().parse().unwrap()
}

/// A site's process, and what it says.
pub struct Process {
    child: Child,
    events: Receiver<Value>,
}

impl Process {
    pub fn start(number: u16, router: SocketAddr) -> Self {
        Self::start_at(number, &[router])
    }

    /// One that is told of many routers.
    pub fn start_at(number: u16, routers: &[SocketAddr]) -> Self {
        Self::start_with(number, routers, &[])
    }

    /// The same, with more flags.
    pub fn start_with(number: u16, routers: &[SocketAddr], more: &[&str]) -> Self {
        let mut command = imago(&["store", "site", "--json"]);
        let routers: Vec<_> = routers.iter().map(SocketAddr::to_string).collect();
        command.args(["--number", &number.to_string(), "--router", &routers.join(",")]);
        command.args(more);
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (told, events) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                _ = told.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, events }
    }

    /// Waits until it says that it serves, and returns its epoch.
    pub fn serves(&self) -> u64 {
        loop {
            let event = self.events.recv_timeout(WAIT).expect("it serves in time");
            if event["event"] == "serves" {
                return event["epoch"].as_u64().unwrap();
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its exit code, once it has ended by itself.
    pub fn ended(&mut self) -> Option<i32> {
        let mut ended = None;
        wait::until_blocking("the process ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The design as it reports it.
pub fn design(router: &Served) -> Value {
    let url = format!("http://{}/design", router.admin);
    let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().proxy(None).build());
    agent.get(&url).call().unwrap().body_mut().read_json().unwrap()
}

/// Waits for something of the design.
pub fn await_design(router: &Served, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut now = Value::Null;
    wait::until_blocking(what, || {
        now = design(router);
        holds(&now)
    });
    now
}

/// Waits until all sites live.
pub fn all_live(router: &Served) {
    await_design(router, "all sites live", |design| {
        design["sites"].as_array().unwrap().iter().all(|site| site["is_live"] == true)
    });
}

/// Changes it, as soon as that can be done.
pub fn change(router: &Served, verb: &str, key: &str, site: u16) -> Value {
    let mut answer = None;
    wait::until_blocking(&format!("{verb} {key} {site} is done"), || {
        answer = router.post(verb, &json!({ "key": key, "site": site }));
        matches!(answer, Some((200, _)))
    });
    answer.expect("it was answered").1
}

/// One line of Redis's protocol, and the first of its answer.
pub fn ask(at: SocketAddr, line: &str) -> String {
    let mut connection = TcpStream::connect(at).unwrap();
    connection.set_read_timeout(Some(WAIT)).unwrap();
    connection.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(connection).read_line(&mut answer).unwrap();
    answer.trim_end().to_owned()
}
