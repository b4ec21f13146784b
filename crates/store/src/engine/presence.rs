//! The processes of a router's sites: whether one is connected, its rack, and how it received its rows.
//!
//! A site that the log has declared dead, and that no process serves, is *down*: a partition that it masters has no
//! other copy, because a replica would have become the master. A request that needs such a partition is refused at
//! once. If the site's process is back, requests wait up to [`RETURN_WAIT`] for the site, because most sites have
//! their rows within that time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Shared;
use super::site::epoch::count;
use crate::design::Design;
use crate::key::{Key, KeyRange};
use crate::record::Site;
use crate::transaction::{Abort, Absence};

/// Maximum time for which requests wait for a dead site whose process is back and receives its rows.
const RETURN_WAIT: Duration = Duration::from_secs(1);

/// The transfer of rows and log entries by which a site's process began its last epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// True if the process had kept its rows, and received only the log entries after them.
    pub is_difference: bool,
    /// Size of the messages that the transfer has sent to the process, in bytes.
    pub bytes: u64,
    /// Time from the connection of the process until the last message of the transfer, in ms.
    pub ms: u64,
    /// True if the process has received the whole transfer.
    pub is_done: bool,
}

/// The state of the process that serves a site.
enum State {
    /// No process of the site is connected to the router.
    Absent,
    /// A process has been receiving its rows since it connected at this time.
    Receiving(Instant),
    /// The process has received its rows, and serves the site.
    Serving,
}

/// The state of one site's process, as known to the router.
struct Inner {
    /// Whether a process of the site is connected, and serves the site.
    state: State,
    /// Rack of the process that connected last; `None` if that process named none, or none has connected.
    rack: Option<String>,
    /// Transfer to the process that connected last, or to an earlier one until that transfer begins; `None` before
    /// the first.
    transfer: Option<Transfer>,
}

/// The state of one site's process, as known to the router; threads share it.
pub(in crate::engine) struct Presence(Mutex<Inner>);

impl Presence {
    /// Returns the state of a site's process before any has connected.
    pub fn absent() -> Self {
        Self(Mutex::new(Inner { state: State::Absent, rack: None, transfer: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a process of the site has connected, in this rack, and waits for its rows.
    pub fn connected(&self, rack: Option<String>) {
        let mut inner = self.lock();
        (inner.state, inner.rack) = (State::Receiving(Instant::now()), rack);
    }

    /// Records that the transfer to the process begins: of the log entries after the rows that the process kept
    /// (`is_difference`), or of all rows.
    pub fn transfers(&self, is_difference: bool) {
        let transfer = Transfer { is_difference, bytes: 0, ms: 0, is_done: false };
        self.lock().transfer = Some(transfer);
    }

    /// Records the number of bytes that the transfer has sent so far, and whether it is complete. Has no effect
    /// unless the process is receiving its rows.
    pub fn progress(&self, bytes: u64, is_done: bool) {
        let mut inner = self.lock();
        let State::Receiving(since) = inner.state else { return };
        if let Some(transfer) = &mut inner.transfer {
            transfer.ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            (transfer.bytes, transfer.is_done) = (bytes, is_done);
        }
        if is_done {
            inner.state = State::Serving;
        }
    }

    /// Records that the site's process is no longer connected.
    pub fn leave(&self) {
        self.lock().state = State::Absent;
    }

    pub fn rack(&self) -> Option<String> {
        self.lock().rack.clone()
    }

    pub fn transfer(&self) -> Option<Transfer> {
        self.lock().transfer
    }
}

impl Shared {
    /// Returns why the partitions that a site masters cannot be used, or `None` if they can. A site in this process
    /// is never absent.
    pub(in crate::engine) fn absence(&self, design: &Design, site: Site) -> Option<Absence> {
        let presence = self.presence.get(usize::from(site.0))?;
        let has_begun = count(design.epoch(site)) > 0;
        match presence.lock().state {
            State::Serving => None,
            State::Receiving(_) => Some(Absence::Receiving),
            State::Absent if design.is_fenced(site) => Some(Absence::Down),
            State::Absent if has_begun => Some(Absence::Disconnected),
            State::Absent => Some(Absence::NotStarted),
        }
    }

    /// True if requests must not wait for a site: the site is dead, and its process is absent or takes too long to
    /// return.
    fn is_down(&self, design: &Design, site: Site) -> bool {
        let Some(presence) = self.presence.get(usize::from(site.0)) else { return false };
        design.is_fenced(site)
            && match presence.lock().state {
                State::Absent => true,
                State::Receiving(since) => since.elapsed() > RETURN_WAIT,
                State::Serving => false,
            }
    }

    /// Returns the error of a transaction that needs a partition whose master is down, or `None` if it needs no such
    /// partition.
    pub(in crate::engine) fn down(
        &self,
        design: &Design,
        reads: &[KeyRange],
        writes: &[Key],
    ) -> Option<Abort> {
        let needed = writes.iter().map(|key| design.of(key));
        let mut needed = needed.chain(reads.iter().flat_map(|range| design.within(range)));
        let partition = needed.find(|partition| self.is_down(design, partition.master))?;
        let (site, from) = (partition.master, partition.range.start.clone());
        Some(Abort::Down(site, from, self.absence(design, site)?))
    }

    /// Returns the error of a transaction that could not begin in time: [`Abort::Down`] with an absent site that the
    /// transaction needs, otherwise [`Abort::Late`].
    pub(in crate::engine) fn late(&self, reads: &[KeyRange], writes: &[Key]) -> Abort {
        let map = self.map.load();
        let needed = writes.iter().map(|key| map.design.of(key));
        let mut needed = needed.chain(reads.iter().flat_map(|range| map.design.within(range)));
        let absent = needed.find_map(|partition| {
            let absence = self.absence(&map.design, partition.master)?;
            Some(Abort::Down(partition.master, partition.range.start.clone(), absence))
        });
        absent.unwrap_or(Abort::Late)
    }
}
