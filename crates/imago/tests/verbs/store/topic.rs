//! A store whose log is in Kafka: its process and its broker are killed again and again, while its design
//! changes and clients use it; and another process takes its topic over. `IMAGO_LONG` asks for many deaths.

use std::path::Path;
use std::time::{Duration, Instant};

use imago_load::store::{Load, Options};
use imago_testbed::{Certificates, KafkaSecurity, Single, SingleSpec, find_kafka, require, wait};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use serde_json::json;

use crate::store::change;
use crate::store::proof::{is_long, prove, seed};
use crate::store::served::{Served, anywhere};

const SITES: u16 = 4;
const MANY: usize = 40;

#[derive(Clone, Copy, Debug)]
enum Death {
    Store,
    Broker,
    Both,
}

/// A broker; none, with a word, where this machine has no Kafka or no Java.
pub async fn broker(name: &str) -> Option<Single> {
    require(find_kafka())?;
    Some(Single::start(SingleSpec::kafka(name)).await.unwrap())
}

/// A topic is the same with and without a folder for checkpoints.
fn log<'a>(topic: &'a str, folder: Option<&'a Path>) -> Vec<&'a str> {
    let folder = folder.map(|folder| ["--data", folder.to_str().unwrap()]);
    ["--log", topic].into_iter().chain(folder.into_iter().flatten()).collect()
}

/// Waits until clients are answered again.
fn answered(load: &Load, before: u64) {
    wait::until_blocking("something is acknowledged again", || load.acknowledged() > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_deaths_of_the_process_and_of_the_broker() {
    let Some(kafka) = broker("deaths").await else { return };
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let (url, folder) = (format!("kafka://{}/lists", kafka.uri()), tempfile::tempdir().unwrap());
    let mut served = Served::start_on(&log(&url, None), SITES, anywhere(), anywhere());
    let options = Options { sessions: 6, seed, pause: Duration::from_millis(1) };
    let load = Load::start(served.listen, options).unwrap();
    let mut deaths = vec![Death::Store, Death::Broker, Death::Both];
    while is_long() && deaths.len() < MANY {
        deaths.push([Death::Store, Death::Broker, Death::Both][random.random_range(0..3)]);
    }
    for death in [None].into_iter().chain(deaths.into_iter().map(Some)) {
        let mut before = load.acknowledged();
        if let Some(Death::Broker | Death::Both) = death {
            kafka.kill().unwrap();
            before = load.acknowledged();
            wait::lasts(Duration::from_millis(random.random_range(0..500))).await;
        }
        if let Some(Death::Store | Death::Both) = death {
            served.kill();
            before = load.acknowledged();
        }
        if let Some(Death::Broker | Death::Both) = death {
            kafka.restart().await.unwrap();
        }
        if let Some(Death::Store | Death::Both) = death {
            let folder = random.random_bool(0.5).then_some(folder.path());
            served = Served::start_on(&log(&url, folder), SITES, served.listen, served.admin);
        }
        answered(&load, before);
        let until = Instant::now() + Duration::from_millis(random.random_range(700..2_000));
        while Instant::now() < until {
            let change = change::draw(&mut random, SITES);
            let body = json!({ "key": change.key, "site": change.site });
            let told = served.post(change.verb, &body);
            assert!(matches!(told, Some((200 | 409 | 503, _))), "{death:?} {change:?}: {told:?}");
        }
    }
    let address = served.listen;
    let verdict = tokio::task::spawn_blocking(move || prove(load, address)).await.unwrap();
    assert!(verdict.done > 100 && verdict.unknown > 0, "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_topic_another_one_takes_over_ends_and_nothing_is_lost() {
    let Some(kafka) = broker("taken").await else { return };
    let seed = seed();
    let url = format!("kafka://{}/lists", kafka.uri());
    let served = Served::start_on(&log(&url, None), SITES, anywhere(), anywhere());
    let options = Options { sessions: 6, seed, pause: Duration::from_millis(1) };
    let load = Load::start(served.listen, options).unwrap();
    wait::until_blocking("the load has begun", || load.acknowledged() >= 200);
    let next = Served::start_on(&log(&url, None), SITES, anywhere(), anywhere());
    let (listen, admin) = (served.listen, served.admin);
    assert_eq!(served.ended(), Some(1), "it ends, and says that it did not want to");
    // At the first one's addresses, a third one takes over from the second, which does not know it for a
    // while.
    next.signal(Signal::STOP);
    let last = Served::start_on(&log(&url, None), SITES, listen, admin);
    answered(&load, load.acknowledged());
    next.signal(Signal::CONT);
    assert_eq!(next.ended(), Some(1));
    answered(&load, load.acknowledged());
    let address = last.listen;
    let verdict = tokio::task::spawn_blocking(move || prove(load, address)).await.unwrap();
    assert!(verdict.done > 200, "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_on_a_broker_that_demands_tls_and_authentication_outlives_both_deaths() {
    let Some(_) = require(find_kafka()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(certificates) = require(Certificates::create(folder.path())) else { return };
    let (user, password) = ("imago".into(), "battery-staple".into());
    let secured = Some(KafkaSecurity { certificates: certificates.clone(), user, password });
    let kafka =
        Single::start(SingleSpec { secured, ..SingleSpec::kafka("secured") }).await.unwrap();
    let file = folder.path().join("client.properties");
    let with_password = |password: &str| {
        let Certificates { server, authority } = &certificates;
        let (server, authority) = (server.display(), authority.display());
        let properties = format!(
            "security.protocol=sasl_ssl\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=imago\n\
             sasl.password={password}\nssl.ca.location={authority}\nssl.certificate.location={server}\n\
             ssl.key.location={server}\ncompression.type=lz4\n"
        );
        std::fs::write(&file, properties).unwrap();
    };
    let url = format!("kafka://{}/lists", kafka.secured_uri().unwrap());
    let log = ["--log", &url, "--log-config", file.to_str().unwrap()];

    with_password("wrong");
    let refused = Served::try_start_as("serve", &log, SITES, [anywhere(), anywhere()]);
    let (exit, why) = refused.err().unwrap();
    assert!(
        exit == Some(4) && why.contains("authentication of user imago failed"),
        "{exit:?} {why}"
    );
    with_password("battery-staple");
    let mut served = Served::start_on(&log, SITES, anywhere(), anywhere());
    let options = Options { sessions: 6, seed: seed(), pause: Duration::from_millis(1) };
    let load = Load::start(served.listen, options).unwrap();
    answered(&load, 200);
    kafka.kill().unwrap();
    served.kill();
    let before = load.acknowledged();
    kafka.restart().await.unwrap();
    served = Served::start_on(&log, SITES, served.listen, served.admin);
    answered(&load, before + 200);
    let address = served.listen;
    let verdict = tokio::task::spawn_blocking(move || prove(load, address)).await.unwrap();
    assert!(verdict.done > 400, "{verdict:?}");
}
