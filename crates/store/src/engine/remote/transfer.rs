//! The transfer to a site's process before its epoch begins: all rows and the log after them; or, if the process kept
//! its rows, only the log after these.
//!
//! Rows are read from the newest checkpoint block by block, and the log group by group. So the router has one block
//! or group in memory for each site that begins, and reads the next when the site has received the last.
//!
//! The duration of a transfer is not limited. It fails if the site receives nothing for [`PROGRESS_WAIT`]. It also
//! fails if the site sends no heartbeat for the time after which any site is taken for dead: then its reader closes
//! the connection. The site in turn receives a message at least every [`ALIVE_EVERY`], and accepts the same delays.
//!
//! Invariant: until a transfer has ended, checkpoints remove no file of the log that it still reads.

use std::io::{self, BufWriter, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc;

use super::remote_site::{RemoteSite, deliver};
use super::wire::{self, ALIVE_EVERY, ToSite};
use crate::checkpoint::Piece;
use crate::design::Design;
use crate::engine::recovery::log_options::SavedState;
use crate::engine::site::mailbox::SiteEvent;
use crate::record::{LogEntry, Position};
use crate::sequencer::with_causes;
use crate::subscription::{Delivery, Subscription};

/// Time without progress after which a transfer fails.
pub(super) const PROGRESS_WAIT: Duration = Duration::from_secs(60);
/// Number of entries missing at the site at which the transfer ends: the site receives the rest while it serves.
const CATCH_UP_ENTRIES: u64 = 10_000;
/// Maximum number of rounds in which the number of missing entries does not fall; then the transfer fails.
const ROUNDS_MAX: usize = 100;

/// Stands for the log entries in the type of messages that contain none.
type Entries = Vec<Delivery<'static>>;
/// The receiving end of the site's mailbox.
type Mailbox = mpsc::UnboundedReceiver<SiteEvent>;

/// The stream to a site that begins an epoch.
struct Sending<'s> {
    to: &'s mut BufWriter<TcpStream>,
    /// Bytes sent so far.
    bytes: u64,
    /// Time of the last message.
    said: Instant,
}

impl Sending<'_> {
    /// Sends a message, and counts its bytes.
    fn write<F: Serialize>(&mut self, message: &ToSite<F>) -> io::Result<()> {
        self.bytes += wire::write(self.to, message)? as u64;
        self.said = Instant::now();
        Ok(())
    }

    /// Sends a heartbeat, if one is due.
    fn beat(&mut self) -> io::Result<()> {
        if self.said.elapsed() >= ALIVE_EVERY {
            self.write(&<ToSite>::Alive)?;
            self.to.flush()?;
        }
        Ok(())
    }
}

impl RemoteSite {
    /// Sends the initial state of an epoch, up to the present end of the log, and returns the site's subscription.
    pub(super) fn begin(
        &mut self,
        to: &mut BufWriter<TcpStream>,
        kept: Option<(u64, Position)>,
        mailbox: &mut Mailbox,
    ) -> io::Result<Subscription> {
        let options = self.shared.log.clone().expect("there is one where sites are apart");
        self.handle_without_it(mailbox)?;
        let hold = self.shared.holds.hold();
        let saved = options.saved_state().map_err(|error| failed(&error))?;
        hold.begin_at(saved.known);
        let is_of_log = |(run, known): &(u64, Position)| {
            self.shared.runs.has(*run, *known) && (saved.known..=self.seen).contains(known)
        };
        let kept = kept.filter(is_of_log).map(|(_, known)| known);
        self.presence().transfers(kept.is_some());
        let mut sending = Sending { to, bytes: 0, said: Instant::now() };
        let (mut subscription, mut saved) = match kept {
            Some(known) => self.begin_from_retained(known, saved, &mut sending, mailbox)?,
            None => self.begin_from_rows(saved, &mut sending, mailbox)?,
        };
        self.catch_up(&mut subscription, &mut saved, &mut sending, mailbox)?;
        sending.write(&<ToSite>::Begin)?;
        sending.to.flush()?;
        self.presence().progress(sending.bytes, true);
        Ok(subscription)
    }

    /// Returns the allowed silence of the site, in ms.
    fn silence_ms(&self) -> u64 {
        u64::try_from(self.silence.as_millis()).unwrap_or(u64::MAX)
    }

