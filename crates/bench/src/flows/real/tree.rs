//! A tree of switches and hosts, made of network namespaces. One namespace has a bridge for each rack and one bridge
//! above them. Each host has its own namespace. Every link is limited to its rate.
//!
//! The namespaces have no names: each belongs only to the process that was started in it. So a namespace and its
//! devices disappear when its process ends, and the processes end with this one, however it ends. The machine's own
//! network is never changed.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::flows::netsim::Topology;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::timeout;

use crate::error::{Error, Result, process};

use super::tasks::{Answer, Task, address};
use super::wire::DEVICE;

/// Deadline of a command that configures devices.
const COMMAND_MAX: Duration = Duration::from_secs(30);
/// Deadline for a process to listen after its start.
const START_MAX: Duration = Duration::from_secs(30);
/// Burst that a link may send after a pause, in bytes. It is a few packets, so that the link is never idle between
/// two ticks of the kernel's clock.
const BURST_BYTES: u32 = 8_000;
/// Size of the queue of a link, in bytes: fifty packets, as is usual for a small switch. Further packets are lost.
const QUEUE_BYTES: u32 = 50 * 1_514;

/// Address range of all hosts.
const NETWORK: &str = "10.0.0.0/24";
/// Number of the routing table for TCP in a host.
const TABLE: u32 = 100;

/// The programs that build the tree. Each has an option that shows that the program is present, and a Debian package.
const PROGRAMS: [(&str, &str, &str); 4] = [
    ("ip", "-V", "iproute2"),
    ("tc", "-V", "iproute2"),
    ("unshare", "--version", "util-linux"),
    ("nsenter", "--version", "util-linux"),
];

/// Size of the queue of a link, in kB.
pub(super) const QUEUE_KB: f64 = QUEUE_BYTES as f64 / 1e3;

/// The running switches and hosts. They end when this is dropped.
pub(super) struct Tree {
    /// Process that holds the namespace of the switches. It has no other task.
    switches: Host,
    /// Hosts, by number.
    pub hosts: Vec<Host>,
}

impl Tree {
    /// Builds the tree of `topology`. `racks` has the number of hosts in each rack. `host` is the command that runs
    /// [`super::host::serve`].
    pub(super) async fn build(
        topology: &Topology,
        racks: &[usize],
        host: &[OsString],
    ) -> Result<Self> {
        require().await?;
        let switches = Host::start("the switches", host).await?;
        let mut hosts = Vec::new();
        for number in 0..topology.hosts() {
            hosts.push(Host::start(format!("host {number}"), host).await?);
        }
        let pids: Vec<u32> = hosts.iter().map(|host| host.child.id()).collect();
        let shape = Shape::of(racks, &pids, topology.capacities()[0]);
        switches.command("ip", &["-batch", "-"], &shape.devices).await?;
        switches.command("tc", &["-batch", "-"], &shape.limits).await?;
        for number in 0..hosts.len() {
            let us = |to| if to == number { 0 } else { topology.latency_us(number, to) };
            let latencies_us = (0..hosts.len()).map(us).collect();
            let host: &mut Host = &mut hosts[number];
            host.order(&Task::Lengthen { latencies_us }).await?;
            host.lengthened().await?;
            let ip = address(number).ip().to_string();
            host.command("ip", &["-batch", "-"], &routes(&ip)).await?;
            let limit = limit("eth0", topology.capacities()[0]);
            host.command("tc", &["-batch", "-"], &limit).await?;
        }
        Ok(Self { switches, hosts })
    }

    /// Returns the number of packets that the switches have dropped so far because a queue was full.
    pub(super) async fn lost_packets(&self) -> Result<u64> {
        let shown = self.switches.command("tc", &["-s", "-j", "qdisc", "show"], "").await?;
        lost_packets(&shown)
    }
}

/// Commands that create the switches' devices and their rate limits.
struct Shape {
    devices: String,
    limits: String,
}

impl Shape {
    /// Builds the commands. Host 0 of rack 0 is at port `h0`; rack 0's end of its link to the core is `up0`, the
    /// core's end is `down0`. A limit applies to the packets that leave a device, so each direction of each link is
    /// limited.
    fn of(racks: &[usize], pids: &[u32], bytes_s: f64) -> Self {
        let mut shape = Self { devices: String::new(), limits: String::new() };
        shape.add("link add core up type bridge\n");
        let mut next = 0..pids.len();
        for (rack, hosts) in racks.iter().enumerate() {
            shape.add(&format!("link add rack{rack} up type bridge\n"));
            shape.add(&pair(&format!("up{rack}"), &format!("down{rack}")));
            shape.plug(&format!("up{rack}"), &format!("rack{rack}"), bytes_s);
            shape.plug(&format!("down{rack}"), "core", bytes_s);
            for host in next.by_ref().take(*hosts) {
                shape.add(&pair(&format!("h{host}"), &format!("eth0 netns {}", pids[host])));
                shape.plug(&format!("h{host}"), &format!("rack{rack}"), bytes_s);
            }
        }
        shape
    }

