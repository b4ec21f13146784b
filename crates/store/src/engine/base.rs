//! The part of a start that a store with all its sites and a router have in common: the log, the map, the
//! mailboxes that follow the log, and the checkpointer.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::recovery::checkpointer::Checkpointer;
use super::recovery::log_options::{Folder, Recovered};
use super::remote::traffic::Traffic;
use super::shared::AtomicPosition;
use super::site::executor::CheckpointSink;
use super::site::mailbox::{SiteEvent, SiteSender};
use super::unused::Unused;
use super::{Checkpoints, LogOptions, Map, Options, SITES_MAX, Shared, Store, StoreError};
use crate::log::CutTail;
use crate::record::{LogEntry, Position, Site};
use crate::router::DesignPolicy;
use crate::sequencer::Follower;
use crate::site::{Core, Part};
use crate::sync::atomic::{AtomicU32, AtomicU64};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{self, ArcSwap, Mutex};

/// A store without the threads of its sites.
///
/// Invariant: each mailbox follows the log from the image on before any thread writes to it.
pub(super) struct Base {
    pub shared: Arc<Shared>,
    /// The rows and the design as of the log's end.
    pub image: Core,
    /// Of the sites, by number, and then of threads that have clients only.
    pub inboxes: Vec<UnboundedReceiver<SiteEvent>>,
    threads: Vec<JoinHandle<()>>,
    parts: sync::mpsc::Sender<Part>,
    checkpointer: Option<JoinHandle<()>>,
    log: Option<JoinHandle<()>>,
    cut: Option<CutTail>,
}

impl Base {
    /// Recovers the log and makes `client_threads` mailboxes besides those of the sites. `followed` counts
    /// the log entries that the map has, where sites in other processes may be ahead of it.
    pub fn start(
        options: &Options,
        policy: Box<dyn DesignPolicy>,
        client_threads: u16,
        followed: Option<AtomicPosition>,
    ) -> Result<Self, StoreError> {
        if !(1..=SITES_MAX).contains(&options.sites) {
            return Err(StoreError::Sites(options.sites));
        }
        let recovered = match &options.log {
            None => Recovered::in_memory(),
            Some(log) => log.recover(options.sites)?,
        };
        let Recovered { image, sequencer, thread, mark_every, newest, checkpoints, cut } =
            recovered;
        let mailboxes = options.sites + client_threads;
        let (senders, inboxes): (Vec<_>, Vec<_>) =
            (0..mailboxes).map(|_| mpsc::unbounded_channel()).unzip();
        let map = || Map { known: image.known(), design: image.design().clone() };
        let shared = Arc::new(Shared {
            began: Instant::now(),
            map: ArcSwap::from_pointee(map()),
            first: map(),
            senders: senders.into_iter().map(SiteSender::Local).collect(),
            sites: options.sites.into(),
            sequencer,
            policy,
            moves: tokio::sync::Mutex::new(()),
            stepped: AtomicPosition::default(),
            traffic: followed
                .iter()
                .flat_map(|_| (0..options.sites).map(|_| Traffic::default()))
                .collect(),
            followed,
            log: options.log.clone(),
            epochs: LogOptions::epochs(options.log.as_ref(), image.design()),
            checkpoints: Arc::new(Mutex::new(Checkpoints { newest, failure: None })),
            brought: AtomicU64::new(0),
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

    /// Takes the parts of checkpoints of one site. Without a log nothing assembles them.
    pub fn parts(&self) -> CheckpointSink {
        let parts = self.parts.clone();
        Arc::new(move |part| _ = parts.send(part))
    }

    /// Starts the thread of a mailbox.
    pub fn spawn(
        &mut self,
        site: Site,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), StoreError> {
        let thread = thread::Builder::new().name(site.to_string()).spawn(run);
        self.threads.push(thread.map_err(|error| StoreError::Start("a site", error))?);
        Ok(())
    }

    /// The store, once all threads were started.
    pub fn into_store(self) -> Store {
        let Self { shared, threads, checkpointer, log, cut, .. } = self;
        let known = shared.map.load().known;
        shared.stepped.advance_to(known);
        Store { shared, threads, checkpointer, log, cut, output: OnceLock::new() }
    }
}

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
        mark_every,
        state: Arc::clone(&shared.checkpoints),
    };
    thread::Builder::new().name("checkpoints".into()).spawn(move || checkpoints.run())
}

/// Delivers the sequencer's log entries to a mailbox.
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
