//! Tests of the measurements with an in-memory database that counts its calls: which are made, in which order, and
//! which are not repeated.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use imago_workload::target::{Insert, Outcome, Update};

use super::*;

/// A target that answers every operation at once. Its reads find nothing if `finds` is false.
#[derive(Debug)]
struct Answers {
    finds: bool,
}

impl Target for Answers {
    async fn read(&self, key: u64) -> Outcome {
        tokio::task::yield_now().await;
        if self.finds { Outcome::Found(key) } else { Outcome::NotFound }
    }

    async fn insert(&self, _: Insert) -> Outcome {
        Outcome::Acked
    }

    async fn update(&self, _: Update) -> Outcome {
        tokio::task::yield_now().await;
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
}

impl Counting {
    fn new(finds: bool) -> Self {
        let (prepared, asked) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { finds, rolled: Vec::new(), prepared, asked, interrupts: None }
    }
}

impl Sampled for Counting {
    type Target = Answers;
    const REPORTS_USAGE: bool = true;

    async fn prepare(&self, _: &Request, _: &Caller<'_>) -> Result<()> {
        self.prepared.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn roll(&mut self, _: &Request, number: usize, _: &Caller<'_>) -> Result<()> {
        self.rolled.push(number);
        Ok(())
    }

    async fn target(&self, _: &Request) -> Result<Answers> {
        Ok(Answers { finds: self.finds })
    }

    async fn used(&self) -> Result<Option<ResourceUsage>> {
        let cpu_s = self.asked.fetch_add(1, Ordering::Relaxed) as f64;
        // The first request directly follows the roll. The second one precedes the windows, and cancels.
        if let Some(cancel) = self.interrupts.as_ref().filter(|_| cpu_s > 0.0) {
            cancel.cancel();
        }
        Ok(Some(ResourceUsage { memory_bytes: 1_000 + self.rolled.len() as u64, cpu_s }))
    }
}

fn request(folder: &tempfile::TempDir) -> Request {
    let configuration =
        |name: &str| Configuration { name: name.into(), settings: [].into(), compaction: None };
    Request {
        documents: 100,
        size_bytes: 400,
        configurations: ["A", "B"].map(configuration).into(),
        mixes: ["read=100", "update=100"].map(|mix| mix.parse().unwrap()).into(),
        rounds: 2,
        clients: 2,
        window: Duration::from_millis(2),
        windows: 2,
        warm_max: Duration::from_millis(10),
        out: folder.path().join("here.csv"),
    }
}

async fn measured(database: &mut Counting, request: &Request) -> (Result<Vec<Sample>>, String) {
    let (cancel, said) = (CancellationToken::new(), Mutex::new(String::new()));
    let say = |what: String| *said.lock().unwrap() += &(what + "\n");
    let caller = Caller { process: "test", cancel: &cancel, say: &say };
    let samples = run(database, request, &caller).await;
    (samples, said.into_inner().unwrap())
}

#[tokio::test]
async fn rounds_go_forth_and_back_and_what_the_file_has_is_not_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(&folder);
    let mut database = Counting::new(true);
    let (samples, said) = measured(&mut database, &request).await;
    let samples = samples.unwrap();
    assert_eq!((&*database.rolled, samples.len()), (&[0, 1, 1, 0][..], 8));
    let of = |number: usize| (&*samples[number].configuration, &*samples[number].mix);
    let (reads, updates) = (request.mixes[0].to_string(), request.mixes[1].to_string());
    assert_eq!((of(0), of(1), of(2)), (("A", &*reads), ("A", &*updates), ("B", &*reads)));
    // On a busy machine a window of milliseconds may have no operation.
    assert!(samples.iter().any(|one| one.operations_s > 0.0), "{samples:?}");
    let memory: Vec<u64> = samples.iter().map(|one| one.memory_bytes.unwrap()).collect();
    assert_eq!(memory, [1_001, 1_001, 1_002, 1_002, 1_003, 1_003, 1_004, 1_004]);
    // One second of CPU time for all operations of two windows, of at least two milliseconds each.
    let seconds = |one: &Sample| Some(one.cpu_us? * 1e-6 * one.operations_s * 4e-3);
    let told: Vec<f64> = samples.iter().filter_map(seconds).collect();
    assert!(!told.is_empty() && told.iter().all(|s| *s > 0.0 && *s <= 1.1), "{samples:?}");
    assert!(
        said.contains("round 2: rolling out B\n") && said.contains(" µs of processor time"),
        "{said}"
    );

    // No measurement is missing, so the database is not accessed.
    let (again, said) = measured(&mut database, &request).await;
    assert_eq!((again.unwrap(), &*said), (Vec::new(), ""));
    assert_eq!((database.rolled.len(), database.prepared.load(Ordering::Relaxed)), (4, 1));

    // The last line is missing: its configuration is rolled out, and only its mix is measured.
    let text = std::fs::read_to_string(&request.out).unwrap();
    let without = text.trim_end().rsplit_once('\n').unwrap().0;
    std::fs::write(&request.out, format!("{without}\n")).unwrap();
    let (rest, _) = measured(&mut database, &request).await;
    let rest = rest.unwrap();
    assert_eq!((rest.len(), &rest[0].mix, rest[0].round), (1, &updates, 1));
    assert_eq!(database.rolled, [0, 1, 1, 0, 0]);
}

#[tokio::test]
async fn what_finds_nothing_is_no_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(&folder);
    let (samples, _) = measured(&mut Counting::new(false), &request).await;
    let error = samples.unwrap_err().to_string();
    assert!(error.contains("reads under A found nothing"), "{error}");
    assert!(!request.out.exists());
}

#[tokio::test]
async fn an_interrupted_one_ends_within_a_window_and_writes_no_half_measurement() {
    let folder = tempfile::tempdir().unwrap();
    let request = Request { windows: 1_000_000, ..request(&folder) };
    let cancel = CancellationToken::new();
    let mut database = Counting { interrupts: Some(cancel.clone()), ..Counting::new(true) };
    let caller = Caller { process: "test", cancel: &cancel, say: &|_| () };
    let samples = run(&mut database, &request, &caller).await.unwrap();
    assert_eq!((samples, request.out.exists()), (Vec::new(), false));
    assert_eq!(database.rolled, [0]);
}