    fn add(&mut self, line: &str) {
        self.devices.push_str(line);
    }

    fn plug(&mut self, device: &str, bridge: &str, bytes_s: f64) {
        let _ = writeln!(self.devices, "link set {device} master {bridge} up");
        self.limits.push_str(&limit(device, bytes_s));
    }
}

/// Returns the commands that set up the host's link, and the device that receives its TCP packets first. The packets
/// that leave that device later are not TCP packets of the kernel, so they take the link.
fn routes(ip: &str) -> String {
    format!(
        "address add {ip}/24 dev eth0\nlink set eth0 up\nlink set {DEVICE} up\n\
         route add {NETWORK} dev {DEVICE} src {ip} table {TABLE}\n\
         rule add ipproto tcp lookup {TABLE}\n"
    )
}

/// Returns the command that creates a cable. It carries packets as an Ethernet does, because a queue of a few
/// super-packets loses many packets at once.
fn pair(one: &str, other: &str) -> String {
    format!("link add {one} gso_max_segs 1 type veth peer gso_max_segs 1 name {other}\n")
}

fn limit(device: &str, bytes_s: f64) -> String {
    let bits_s = (bytes_s * 8.0) as u64;
    format!(
        "qdisc add dev {device} root tbf rate {bits_s}bit burst {BURST_BYTES} limit {QUEUE_BYTES}\n"
    )
}

fn lost_packets(shown: &str) -> Result<u64> {
    let wrong = || Error::Wrong(format!("tc does not tell what was lost: {shown}"));
    let queues: Vec<Value> = serde_json::from_str(shown).map_err(|_| wrong())?;
    let limits = queues.iter().filter(|queue| queue["kind"] == "tbf");
    let lost: Option<Vec<u64>> = limits.map(|queue| queue["drops"].as_u64()).collect();
    Ok(lost.ok_or_else(wrong)?.into_iter().sum())
}

/// Checks that all programs are present and that this user is root, before any process is started.
async fn require() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let what = "only root may have network namespaces; run this benchmark as root";
        return Err(Error::Namespaces(what.into()));
    }
    for (program, shows, package) in PROGRAMS {
        let mut command = tokio::process::Command::new(program);
        command.arg(shows).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().await.map_err(|cause| {
            let what = format!("`{program}` does not run ({cause}); install {package}");
            Error::Namespaces(what)
        })?;
    }
    Ok(())
}

