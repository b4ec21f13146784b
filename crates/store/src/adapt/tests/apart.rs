//! A store that adapts with its sites apart: here on threads of one process, but with every message between them and
//! the router going over connections. The sites stand for machines of a tenth of a core.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread::{self, JoinHandle};

use super::*;
use crate::engine::{LogOptions, Router, RouterOptions, SiteProcess, SiteProcessError};
use crate::log::Sync;
use crate::resp::Settings;

/// A site that could be in a process of its own.
struct SeparateSite {
    is_stopped: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), SiteProcessError>>,
}

impl SeparateSite {
    fn start(site: u16, peers: SocketAddr) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let process = SiteProcess {
            site: Site(site),
            routers: vec![peers.to_string()],
            secret: "secret".into(),
            rack: None,
            maxmemory: 0,
            patience: Duration::from_secs(30),
            settings: Settings::new("test", 1),
            site_cpu: Some(0.1),
        };
        let thread = thread::spawn(move || process.serve(&|_| {}, &stopped));
        Self { is_stopped, thread }
    }

    fn stop(self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.thread.join().unwrap().unwrap();
    }
}

/// A router of two sites, all of it at the first, whose clients count accounts up.
struct Apart {
    router: Router,
    sampler: Arc<Sampler>,
    adaptation: Arc<Adaptation>,
    adapts: tokio::task::JoinHandle<()>,
    sites: Vec<Option<SeparateSite>>,
    listen: SocketAddr,
    is_over: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    /// Requests that were answered by an error: they may or may not have happened.
    unknown: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

fn ask(stream: &mut BufReader<TcpStream>, command: &str) -> String {
    stream.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn connect(listen: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(listen).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    BufReader::new(stream)
}

impl Apart {
    async fn start(folder: &Path) -> Self {
        let anywhere = || TcpListener::bind("127.0.0.1:0").unwrap();
        let log = LogOptions::Files {
            folder: folder.to_owned(),
            sync: Sync::Never,
            segment_bytes: 1 << 20,
        };
        let options = engine::Options { sites: 2, log: Some(log) };
        let router = RouterOptions { client_threads: 1, silence: Duration::from_secs(5) };
        let router = Router::start(&options, &router, anywhere(), "secret".into()).unwrap();
        let sites: Vec<_> = (0..2).map(|site| SeparateSite::start(site, router.peers())).collect();
        let sampler = Arc::new(Sampler::remote(2));
        let (parameters, limits) = (Parameters::default(), Limits::default());
        let options = Options { mode: Mode::On, parameters, limits, seed: 7 };
        let store = router.store();
        let adaptation = Adaptation::new(Arc::clone(store), Arc::clone(&sampler), options);
        let adapts = tokio::spawn(Arc::clone(&adaptation).run());
        let listen = store.listen(anywhere(), Settings::new("test", 1), None).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let (acknowledged, unknown) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let client = |n: u64| {
            let (is_over, acknowledged, unknown) =
                (Arc::clone(&is_over), Arc::clone(&acknowledged), Arc::clone(&unknown));
            thread::spawn(move || {
                let (mut stream, mut at) = (connect(listen), n * 53);
                while !is_over.load(Ordering::Relaxed) {
                    at = at
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let line = format!("INCR account:{:06}", (at >> 33) % ACCOUNTS);
                    let is_done = ask(&mut stream, &line).starts_with(':');
                    let of = if is_done { &acknowledged } else { &unknown };
                    of.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let clients = (0..CLIENTS).map(client).collect();
        let sites = sites.into_iter().map(Some).collect();
        Self {
            router,
            sampler,
            adaptation,
            adapts,
            sites,
            listen,
            is_over,
            acknowledged,
            unknown,
            clients,
        }
    }

    fn masters(&self) -> BTreeSet<Site> {
        let map = self.router.store().map();
        map.design.partitions().map(|partition| partition.master).collect()
    }

    /// Waits until adaptation tells something.
    async fn until(&self, what: &str, is_so: impl Fn(&Self, &AdaptReport) -> bool) -> AdaptReport {
        let began = Instant::now();
        loop {
            let report = self.adaptation.report();
            if is_so(self, &report) {
                return report;
            }
            assert!(began.elapsed() < Duration::from_secs(240), "{what}: {report:#?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Ends it; every increment that was acknowledged is there.
    fn end(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.clients.drain(..).for_each(|client| client.join().unwrap());
        self.adapts.abort();
        let (mut stream, mut sum) = (connect(self.listen), 0);
        for n in 0..ACCOUNTS {
            let line = ask(&mut stream, &format!("INCRBY account:{n:06} 0"));
            sum +=
                line.strip_prefix(':').unwrap_or_else(|| panic!("{line}")).parse::<u64>().unwrap();
        }
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        let most = acknowledged + self.unknown.load(Ordering::Relaxed);
        assert!((acknowledged..=most).contains(&sum), "{sum} of {acknowledged} to {most}");
        self.sites.drain(..).flatten().for_each(SeparateSite::stop);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_apart_that_has_all_the_work_gives_some_away() {
    let folder = tempfile::tempdir().unwrap();
    let apart = Apart::start(folder.path()).await;
    let is_shared =
        |apart: &Apart, report: &AdaptReport| apart.masters().len() == 2 && report.changes >= 3;
    let report = apart.until("both sites master something", is_shared).await;
    let done = report.decisions.iter().find(|one| one.verdict == Verdict::Done);
    let done = done.unwrap_or_else(|| panic!("{report:#?}"));
    assert!(done.predicted_us.1 < done.predicted_us.0, "{done:?}");
    let is_used = |_: &Apart, report: &AdaptReport| {
        report.sites.len() == 2 && report.sites.iter().all(|site| site.cpu > 0.2)
    };
    let report = apart.until("the second site does its part", is_used).await;
    // A thread that waits for a whole slice of the processor is beyond its share for a moment.
    assert!(report.sites.iter().all(|site| site.cpu < 3.0), "{report:#?}");
    assert_eq!(apart.sampler.share(), Some(0.1));
    apart.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_apart_that_comes_back_is_asked_for_samples_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut apart = Apart::start(folder.path()).await;
    let span = |apart: &Apart, site: u16| apart.sampler.span(Site(site));
    let report = |apart: &Apart, _: &AdaptReport| (0..2).all(|n| !span(apart, n).is_zero());
    apart.until("both report", report).await;
    for site in 0..2 {
        apart.sites[usize::from(site)].take().unwrap().stop();
        let dead = |apart: &Apart, _: &AdaptReport| {
            let map = apart.router.store().map();
            !apart.router.store().live_and_used(&map).contains(&Site(site))
        };
        apart.until("it is known to be gone", dead).await;
        let before = span(&apart, site);
        apart.sites[usize::from(site)] = Some(SeparateSite::start(site, apart.router.peers()));
        let again = |apart: &Apart, _: &AdaptReport| span(apart, site) > before;
        apart.until("it reports again", again).await;
    }
    let decides = |_: &Apart, report: &AdaptReport| report.changes > 0;
    apart.until("adaptation goes on", decides).await;
    apart.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_serves_on_when_its_planner_panics_and_asks_for_no_samples() {
    let folder = tempfile::tempdir().unwrap();
    let apart = Apart::start(folder.path()).await;
    apart.until("it has begun", |_, report| report.transactions_s > 0.0).await;
    apart.adaptation.panics.store(true, Ordering::SeqCst);
    let report = apart.until("it has ended", |_, report| report.has_ended).await;
    assert!(report.failure.unwrap().contains("the store serves on"));
    let before = apart.acknowledged.load(Ordering::Relaxed);
    let goes_on =
        |apart: &Apart, _: &AdaptReport| apart.acknowledged.load(Ordering::Relaxed) > before + 100;
    apart.until("transactions run", goes_on).await;
    // What was under way has come within a second or so; then nothing does.
    let is_quiet = |apart: &Apart, _: &AdaptReport| {
        _ = apart.sampler.fetch();
        let before = apart.sampler.span(Site(0));
        thread::sleep(Duration::from_millis(600));
        _ = apart.sampler.fetch();
        apart.sampler.span(Site(0)) == before
    };
    apart.until("no site reports any more", is_quiet).await;
    apart.end();
}
