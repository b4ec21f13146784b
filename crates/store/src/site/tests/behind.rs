//! A transaction that its client sent behind another one, without waiting for its answer.

use super::*;
use crate::key::Table;
use crate::record::Operator;
use crate::sampler::Cause;

/// Two sites, the log between them, and what they answered.
struct Pair {
    cores: [Core; 2],
    /// What was written and is not in the log yet.
    leaving: Vec<LogEntry>,
    next: Position,
    answered: Vec<Ticket>,
}

impl Pair {
    fn new() -> Self {
        let core = |n| Core::new(Site(n), Epoch(1), Design::new(Site(0)));
        let cores = [core(0), core(1)];
        let mut pair = Self { cores, leaving: Vec::new(), next: Position(1), answered: Vec::new() };
        for site in 0..2 {
            pair.tell(site, Input::Tick(1));
        }
        pair.log();
        pair
    }

    fn tell(&mut self, site: usize, input: Input) {
        for output in self.cores[site].on(input) {
            match output {
                Output::Write(entry) => self.leaving.push(entry),
                Output::Answer(ticket, _, answer) => {
                    assert!(answer.is_ok(), "{ticket}: {answer:?}");
                    self.answered.push(ticket);
                }
                Output::Subscribe(_) => panic!("it receives the whole log"),
                Output::Reroute(ticket, _) => panic!("{ticket} came back"),
                Output::Say(to, message) => {
                    let from = Site(u16::try_from(site).expect("two"));
                    self.tell(usize::from(to.0), Input::Said(from, message));
                }
            }
        }
    }

    /// The log has what was written, until nothing is.
    fn log(&mut self) {
        for _ in 0..100 {
            if !self.log_once() {
                return;
            }
        }
        panic!("the sites write without an end");
    }

    /// The log has what was written, if anything was.
    fn log_once(&mut self) -> bool {
        let entries: Arc<[LogEntry]> = mem::take(&mut self.leaving).into();
        if entries.is_empty() {
            return false;
        }
        for site in 0..2 {
            self.tell(site, Input::Logged(self.next, Arc::clone(&entries)));
        }
        self.next += entries.len() as u64;
        true
    }

    fn transact(&mut self, ticket: Ticket, client: u64, reads: Vec<KeyRange>, writes: Vec<Key>) {
        let written = writes.clone();
        let procedure = move |view: &mut crate::transaction::View<'_>| {
            written.iter().try_for_each(|key| view.put(key, Arc::from(*b"x")))?;
            Ok(Vec::new())
        };
        let client = Some(client);
        let transaction = Transaction {
            reads,
            writes,
            session: Position(0),
            client,
            at_masters: false,
            is_distributed: false,
            output: None,
            procedure: Box::new(procedure),
        };
        self.tell(0, Input::Transact(ticket, transaction, 1_000));
    }
}

#[test]
fn a_read_of_replicas_waits_for_what_its_client_wrote_before_it() {
    let key = |row: &[u8]| Key::new(Table(0), row);
    let mut pair = Pair::new();
    let change = |operator| Change { start: key(b"m"), operator };
    let split = Change { start: Key::least(), operator: Operator::Split(key(b"m")) };
    pair.tell(0, Input::Change(1, split, 1_000));
    pair.log();
    pair.tell(1, Input::InstallReplica(2, key(b"m"), 1_000));
    pair.log();
    pair.tell(0, Input::Change(3, change(Operator::Remaster(Site(1))), 1_000));
    pair.log();
    assert_eq!(pair.answered, [1, 2, 3]);
    assert_eq!(pair.cores[0].design.of(&key(b"z")).master, Site(1));

    let replicated = || vec![KeyRange::only(&key(b"z"))];
    pair.transact(4, 7, Vec::new(), vec![key(b"a")]);
    pair.transact(5, 7, replicated(), Vec::new());
    pair.transact(6, 8, replicated(), Vec::new());
    assert_eq!(pair.answered[3..], [6], "only another client's prefix may be that of before");
    assert_eq!(pair.cores[0].lag_entries(Position(0)), 1, "its own entry");
    pair.log();
    assert_eq!(pair.answered[4..], [4, 5]);
    let woken = |ticket, cause, rows| ResumedTransaction { ticket, cause, rows };
    assert_eq!(pair.cores[0].resumed(), [woken(5, Cause::Updates, (0, 0))]);

    // Its reads of its own partition lock that until the log has the site's entries there.
    let both = || vec![KeyRange::only(&key(b"a")), KeyRange::only(&key(b"z"))];
    pair.transact(7, 8, Vec::new(), vec![key(b"b")]);
    pair.transact(8, 9, both(), Vec::new());
    pair.transact(9, 10, Vec::new(), vec![key(b"c")]);
    assert!(pair.log_once());
    let written = woken(9, Cause::Partition, (0, 1));
    assert_eq!(pair.cores[0].resumed(), [woken(8, Cause::Updates, (0, 0)), written]);
}

#[test]
fn who_waits_long_for_what_its_session_saw_is_sent_to_the_master_and_once_only() {
    let mut pair = Pair::new();
    let site = &mut pair.cores[0];
    let ahead = Transaction {
        reads: vec![KeyRange::everything()],
        writes: Vec::new(),
        session: Position(1_000),
        client: Some(1),
        at_masters: false,
        is_distributed: false,
        output: None,
        procedure: Box::new(|_: &mut crate::transaction::View<'_>| Ok(Vec::new())),
    };
    assert!(site.on(Input::Transact(1, ahead, 5_000)).is_empty());
    assert!(site.on(Input::Tick(BEHIND_MS_MAX)).is_empty(), "it is not long yet");
    let mut outputs = site.on(Input::Tick(BEHIND_MS_MAX + 1));
    let Some(Output::Reroute(1, again)) = outputs.pop() else { panic!("it does not come back") };
    assert!(again.at_masters && outputs.is_empty());
    assert!(site.on(Input::Transact(2, again, 5_000)).is_empty());
    assert!(site.on(Input::Tick(4_999)).is_empty(), "there is nowhere else for it");
    let late = site.on(Input::Tick(5_000));
    assert!(matches!(late[..], [Output::Answer(2, _, Err(Abort::Late))]));
}
