//! The state with which a site's process begins an epoch: all rows of a prefix of the log, or the rows that the
//! process kept; and the log after them.

use std::io::{self, BufReader};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::wire::{self, PROGRESS_WAIT, ToSite};
use crate::design::Design;
use crate::key::Key;
use crate::record::{Epoch, Position};
use crate::rows::{Row, Rows};
use crate::site::{Core, Input, Snapshot};

/// The rows that a site's process kept in memory from an ended epoch.
pub(super) struct KeptRows {
    /// The random number of the run of the log in which the router sent the rows.
    pub run: u64,
    /// The site's state with the kept copies, as of the prefix of the log that the site had received.
    pub core: Core,
}

/// The reason why an epoch of the site ended, or an attempt to begin one.
pub(super) enum End {
    /// The process was requested to stop.
    Stopped,
    /// The router ended the connection: its reason, and whether the process should try again.
    Bye(String, bool),
    /// The connection to the router failed, the router sent an invalid message, or the site was declared dead.
    Lost(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Lost(error)
    }
}

/// Returns the end of an epoch whose router sent an invalid message; `what` describes the message.
pub(super) fn invalid(what: &'static str) -> End {
    End::Lost(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// The state with which an epoch begins.
pub(super) struct Image {
    /// The site's state, with the copies that the process kept, or those of all partitions.
    pub core: Core,
    pub epoch: Epoch,
    /// Number of sites of the store.
    pub sites: u16,
    /// The random number of the present run of the router's log: the period in which that router writes it.
    pub run: u64,
}

/// Receives the state with which an epoch begins, until the process is to stop.
pub(super) struct ImageReceiver<'s> {
    pub is_stopped: &'s AtomicBool,
}

impl ImageReceiver<'_> {
    /// Receives the state with which the epoch begins from the router, with the copies that the process kept (`kept`)
    /// if the router resumes them.
    pub(super) fn receive(
        &self,
        stream: &TcpStream,
        from: &mut BufReader<&TcpStream>,
        kept: &mut Option<KeptRows>,
    ) -> Result<Image, End> {
        let mut said = wire::read::<ToSite>(from)?;
        while let ToSite::Alive = said {
            said = wire::read(from)?;
        }
        // A router that does not lead refuses the process, which keeps its rows for the next router.
        if let ToSite::Bye(why, is_use) = said {
            return Err(End::Bye(why, is_use));
        }
        // Rows that cannot be resumed are dropped, and the next epoch begins with all rows.
        let before = kept.take();
        let (epoch, sites, silence_ms, run) = match &said {
            ToSite::Welcome { epoch, sites, silence_ms, run, .. }
            | ToSite::Resume { epoch, sites, silence_ms, run } => {
                (*epoch, *sites, *silence_ms, *run)
            }
            _ => return Err(invalid("the router does not say first what to begin with")),
        };
        let silence = Duration::from_millis(silence_ms.max(1));
        // Until the epoch begins, messages may take longer to arrive.
        stream.set_read_timeout(Some(silence.max(PROGRESS_WAIT)))?;
        stream.set_write_timeout(Some(silence))?;
        let core = match said {
            ToSite::Welcome { known, design, .. } => {
                drop(before);
                self.whole(from, known, design)?
            }
            _ => {
                let before = before.ok_or_else(|| invalid("nothing was kept to go on from"))?;
                let mut core = before.core;
                let followed = self.read(from).and_then(|next| self.follow(from, next, &mut core));
                if let Err(end) = followed {
                    if matches!(&end, End::Lost(error) if error.kind() != io::ErrorKind::InvalidData)
                    {
                        *kept = Some(KeptRows { run, core });
                    }
                    return Err(end);
                }
                core
            }
        };
        stream.set_read_timeout(Some(silence))?;
        Ok(Image { core, epoch, sites, run })
    }

    /// Reads the router's next message, unless the process is to stop.
    fn read(&self, from: &mut BufReader<&TcpStream>) -> Result<ToSite, End> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Err(End::Stopped);
        }
        Ok(wire::read(from)?)
    }

    /// Receives all rows of the log's prefix up to `known`, whose design is `design`, and follows the log after it.
    fn whole(
        &self,
        from: &mut BufReader<&TcpStream>,
        known: Position,
        design: Design,
    ) -> Result<Core, End> {
        let mut snapshots = Vec::new();
        let mut rows: Vec<(Key, Row)> = Vec::new();
        let mut partition: Option<(Key, u64)> = None;
        loop {
            let said = self.read(from)?;
            if let ToSite::Rows(more) = said {
                rows.extend(more.into_iter().map(wire::row));
                continue;
            }
            if let ToSite::Alive = said {
                continue;
            }
            if let Some((start, version)) = partition.take() {
                let rows = std::mem::take(&mut rows);
                if !rows.is_sorted_by(|(one, _), (next, _)| one < next) {
                    return Err(invalid("rows that are not in their order"));
                }
                snapshots.push(Snapshot { start, version, rows: Rows::from_sorted(rows) });
            }
            if let ToSite::Partition(start, version) = said {
                partition = Some((start, version));
                continue;
            }
            let core = Core::observer_of(known, design, snapshots);
            let mut core = core.map_err(|_| invalid("partitions are missing"))?;
            self.follow(from, said, &mut core)?;
            return Ok(core);
        }
    }

    /// Applies the log that the router sends to `core`, beginning with the message `first` that was read already,
    /// until the router begins the epoch.
    fn follow(
        &self,
        from: &mut BufReader<&TcpStream>,
        first: ToSite,
        core: &mut Core,
    ) -> Result<(), End> {
        let mut said = first;
        loop {
            match said {
                ToSite::Logged(first, deliveries) => {
                    _ = core.on(Input::Delivered(first, deliveries));
                    if core.is_over() {
                        return Err(invalid(
                            "the log gives the site a partition that it did not keep",
                        ));
                    }
                }
                ToSite::Begin => return Ok(()),
                ToSite::Alive => {}
                ToSite::Bye(why, is_use) => return Err(End::Bye(why, is_use)),
                _ => return Err(invalid("the router asks before the epoch has begun")),
            }
            said = self.read(from)?;
        }
    }
}
