//! What happens in a simulation, and in which order: all of it by one seed.

use std::collections::{BTreeMap, VecDeque};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::*;
use super::Bug;
use super::adaptation::Limited;
use super::driver::Driver;
use super::stream::Stream;
use super::transactions::{Move, Wish};
use crate::design::Verdict;
use crate::record::Operator;
use crate::router::Step;
use crate::transaction::Done;

pub(super) const SITES: u16 = 4;
pub(super) const KEYS: u8 = 12;
pub(super) const SESSIONS: usize = 5;
/// Longer than messages take, shorter than a run.
pub(super) const PATIENCE_MS: u64 = 300;
/// How far a host's clock may be ahead: at most by the patience of a request.
const SKEW_MS_MAX: u64 = PATIENCE_MS;

pub(super) fn key(n: u8) -> Key {
    if n == 0 { Key::least() } else { Key::from_bytes(&[n]) }
}

/// What a client knows of one of its transactions.
pub(super) struct Known {
    pub session: usize,
    /// What the session had seen before.
    pub since: Position,
    pub writes: Vec<Key>,
    pub outcome: Outcome,
}

pub(super) enum Outcome {
    Unknown,
    Nothing,
    /// Its site was over before the log had it.
    Deposed,
    /// What was answered, and how much of the log it has seen then.
    Done(Done, Position),
}

/// A site's process, as far as one runs.
pub(super) struct Host {
    pub site: Site,
    epoch: Epoch,
    pub core: Option<Core>,
    /// What the epoch before left.
    kept: Option<Core>,
    pub stream: Stream,
    /// On the way to the log.
    leaving: VecDeque<LogEntry>,
    /// Whether a log entry was lost on the way: the process notices that later, and ends.
    has_lost: bool,
    /// How far its clock is ahead: it jumps, forwards and back.
    skew_ms: u64,
}

pub(super) struct Simulation {
    seed: u64,
    pub dice: StdRng,
    pub now_ms: u64,
    pub log: Vec<LogEntry>,
    pub design: Design,
    /// The newest epoch of each site, and behind them epochs that were given up and do not know it.
    pub hosts: Vec<Host>,
    messages: Vec<(Site, Site, Message)>,
    pub transactions: BTreeMap<Ticket, Known>,
    /// What each session has seen, and the transaction that it waits for, at which host.
    pub sessions: Vec<(Position, Option<(Ticket, usize)>)>,
    pub next: Ticket,
    pub changes: usize,
    pub by_replicas: usize,
    /// Reads that were answered while the log was stalled, at a site that is ahead of it.
    pub in_stall: usize,
    /// What changes the design, instead of chance; what it did; and what sessions want meanwhile.
    pub planner: Option<Driver>,
    pub limited: Limited,
    pub wishes: Vec<Option<Wish>>,
    pub moves: Vec<Move>,
    /// Nothing new begins: sessions go on with what they want.
    pub is_ending: bool,
    /// The longest that a transaction took.
    pub waited_ms_max: u64,
    /// The outcomes of changes of design, and the prefix of the log that has the last one.
    pub steps: BTreeMap<Ticket, bool>,
    pub stepped: Position,
    bug: Option<Bug>,
    /// A place in the log at which all are to give parts of an image, those that some epoch of a host gave
    /// and that are not known to be all in the log, and the others.
    mark: Position,
    unfinished: Vec<(usize, Part)>,
    parts: Vec<Part>,
    image: Option<(Part, Vec<Snapshot>)>,
    pub images: usize,
    pub from_images: usize,
    pub from_kept: usize,
}

