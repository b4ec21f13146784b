//! The thread of a site: it owns the site's state machine, feeds it the events of its mailbox, and executes its
//! outputs.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::mailbox::{Batch, Caller, Outcome, SiteEvent, StepRequest, Submit};
use super::program::Program;
use crate::design::Design;
use crate::engine::{Map, Shared};
use crate::key::Key;
use crate::record::{Author, Body, LogEntry, Position, Site};
use crate::router::Step;
use crate::sampler::{Sampled, ThreadTime};
use crate::site::Ticket;
use crate::site::{Core, Input, Output, Part};
use crate::subscription::Delivery;
#[cfg(feature = "shuttle")]
use crate::sync::fault::{self, Fault};
use crate::sync::{self, sleep, ticks};
use crate::transaction::{Abort, Transaction};

/// Interval of the ticks of a site's clock.
const TICK: Duration = Duration::from_millis(20);
/// Delay before a site tries again to become the master of a partition that is pinned to it.
const HOME_WAIT: Duration = Duration::from_millis(100);
/// Maximum number of mailbox events that a site's thread handles before its connections run.
const EVENTS_MAX: usize = 256;

/// Receives the parts of checkpoints of a site, each a snapshot of the partitions that the site masters.
pub(in crate::engine) type CheckpointSink = Arc<dyn Fn(Part) + Send + Sync>;

/// A site's thread, as seen by its tasks: the state machine of the site, and the recipients of its outcomes.
pub(in crate::engine) struct Executor {
    /// State shared with the process's other threads.
    pub(in crate::engine) shared: Arc<Shared>,
    /// The number of the site, or a number after those of the sites for a thread that only serves clients.
    pub(in crate::engine) site: Site,
    /// The state machine of the site.
    pub(super) core: RefCell<Core>,
    /// The recipient of the outcome of each request at the site, by the request's number (ticket).
    callers: RefCell<HashMap<Ticket, Caller>>,
    /// The number that the next request at the site gets.
    next: Cell<Ticket>,
    /// Steps of design changes that wait until this site has received more of the log.
    awaiting_log: RefCell<Vec<StepRequest>>,
    /// Receives the site's parts of checkpoints once the log has all their changes.
    parts: CheckpointSink,
    /// Parts of checkpoints with changes that are not in the log yet.
    unfinished: RefCell<Vec<Part>>,
    /// Log entries that the site has written and that are not submitted to the sequencer yet.
    leaving: RefCell<Vec<LogEntry>>,
    /// True while a task moves pinned partitions back to the sites that they are pinned to.
    is_fetching: Cell<bool>,
    /// Samples of transactions without an outcome so far, by the number of the request (ticket).
    pub(super) sampled: RefCell<HashMap<Ticket, Sampled>>,
    /// Number of transactions that are not sampled before the next one is.
    pub(super) unsampled: Cell<u32>,
    /// Number of samples whose transactions have not run yet.
    pub(super) waiting: Cell<usize>,
    /// Measures the CPU time of this thread.
    time: ThreadTime,
    /// The reactions to design changes that differ between the programs that run an executor.
    program: Box<dyn Program>,
}

impl Executor {
    /// Runs the thread of a site, or of a client thread, with the state `core` until an event ends the thread.
    pub(in crate::engine) fn run(
        shared: Arc<Shared>,
        site: Site,
        core: Core,
        inbox: mpsc::UnboundedReceiver<SiteEvent>,
        parts: CheckpointSink,
        program: Box<dyn Program>,
    ) {
        let executor = Rc::new(Self {
            shared: Arc::clone(&shared),
            site,
            core: RefCell::new(core),
            callers: RefCell::default(),
            next: Cell::new(1),
            awaiting_log: RefCell::default(),
            parts,
            unfinished: RefCell::default(),
            leaving: RefCell::default(),
            is_fetching: Cell::new(false),
            sampled: RefCell::default(),
            unsampled: Cell::new(0),
            waiting: Cell::new(0),
            time: ThreadTime::default(),
            program,
        });
        if let Err(error) = sync::run(Rc::clone(&executor).serve(inbox)) {
            _ = shared.end.set(format!("{site} cannot run: {error}"));
        }
        executor.program.take_over(executor.core.replace(Core::observer(Design::new(Site(0)))));
    }

