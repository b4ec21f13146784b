//! The steps that the starts of a complete store and of a router share: they recover the log, and make the map, the
//! mailboxes that follow the log, and the checkpointer.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::facts::Memory;
use super::move_locks::MoveLocks;
use super::network::links;
use super::presence::Presence;
use super::recovery::checkpointer::Checkpointer;
use super::recovery::holds::Holds;
use super::recovery::log_options::{Folder, Recovered};
use super::remote::traffic::Traffic;
use super::shared::AtomicPosition;
use super::site::executor::CheckpointSink;
use super::site::mailbox::{SiteEvent, SiteSender};
use super::unused::Unused;
use super::{
    Checkpoints, Execution, LogOptions, Map, Options, SITES_MAX, Shared, Store, StoreError,
};
use crate::log::CutTail;
use crate::record::{LogEntry, Position, Site};
use crate::router::DesignPolicy;
use crate::sequencer::Follower;
use crate::site::{Core, Part};
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{self, ArcSwap, Mutex};

/// A store whose site threads are not started yet.
///
/// Invariant: each mailbox receives the log from the end of the image on, before any thread writes to the log.
pub(super) struct Base {
    /// State shared with the store's threads.
    pub shared: Arc<Shared>,
    /// The recovered database: the design and, unless sites are remote, the rows as of the log's end.
    pub image: Core,
    /// Receiving ends of the mailboxes: those of the sites by number, then those of threads that only serve clients.
    pub inboxes: Vec<UnboundedReceiver<SiteEvent>>,
    /// Threads that were started so far, each of which receives one mailbox.
    threads: Vec<JoinHandle<()>>,
    /// Sends the sites' parts of checkpoints to the checkpointer.
    parts: sync::mpsc::Sender<Part>,
    /// The thread that writes checkpoints; `None` if none are made.
    checkpointer: Option<JoinHandle<()>>,
    /// The thread that writes the log; `None` without a log.
    log: Option<JoinHandle<()>>,
    /// The damaged end of the log that was cut off; `None` if nothing was cut off.
    cut: Option<CutTail>,
}

impl Base {
    /// Recovers the log, and makes a mailbox for each site and for `client_threads` further threads. `followed` is
    /// `Some` if sites run in other processes, which may have more of the log than the map: it records how much of
    /// the log the map contains.
    pub fn start(
        options: &Options,
        policy: Box<dyn DesignPolicy>,
        (client_threads, followed): (u16, Option<AtomicPosition>),
        execution: Execution,
    ) -> Result<Self, StoreError> {
        if !(1..=SITES_MAX).contains(&options.sites) {
            return Err(StoreError::Sites(options.sites));
        }
        let recovered = match &options.log {
            None => Recovered::in_memory(),
            // Only sites in this process need the rows.
            Some(log) => log.recover(options.sites, followed.is_none())?,
        };
        let Recovered { image, sequencer, thread, mark_every, newest, checkpoints, cut, runs } =
            recovered;
        let mailboxes = options.sites + client_threads;
        let (senders, inboxes): (Vec<_>, Vec<_>) =
            (0..mailboxes).map(|_| mpsc::unbounded_channel()).unzip();
        let senders = match execution.round_trip {
            Duration::ZERO => senders.into_iter().map(SiteSender::Local).collect(),
            round_trip => links(senders, round_trip)
                .map_err(|error| StoreError::Start("the simulated network", error))?
                .into_iter()
                .map(SiteSender::Delayed)
                .collect(),
        };
        let map = || Map { known: image.known(), design: image.design().clone() };
        let shared = Arc::new(Shared {
            began: Instant::now(),
            map: ArcSwap::from_pointee(map()),
            first: map(),
            senders,
            sites: options.sites.into(),
            sequencer,
            policy,
            is_two_phase: execution.is_two_phase,
            moves: MoveLocks::default(),
            stepped: AtomicPosition::default(),
            traffic: followed
                .iter()
                .flat_map(|_| (0..options.sites).map(|_| Traffic::default()))
                .collect(),
            presence: followed
                .iter()
                .flat_map(|_| (0..options.sites).map(|_| Presence::absent()))
                .collect(),
            replicas_min: AtomicU32::new(0),
            memory: Memory::of(options.sites, 0),
            counts: Mutex::default(),
            runs,
            holds: Holds::default(),
            followed,
            log: options.log.clone(),
            epochs: LogOptions::epochs(options.log.as_ref(), image.design()),
            checkpoints: Arc::new(Mutex::new(Checkpoints { newest, failure: None })),
            brought: AtomicU64::new(0),
            distributed: AtomicU64::new(0),
            under_way: (0..options.sites).map(|_| AtomicU32::new(0)).collect(),
            unused: Unused::none(),
            sampler: OnceLock::new(),
            end: OnceLock::new(),
        });
        let (parts, assembled) = sync::mpsc::channel();
        let checkpointer = checkpoints
            .map(|folder| checkpointer(folder, &shared, mark_every, assembled))
            .transpose()
            .map_err(|error| StoreError::Start("the checkpoints", error))?;
        for sender in &shared.senders {
            let next = shared.sequencer.join(Box::new(Following(sender.clone())));
            assert_eq!(next, image.known() + 1, "no site writes before it begins");
        }
        Ok(Self {
            shared,
            image,
            inboxes,
            threads: Vec::new(),
            parts,
            checkpointer,
            log: thread,
            cut,
        })
    }

