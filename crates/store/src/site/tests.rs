//! Sites, a log and clients in one seeded simulation: messages are late, lost, doubled and out of
//! order, sites die with what they had not written yet, come back, or are given up for dead while
//! they live. Whatever was answered has to be one history under strong-session snapshot isolation.

use std::collections::{BTreeMap, HashMap};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const SITES: u16 = 4;
const KEYS: u8 = 12;
const SESSIONS: usize = 5;
/// Longer than messages take, shorter than a run.
const PATIENCE_MS: u64 = 300;

fn key(n: u8) -> Key {
    if n == 0 { Key::least() } else { Key::from_bytes(&[n]) }
}

/// What may be broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// Replicas are read beside own commits that the log has not shown yet.
    SnapshotAheadOfLog,
    /// What a session has seen is not waited for.
    SessionIgnored,
    /// Answers are given before the log has what they tell.
    AnswerAheadOfLog,
    /// A partition is written while its design changes.
    LockIgnored,
    /// A replica gets rows that the log may never have.
    GivenAheadOfLog,
    /// A replica is written into the log although its partition has changed since.
    ChangeUnnoticed,
}

/// What a client knows of one of its transactions.
struct Known {
    session: usize,
    /// What the session had seen before.
    since: Position,
    writes: Vec<Key>,
    outcome: Outcome,
}

enum Outcome {
    Unknown,
    Nothing,
    Done(Done),
}

struct Host {
    epoch: u64,
    core: Option<Core>,
    /// How much of the log it was told.
    told: Position,
    /// On the way to the log.
    leaving: VecDeque<Frame>,
}

struct Simulation {
    dice: StdRng,
    now_ms: u64,
    log: Vec<Frame>,
    design: Design,
    hosts: Vec<Host>,
    messages: Vec<(Site, Site, Message)>,
    transactions: BTreeMap<Ticket, Known>,
    /// What each session has seen, and the transaction that it waits for, at which host.
    sessions: Vec<(Position, Option<(Ticket, usize)>)>,
    next: Ticket,
    changes: usize,
    by_replicas: usize,
    bug: Option<Bug>,
}

