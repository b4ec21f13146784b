//! The driver against targets that serve, hang or refuse: each due operation is sent, dropped or
//! recorded, and nothing else.

use std::time::Instant;

use super::*;
use crate::history::{Fate, Header, IdForm, Model};
use crate::target::{Insert, Outcome, Update};

/// The reaction of a test's target to every operation.
#[derive(Clone, Copy)]
enum Manner {
    Serve,
    Hang,
    Refuse,
}

struct Plain {
    manner: Manner,
    served: AtomicU64,
}

impl Plain {
    fn new(manner: Manner) -> Arc<Self> {
        Arc::new(Self { manner, served: AtomicU64::new(0) })
    }

    async fn serve(&self) -> Outcome {
        self.served.fetch_add(1, Ordering::SeqCst);
        match self.manner {
            Manner::Serve => Outcome::Acked,
            Manner::Hang => std::future::pending().await,
            Manner::Refuse => Outcome::Refused("writes are blocked".into()),
        }
    }
}

impl Target for Plain {
    async fn read(&self, _: u64) -> Outcome {
        self.serve().await
    }
    async fn insert(&self, _: Insert) -> Outcome {
        self.serve().await
    }
    async fn update(&self, _: Update) -> Outcome {
        self.serve().await
    }
    async fn delete(&self, _: u64) -> Outcome {
        self.serve().await
    }
    async fn scan(&self, _: u64, _: u32) -> Outcome {
        self.serve().await
    }
    fn label(&self) -> String {
        "a test".into()
    }
}

fn options(operations: u64) -> Options {
    Options {
        rate_per_s: 2000.0,
        arrival: Arrival::Uniform,
        duration: Some(Duration::from_micros(operations * 500 + 250)),
        preloaded: 100,
        ..Options::default()
    }
}

fn memory() -> Recorder {
    let header = Header {
        imago_history: Header::VERSION,
        preloaded: 100,
        reviews: Reviews::default(),
        id_form: IdForm::Text,
        model: Model::Documents,
        reads_are_current: false,
        namespace: String::new(),
        started_unix_ms: 0,
    };
    Recorder::memory(header, 100_000)
}

#[tokio::test]
async fn a_closed_load_has_as_many_in_flight_as_may_be_and_drops_nothing() {
    let options = Options { arrival: Arrival::Closed, in_flight_max: 16, ..options(200) };
    let running = start(options.clone(), Plain::new(Manner::Serve), memory()).unwrap();
    let (report, _) = running.finish().await.unwrap();
    assert_eq!((report.dropped, report.reads.tally.failed), (0, 0));
    assert!(report.started > 400, "{} at the rate of an open load would be 200", report.started);
    let running = start(options, Plain::new(Manner::Hang), memory()).unwrap();
    running.control().stop();
    assert!(running.control().snapshot().in_flight <= 16);
}

#[tokio::test]
async fn a_mix_turns_at_its_time() {
    let reads: Mix = "read=100".parse().unwrap();
    let turn = Duration::from_millis(500);
    let writes = "update=100".parse().unwrap();
    let options = Options { mix: writes, turns: vec![(turn, reads)], ..options(400) };
    let running = start(options.clone(), Plain::new(Manner::Serve), memory()).unwrap();
    let (_, history) = running.finish().await.unwrap();
    for op in history.unwrap().ops {
        let is_behind = u128::from(op.intended_ns) >= turn.as_nanos();
        assert_eq!(op.kind == Kind::Read, is_behind, "{op:?}");
    }
    let backwards = vec![(turn * 2, reads), (turn, reads)];
    let error = Options { turns: backwards, ..options }.validate().unwrap_err().to_string();
    assert!(error.contains("in their order"), "{error}");
}

#[tokio::test]
async fn every_operation_that_is_due_is_sent_and_recorded() {
    let running = start(options(400), Plain::new(Manner::Serve), memory()).unwrap();
    let (report, history) = running.finish().await.unwrap();
    assert_eq!(report.started + report.dropped, 400);
    assert_eq!(history.unwrap().recorded, report.started);
    assert_eq!(report.reads.tally.ok + report.writes.tally.ok, report.started);
}