    /// Handles the events of the mailbox, and ticks the site's clock, until an event ends the thread.
    async fn serve(self: Rc<Self>, mut inbox: mpsc::UnboundedReceiver<SiteEvent>) {
        // The site's first output begins its epoch.
        self.handle_input(Input::Tick(self.shared.now_ms(Instant::now())));
        let mut ticks = ticks(TICK);
        loop {
            tokio::select! {
                event = inbox.recv() => {
                    let Some(mut event) = event.map(Some) else { return };
                    for _ in 0..EVENTS_MAX {
                        // An event that was received must be handled: the bound is checked before the next.
                        let Some(next) = event.take().or_else(|| inbox.try_recv().ok()) else {
                            break;
                        };
                        if !self.handle(next) {
                            return;
                        }
                    }
                }
                _ = ticks.tick() => {
                    self.handle_input(Input::Tick(self.shared.now_ms(Instant::now())));
                    self.start_due_steps();
                    self.weigh();
                }
            }
            self.flush();
            if let Some(sampler) = self.shared.sampler.get() {
                self.time.report(sampler, self.site, self.core.borrow().work());
            }
        }
    }

    /// Handles one event of the mailbox; returns false if the thread is to end.
    fn handle(self: &Rc<Self>, event: SiteEvent) -> bool {
        match event {
            SiteEvent::Transact(transactions) => {
                // Transactions after a returned one are returned too: they would overtake it.
                let mut is_back = false;
                for (reply_to, transaction, until) in transactions {
                    let caller = Caller::ReplyTo(reply_to);
                    if is_back {
                        caller.deliver(Outcome::Rerouted(transaction), &self.shared.senders);
                    } else {
                        is_back = self.transact(caller, transaction, until);
                    }
                }
            }
            SiteEvent::Step(step) => {
                self.awaiting_log.borrow_mut().push(step);
                self.changing(|| self.start_due_steps());
            }
            SiteEvent::Outcome(ticket, outcome) => self.answer(ticket, outcome),
            SiteEvent::Listen(service) => {
                tokio::task::spawn_local(service.accept());
            }
            SiteEvent::Connect(stream, service) => {
                let executor = Rc::<Self>::clone(self);
                tokio::task::spawn_local(service.serve(stream, executor));
            }
            SiteEvent::Said(from, message) => {
                self.changing(|| self.handle_input(Input::Said(from, message)));
            }
            SiteEvent::Logged(first, entries) => {
                let is_change = entries.iter().any(LogEntry::is_of_design);
                return self.follow(Input::Logged(first, entries), is_change);
            }
            SiteEvent::Delivered(first, deliveries) => {
                let is_change = deliveries.iter().any(Delivery::is_of_design);
                return self.follow(Input::Delivered(first, deliveries), is_change);
            }
            SiteEvent::Stalled(is_stalled) => self.handle_input(Input::Stalled(is_stalled)),
            SiteEvent::Mark => {
                self.unfinished.borrow_mut().extend(self.core.borrow().part());
                self.send_checkpoint_parts();
            }
            SiteEvent::Count(answer) => answer(self.core.borrow().usage().collect()),
            SiteEvent::Die(answer) => {
                let (site, epoch) = (self.site, self.core.borrow().epoch());
                let by = Author { site, epoch, number: 0 };
                // Entries that were not submitted yet are lost.
                self.leaving.borrow_mut().clear();
                self.shared.sequencer.submit(vec![LogEntry { by, body: Body::Fence }]);
                let goes_on = self.begin_again();
                _ = answer.send(());
                return goes_on;
            }
            SiteEvent::End => {
                self.forget_callers();
                return false;
            }
            SiteEvent::Relayed(..)
            | SiteEvent::Arrived(_)
            | SiteEvent::Lost(_)
            | SiteEvent::Subscribe(..) => {
                unreachable!("only a link is told this")
            }
            SiteEvent::Stop => return false,
        }
        true
    }

    /// Runs a part of a change of the design, and counts its CPU time separately if transactions are sampled.
    fn changing<T>(&self, run: impl FnOnce() -> T) -> T {
        match self.shared.sampler.get() {
            Some(sampler) => sampler.changing(run),
            None => run(),
        }
    }

