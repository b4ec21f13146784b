//! Runs on a journal in a file, steered as another process would steer them.

use super::*;
use crate::file::FileJournal;
use crate::journal::Request;
use crate::record::Limits;

const TIMING: OwnerTiming = OwnerTiming {
    heartbeat: Duration::from_millis(10),
    stale_after: Duration::from_secs(60),
    gives_up_after: Duration::from_secs(60),
};

struct Bench {
    journal: Arc<dyn Journal>,
    id: JobId,
    events: Events,
    _directory: tempfile::TempDir,
}

impl Bench {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let journal: Arc<dyn Journal> = Arc::new(FileJournal::open(directory.path()).unwrap());
        let record = Record::new("test", Value::Null, 1);
        journal.create(&record).await.unwrap();
        let events = Events::default();
        Self { journal, id: record.id, events, _directory: directory }
    }

    async fn begin(&self) -> Run {
        self.begin_with(CancellationToken::new()).await
    }

    async fn begin_with(&self, interrupted: CancellationToken) -> Run {
        let journal = Arc::clone(&self.journal);
        Run::begin(journal, &self.id, "host/1", TIMING, &self.events, interrupted).await.unwrap()
    }

    async fn request(&self, request: Request) {
        self.journal.request(&self.id, &request).await.unwrap();
    }

    async fn control(&self, wanted: Requested) {
        self.request(Request::Control(wanted)).await;
    }

    async fn state(&self) -> State {
        self.journal.load(&self.id).await.unwrap().state
    }

    /// Waits, with a bound that only a broken heartbeat reaches.
    async fn until(&self, state: State) {
        let reached = async {
            while self.state().await != state {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reached).await.unwrap();
    }
}

fn running(phase: &str) -> State {
    State::Running { phase: phase.to_owned() }
}

fn paused(phase: &str) -> State {
    State::Paused { phase: phase.to_owned() }
}

#[tokio::test]
async fn a_run_goes_from_its_claim_to_done() {
    let bench = Bench::new().await;
    let run = bench.begin().await;
    run.enter("copy").await.unwrap();
    run.save(Value::from(7)).await.unwrap();
    run.end(Ending::Done).await.unwrap();
    let record = bench.journal.load(&bench.id).await.unwrap();
    assert_eq!((record.state, record.checkpoint), (State::Done, Value::from(7)));
    assert_eq!(record.owner, None);
}

#[tokio::test]
async fn a_pause_from_another_process_holds_the_operation_and_is_persisted() {
    let bench = Bench::new().await;
    let run = bench.begin().await;
    run.enter("copy").await.unwrap();
    bench.control(Requested::Pause).await;
    bench.until(paused("copy")).await;
    let control = run.control().clone();
    let step = tokio::spawn(async move { control.checkpoint().await });
    assert!(!step.is_finished());
    bench.control(Requested::Run).await;
    assert_eq!(step.await.unwrap(), Ok(()));
    bench.until(running("copy")).await;
}

#[tokio::test]
async fn a_cancel_from_another_process_ends_the_operation() {
    let bench = Bench::new().await;
    let run = bench.begin().await;
    run.enter("copy").await.unwrap();
    bench.control(Requested::Cancel).await;
    let ended = run.control().sleep(Duration::from_secs(60)).await;
    assert_eq!(ended, Err(Stop::Cancelled));
    run.end(Ending::Stopped(Stop::Cancelled)).await.unwrap();
    assert_eq!(bench.state().await, State::Cancelled);
}

#[tokio::test]
async fn limits_from_another_process_reach_the_throttle() {
    let bench = Bench::new().await;
    let run = bench.begin().await;
    let limits = Limits { bytes_s: Some(5), ..Limits::default() };
    bench.request(Request::Limits(limits)).await;
    let reached = async {
        while run.control().throttle().limits() != limits {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached).await.unwrap();
}

#[tokio::test]
async fn a_takeover_stops_the_run_and_nothing_more_is_saved() {
    let bench = Bench::new().await;
    let run = bench.begin().await;
    run.enter("copy").await.unwrap();
    bench.journal.claim(&bench.id, "host/2", 0).await.unwrap();
    let ended = run.control().sleep(Duration::from_secs(60)).await;
    assert!(matches!(ended, Err(Stop::TakenOver(_))), "{ended:?}");
    assert!(matches!(run.save(Value::from(1)).await, Err(RunError::Stopped(_))));
    assert_eq!(bench.journal.load(&bench.id).await.unwrap().checkpoint, Value::Null);
}

#[tokio::test]
async fn an_interrupted_job_is_resumed_in_its_phase_at_once() {
    let bench = Bench::new().await;
    let interrupted = CancellationToken::new();
    let run = bench.begin_with(interrupted.clone()).await;
    run.enter("copy").await.unwrap();
    interrupted.cancel();
    assert_eq!(run.control().checkpoint().await, Err(Stop::Interrupted));
    run.end(Ending::Stopped(Stop::Interrupted)).await.unwrap();
    let again = bench.begin().await;
    assert_eq!(again.record().state, running("copy"));
    assert!(again.epoch() > run.epoch());
}

#[tokio::test]
async fn a_job_that_was_paused_when_its_process_died_goes_on_when_asked() {
    let bench = Bench::new().await;
    let run = bench.begin().await;
    run.enter("copy").await.unwrap();
    bench.control(Requested::Pause).await;
    bench.until(paused("copy")).await;
    run.end(Ending::Stopped(Stop::Interrupted)).await.unwrap();
    bench.control(Requested::Run).await;
    let again = bench.begin().await;
    again.enter("connect").await.unwrap();
    assert_eq!(bench.state().await, running("connect"));
}

#[tokio::test]
async fn what_ends_while_paused_is_done() {
    let bench = Bench::new().await;
    let run = bench.begin().await;
    run.enter("copy").await.unwrap();
    bench.control(Requested::Pause).await;
    bench.until(paused("copy")).await;
    run.end(Ending::Done).await.unwrap();
    assert_eq!(bench.state().await, State::Done);
}

#[tokio::test]
async fn a_journal_that_is_gone_stops_the_run() {
    let bench = Bench::new().await;
    let silent = Duration::from_millis(200);
    let timing = OwnerTiming { stale_after: silent, gives_up_after: silent, ..TIMING };
    let journal = Arc::clone(&bench.journal);
    let token = CancellationToken::new();
    let run = Run::begin(journal, &bench.id, "p", timing, &bench.events, token).await.unwrap();
    std::fs::remove_dir_all(bench._directory.path()).unwrap();
    let ended = run.control().sleep(Duration::from_secs(60)).await;
    assert!(matches!(ended, Err(Stop::JournalLost(_))), "{ended:?}");
}

#[tokio::test]
async fn the_stream_tells_the_whole_run() {
    let bench = Bench::new().await;
    let mut subscription = bench.events.subscribe();
    let run = bench.begin().await;
    run.enter("copy").await.unwrap();
    run.enter("replay").await.unwrap();
    run.end(Ending::Failed("no space".to_owned())).await.unwrap();
    let said: Vec<Body> =
        std::iter::from_fn(|| subscription.try_next()).map(|event| event.body).collect();
    let phase = |from: Option<&str>, to: &str| Body::Phase {
        from: from.map(str::to_owned),
        to: to.to_owned(),
    };
    let failed = Body::Failed { error: "no space".to_owned() };
    assert_eq!(said, [phase(None, "copy"), phase(Some("copy"), "replay"), failed]);
}