impl Simulation {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut this = Self {
            dice: StdRng::seed_from_u64(seed),
            now_ms: 0,
            log: Vec::new(),
            design: Design::new(Site(0)),
            hosts: Vec::new(),
            messages: Vec::new(),
            transactions: BTreeMap::new(),
            sessions: vec![(0, None); SESSIONS],
            next: 1,
            changes: 0,
            by_replicas: 0,
            bug,
        };
        for _ in 0..SITES {
            this.hosts.push(Host { epoch: 0, core: None, told: 0, leaving: VecDeque::new() });
        }
        (0..SITES.into()).for_each(|at| this.begin(at));
        this
    }

    fn begin(&mut self, at: usize) {
        let site = Site(u16::try_from(at).unwrap());
        self.hosts[at].epoch += 1;
        self.hosts[at].told = 0;
        let mut core = Core::new(site, self.hosts[at].epoch, Design::new(Site(0)));
        core.broken = self.bug;
        self.hosts[at].core = Some(core);
        self.tell(at, Input::Tick(self.now_ms));
    }

    fn tell(&mut self, at: usize, input: Input) {
        let Some(core) = &mut self.hosts[at].core else { return };
        let site = Site(u16::try_from(at).unwrap());
        for output in core.on(input) {
            match output {
                Output::Write(frame) => self.hosts[at].leaving.push_back(frame),
                Output::Say(to, message) => self.messages.push((site, to, message)),
                Output::Answer(ticket, answer) => self.answered(ticket, answer),
            }
        }
    }

    fn answered(&mut self, ticket: Ticket, answer: Result<Done, Abort>) {
        let Some(known) = self.transactions.get_mut(&ticket) else {
            self.changes += usize::from(answer.is_ok());
            return;
        };
        let session = &mut self.sessions[known.session];
        session.1 = None;
        known.outcome = match answer {
            Ok(done) => {
                assert!(done.session >= session.0 && done.session >= done.committed.unwrap_or(0));
                session.0 = done.session;
                Outcome::Done(done)
            }
            Err(Abort::Deposed) => Outcome::Unknown,
            Err(_) => Outcome::Nothing,
        };
    }

    fn append(&mut self, frame: Frame) {
        self.design.follow(&frame);
        self.log.push(frame);
    }

    fn step(&mut self) {
        let at = self.dice.random_range(0..self.hosts.len());
        match self.dice.random_range(0..1_000) {
            0..350 => {
                for _ in 0..self.dice.random_range(1..4) {
                    self.tell_next(at);
                }
            }
            350..550 => {
                if let Some(frame) = self.hosts[at].leaving.pop_front() {
                    self.append(frame);
                }
            }
            550..650 => self.pass_message(),
            650..880 => self.transact(),
            880..960 => self.change(),
            960..970 => {
                self.now_ms += self.dice.random_range(1..50);
                self.tell(at, Input::Tick(self.now_ms));
            }
            970..972 => self.crash(at),
            972..973 => self.fence(at),
            _ => {
                if self.hosts[at].core.as_ref().is_none_or(Core::is_over) {
                    self.begin(at);
                }
            }
        }
    }

    fn tell_next(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        let next = usize::try_from(host.told).unwrap();
        if host.core.is_some()
            && let Some(frame) = self.log.get(next)
        {
            host.told += 1;
            let input = Input::Logged(host.told, frame.clone());
            self.tell(at, input);
        }
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

    fn crash(&mut self, at: usize) {
        let keeps = self.dice.random_range(0..=self.hosts[at].leaving.len());
        for frame in std::mem::take(&mut self.hosts[at].leaving).into_iter().take(keeps) {
            self.append(frame);
        }
        self.hosts[at].core = None;
        for session in &mut self.sessions {
            session.1.take_if(|(_, host)| *host == at);
        }
    }

    fn fence(&mut self, at: usize) {
        let site = Site(u16::try_from(at).unwrap());
        let epoch = self.design.epoch(site);
        if epoch > 0 && !self.design.is_fenced(site) {
            self.append(Frame { by: Author { site, epoch, number: 0 }, body: Body::Fence });
        }
    }

    fn change(&mut self) {
        let design = self.design.clone();
        let n = self.dice.random_range(0..KEYS);
        let partition = design.of(&key(n));
        let start = partition.range.start.clone();
        let site = Site(self.dice.random_range(0..SITES));
        let ticket = self.next;
        self.next += 1;
        let until_ms = self.now_ms + PATIENCE_MS;
        let operator = match self.dice.random_range(0..12) {
            0..2 => Operator::Split(key(n)),
            2..4 => Operator::Merge,
            4..9 => return self.tell(site.0.into(), Input::Adopt(ticket, start, until_ms)),
            9 => Operator::RemoveReplica(site),
            _ => Operator::Remaster(site),
        };
        let change = Change { start, operator };
        self.tell(partition.master.0.into(), Input::Change(ticket, change, until_ms));
    }

    fn transact(&mut self) {
        let session = self.dice.random_range(0..SESSIONS);
        let (since, pending) = self.sessions[session];
        if pending.is_some() {
            return;
        }
        let ticket = self.next;
        self.next += 1;
        let some = |dice: &mut StdRng, most: usize| -> Vec<Key> {
            let many = dice.random_range(0..=most);
            (0..many).map(|_| key(dice.random_range(0..KEYS))).collect()
        };
        let mut writes = some(&mut self.dice, 2);
        writes.sort();
        writes.dedup();
        let mut reads: Vec<KeyRange> = some(&mut self.dice, 3).iter().map(KeyRange::only).collect();
        if self.dice.random_range(0..5) == 0 {
            let (from, to) = (self.dice.random_range(0..KEYS), self.dice.random_range(0..KEYS));
            reads.push(KeyRange { start: key(from.min(to)), end: Some(key(from.max(to) + 1)) });
        }
        let fits = |site: Site| {
            writes.iter().all(|key| self.design.of(key).master == site)
                && reads.iter().flat_map(|range| self.design.within(range)).all(|p| p.is_at(site))
        };
        let fitting: Vec<u16> = (0..SITES).filter(|site| fits(Site(*site))).collect();
        let at = match fitting.as_slice() {
            [] => self.dice.random_range(0..SITES),
            sites => sites[self.dice.random_range(0..sites.len())],
        };
        if self.hosts[usize::from(at)].core.is_none() {
            return;
        }
        let has_replica = fits(Site(at)) && {
            let mut read = reads.iter().flat_map(|range| self.design.within(range));
            read.any(|partition| partition.master != Site(at))
        };
        self.by_replicas += usize::from(has_replica);
        let deletes = self.dice.random_range(0..6) == 0;
        let (declared, ranges) = (writes.clone(), reads.clone());
        let procedure = move |view: &mut View<'_>| {
            let mut seen = Vec::new();
            for key in &declared {
                let range = KeyRange::only(key);
                seen.push((range, view.get(key)?.map(|seen| (key.clone(), seen.value))));
            }
            let mut answer = Vec::new();
            let mut tell = |range: &KeyRange, rows: &[(Key, Arc<[u8]>)]| {
                let bytes = |key: &Key| {
                    [&[u8::try_from(key.as_bytes().len()).unwrap()], key.as_bytes()].concat()
                };
                answer.extend(bytes(&range.start));
                answer.extend(bytes(range.end.as_ref().unwrap()));
                answer.push(u8::try_from(rows.len()).unwrap());
                for (key, value) in rows {
                    answer.extend(bytes(key));
                    answer.extend(value.iter());
                }
            };
            for (range, row) in &seen {
                tell(range, row.as_slice());
            }
            for range in &ranges {
                let rows = view.range(range, usize::MAX)?;
                let rows: Vec<_> = rows.into_iter().map(|(key, seen)| (key, seen.value)).collect();
                tell(range, &rows);
            }
            for key in &declared {
                match deletes {
                    true => view.delete(key)?,
                    false => view.put(key, ticket.to_be_bytes().as_slice().into())?,
                }
            }
            Ok(answer)
        };
        let outcome = Outcome::Unknown;
        self.transactions.insert(ticket, Known { session, since, writes: writes.clone(), outcome });
        self.sessions[session].1 = Some((ticket, at.into()));
        let transaction =
            Transaction { reads, writes, session: since, procedure: Box::new(procedure) };
        self.tell(at.into(), Input::Transact(ticket, transaction, self.now_ms + PATIENCE_MS));
    }

    /// No more faults, until everything has arrived.
    fn calm_down(&mut self) {
        for _ in 0..50 {
            for at in 0..self.hosts.len() {
                while let Some(frame) = self.hosts[at].leaving.pop_front() {
                    self.append(frame);
                }
            }
            for at in 0..self.hosts.len() {
                if self.hosts[at].core.as_ref().is_none_or(Core::is_over) {
                    self.begin(at);
                }
                while self.hosts[at].told < self.log.len() as u64 {
                    self.tell_next(at);
                }
                self.now_ms += 20;
                self.tell(at, Input::Tick(self.now_ms));
            }
            for (from, to, message) in std::mem::take(&mut self.messages) {
                self.tell(to.0.into(), Input::Said(from, message));
            }
        }
    }

    fn check(&self) -> Tally {
        // What the log says of each key, and the prefix at which it says so.
        let mut design = Design::new(Site(0));
        let mut history: BTreeMap<Key, Vec<(Position, Option<Arc<[u8]>>)>> = BTreeMap::new();
        let mut commits: HashMap<Position, &[Write]> = HashMap::new();
        for (position, frame) in (1..).zip(&self.log) {
            if let (Verdict::Counts, Body::Commit(writes)) = (design.follow(frame), &frame.body) {
                commits.insert(position, writes);
                for (key, value) in writes.iter().flat_map(|write| &write.rows) {
                    history.entry(key.clone()).or_default().push((position, value.clone()));
                }
            }
        }
        let end = self.log.len() as Position;
        let at = |key: &Key, prefix: Position| {
            let writes = history.get(key)?;
            let before = writes.partition_point(|(position, _)| *position <= prefix);
            writes[..before].last().and_then(|(_, value)| value.clone())
        };
        let mut seen = Tally::default();
        for (ticket, known) in &self.transactions {
            let Outcome::Done(done) = &known.outcome else { continue };
            seen.done += 1;
            let reads = parse(&done.answer);
            let last = done.committed.map_or(end, |committed| committed - 1);
            let is_state = |prefix: Position| {
                reads.iter().all(|(range, rows)| {
                    let keys = history.keys().filter(|key| range.contains(key));
                    let state: Vec<_> = keys
                        .filter_map(|key| at(key, prefix).map(|value| (key.clone(), value)))
                        .collect();
                    state == *rows
                }) && known.writes.iter().all(|key| {
                    let writes = history.get(key).map_or(&[][..], Vec::as_slice);
                    let between = |(position, _): &(Position, _)| {
                        *position > prefix && done.committed.is_some_and(|at| *position < at)
                    };
                    !writes.iter().any(between)
                })
            };
            let snapshot = (known.since..=last.min(done.session)).rev().find(|at| is_state(*at));
            assert!(
                snapshot.is_some(),
                "transaction {ticket} saw no state of the database: {reads:?}, \
                since {}, {:?}, session {}",
                known.since,
                done.committed,
                done.session
            );
            assert_eq!(done.committed.is_some(), !known.writes.is_empty());
            if let Some(committed) = done.committed {
                seen.committed += 1;
                let rows = commits.get(&committed).expect("what was acknowledged is in the log");
                let written: Vec<&Key> =
                    rows.iter().flat_map(|write| &write.rows).map(|(key, _)| key).collect();
                assert_eq!(written, known.writes.iter().collect::<Vec<_>>());
            }
        }
        for (at_host, host) in self.hosts.iter().enumerate() {
            let core = host.core.as_ref().expect("all are back");
            assert!(core.is_live() && core.known == end && core.design == design);
            let site = Site(u16::try_from(at_host).unwrap());
            let here = || design.partitions().filter(|partition| partition.is_at(site));
            assert!(core.copies.keys().eq(here().map(|partition| &partition.range.start)));
            for partition in here() {
                let copy = &core.copies[&partition.range.start];
                assert_eq!(copy.version, partition.version);
                let keys = history.keys().filter(|key| partition.range.contains(key));
                let state = keys.filter_map(|key| at(key, end).map(|value| (key.clone(), value)));
                let rows = copy.rows.iter().map(|(key, row)| (key.clone(), Arc::clone(&row.value)));
                assert!(rows.eq(state));
            }
            seen.replicas += core.copies.len();
        }
        seen.changes = self.changes;
        seen.by_replicas = self.by_replicas;
        seen.partitions = design.partitions().count();
        seen
    }
}