    /// Applies log entries to the site, and publishes the new design. `is_change` is true if they may change the
    /// design. Returns false if the thread is to end.
    fn follow(self: &Rc<Self>, logged: Input, is_change: bool) -> bool {
        let on_log = || self.on(logged);
        let outputs = if is_change { self.changing(on_log) } else { on_log() };
        #[cfg(feature = "shuttle")]
        if fault::is(Fault::MapBehindAnswer) {
            self.execute(outputs);
            self.publish();
            return true;
        }
        // The map is published before the reply is sent.
        if is_change {
            self.publish();
            self.fetch_pinned();
        }
        {
            let core = self.core.borrow();
            let changed = is_change.then(|| core.design());
            self.program.follow(&self.shared, core.known(), changed);
        }
        self.execute(outputs);
        self.start_due_steps();
        self.send_checkpoint_parts();
        if self.core.borrow().is_over() {
            return self.begin_again();
        }
        true
    }

    /// Compares the memory of all rows in this process with its limit, and records in the site whether it is
    /// exceeded.
    fn weigh(&self) {
        let used = || self.core.borrow().memory();
        let is_full = self.shared.memory.is_full(self.site, used);
        self.core.borrow_mut().set_full(is_full);
    }

    /// Starts the steps of design changes that this site has enough of the log for, and refuses those that are too
    /// late.
    fn start_due_steps(&self) {
        if self.awaiting_log.borrow().is_empty() {
            return;
        }
        let (known, now) = (self.core.borrow().known(), Instant::now());
        let is_due = |request: &mut StepRequest| request.session <= known || request.until <= now;
        let due: Vec<_> = self.awaiting_log.borrow_mut().extract_if(.., is_due).collect();
        for StepRequest { step, session, until, answer } in due {
            if session > known {
                answer.deliver(Outcome::Answer(known, Err(Abort::Late)), &self.shared.senders);
                continue;
            }
            let until_ms = self.shared.now_ms(until);
            let ticket = self.expect(Caller::ReplyTo(answer));
            self.handle_input(match step {
                Step::InstallReplica(_, start) => Input::InstallReplica(ticket, start, until_ms),
                Step::Change(_, change) => Input::Change(ticket, change, until_ms),
            });
        }
    }

    /// Delivers the parts of checkpoints whose changes are all in the log, and drops those whose changes never will
    /// be.
    fn send_checkpoint_parts(&self) {
        let mut unfinished = self.unfinished.borrow_mut();
        if unfinished.is_empty() {
            return;
        }
        let core = self.core.borrow();
        unfinished.retain(|part| core.has_all_of(part).is_some());
        for part in unfinished.extract_if(.., |part| core.has_all_of(part) == Some(true)) {
            (self.parts)(part);
        }
    }

    /// Returns a partition that is mastered elsewhere than at the live site that it is pinned to, because another
    /// site inherited it, and that site; `None` if there is none. Only sites that this thread fetches for count. The
    /// function reads the map, as [`Shared::pin`] does.
    fn misplaced_partition(&self) -> Option<(Key, Site)> {
        let map = self.shared.map.load();
        let (design, is_live) = (&map.design, self.core.borrow().is_live());
        design.partitions().find_map(|partition| {
            let home = partition.pin.filter(|pin| *pin != partition.master)?;
            self.program
                .fetches_for(self.site, is_live, design, home)
                .then(|| (partition.range.start.clone(), home))
        })
    }

    /// Starts a task that makes pinned partitions return to their sites, until all have; at most one task runs.
    fn fetch_pinned(self: &Rc<Self>) {
        if self.is_fetching.get() || self.misplaced_partition().is_none() {
            return;
        }
        self.is_fetching.set(true);
        let executor = Rc::clone(self);
        tokio::task::spawn_local(async move {
            while let Some((start, home)) = executor.misplaced_partition() {
                if executor.shared.pin(&start, home).await.is_err() {
                    sleep(HOME_WAIT).await;
                }
            }
            executor.is_fetching.set(false);
        });
    }