/// A process in its own network namespace. Dropping it ends both.
pub(super) struct Host {
    name: String,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Host {
    async fn start(name: impl Into<String>, host: &[OsString]) -> Result<Self> {
        let name = name.into();
        let mut command = Command::new("unshare");
        command.args(["--net", "--"]).args(host);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let doing = || format!("start the process of {name}");
        let mut child = imago_testbed::process::spawn(command).map_err(process(doing()))?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let orders = ChildStdin::from_std(orders.expect("stdin is piped"));
        let answers = ChildStdout::from_std(answers.expect("stdout is piped"));
        // Until the `Host` below owns the process, an error has to end it explicitly.
        let (orders, answers) = match (orders, answers) {
            (Ok(orders), Ok(answers)) => (orders, BufReader::new(answers).lines()),
            (Err(cause), _) | (_, Err(cause)) => {
                end(&mut child);
                return Err(process(doing())(cause));
            }
        };
        let mut host = Self { name, child, orders, answers };
        match host.answer(START_MAX).await {
            Ok(Answer::Listening) => Ok(host),
            Ok(Answer::Failed(cause)) => {
                Err(Error::Namespaces(format!("{} cannot start: {cause}", host.name)))
            }
            Ok(answer) => Err(host.unexpected(&answer)),
            // The reason is on stderr: `unshare` writes there why the kernel refused.
            Err(_) => {
                let what = format!("{} did not listen; its last words stand above", host.name);
                Err(Error::Namespaces(what))
            }
        }
    }

    /// Sends a task to the host.
    pub(super) async fn order(&mut self, order: &Task) -> Result<()> {
        let line = serde_json::to_string(order).expect("an order is plain data") + "\n";
        let doing = || format!("tell {} what to do", self.name);
        let told = timeout(COMMAND_MAX, self.orders.write_all(line.as_bytes())).await;
        let bound_s = COMMAND_MAX.as_secs();
        told.map_err(|_| Error::TimedOut { what: doing(), bound_s })?.map_err(process(doing()))
    }

    /// Waits for the next answer. An answer that reports a failure is returned like any other.
    async fn answer(&mut self, within: Duration) -> Result<Answer> {
        let waited = timeout(within, self.answers.next_line()).await;
        let waited = waited.map_err(|_| Error::TimedOut {
            what: format!("an answer of {}", self.name),
            bound_s: within.as_secs(),
        })?;
        let line = waited.map_err(process(format!("hear {}", self.name)))?;
        let line = line.ok_or_else(|| Error::Wrong(format!("{} ended", self.name)))?;
        serde_json::from_str(&line).map_err(|_| Error::Wrong(format!("{} says {line}", self.name)))
    }

    async fn lengthened(&mut self) -> Result<()> {
        match self.answer(START_MAX).await? {
            Answer::Lengthened => Ok(()),
            Answer::Failed(cause) => {
                let what = format!("{} cannot make a device: {cause}", self.name);
                Err(Error::Namespaces(what))
            }
            answer => Err(self.unexpected(&answer)),
        }
    }

    /// Waits for the round trips that the host measures, in µs.
    pub(super) async fn measured(&mut self, within: Duration) -> Result<Vec<f64>> {
        match self.answer(within).await? {
            Answer::Measured(round_trips_us) => Ok(round_trips_us),
            answer => Err(self.unexpected(&answer)),
        }
    }

    /// Waits until all connections are open.
    pub(super) async fn prepared(&mut self, within: Duration) -> Result<()> {
        match self.answer(within).await? {
            Answer::Prepared => Ok(()),
            answer => Err(self.unexpected(&answer)),
        }
    }

    /// Waits until all data has arrived. Returns the arrival times of the parts of each connection to this host, in
    /// seconds since the start.
    pub(super) async fn arrived(&mut self, within: Duration) -> Result<Vec<(u32, Vec<f64>)>> {
        match self.answer(within).await? {
            Answer::Arrived(arrived) => Ok(arrived),
            answer => Err(self.unexpected(&answer)),
        }
    }

    fn unexpected(&self, answer: &Answer) -> Error {
        match answer {
            Answer::Failed(cause) => Error::Wrong(format!("{} failed: {cause}", self.name)),
            answer => Error::Wrong(format!("{} says {answer:?} out of turn", self.name)),
        }
    }

    /// Runs a command that configures devices in this namespace. Returns its output.
    async fn command(&self, program: &str, arguments: &[&str], input: &str) -> Result<String> {
        let namespace = format!("--net=/proc/{}/ns/net", self.child.id());
        let mut command = tokio::process::Command::new("nsenter");
        command.arg(namespace).arg("--").arg(program).args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let doing = || format!("run `{program}` for {}", self.name);
        let running = async {
            let mut child = command.spawn()?;
            let mut stdin = child.stdin.take().expect("stdin is piped");
            stdin.write_all(input.as_bytes()).await?;
            drop(stdin);
            child.wait_with_output().await
        };
        let bound_s = COMMAND_MAX.as_secs();
        let ended = timeout(COMMAND_MAX, running).await;
        let ended = ended.map_err(|_| Error::TimedOut { what: doing(), bound_s })?;
        let ended = ended.map_err(process(doing()))?;
        if ended.status.success() {
            return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
        }
        Err(refused(&doing(), ended.status, &String::from_utf8_lossy(&ended.stderr)))
    }
}

/// Returns the error of a command that failed: the kernel lacks a kind of device, or a program lacks an option.
fn refused(doing: &str, status: ExitStatus, said: &str) -> Error {
    Error::Namespaces(format!("cannot {doing} ({status}): {}", said.trim()))
}

impl Drop for Host {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    // `kill` fails only if the process has ended already.
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_direction_of_every_link_is_limited() {
        let shape = Shape::of(&[2, 1], &[11, 12, 13], 12.5e6);
        let limited: Vec<_> =
            shape.limits.lines().map(|line| line.split(' ').nth(3).unwrap()).collect();
        // The hosts limit the packets that they send.
        assert_eq!(limited, ["up0", "down0", "h0", "h1", "up1", "down1", "h2"]);
        assert!(shape.limits.lines().all(|line| line.contains(" rate 100000000bit ")));
        assert!(shape.devices.contains("link set h2 master rack1 up"), "{}", shape.devices);
        assert!(shape.devices.contains("name eth0 netns 13"), "{}", shape.devices);
    }

    #[test]
    fn only_what_limits_lost_is_counted() {
        let shown =
            r#"[{"kind":"noqueue","drops":9},{"kind":"tbf","drops":2},{"kind":"tbf","drops":1}]"#;
        assert_eq!(lost_packets(shown).unwrap(), 3);
        assert!(lost_packets(r#"[{"kind":"tbf"}]"#).is_err());
    }
}