/// What a run did, lest it did nothing.
#[derive(Debug, Default)]
struct Tally {
    done: usize,
    by_replicas: usize,
    committed: usize,
    changes: usize,
    partitions: usize,
    replicas: usize,
}

fn parse(mut answer: &[u8]) -> Vec<(KeyRange, Vec<(Key, Arc<[u8]>)>)> {
    fn take<'a>(from: &mut &'a [u8], many: usize) -> &'a [u8] {
        let (taken, rest) = from.split_at(many);
        *from = rest;
        taken
    }
    fn take_key(from: &mut &[u8]) -> Key {
        let many = take(from, 1)[0];
        Key::from_bytes(take(from, many.into()))
    }
    let mut reads = Vec::new();
    while !answer.is_empty() {
        let (start, end) = (take_key(&mut answer), take_key(&mut answer));
        let many = take(&mut answer, 1)[0];
        let rows =
            (0..many).map(|_| (take_key(&mut answer), take(&mut answer, 8).into())).collect();
        reads.push((KeyRange { start, end: Some(end) }, rows));
    }
    reads
}

fn run(seed: u64, bug: Option<Bug>) -> Tally {
    let mut simulation = Simulation::new(seed, bug);
    for _ in 0..3_000 {
        simulation.step();
    }
    simulation.calm_down();
    simulation.check()
}

