//! Explanations of a store of three sites: one rule at a time says no, and says why.

use std::sync::Arc;

use imago_plan::store::guardrails::Limits;
use imago_plan::store::layout::Operator as Planned;
use imago_plan::store::parameters::Parameters;

use super::{Explanation, NotExplained};
use crate::adapt::{Adaptation, AtMost, LimitsRequest, Mode, Options};
use crate::engine::{self, Store};
use crate::key::{Key, Table};
use crate::record::{Operator, Site};
use crate::sampler::Sampler;
use crate::transaction::{Abort, View};

fn key(row: &str) -> Key {
    Key::new(Table(0), row.as_bytes())
}

async fn adapted() -> (Arc<Store>, Arc<Adaptation>) {
    let store = Arc::new(Store::start(&engine::Options { sites: 3, log: None }).unwrap());
    let options = Options {
        mode: Mode::Advise,
        parameters: Parameters::default(),
        limits: Limits::default(),
        seed: 1,
    };
    let sampler = Arc::new(Sampler::new(3, None));
    let adaptation = Adaptation::new(Arc::clone(&store), sampler, options);
    store.change(&key("m"), Operator::Split(key("m"))).await.unwrap();
    let (row, writes) = (key("z"), vec![key("z")]);
    let put = move |view: &mut View<'_>| {
        view.put(&row, vec![b'x'; 2_000_000].into())?;
        Ok::<_, Abort>(Vec::new())
    };
    store.session().run(Vec::new(), writes, Box::new(put)).await.unwrap();
    (store, adaptation)
}

/// The answer of a rule for a site, and its sentence.
fn rule(explained: &Explanation, site: usize, name: &str) -> (Option<bool>, String) {
    let rule = explained.sites[site].rules.iter().find(|rule| rule.rule == name).unwrap();
    (rule.holds, rule.why.clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_rule_says_no_where_it_forbids_and_why() {
    let (store, adaptation) = adapted().await;
    let explained = adaptation.explain(&key("z")).await.unwrap();
    assert_eq!((&explained.start[..], explained.master, explained.rows), ("0:m", 0, 1));
    for name in ["alive", "in use", "pin", "memory", "replicas", "cool-down", "not undone"] {
        assert_eq!(rule(&explained, 1, name).0, Some(true), "{name}");
    }
    assert_eq!(rule(&explained, 1, "copy").0, Some(false));
    assert_eq!(rule(&explained, 1, "pays"), (None, "nothing is predicted yet".to_owned()));
    assert!(explained.unpredicted.is_some());
    store.add_replica(&key("z"), Site(1)).await.unwrap();
    store.pin(&key("z"), Site(0)).await.unwrap();
    store.set_used(Site(2), false).unwrap();
    // Site 2 has room for the partition's 2 MB, but the partition may get no second replica.
    let limit = LimitsRequest {
        memory_max_mb: Some(AtMost::Some(3)),
        replicas_max: Some(AtMost::Some(1)),
        ..LimitsRequest::default()
    };
    adaptation.limit(&limit).await.unwrap();
    let explained = adaptation.explain(&key("z")).await.unwrap();
    assert_eq!(rule(&explained, 1, "copy"), (Some(true), "it has a replica".to_owned()));
    assert_eq!(
        rule(&explained, 1, "pin"),
        (Some(false), "the partition is pinned to site 0".to_owned())
    );
    assert_eq!(rule(&explained, 0, "pin").0, Some(true));
    assert_eq!(rule(&explained, 2, "in use").0, Some(false));
    assert!(rule(&explained, 2, "replicas").1.contains("1 of at most 1 replicas"), "{explained:?}");
    assert_eq!(rule(&explained, 2, "memory").0, Some(true));
    adaptation
        .limit(&LimitsRequest { memory_max_mb: Some(AtMost::Some(2)), ..LimitsRequest::default() })
        .await
        .unwrap_err();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_a_row_is_an_error_but_where_a_partition_begins() {
    let (_store, adaptation) = adapted().await;
    let error = adaptation.explain(&key("y")).await.unwrap_err();
    let expected = NotExplained::NoRow("0:y".to_owned(), "0:m".to_owned(), 0);
    assert_eq!(error, expected);
    assert_eq!(adaptation.explain(&key("m")).await.unwrap().start, "0:m");
    assert_eq!(adaptation.explain(&Key::least()).await.unwrap().end.as_deref(), Some("0:m"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_change_exceeds_a_limit_also_not_to_take_another_back() {
    let (store, adaptation) = adapted().await;
    store.add_replica(&key("z"), Site(1)).await.unwrap();
    let limit = LimitsRequest {
        partitions_max: Some(2),
        replicas_max: Some(AtMost::Some(1)),
        memory_max_mb: Some(AtMost::Some(3)),
        ..LimitsRequest::default()
    };
    adaptation.limit(&limit).await.unwrap();
    let layout = store.layout().await;
    let parameters = adaptation.options().parameters;
    let (m, may) = (key("m"), |operators: &[Planned<Key>]| parameters.permits(operators, &layout));
    assert!(!may(&[Planned::Split(key("x"))]));
    assert!(!may(&[Planned::AddReplica(m.clone(), 2)]));
    assert!(may(&[Planned::AddReplica(Key::least(), 2)]));
    assert!(may(&[Planned::Remaster(m.clone(), 1), Planned::RemoveReplica(m.clone(), 0)]));
    assert!(may(&[Planned::RemoveReplica(m, 1)]));
}
