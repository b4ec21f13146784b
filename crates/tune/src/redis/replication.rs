//! The state of a Redis server's replication (`INFO replication`).

use super::connection::line;

/// Role of a Redis server in replication, and its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replication {
    /// The server accepts writes, and sends them to its replicas.
    Master {
        /// Length of the master's replication stream so far, in bytes.
        offset: u64,
        /// Replicas that are connected to the master, as the master reports them.
        replicas: Vec<Replica>,
    },
    /// The server follows a master.
    Replica {
        /// True if the replica's link to its master is up.
        is_linked: bool,
        /// Position in the master's replication stream up to which the replica has applied it, in bytes.
        offset: u64,
    },
}

/// A replica of a Redis server, as its master reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Address of the replica, `host:port`.
    pub address: String,
    /// True if the replica receives writes as they happen.
    pub is_online: bool,
    /// Position in the replication stream up to which the replica has acknowledged it, in bytes.
    pub offset: u64,
}

impl Replication {
    /// Parses a reply to `INFO replication`; None if it is invalid.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = |key: &str| line(text, key)?.parse::<u64>().ok();
        match line(text, "role")? {
            "master" => {
                let is_replica = |line: &&str| {
                    let number = line.strip_prefix("slave");
                    number
                        .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
                };
                let replicas = text.lines().filter(is_replica).filter_map(replica).collect();
                Some(Self::Master { offset: number("master_repl_offset")?, replicas })
            }
            "slave" => Some(Self::Replica {
                is_linked: line(text, "master_link_status") == Some("up"),
                offset: number("slave_repl_offset")?,
            }),
            _ => None,
        }
    }

    /// Returns the number of replicas that receive this master's writes as they happen; zero for a replica.
    #[must_use]
    pub fn online(&self) -> usize {
        match self {
            Self::Master { replicas, .. } => replicas.iter().filter(|one| one.is_online).count(),
            Self::Replica { .. } => 0,
        }
    }
}

/// Parses a line of `INFO replication` such as `slave0:ip=10.0.0.4,port=6379,state=online,offset=42,lag=0`; None if
/// it is invalid.
fn replica(line: &str) -> Option<Replica> {
    let (_, fields) = line.trim().split_once(':')?;
    let field = |name: &str| {
        let mut pairs = fields.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    };
    Some(Replica {
        address: format!("{}:{}", field("ip")?, field("port")?),
        is_online: field("state")? == "online",
        offset: field("offset")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_tells_how_far_its_replicas_are() {
        let text = "# Replication\r\nrole:master\r\nconnected_slaves:2\r\n\
             slave0:ip=127.110.1.4,port=28161,state=online,offset=402,lag=0\r\n\
             slave1:ip=127.110.1.7,port=28161,state=wait_bgsave,offset=0,lag=0\r\n\
             slave_read_only:1\r\nmaster_repl_offset:416\r\n";
        let told = Replication::parse(text).unwrap();
        let Replication::Master { offset, replicas } = &told else { panic!("{told:?}") };
        assert_eq!((*offset, replicas[0].offset, replicas.len()), (416, 402, 2));
        assert_eq!(replicas[0].address, "127.110.1.4:28161");
        assert_eq!(told.online(), 1);
    }

    #[test]
    fn a_replica_tells_whether_it_has_a_link() {
        let text = "role:slave\nmaster_host:127.110.1.1\nmaster_link_status:down\n\
                    slave_repl_offset:14\nmaster_repl_offset:14\n";
        let told = Replication::parse(text);
        assert_eq!(told, Some(Replication::Replica { is_linked: false, offset: 14 }));
        assert_eq!(Replication::parse("role:sentinel\n"), None);
        assert_eq!(Replication::parse("-ERR\n"), None);
    }
}