fn seeds(many: u64) -> std::ops::Range<u64> {
    let wanted = |name| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    match wanted("IMAGO_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..wanted("IMAGO_SEEDS").unwrap_or(many),
    }
}

#[test]
fn every_history_is_one_under_snapshot_isolation() {
    let mut all = Tally::default();
    let seeds = seeds(200);
    let runs = usize::try_from(seeds.end - seeds.start).unwrap();
    for seed in seeds {
        let tally = std::panic::catch_unwind(|| run(seed, None));
        let tally = tally.unwrap_or_else(|_| panic!("IMAGO_SEED={seed} repeats it"));
        all.done += tally.done;
        all.by_replicas += tally.by_replicas;
        all.committed += tally.committed;
        all.changes += tally.changes;
        all.partitions += tally.partitions;
        all.replicas += tally.replicas;
    }
    eprintln!("{all:?}");
    // A simulation in which nothing happens shows nothing.
    assert!(all.done > 50 * runs && all.committed > 20 * runs && all.changes > 5 * runs);
    assert!(runs == 1 || all.by_replicas > 2 * runs && all.replicas > all.partitions);
}

#[test]
fn what_is_broken_on_purpose_is_noticed() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let bugs = [
        Bug::SnapshotAheadOfLog,
        Bug::SessionIgnored,
        Bug::AnswerAheadOfLog,
        Bug::LockIgnored,
        Bug::GivenAheadOfLog,
        Bug::ChangeUnnoticed,
    ];
    let noticed = bugs.map(|bug| {
        (0..500).find(|seed| std::panic::catch_unwind(|| run(*seed, Some(bug))).is_err())
    });
    std::panic::set_hook(hook);
    let all: Vec<_> = bugs.iter().zip(noticed).collect();
    assert!(all.iter().all(|(_, seed)| seed.is_some()), "{all:?}");
}
