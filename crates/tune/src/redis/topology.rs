//! The nodes of a Redis Cluster and their slots, as one node sees them (`CLUSTER NODES`).

use std::fmt;
use std::ops::RangeInclusive;

/// Number of hash slots in a Redis Cluster.
pub const SLOTS: usize = 16_384;

/// Role of a node in a Redis Cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The node is a master with these ranges of slots, possibly none.
    Master(Vec<RangeInclusive<u16>>),
    /// The node is a replica of the node with this ID.
    Replica(String),
}

/// A node of a Redis Cluster, as another node or itself sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// ID of the node in the cluster, 40 hexadecimal digits.
    pub id: String,
    /// Address at which the node accepts clients, `host:port`; empty if unknown.
    pub address: String,
    /// True for the node that returned the topology.
    pub is_self: bool,
    /// True if the node is suspected or agreed to have failed, or has no known address, or has not yet joined.
    pub has_failed: bool,
    /// True if the node that returned the topology is connected to this one.
    pub is_connected: bool,
    /// Role of the node: master or replica.
    pub part: Part,
}

/// All nodes of a Redis Cluster that one node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Nodes in the order of the reply to `CLUSTER NODES`.
    pub members: Vec<Member>,
}

/// An invalid reply to `CLUSTER NODES`; contains the invalid line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot understand this line of CLUSTER NODES: {0}")]
pub struct NotUnderstood(String);

impl Topology {
    /// Parses a reply to `CLUSTER NODES`.
    ///
    /// # Errors
    /// Fails if a line is invalid; the message quotes it.
    pub fn parse(text: &str) -> Result<Self, NotUnderstood> {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let member = |line: &str| member(line).ok_or_else(|| NotUnderstood(line.to_owned()));
        Ok(Self { members: lines.map(member).collect::<Result<_, _>>()? })
    }

    /// Returns the masters that have slots.
    pub fn masters(&self) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(|one| matches!(&one.part, Part::Master(slots) if !slots.is_empty()))
    }

    /// Returns the replicas of the node with this ID.
    pub fn replicas_of<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Member> {
        self.members.iter().filter(move |one| matches!(&one.part, Part::Replica(of) if of == id))
    }

    /// Returns the node with this address (`host:port`); None if there is no such node.
    #[must_use]
    pub fn at(&self, address: &str) -> Option<&Member> {
        self.members.iter().find(|one| one.address == address)
    }
}

/// Parses a line of `CLUSTER NODES`, `ID HOST:PORT@PORT[,NAME] FLAGS MASTER PING PONG EPOCH LINK SLOTS…`; None if it
/// is invalid.
fn member(line: &str) -> Option<Member> {
    let mut words = line.split_ascii_whitespace();
    let id = words.next()?.to_owned();
    let address = words.next()?.split(['@', ',']).next()?.to_owned();
    let address = if address.starts_with(':') { String::new() } else { address };
    let flags: Vec<&str> = words.next()?.split(',').collect();
    let master = words.next()?;
    let mut rest = words.skip(3);
    let is_connected = rest.next()? == "connected";
    let part = if master == "-" {
        // Migrating slots have a second entry; they belong to the node until their migration ends.
        let own = rest.filter(|slots| !slots.starts_with('['));
        Part::Master(own.map(range).collect::<Option<_>>()?)
    } else {
        Part::Replica(master.to_owned())
    };
    let has = |flag: &str| flags.contains(&flag);
    Some(Member {
        id,
        address,
        is_self: has("myself"),
        has_failed: has("fail") || has("fail?") || has("noaddr") || has("handshake"),
        is_connected,
        part,
    })
}

/// Parses a range of slots, such as `0-5460`, or a single slot; None if it is invalid.
fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && usize::from(last) < SLOTS).then_some(first..=last)
}

/// Returns the slot of a key: the CRC-16 (XMODEM) of the key, or of its part within the first braces, modulo [`SLOTS`].
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    let mut crc = 0_u16;
    for byte in hashed(key) {
        crc ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS as u16
}

/// Returns the part of a key from which its slot is computed: that within the first braces, or the whole key.
fn hashed(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let within = &key[open + 1..];
    match within.iter().position(|byte| *byte == b'}') {
        Some(close) if close > 0 => &within[..close],
        _ => key,
    }
}

/// Formats the role for messages, without slots.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Master(_) => "master",
            Self::Replica(_) => "replica",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODES: &str = "\
07c37dfeb235213a872192d90877d0cd55635b91 127.110.1.4:28161@28162 slave e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca 0 1426238317239 4 connected
67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1 127.110.1.2:28161@28162,cache-2 master - 0 1426238316232 2 connected 5461-10922 [5461->-e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca]
292f8b365bb7edb5e285caf0b7e6ddc7265d2f4f 127.110.1.3:28161@28162 master,fail? - 1426238316232 1426238316232 3 disconnected 10923-16383
e7d1eecce10fd6bb5eb35b9f99a514335d9ba9ca 127.110.1.1:28161@28162 myself,master - 0 0 1 connected 0-5459 5460
6ec23923021cf3ffec47632106199cb7f496ce01 :0@0 slave,fail,noaddr 67ed2db8d677e59ec4a4cefb06858cf2a1a89fa1 0 1426238316232 5 disconnected
";

    #[test]
    fn nodes_parts_and_slots_are_told() {
        let topology = Topology::parse(NODES).unwrap();
        let masters: Vec<&str> = topology.masters().map(|one| &*one.address).collect();
        assert_eq!(masters, ["127.110.1.2:28161", "127.110.1.3:28161", "127.110.1.1:28161"]);
        let asked = topology.members.iter().find(|one| one.is_self).unwrap();
        assert_eq!(asked.part, Part::Master(vec![0..=5459, 5460..=5460]));
        let replicas: Vec<&str> =
            topology.replicas_of(&asked.id).map(|one| &*one.address).collect();
        assert_eq!(replicas, ["127.110.1.4:28161"]);
        let failed: Vec<bool> = topology.members.iter().map(|one| one.has_failed).collect();
        assert_eq!(failed, [false, false, true, false, true]);
        assert_eq!(topology.members[4].address, "");
        assert!(topology.at("127.110.1.3:28161").is_some_and(|one| !one.is_connected));
    }

    #[test]
    fn what_is_no_answer_is_quoted() {
        for text in ["ERR", "a b:1@2 master - 0 0 1 connected 9-5", "a b:1@2 master - 0 0 1"] {
            let error = Topology::parse(text).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }

    #[test]
    fn slots_of_keys_are_those_of_the_specification() {
        // The specification's own vector of the checksum.
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"a"), 15_495);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_ne!(slot(b"foo{}{bar}"), slot(b"bar"));
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
    }
}