    /// Returns the sink that receives one site's parts of checkpoints. Without a log, no checkpointer receives them.
    pub fn parts(&self) -> CheckpointSink {
        let parts = self.parts.clone();
        Arc::new(move |part| _ = parts.send(part))
    }

    /// Starts the thread `run`, which receives the mailbox of `site` (a number after the sites' for a client thread).
    pub fn spawn(
        &mut self,
        site: Site,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), StoreError> {
        let thread = thread::Builder::new().name(site.to_string()).spawn(run);
        self.threads.push(thread.map_err(|error| StoreError::Start("a site", error))?);
        Ok(())
    }

    /// Returns the store, once all its threads are started.
    pub fn into_store(self) -> Store {
        let Self { shared, threads, checkpointer, log, cut, .. } = self;
        let known = shared.map.load().known;
        shared.stepped.advance_to(known);
        Store { shared, threads, checkpointer, log, cut, output: OnceLock::new() }
    }
}

/// Starts the thread that assembles checkpoints in `folder` from the sites' `parts`. It updates `mark_every`, the
/// size of the log between two checkpoints in bytes.
fn checkpointer(
    folder: Folder,
    shared: &Shared,
    mark_every: Arc<AtomicU64>,
    parts: sync::mpsc::Receiver<Part>,
) -> io::Result<JoinHandle<()>> {
    let checkpoints = Checkpointer {
        folder,
        is_of_topic: matches!(&shared.log, Some(LogOptions::Kafka { .. })),
        sequencer: shared.sequencer.clone(),
        parts,
        holds: shared.holds.clone(),
        mark_every,
        state: Arc::clone(&shared.checkpoints),
    };
    thread::Builder::new().name("checkpoints".into()).spawn(move || checkpoints.run())
}

/// Delivers the sequencer's log entries to one mailbox.
struct Following(SiteSender);

impl Follower for Following {
    fn follow(&mut self, first: Position, entries: &Arc<[LogEntry]>) -> bool {
        self.0.send(SiteEvent::Logged(first, Arc::clone(entries)))
    }

    fn stall(&mut self, is_stalled: bool) {
        _ = self.0.send(SiteEvent::Stalled(is_stalled));
    }

    fn mark(&mut self) {
        _ = self.0.send(SiteEvent::Mark);
    }

    fn end(&mut self, _: &str) {
        _ = self.0.send(SiteEvent::End);
    }
}
