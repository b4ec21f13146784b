//! Sites that die: what their keys are answered while no other site has a copy, and that `--replicas-min` leaves none so.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use imago_testbed::wait;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::store::misuse::{fails, run, text};
use crate::store::processes::{Process, ask, await_design, change, design, peers};
use crate::store::served::{Served, addresses, imago};

/// What one request may wait for a takeover; a request for a dead site's keys waited for it.
const PATIENCE: Duration = Duration::from_secs(5);
const ACCOUNTS: u32 = 120;

/// A router of sites that are given up for dead after a second.
fn router(folder: &std::path::Path, sites: u16, more: &[&str]) -> Served {
    let data = folder.to_str().unwrap();
    let words =
        ["--data", data, "--sync", "5", "--peers", "127.0.0.1:0", "--site-timeout-ms", "1000"];
    Served::try_start_as("router", &[&words[..], more].concat(), sites, addresses()).unwrap()
}

fn account(number: u32) -> String {
    format!("account:{:04}:balance", number * 83 % 10_000)
}

#[test]
fn keys_of_a_dead_site_are_refused_at_once_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let router = router(folder.path(), 2, &[]);
    let at = router.listen;
    let start = |site| Process::start(site, peers(&router));
    let mut sites: Vec<Process> = (0..2).map(start).collect();
    sites.iter().for_each(|site| _ = site.serves());
    assert_eq!(ask(at, "MSET user:ann 1 user:zoe 2"), "+OK");
    change(&router, "split", "0:user:m", 0);
    for (verb, site) in [("add-replica", 1), ("remaster", 1), ("remove-replica", 0)] {
        change(&router, verb, "0:user:m", site);
    }
    sites[1].kill();
    let now =
        await_design(&router, "its death is known", |now| now["sites"][1]["absence"] == "down");
    assert_eq!((&now["sites"][1]["masters"], &now["sites"][0]["masters"]), (&json!(1), &json!(1)));
    assert_eq!(now["partitions"][1]["is_available"], false, "{now}");
    let down = "-CLUSTERDOWN nothing happened: site 1 is down, and no other site has a copy of the keys from \
                0:user:m on";
    let requests = [
        "GET user:zoe",
        "INCR user:zoe",
        "MGET user:ann user:zoe",
        "EVAL \"return redis.call('GET',KEYS[1])\" 1 user:zoe",
        "MSET user:ann 1 user:yan 2",
    ];
    let began = Instant::now();
    for request in requests {
        assert_eq!(ask(at, request), down, "{request}");
    }
    let took = began.elapsed();
    assert!(took < PATIENCE, "{} requests took {took:?}", requests.len());
    assert_eq!(ask(at, "INCR user:ann"), ":2", "other keys are served");
    let shown = imago(&["store", "design", "--admin", &router.admin.to_string()]).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let (row, line) =
        ("1 (down)", "is down, masters 1, replicas 0, 0 rows: the keys of 1 partitions cannot be");
    assert!(shown.contains(row) && shown.contains(line), "{shown}");
    assert!(router.metric("imago_store_partitions_unavailable") == 1.0);
    sites[1] = start(1);
    assert_eq!(sites[1].serves(), 2);
    wait::until_blocking("its keys are there again", || ask(at, "INCR user:zoe") == ":3");
    // No replicas were asked for, so the router warned of that.
    router.signal(Signal::INT);
    let (exit, said) = router.ended_saying();
    assert!(exit == Some(0) && said.contains("without --replicas-min"), "{exit:?}: {said}");
}

#[test]
fn no_key_is_unavailable_with_replicas_and_copies_are_restored() {
    survives_deaths(&[]);
}

#[test]
fn no_key_is_unavailable_with_replicas_while_the_store_adapts() {
    survives_deaths(&["--adapt", "on", "--adapt-horizon", "1000"]);
}

