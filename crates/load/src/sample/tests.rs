//! Tests of the measurements with an in-memory database that counts its calls: which are made, in which order, and
//! which are not repeated.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use imago_workload::target::{Insert, Outcome, Update};

use imago_plan::tune::switchback::BLOCKS_MIN;
use imago_tune::cluster::Error;

use super::compare::{Bounds, EndedBy, Verdict, compare};
use super::series::{Rounds, run};
use super::*;

/// Configuration after which an operation of the in-memory database takes longer, and that time.
const SLOW: usize = 1;
const SLOW_TIME: Duration = Duration::from_millis(4);

/// A target that answers every operation at once; of a slow configuration after a time. Its reads find nothing if `finds` is
/// false.
#[derive(Debug)]
struct Answers {
    finds: bool,
    /// Number of the configuration that the database has; `None` if all are alike.
    present: Option<Arc<AtomicUsize>>,
}

impl Answers {
    async fn served(&self) {
        tokio::time::sleep(match &self.present {
            Some(present) if present.load(Ordering::SeqCst) == SLOW => SLOW_TIME,
            Some(_) => SLOW_TIME / 4,
            None => return tokio::task::yield_now().await,
        })
        .await;
    }
}

impl Target for Answers {
    async fn read(&self, key: u64) -> Outcome {
        self.served().await;
        if self.finds { Outcome::Found(key) } else { Outcome::NotFound }
    }

    async fn insert(&self, _: Insert) -> Outcome {
        Outcome::Acked
    }

    async fn update(&self, _: Update) -> Outcome {
        self.served().await;
        Outcome::Acked
    }

    async fn delete(&self, _: u64) -> Outcome {
        Outcome::Acked
    }

    async fn scan(&self, _: u64, _: u32) -> Outcome {
        Outcome::Acked
    }

    fn label(&self) -> String {
        "answers".into()
    }
}

/// A database that records the numbers of the configurations that were rolled out. Its memory use grows by one byte
/// with each roll, and its CPU time by one second with each request for its use.
struct Counting {
    finds: bool,
    rolled: Vec<usize>,
    prepared: AtomicU64,
    asked: AtomicU64,
    /// Cancelled when the windows of a measurement are about to begin.
    interrupts: Option<CancellationToken>,
    /// Number of rolls after which one fails; and all behind that one, if it breaks.
    fails_at: Option<usize>,
    breaks: bool,
    /// Number of looks until its background work ends.
    busy: u32,
    present: Arc<AtomicUsize>,
    /// Whether one configuration is slower.
    differ: bool,
}

impl Counting {
    fn new(finds: bool) -> Self {
        let (prepared, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            finds,
            rolled: Vec::new(),
            prepared,
            asked,
            interrupts: None,
            fails_at: None,
            breaks: false,
            busy: 0,
            present: Arc::default(),
            differ: false,
        }
    }
}

impl Sampled for Counting {
    type Target = Answers;
    const REPORTS_USAGE: bool = true;

    async fn prepare(&self, _: &Request, _: &Caller<'_>) -> Result<()> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn roll(&mut self, request: &Request, number: usize, caller: &Caller<'_>) -> Result<()> {
        self.switch(request, number, caller).await
    }

    async fn target(&self, _: &Request) -> Result<Answers> {
        let present = self.differ.then(|| Arc::clone(&self.present));
        Ok(Answers { finds: self.finds, present })
    }

    async fn used(&self) -> Result<Option<ResourceUsage>> {
        let cpu_s = self.asked.fetch_add(1, Ordering::Relaxed) as f64;
        // The first request directly follows the roll. The second one precedes the windows, and cancels.
        if let Some(cancel) = self.interrupts.as_ref().filter(|_| cpu_s > 0.0) {
            cancel.cancel();
        }
        Ok(Some(ResourceUsage { memory_bytes: 1_000 + self.rolled.len() as u64, cpu_s }))
    }

    /// A configuration that is called "restart" takes one.
    fn can_take_turns(_: &Configuration, to: &Configuration) -> Result<bool> {
        Ok(to.name != "restart")
    }

    async fn switch(&mut self, _: &Request, number: usize, _: &Caller<'_>) -> Result<()> {
        if self.fails_at == Some(self.rolled.len()) {
            self.fails_at = self.fails_at.filter(|_| self.breaks);
            let (what, help) = ("a node does not start".into(), "see its log".into());
            return Err(Error::Failed { what, help });
        }
        self.rolled.push(number);
        self.present.store(number, Ordering::SeqCst);
        Ok(())
    }

    async fn background(&mut self, _: bool) -> Result<Option<String>> {
        self.busy = self.busy.saturating_sub(1);
        Ok((self.busy > 0).then(|| "measured-1 saves its data".into()))
    }
}