    /// Begins a new epoch of the site from the log. Returns false if that is not possible: there is no log, it cannot
    /// be read, or another process has it.
    fn begin_again(&self) -> bool {
        self.forget_callers();
        self.sampled.borrow_mut().clear();
        self.waiting.set(0);
        let Some(log) = &self.shared.log else { return false };
        let (known, epoch, newest) = {
            let core = self.core.borrow();
            (core.known(), core.epoch(), core.design().epoch(self.site))
        };
        if self.shared.epochs.is_over(newest) {
            self.shared.end_for_another(self.site);
            return false;
        }
        // The old state is dropped before the new one is read, so that only one is in memory.
        *self.core.borrow_mut() = Core::observer(Design::new(Site(0)));
        match log.image_of(known) {
            Ok(image) => {
                let epoch = self.shared.epochs.next(epoch.max(image.design().epoch(self.site)));
                *self.core.borrow_mut() = image.begin_epoch(self.site, epoch);
                self.handle_input(Input::Tick(self.shared.now_ms(Instant::now())));
                true
            }
            Err(error) => {
                _ = self.shared.end.set(format!("{} cannot come back: {error}", self.site));
                false
            }
        }
    }

    /// Answers the callers of all open requests that the request may or may not have taken effect.
    fn forget_callers(&self) {
        let known = self.core.borrow().known();
        for (_, caller) in self.callers.borrow_mut().drain() {
            caller.deliver(Outcome::Answer(known, Err(Abort::Deposed)), &self.shared.senders);
        }
    }

    /// Feeds an input to the site's state machine, and executes the outputs.
    fn handle_input(&self, input: Input) {
        let outputs = self.on(input);
        self.execute(outputs);
    }

    /// Executes outputs of the site's state machine in order.
    fn execute(&self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Write(entry) => self.leaving.borrow_mut().push(entry),
                Output::Say(to, message) => {
                    // A site that is not started any more receives no messages.
                    if let Some(sender) = self.shared.senders.get(usize::from(to.0)) {
                        _ = sender.send(SiteEvent::Said(self.site, message));
                    }
                }
                Output::Subscribe(request) => self.program.subscribe(request),
                Output::Answer(ticket, known, answer) => {
                    self.answer(ticket, Outcome::Answer(known, answer));
                }
                Output::Reroute(ticket, transaction) => {
                    self.answer(ticket, Outcome::Rerouted(transaction));
                }
            }
        }
    }

    /// Passes the outcome of a request to its recipient, and completes its sample.
    fn answer(&self, ticket: Ticket, outcome: Outcome) {
        self.time_outcome(ticket, &outcome);
        let caller = self.callers.borrow_mut().remove(&ticket);
        if let Some(caller) = caller {
            caller.deliver(outcome, &self.shared.senders);
        }
    }

    /// Publishes the design that the site knows as the router's map, if the map is older.
    fn publish(&self) {
        let core = self.core.borrow();
        let known: Position = core.known();
        if self.shared.map.load().known < known {
            let map = Arc::new(Map { known, design: core.design().clone() });
            self.shared.map.rcu(
                |old| {
                    if old.known < known { Arc::clone(&map) } else { Arc::clone(old) }
                },
            );
        }
    }
}

impl Submit for Executor {
    fn site(&self) -> Site {
        self.site
    }

    fn transact(&self, caller: Caller, transaction: Transaction, until: Instant) -> bool {
        let ticket = self.expect(caller);
        let until_ms = self.shared.now_ms(until);
        let sampled = self.sample(&transaction, until);
        let outputs = self.on(Input::Transact(ticket, transaction, until_ms));
        if let Some(sampled) = sampled {
            self.time_run(ticket, sampled);
        }
        let is_back =
            |output: &Output| matches!(output, Output::Reroute(back, _) if *back == ticket);
        let is_back = outputs.iter().any(is_back);
        self.execute(outputs);
        is_back
    }

    fn send(&self, to: Site, batch: Batch) {
        // A site stops only together with all others.
        _ = self.shared.sender(to).send(SiteEvent::Transact(batch));
    }

    fn expect(&self, caller: Caller) -> Ticket {
        let ticket = self.next.get();
        self.next.set(ticket + 1);
        self.callers.borrow_mut().insert(ticket, caller);
        ticket
    }

    fn flush(&self) {
        let entries = mem::take(&mut *self.leaving.borrow_mut());
        self.shared.sequencer.submit(entries);
    }
}