#[tokio::test]
async fn write_numbers_are_used_once_and_follow_the_preloaded_ones() {
    let running = start(options(400), Plain::new(Manner::Serve), memory()).unwrap();
    let (_, history) = running.finish().await.unwrap();
    let mut seqs: Vec<u64> = history.unwrap().ops.iter().map(|op| op.seq).collect();
    seqs.sort_unstable();
    let expected: Vec<u64> = (100..100 + seqs.len() as u64).collect();
    assert_eq!(seqs, expected);
}

#[tokio::test]
async fn the_sequence_of_operations_follows_from_the_seed() {
    let sequence = async |seed| {
        let options = Options { seed, in_flight_max: 100_000, ..options(200) };
        let running = start(options, Plain::new(Manner::Serve), memory()).unwrap();
        let mut ops = running.finish().await.unwrap().1.unwrap().ops;
        ops.sort_by_key(|op| op.seq);
        ops.iter().map(|op| (op.kind, op.seq)).collect::<Vec<_>>()
    };
    assert_eq!(sequence(5).await, sequence(5).await);
    assert_ne!(sequence(5).await, sequence(6).await);
}

#[tokio::test]
async fn what_is_due_beyond_the_bound_in_flight_is_counted_as_dropped() {
    let options = Options { in_flight_max: 7, op_timeout: Duration::from_secs(2), ..options(100) };
    let running = start(options, Plain::new(Manner::Hang), memory()).unwrap();
    let (report, _) = running.finish().await.unwrap();
    assert_eq!((report.started, report.dropped, report.in_flight_peak), (7, 93, 7));
    assert_eq!(report.timeline.iter().map(|slot| slot.dropped).sum::<u64>(), 93);
}

#[tokio::test]
async fn an_operation_without_an_answer_may_have_been_applied() {
    let options = Options { op_timeout: Duration::from_millis(20), ..options(20) };
    let running = start(options, Plain::new(Manner::Hang), memory()).unwrap();
    let (report, history) = running.finish().await.unwrap();
    assert!(history.unwrap().ops.iter().all(|op| op.fate == Fate::Unknown));
    assert_eq!(report.failures[0].message, "no answer within 20ms");
}

#[tokio::test]
async fn a_refused_write_is_recorded_as_not_applied() {
    let running = start(options(50), Plain::new(Manner::Refuse), memory()).unwrap();
    let (report, history) = running.finish().await.unwrap();
    assert!(history.unwrap().ops.iter().all(|op| op.fate == Fate::Refused));
    assert_eq!(report.writes.tally.ok, 0);
    assert!(report.writes.longest_silence.lasted_us >= 25_000);
}

/// Waits until something holds, with a bound that only a driver that stands still reaches.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn after_a_switch_operations_go_to_the_new_target() {
    let (old, new) = (Plain::new(Manner::Serve), Plain::new(Manner::Serve));
    let options = Options { duration: None, ..options(1) };
    let running = start(options, Arc::clone(&old), memory()).unwrap();
    let control = running.control();
    until("the old one is used", || control.snapshot().started >= 50).await;
    let at_ms = control.switch(Arc::clone(&new));
    until("the new one is used", || new.served.load(Ordering::SeqCst) >= 50).await;
    control.stop();
    let (report, history) = running.finish().await.unwrap();
    assert_eq!(report.targets.len(), 2);
    assert_eq!(report.targets[1].at_ms, at_ms);
    let ops = history.unwrap().ops;
    let first_new = ops.iter().filter(|op| op.target == 1).map(|op| op.start_ns).min().unwrap();
    let late = ops.iter().filter(|op| op.target == 0 && op.start_ns / 1_000_000 > at_ms).count();
    assert!(first_new / 1_000_000 <= at_ms + 1000 && late == 0);
}

#[tokio::test]
async fn a_full_history_ends_the_load_with_an_error() {
    let header = Header {
        imago_history: Header::VERSION,
        preloaded: 100,
        reviews: Reviews::default(),
        id_form: IdForm::Text,
        model: Model::Documents,
        reads_are_current: false,
        namespace: String::new(),
        started_unix_ms: 0,
    };
    let running =
        start(options(4000), Plain::new(Manner::Serve), Recorder::memory(header, 5)).unwrap();
    let error = running.finish().await.unwrap_err();
    assert!(matches!(error, DriverError::Recorder(RecorderError::MemoryFull(5))));
}

#[test]
fn a_load_without_anything_to_work_on_is_refused() {
    let options = Options { preloaded: 0, mix: "read=1".parse().unwrap(), ..Options::default() };
    assert!(matches!(options.validate(), Err(DriverError::Option(_))));
}