/// Every account is there, and none says that its site is down.
fn all_are_there(at: SocketAddr, added: u32) {
    for number in 0..ACCOUNTS {
        let request = format!("INCRBY {} {added}", account(number));
        let mut said = String::new();
        wait::until_or_report(&request, String::new, || {
            said = ask(at, &request);
            assert!(!said.starts_with("-CLUSTERDOWN"), "{request}: {said}");
            !said.starts_with("-TRYAGAIN nothing happened")
        });
        assert!(said.starts_with(":1"), "{request}: {said}");
    }
}

fn has_replicas(now: &Value) -> bool {
    now["below_replicas_min"] == 0
        && now["partitions"].as_array().unwrap().iter().all(|one| one["is_available"] == true)
}

fn survives_deaths(more: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let router = router(folder.path(), 4, &[&["--replicas-min", "2"], more].concat());
    let (at, admin) = (router.listen, router.admin.to_string());
    let racks = ["fra1", "fra1", "ams3", "ams3"];
    let start = |site: u16| {
        Process::start_with(site, &[peers(&router)], &["--rack", racks[usize::from(site)]])
    };
    let mut sites: Vec<Process> = (0..4).map(start).collect();
    sites.iter().for_each(|site| _ = site.serves());
    for number in 0..ACCOUNTS {
        assert_eq!(ask(at, &format!("SET {} 1000", account(number))), "+OK");
    }
    for site in 1..4 {
        let key = format!("0:account:{:04}:balance", site * 2_500);
        change(&router, "split", &key, 0);
        await_design(&router, "replicas are made", has_replicas);
        change(&router, "pin", &key, site);
    }
    let now = await_design(&router, "replicas are made", has_replicas);
    for partition in now["partitions"].as_array().unwrap() {
        let mut copies: Vec<u64> =
            partition["replicas"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
        copies.push(partition["master"].as_u64().unwrap());
        let in_racks: BTreeSet<&str> = copies.iter().map(|site| racks[*site as usize]).collect();
        assert!(copies.len() >= 3 && in_racks.len() == 2, "{partition}");
    }
    // A replica that would be made again is not removed.
    let replica = now["partitions"][0]["replicas"][0].to_string();
    if now["partitions"][0]["replicas"].as_array().unwrap().len() == 2 {
        let error = fails(&["remove-replica", "0:a", "--site", &replica, "--admin", &admin], 4);
        assert!(text(&error).contains("no more replicas than --replicas-min 2"), "{error}");
    }
    sites[2].kill();
    await_design(&router, "its death is known", |now| now["sites"][2]["is_live"] == false);
    all_are_there(at, 1);
    await_design(&router, "copies are restored at the other sites", has_replicas);
    let error = fails(&["drain", "0", "--admin", &admin], 4);
    assert!(text(&error).contains("--replicas-min 2 needs 3 sites in use"), "{error}");
    sites[1].kill();
    await_design(&router, "its death is known", |now| now["sites"][1]["is_live"] == false);
    all_are_there(at, 1);
    assert!(
        design(&router)["below_replicas_min"].as_u64() > Some(0),
        "two sites have no three copies"
    );
    sites[1] = start(1);
    sites[2] = start(2);
    await_design(&router, "copies are restored at sites that are back", has_replicas);
    assert!(run(&["unpin", "0:account:2500:balance", "--admin", &admin]).status.success());
    assert!(run(&["drain", "1", "--admin", &admin]).status.success());
    await_design(&router, "a drained site has nothing, and no copy is missing", |now| {
        has_replicas(now) && now["sites"][1]["masters"] == 0 && now["sites"][1]["replicas"] == 0
    });
    all_are_there(at, 1);
}

#[test]
fn replicas_that_cannot_be_are_refused() {
    let serve =
        ["router", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--peers", "127.0.0.1:0"];
    let refused = |more: &[&str], why: &str| {
        let error = fails(&[&serve[..], more].concat(), 2);
        assert!(text(&error).contains(why), "{error}");
    };
    refused(
        &["--sites", "2", "--replicas-min", "2"],
        "with 2 sites a partition has at most 1 replicas",
    );
    refused(
        &["--sites", "4", "--replicas-min", "2", "--replicas-max", "1"],
        "--replicas-max 1 is below --replicas-min 2",
    );
}