fn request() -> Request {
    let configuration =
        |name: &str| Configuration { name: name.into(), settings: [].into(), compaction: None };
    Request {
        documents: 100,
        size_bytes: 400,
        configurations: ["A", "B"].map(configuration).into(),
        mixes: ["read=100", "update=100"].map(|mix| mix.parse().unwrap()).into(),
        clients: 2,
        window: Duration::from_millis(2),
        windows: 2,
        warm_max: Duration::from_millis(10),
    }
}

fn rounds(folder: &tempfile::TempDir) -> Rounds {
    Rounds { rounds: 2, out: folder.path().join("here.csv") }
}

async fn measured(database: &mut Counting, rounds: &Rounds) -> (Result<Vec<Sample>>, String) {
    let (cancel, said) = (CancellationToken::new(), Mutex::new(String::new()));
    let say = |what: String| *said.lock().unwrap() += &(what + "\n");
    let caller = Caller { process: "test", cancel: &cancel, say: &say };
    let samples = run(database, &request(), rounds, &caller).await;
    (samples, said.into_inner().unwrap())
}

#[tokio::test]
async fn rounds_go_forth_and_back_and_what_the_file_has_is_not_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let (request, rounds) = (request(), rounds(&folder));
    let mut database = Counting::new(true);
    let (samples, said) = measured(&mut database, &rounds).await;
    let samples = samples.unwrap();
    // The first order is drawn, and the second one is its reverse.
    let first = database.rolled[0];
    assert_eq!((&*database.rolled, samples.len()), (&[first, 1 - first, 1 - first, first][..], 8));
    let names = ["A", "B"];
    let of = |number: usize| (&*samples[number].configuration, &*samples[number].mix);
    let (reads, updates) = (request.mixes[0].to_string(), request.mixes[1].to_string());
    let (one, other) = (names[first], names[1 - first]);
    assert_eq!((of(0), of(1), of(2)), ((one, &*reads), (one, &*updates), (other, &*reads)));
    // On a busy machine a window of milliseconds may have no operation.
    assert!(samples.iter().any(|one| one.operations_s > 0.0), "{samples:?}");
    let memory: Vec<u64> = samples.iter().map(|one| one.memory_bytes.unwrap()).collect();
    assert_eq!(memory, [1_001, 1_001, 1_002, 1_002, 1_003, 1_003, 1_004, 1_004]);
    // One second of CPU time for all operations of two windows, of at least two milliseconds each.
    let seconds = |one: &Sample| Some(one.cpu_us? * 1e-6 * one.operations_s * 4e-3);
    let told: Vec<f64> = samples.iter().filter_map(seconds).collect();
    assert!(!told.is_empty() && told.iter().all(|s| *s > 0.0 && *s <= 1.1), "{samples:?}");
    assert!(
        said.contains(&format!("round 2: rolling out {other}\n"))
            && said.contains(" µs of processor time"),
        "{said}"
    );

    // No measurement is missing, so the database is not accessed.
    let (again, said) = measured(&mut database, &rounds).await;
    assert_eq!((again.unwrap(), &*said), (Vec::new(), ""));
    assert_eq!((database.rolled.len(), database.prepared.load(Ordering::Relaxed)), (4, 1));

    // The last line is missing: its configuration is rolled out, and only its mix is measured.
    let text = std::fs::read_to_string(&rounds.out).unwrap();
    let without = text.trim_end().rsplit_once('\n').unwrap().0;
    std::fs::write(&rounds.out, format!("{without}\n")).unwrap();
    let (rest, _) = measured(&mut database, &rounds).await;
    let rest = rest.unwrap();
    assert_eq!((rest.len(), &rest[0].mix, rest[0].round), (1, &updates, 1));
    assert_eq!(database.rolled, [first, 1 - first, 1 - first, first, first]);
}

#[tokio::test]
async fn what_finds_nothing_is_no_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let rounds = rounds(&folder);
    let (samples, _) = measured(&mut Counting::new(false), &rounds).await;
    let error = samples.unwrap_err().to_string();
    assert!(error.contains(" found nothing"), "{error}");
    assert!(!rounds.out.exists());
}

#[tokio::test]
async fn an_interrupted_one_ends_within_a_window_and_writes_no_half_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let (request, rounds) = (Request { windows: 1_000_000, ..request() }, rounds(&folder));
    let cancel = CancellationToken::new();
    let mut database = Counting { interrupts: Some(cancel.clone()), ..Counting::new(true) };
    let caller = Caller { process: "test", cancel: &cancel, say: &|_| () };
    let samples = run(&mut database, &request, &rounds, &caller).await.unwrap();
    assert_eq!((samples, rounds.out.exists(), database.rolled.len()), (Vec::new(), false, 1));
}