impl Simulation {
    pub(super) fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut this = Self {
            seed,
            dice: StdRng::seed_from_u64(seed),
            now_ms: 0,
            log: Vec::new(),
            design: Design::new(Site(0)),
            hosts: Vec::new(),
            messages: Vec::new(),
            transactions: BTreeMap::new(),
            sessions: vec![(Position(0), None); SESSIONS],
            next: 1,
            changes: 0,
            by_replicas: 0,
            in_stall: 0,
            planner: None,
            limited: Limited::default(),
            wishes: vec![None; SESSIONS],
            moves: Vec::new(),
            is_ending: false,
            waited_ms_max: 0,
            steps: BTreeMap::new(),
            stepped: Position(0),
            bug,
            mark: Position(0),
            unfinished: Vec::new(),
            parts: Vec::new(),
            image: None,
            images: 0,
            from_images: 0,
            from_kept: 0,
        };
        for site in (0..SITES).map(Site) {
            let (leaving, stream) = (VecDeque::new(), Stream::whole(Position(0)));
            let (epoch, core, kept, has_lost, skew_ms) = (Epoch(0), None, None, false, 0);
            this.hosts.push(Host { site, epoch, core, kept, stream, leaving, has_lost, skew_ms });
        }
        (0..SITES.into()).for_each(|at| this.begin(at));
        this
    }

    fn begin(&mut self, at: usize) {
        let site = self.hosts[at].site;
        self.hosts[at].epoch.0 += 1;
        self.hosts[at].has_lost = false;
        let epoch = self.hosts[at].epoch;
        if let Some(kept) = self.hosts[at].kept.take() {
            let known = kept.known();
            let mut design = Design::new(Site(0));
            let before = &self.log[..usize::try_from(known.0).unwrap()];
            before.iter().for_each(|entry| _ = design.follow(entry));
            self.hosts[at].stream = Stream::resumed(site, epoch, known, design);
            let mut core = kept.begin_epoch(site, epoch).subscribed();
            core.broken.bug = self.bug;
            self.hosts[at].core = Some(core);
            self.from_kept += 1;
            return self.tell(at, Input::Tick(self.clock_ms(at)));
        }
        let mut core = Core::new(site, epoch, Design::new(Site(0)));
        let (mut known, mut design) = (Position(0), Design::new(Site(0)));
        if self.dice.random_range(0..2) == 0
            && let Some((part, snapshots)) = &self.image
        {
            (known, design) = (part.known, part.design.clone());
            let image = Core::observer_of(known, design.clone(), snapshots.iter().cloned());
            core = image.map_err(|key| format!("{key:?}")).unwrap().begin_epoch(site, epoch);
            self.from_images += 1;
        }
        self.hosts[at].stream = match self.dice.random_range(0..4) {
            0 => Stream::whole(known),
            _ => Stream::subscribed(site, epoch, known, design),
        };
        if self.hosts[at].stream.is_subscribed() {
            core = core.subscribed();
        }
        core.broken.bug = self.bug;
        self.hosts[at].core = Some(core);
        self.tell(at, Input::Tick(self.clock_ms(at)));
    }

    pub(super) fn clock_ms(&self, at: usize) -> u64 {
        self.now_ms + self.hosts[at].skew_ms
    }

    pub(super) fn tell(&mut self, at: usize, input: Input) {
        let site = self.hosts[at].site;
        let Some(core) = &mut self.hosts[at].core else { return };
        for output in core.on(input) {
            match output {
                Output::Write(entry) => self.hosts[at].leaving.push_back(entry),
                Output::Say(to, message) => self.messages.push((site, to, message)),
                Output::Subscribe(request) => self.hosts[at].stream.request(request),
                Output::Answer(ticket, seen, answer) => self.answered(ticket, seen, answer),
                Output::Reroute(ticket, _) => {
                    self.answered(ticket, Position(0), Err(Abort::Elsewhere))
                }
            }
        }
        self.assemble(at);
    }

    /// Takes the part of a host that has come to the mark, and puts together what is complete.
    fn assemble(&mut self, at: usize) {
        let Some(core) = &self.hosts[at].core else { return };
        let has_part = self.unfinished.iter().any(|(host, _)| *host == at);
        if self.mark > Position(0) && core.known() == self.mark && !has_part {
            // A subscriber knows the versions of its own partitions only: the design is the router's.
            let design = || {
                let mut design = Design::new(Site(0));
                let before = &self.log[..usize::try_from(self.mark.0).unwrap()];
                before.iter().for_each(|entry| _ = design.follow(entry));
                design
            };
            if let Some(mut part) = core.part() {
                part.design = design();
                self.unfinished.push((at, part));
            }
        }
        let own = self.unfinished.extract_if(.., |(host, _)| *host == at);
        for (at, part) in own.collect::<Vec<_>>() {
            match core.has_all_of(&part) {
                Some(true) => self.parts.push(part),
                Some(false) => self.unfinished.push((at, part)),
                None => {}
            }
        }
        if let Some(snapshots) = crate::engine::complete(&self.parts) {
            self.image = Some((self.parts.swap_remove(0), snapshots));
            self.parts.clear();
            self.mark = Position(0);
            self.images += 1;
        }
    }

    fn answered(&mut self, ticket: Ticket, seen: Position, answer: Result<Done, Abort>) {
        let Some(known) = self.transactions.get_mut(&ticket) else {
            self.changes += usize::from(answer.is_ok());
            self.steps.insert(ticket, answer.is_ok());
            self.stepped = self.stepped.max(seen);
            return;
        };
        let number = known.session;
        let session = &mut self.sessions[known.session];
        session.1 = None;
        session.0 = session.0.max(seen);
        known.outcome = match answer {
            Ok(done) => {
                assert!(seen >= known.since && seen >= done.committed.unwrap_or(Position(0)));
                Outcome::Done(done, seen)
            }
            Err(Abort::Deposed) => Outcome::Deposed,
            Err(Abort::Unlogged) => Outcome::Unknown,
            Err(_) => Outcome::Nothing,
        };
        // What did not happen is tried again.
        if !matches!(known.outcome, Outcome::Nothing) {
            self.end_wish(number);
        }
    }

    fn append(&mut self, entry: LogEntry) {
        let before = self.planner.as_ref().map(|_| self.design.clone());
        let verdict = self.design.follow(&entry);
        if let (Some(before), Some(planner)) = (before, &self.planner)
            && let (Verdict::Counts, Body::Change(change)) = (verdict, &entry.body)
        {
            self.limited.note(self.now_ms, &before, &self.design, change, planner);
        }
        // Every other one as it is read from a file, or comes from another process.
        let entry = match self.dice.random_range(0..2) {
            0 => entry,
            _ => postcard::from_bytes(&postcard::to_stdvec(&entry).unwrap()).unwrap(),
        };
        self.log.push(entry);
    }

    pub(super) fn step(&mut self) {
        let at = self.dice.random_range(0..self.hosts.len());
        if self.planner.is_some() {
            self.now_ms += u64::from(self.dice.random_range(0..4) == 0);
        }
        match self.dice.random_range(0..1_000) {
            0..350 => {
                for _ in 0..self.dice.random_range(1..4) {
                    self.tell_next(at);
                }
            }
            350..550 => {
                if let Some(entry) = self.hosts[at].leaving.pop_front() {
                    match self.dice.random_range(0..400) {
                        // It is lost on the way, or arrives twice.
                        0 => self.hosts[at].has_lost = true,
                        1 => (0..2).for_each(|_| self.append(entry.clone())),
                        _ => self.append(entry),
                    }
                }
            }
            550..650 => self.pass_message(),
            650..880 => self.transact(),
            880..960 if self.planner.is_none() => self.change(),
            880..950 => self.adapt(),
            950..952 => self.pin(),
            952..960 => self.tick_all(),
            960..965 => {
                self.now_ms += self.dice.random_range(1..50);
                if self.dice.random_range(0..10) == 0 {
                    self.hosts[at].skew_ms = self.dice.random_range(0..=SKEW_MS_MAX);
                }
                self.tell(at, Input::Tick(self.clock_ms(at)));
            }
            965..970 => {
                let stalls = self.seed.is_multiple_of(3) && self.planner.is_none();
                let is_stalled = stalls && self.dice.random_range(0..3) > 0;
                self.tell(at, Input::Stalled(is_stalled));
            }
            // Every other planner has a quiet time.
            970..973 if self.planner.is_some() && self.is_quiet() => {}
            970..972 => self.crash(at),
            972..973 => self.fence(at),
            973..976 => {
                self.mark = Position(self.log.len() as u64);
                self.unfinished.clear();
                self.parts.clear();
            }
            _ => {
                if at < SITES.into() && self.hosts[at].core.as_ref().is_none_or(Core::is_over) {
                    self.begin(at);
                }
            }
        }
    }

    fn tell_next(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.core.is_some()
            && let Some(input) = host.stream.next(&self.log, self.bug, &mut self.dice)
        {
            self.tell(at, input);
        }
    }

    /// Whether all of the log, and all that was asked of a subscription, has arrived at a host.
    fn has_all(&self, at: usize) -> bool {
        let stream = &self.hosts[at].stream;
        stream.is_idle() && stream.sent() == Position(self.log.len() as u64)
    }

    fn pass_message(&mut self) {
        if self.messages.is_empty() {
            return;
        }
        let which = self.dice.random_range(0..self.messages.len());
        let fate = self.dice.random_range(0..100);
        let (from, to, message) = match fate {
            0..5 => self.messages[which].clone(),
            _ => self.messages.swap_remove(which),
        };
        if fate < 95 {
            self.tell(to.0.into(), Input::Said(from, message));
        }
    }

    /// A process dies with a part of what it wrote on the way; or it only seems so, and goes on beside
    /// the next one.
    fn crash(&mut self, at: usize) {
        if at < SITES.into() && self.dice.random_range(0..3) == 0 {
            let Host { site, epoch, skew_ms, .. } = self.hosts[at];
            let (leaving, stream) = (VecDeque::new(), Stream::whole(Position(0)));
            let (core, kept, has_lost) = (None, None, false);
            let next = Host { site, epoch, core, kept, stream, leaving, has_lost, skew_ms };
            let old = std::mem::replace(&mut self.hosts[at], next);
            self.hosts.push(old);
            let moved = self.hosts.len() - 1;
            for (_, host) in self.sessions.iter_mut().filter_map(|session| session.1.as_mut()) {
                if *host == at {
                    *host = moved;
                }
            }
            return;
        }
        let keeps = self.dice.random_range(0..=self.hosts[at].leaving.len());
        self.hosts[at].leaving.truncate(keeps);
        self.kill(at);
    }

    fn fence(&mut self, at: usize) {
        let site = self.hosts[at].site;
        let epoch = self.design.epoch(site);
        if epoch.has_begun() && !self.design.is_fenced(site) {
            self.append(LogEntry { by: Author { site, epoch, number: 0 }, body: Body::Fence });
        }
    }

    /// Whether a fault does not happen while a planner is at work: it needs a while without one.
    fn is_quiet(&mut self) -> bool {
        self.is_ending || self.seed.is_multiple_of(2) || self.dice.random_range(0..4) > 0
    }

    fn tick_all(&mut self) {
        for at in 0..self.hosts.len() {
            // A process whose log entries do not come back notices it.
            if mem::take(&mut self.hosts[at].has_lost) {
                self.kill(at);
            }
            self.tell(at, Input::Tick(self.clock_ms(at)));
        }
    }

    fn kill(&mut self, at: usize) {
        let core = self.hosts[at].core.take();
        // Its process lives on, and comes back with its rows; or it does not.
        let lives = self.dice.random_range(0..3) > 0;
        self.hosts[at].kept = core.filter(|_| lives).and_then(Core::into_retained);
        for session in &mut self.sessions {
            session.1.take_if(|(_, host)| *host == at);
        }
    }

    /// An operator pins a partition to a site that has it, or unpins it.
    fn pin(&mut self) {
        if self.is_ending {
            return;
        }
        let partition = self.design.of(&key(self.dice.random_range(0..KEYS))).clone();
        let sites: Vec<Site> = partition.sites().collect();
        let operator = match partition.pin {
            Some(_) => Operator::Unpin,
            None => Operator::Pin(sites[self.dice.random_range(0..sites.len())]),
        };
        let change = Change { start: partition.range.start, operator };
        _ = self.take_step(Step::Change(partition.master, change));
    }

    fn change(&mut self) {
        let design = self.design.clone();
        let n = self.dice.random_range(0..KEYS);
        let partition = design.of(&key(n));
        let start = partition.range.start.clone();
        let site = Site(self.dice.random_range(0..SITES));
        let ticket = self.next;
        self.next += 1;
        let operator = match self.dice.random_range(0..14) {
            0..2 => Operator::Split(key(n)),
            2..4 => Operator::Merge,
            4..9 => {
                let until_ms = self.clock_ms(site.0.into()) + PATIENCE_MS;
                return self.tell(site.0.into(), Input::InstallReplica(ticket, start, until_ms));
            }
            9 => Operator::RemoveReplica(site),
            10 => Operator::Pin(site),
            11 => Operator::Unpin,
            _ => Operator::Remaster(site),
        };
        let change = Change { start, operator };
        let master = partition.master.0.into();
        let until_ms = self.clock_ms(master) + PATIENCE_MS;
        self.tell(master, Input::Change(ticket, change, until_ms));
    }

    /// No more faults, until everything has arrived.
    pub(super) fn calm_down(&mut self) {
        self.now_ms += SKEW_MS_MAX;
        self.hosts.iter_mut().for_each(|host| host.skew_ms = 0);
        for host in self.hosts.iter_mut().filter(|host| host.has_lost) {
            host.core = None;
        }
        for _ in 0..50 {
            for at in 0..self.hosts.len() {
                while let Some(entry) = self.hosts[at].leaving.pop_front() {
                    self.append(entry);
                }
            }
            for at in 0..self.hosts.len() {
                if at < SITES.into() && self.hosts[at].core.as_ref().is_none_or(Core::is_over) {
                    self.begin(at);
                }
                while self.hosts[at].core.is_some() && !self.has_all(at) {
                    self.tell_next(at);
                }
                self.now_ms += 20;
                self.tell(at, Input::Stalled(false));
                self.tell(at, Input::Tick(self.clock_ms(at)));
            }
            for (from, to, message) in std::mem::take(&mut self.messages) {
                self.tell(to.0.into(), Input::Said(from, message));
            }
        }
    }
}