    /// Begins from the rows that the site kept, which are as of a position at or after the checkpoint.
    fn begin_from_retained(
        &mut self,
        known: Position,
        mut saved: SavedState,
        sending: &mut Sending<'_>,
        mailbox: &mut Mailbox,
    ) -> io::Result<(Subscription, SavedState)> {
        let mut design = saved.design.unshared();
        let (mut at, mut ahead) = (saved.known, Vec::new());
        while at < known {
            let (_, entries) = saved.rest.read(known).map_err(|error| failed(&error))?;
            let of_site = entries.len().min(at.entries_to(known) as usize);
            let (before, behind) = entries.split_at(of_site);
            before.iter().for_each(|entry| _ = design.follow(entry));
            (at, ahead) = (at + before.len() as u64, behind.to_vec());
            self.handle_without_it(mailbox)?;
            sending.beat()?;
        }
        let (epoch, sites) = (self.epoch, self.shared.sites as u16);
        let (silence_ms, run) = (self.silence_ms(), self.shared.runs.current());
        sending.write(&ToSite::<Entries>::Resume { epoch, sites, silence_ms, run })?;
        let mut subscription = Subscription::resumed(self.site, epoch, known, design);
        self.send_entries(&mut subscription, known + 1, &ahead, sending)?;
        Ok((subscription, saved))
    }

    /// Begins from the rows of the newest checkpoint, or from an empty database.
    fn begin_from_rows(
        &mut self,
        mut saved: SavedState,
        sending: &mut Sending<'_>,
        mailbox: &mut Mailbox,
    ) -> io::Result<(Subscription, SavedState)> {
        let (epoch, sites, known) = (self.epoch, self.shared.sites as u16, saved.known);
        let (silence_ms, run) = (self.silence_ms(), self.shared.runs.current());
        let design: Design = saved.design.unshared();
        sending.write(&ToSite::<Entries>::Welcome {
            epoch,
            sites,
            silence_ms,
            known,
            design: design.clone(),
            run,
        })?;
        match saved.rows.take() {
            Some(mut rows) => {
                while let Some(piece) = rows.next().map_err(|error| failed(&error))? {
                    match piece {
                        Piece::Partition(start, version) => {
                            sending.write(&<ToSite>::Partition(start, version))?;
                        }
                        Piece::Rows(rows) if rows.is_empty() => {}
                        Piece::Rows(rows) => sending.write(&<ToSite>::Rows(rows))?,
                    }
                    self.presence().progress(sending.bytes, false);
                    self.handle_without_it(mailbox)?;
                }
            }
            None => {
                for partition in design.partitions() {
                    let start = partition.range.start.clone();
                    sending.write(&<ToSite>::Partition(start, partition.version))?;
                }
            }
        }
        Ok((Subscription::new(self.site, epoch, known, design), saved))
    }

    /// Sends the log up to its end, which grows meanwhile.
    fn catch_up(
        &mut self,
        subscription: &mut Subscription,
        saved: &mut SavedState,
        sending: &mut Sending<'_>,
        mailbox: &mut Mailbox,
    ) -> io::Result<()> {
        let (mut nearest, mut rounds) = (u64::MAX, 0);
        loop {
            self.handle_without_it(mailbox)?;
            let upto = self.seen;
            if upto <= subscription.known() {
                return Ok(());
            }
            let left = subscription.known().entries_to(upto);
            (nearest, rounds) = if left < nearest { (left, 0) } else { (nearest, rounds + 1) };
            if rounds > ROUNDS_MAX {
                return Err(io::Error::other(format!(
                    "log delivery to {} is overloaded: it stays {left} entries behind",
                    self.site
                )));
            }
            let is_near = left <= CATCH_UP_ENTRIES;
            while subscription.known() < upto {
                let (first, entries) = saved.rest.read(upto).map_err(|error| failed(&error))?;
                if entries.is_empty() {
                    return Err(io::Error::other("the log lacks entries that were read before"));
                }
                self.send_entries(subscription, first, &entries, sending)?;
                sending.beat()?;
                if !is_near {
                    self.handle_without_it(mailbox)?;
                }
            }
            // Entries that arrived meanwhile are still in the mailbox; they are sent once the site is connected.
            if is_near {
                return Ok(());
            }
        }
    }

    /// Sends the subscription's deliveries of log entries, and records the progress.
    fn send_entries(
        &self,
        subscription: &mut Subscription,
        first: Position,
        entries: &[LogEntry],
        sending: &mut Sending<'_>,
    ) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let traffic = &self.shared.traffic[usize::from(self.site.0)];
        sending.bytes += deliver(subscription, sending.to, traffic, first, entries)? as u64;
        sending.said = Instant::now();
        self.presence().progress(sending.bytes, false);
        Ok(())
    }

    /// Handles events while the site is not connected yet.
    fn handle_without_it(&mut self, mailbox: &mut Mailbox) -> io::Result<()> {
        for _ in 0..mailbox.len() {
            let Ok(event) = mailbox.try_recv() else { break };
            match event {
                // The process may connect again.
                SiteEvent::Arrived(_) => {}
                SiteEvent::Stop | SiteEvent::End => mailbox.close(),
                other => self.handle(other),
            }
        }
        if mailbox.is_closed() {
            return Err(io::Error::other("the router stops"));
        }
        Ok(())
    }
}

/// Converts an error of the log or of a checkpoint.
fn failed(error: &crate::log::LogError) -> io::Error {
    io::Error::other(with_causes(error))
}