/// Bounds of a comparison of two blocks' noise.
const BOUNDS: Bounds = Bounds {
    blocks_max: 6,
    duration_max: Duration::from_secs(120),
    alike: 0.02,
    seed: Some(1_795),
};

fn turns_request() -> Request {
    Request {
        window: Duration::from_millis(120),
        warm_max: Duration::from_millis(900),
        ..request()
    }
}

#[tokio::test]
async fn two_configurations_take_turns_and_the_first_one_is_there_at_last() {
    for is_live in [true, false] {
        let mut database = Counting { differ: true, ..Counting::new(true) };
        let mut request = turns_request();
        let second = if is_live { "B" } else { "restart" };
        request.configurations[1].name = second.into();
        let (cancel, said) = (CancellationToken::new(), Mutex::new(String::new()));
        let say = |what: String| *said.lock().unwrap() += &(what + "\n");
        let caller = Caller { process: "test", cancel: &cancel, say: &say };
        let found = compare(&mut database, &request, &BOUNDS, &caller).await.unwrap();
        assert_eq!((found.verdict, found.is_live), (Verdict::Less, is_live), "{found:?}");
        assert_eq!(found.ended_by, EndedBy::Verdict);
        let gain = found.throughput.unwrap();
        assert!(gain.change < -0.4 && gain.interval[1] < 0.0, "{gain:?}");
        assert!(found.median.unwrap().change > 0.5 && found.p99.is_some(), "{found:?}");
        assert_eq!(found.turns.len(), 4 * found.blocks);
        assert!(found.blocks >= BLOCKS_MIN, "{found:?}");
        let turns = found.turns.iter().filter(|turn| turn.configuration == second).count();
        assert_eq!(turns, 2 * found.blocks, "each has half of the turns");
        assert_eq!(database.rolled.last(), Some(&0), "{:?}", database.rolled);
        assert!(said.into_inner().unwrap().contains(&format!("after 3 blocks {second} serves -")));
    }
}

#[tokio::test]
async fn after_an_error_or_an_interruption_the_first_configuration_is_there_again() {
    let mut database = Counting { fails_at: Some(1), ..Counting::new(true) };
    let cancel = CancellationToken::new();
    let caller = Caller { process: "test", cancel: &cancel, say: &|_| () };
    let error = compare(&mut database, &turns_request(), &BOUNDS, &caller).await.unwrap_err();
    assert!(error.to_string().contains("a node does not start"), "{error}");
    assert_eq!(database.rolled, [0, 0], "it is rolled out again");
    // One that cannot be rolled out at last is told.
    let mut broken = Counting { fails_at: Some(1), breaks: true, ..Counting::new(true) };
    let error = compare(&mut broken, &turns_request(), &BOUNDS, &caller).await.unwrap_err();
    assert!(error.to_string().contains("the database does not have A again"), "{error}");

    let mut database = Counting { differ: true, ..Counting::new(true) };
    let stopping = cancel.clone();
    let say = move |what: String| {
        if what.starts_with("B serves") {
            stopping.cancel();
        }
    };
    let caller = Caller { process: "test", cancel: &cancel, say: &say };
    let found = compare(&mut database, &turns_request(), &BOUNDS, &caller).await.unwrap();
    assert_eq!((found.ended_by, found.verdict), (EndedBy::Interrupted, Verdict::Undecided));
    assert_eq!((found.blocks, found.throughput), (0, None));
    assert_eq!(database.rolled.last(), Some(&0), "{:?}", database.rolled);
}

#[tokio::test]
async fn background_work_is_waited_for_and_a_bound_ends_that() {
    let folder = tempfile::tempdir().unwrap();
    let long = Request { warm_max: Duration::from_secs(60), ..turns_request() };
    let one = Request { configurations: long.configurations[..1].to_vec(), ..long };
    let one = Request { mixes: one.mixes[..1].to_vec(), ..one };
    let rounds = Rounds { rounds: 1, ..rounds(&folder) };
    let (cancel, mut database) =
        (CancellationToken::new(), Counting { busy: 4, differ: true, ..Counting::new(true) });
    let caller = Caller { process: "test", cancel: &cancel, say: &|_| () };
    let samples = run(&mut database, &one, &rounds, &caller).await.unwrap();
    assert_eq!((&samples[0].not_warm, database.busy), (&None, 0), "{samples:?}");
    assert!(samples[0].median_us >= Some(900.0), "{samples:?}");

    let bounded = Request { warm_max: Duration::from_millis(300), ..one };
    let mut busy = Counting { busy: u32::MAX, differ: true, ..Counting::new(true) };
    std::fs::remove_file(&rounds.out).unwrap();
    let samples = run(&mut busy, &bounded, &rounds, &caller).await.unwrap();
    assert!(samples[0].not_warm.is_some(), "{samples:?}");
}
