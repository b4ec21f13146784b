//! The transfer to a site's process before its epoch begins: all rows and the log after them; or, if the process kept
//! its rows, only the log after these.
//!
//! Rows are read from the newest checkpoint block by block, and the log group by group. So the router has one block
//! or group in memory for each site that begins, and reads the next when the site has received the last.
//!
//! The duration of a transfer is not limited. A transfer fails if the site receives nothing for [`wire::PROGRESS_WAIT`]. It
//! also fails if the site sends no heartbeat for the time after which any site is taken for dead: then its reader
//! closes the connection. The site in turn receives a message at least every [`ALIVE_EVERY`], and accepts the same
//! delays.
//!
//! Invariant: until a transfer has ended, checkpoints remove no file of the log that the transfer still reads.

use std::io::{self, BufWriter, Write as _};
use std::net::TcpStream;
use std::time::Instant;

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

/// Number of log entries that the site still lacks, at which the transfer ends: the site receives the rest while it
/// serves.
const CATCH_UP_ENTRIES: u64 = 10_000;
/// Maximum number of consecutive rounds in which the number of entries that the site lacks does not fall; then the
/// transfer fails.
const ROUNDS_MAX: usize = 100;

/// Stands for the log entries in the type of those messages to a site that contain none.
type Entries = Vec<Delivery<'static>>;
/// The receiving end of the mailbox of a site.
type Mailbox = mpsc::UnboundedReceiver<SiteEvent>;

/// The stream to a site's process that begins an epoch, during the transfer.
struct Sending<'s> {
    to: &'s mut BufWriter<TcpStream>,
    /// Number of bytes that the transfer has sent so far.
    bytes: u64,
    /// Time at which the last message was sent to the process.
    said: Instant,
}

impl Sending<'_> {
    /// Sends a message to the process, and counts its bytes.
    fn write<F: Serialize>(&mut self, message: &ToSite<F>) -> io::Result<()> {
        self.bytes += wire::write(self.to, message)? as u64;
        self.said = Instant::now();
        Ok(())
    }

    /// Sends a heartbeat to the process, if nothing was sent for [`ALIVE_EVERY`].
    fn beat(&mut self) -> io::Result<()> {
        if self.said.elapsed() >= ALIVE_EVERY {
            self.write(&<ToSite>::Alive)?;
            self.to.flush()?;
        }
        Ok(())
    }
}

impl RemoteSite {
    /// Sends the process the state with which its epoch begins, up to nearly the present end of the log, and returns
    /// the site's log subscription. `kept` is the run of the log and the position of the rows that the process kept.
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

    /// Returns the time without a message after which the site's process is taken for dead, in ms.
    fn silence_ms(&self) -> u64 {
        u64::try_from(self.silence.as_millis()).unwrap_or(u64::MAX)
    }

    /// Begins the epoch from the rows that the process kept as of position `known`, at or after that of the
    /// checkpoint. Returns the subscription, and the log that is still to be sent.
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

    /// Sends the rows of the newest checkpoint, or of an empty database, to begin the epoch. Returns the
    /// subscription, and the log that is still to be sent.
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

    /// Sends the log after the subscription's position until nearly its end, which grows meanwhile.
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

    /// Sends the deliveries of log entries, of which the first is at position `first`, to the process, and records
    /// the progress.
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

    /// Handles the events in the site's mailbox while the process receives the transfer and serves nothing yet.
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

/// Converts an error of the log or of a checkpoint to an I/O error with all its causes as text.
fn failed(error: &crate::log::LogError) -> io::Error {
    io::Error::other(with_causes(error))
}
