//! Connection strings: options of the specification, TLS at both ends, and what a failure says.

use std::process::{Command, Output};

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{self, Leased, replica_set};
use imago_testbed::{Certificates, ClusterSpec, require};
use serde_json::Value;

fn imago(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).env_clear().args(arguments);
    command.args(["--connect-timeout", "1500ms", "--progress", "none", "--json"]);
    command.output().unwrap()
}

fn copy(from: &str, to: &str, ns: &str) -> Output {
    imago(&["copy", "--from", from, "--to", to, "--ns", ns, "--until", "caught-up"])
}

/// The last line on stderr, which is the error, with its remedy.
fn refused(from: &str) -> String {
    let output = imago(&["job", "list", "--to", from]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    let error: Value = serde_json::from_str(stderr.lines().last().unwrap()).unwrap();
    let error = &error["error"];
    assert_eq!(error["code"], "unreachable", "{error}");
    format!("{} {}", error["message"].as_str().unwrap(), error["help"].as_str().unwrap())
}

async fn connect(uri: &str) -> Endpoint {
    Box::pin(Endpoint::connect(uri, "source")).await.unwrap()
}

fn with(cluster: &Leased, options: &str) -> String {
    let uri = cluster.uri();
    let separator = if uri.contains('?') { '&' } else { '?' };
    format!("{uri}{separator}{options}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_works_over_tls_at_both_ends_and_a_failure_says_what_answered_how() {
    let folder = tempfile::tempdir().unwrap();
    let Some(files) = require(Certificates::create(folder.path())) else { return };
    let authority = files.authority.to_str().unwrap().to_owned();
    let encrypted = || ClusterSpec { tls: Some(files.clone()), ..replica_set(1) };
    let specs = [encrypted(), encrypted(), replica_set(1)];
    let [source, destination, plain] = Box::pin(pool::lease_all(specs)).await.unwrap();
    source.end_with_this_test();
    destination.end_with_this_test();

    let tls = format!("tls=true&tlsCAFile={authority}");
    let [from, to] = [&source, &destination].map(|cluster| with(cluster, &tls));
    let at = connect(&from).await;
    let docs = at.client().database("shop").collection::<Document>("orders");
    let order = |number: i32| doc! {"_id": number, "customer": "Ana Ruiz", "total_cents": 4_990};
    docs.insert_many((0..500).map(order)).await.unwrap();
    for cluster in [&source, &destination] {
        // From here on they take no connection without TLS.
        let admin = connect(&with(cluster, &tls)).await;
        admin.run("admin", doc! {"setParameter": 1, "tlsMode": "requireTLS"}).await.unwrap();
    }
    let copied = copy(&from, &to, "shop.orders");
    assert_eq!(copied.status.code(), Some(0), "{}", String::from_utf8_lossy(&copied.stderr));
    let there = connect(&to).await.client().database("shop").collection::<Document>("orders");
    assert_eq!(there.count_documents(doc! {}).await.unwrap(), 500);

    let said = refused(&source.uri());
    assert!(said.contains("only with TLS") && said.contains("add tls=true"), "{said}");
    let said = refused(&with(&source, "tls=true"));
    assert!(said.contains("certificate is not accepted") && said.contains("tlsCAFile"), "{said}");
    let said = refused(&with(&plain, "tls=true&tlsInsecure=true"));
    assert!(said.contains("without TLS") && said.contains("leave tls=true out"), "{said}");

    let (name, uri) = (plain.name(), plain.uri());
    let wrong = uri.replace(&format!("replicaSet={name}"), "replicaSet=orders-rs");
    assert_ne!(wrong, uri, "the testbed names the set");
    let said = refused(&wrong);
    assert!(said.contains(&format!("its replica set is named {name}, not orders-rs")), "{said}");
    assert!(said.contains(&format!("write replicaSet={name}")), "{said}");
}

/// Strings as they stand in applications' settings, with the least pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_option_of_applications_is_taken_or_named() {
    let [source, destination] =
        Box::pin(pool::lease_all([replica_set(1), replica_set(1)])).await.unwrap();
    let docs = connect(&source.uri()).await.client().database("shop").collection("orders");
    docs.insert_one(doc! {"_id": 1, "customer": "Ana Ruiz"}).await.unwrap();
    let options = "compressors=snappy,zlib&zlibCompressionLevel=6&socketTimeoutMS=60000&timeoutMS=500&\
                   uuidRepresentation=standard&MAXPOOLSIZE=1&minPoolSize=0&maxConnecting=1&\
                   waitQueueTimeoutMS=100&readConcernLevel=local&w=0&wTimeoutMS=1&journal=false&\
                   retryReads=false&retryWrites=false&readPreference=secondary&\
                   readPreferenceTags=dc:ny&maxStalenessSeconds=90&proxyHost=localhost&slaveOk=true";
    let [from, to] = [&source, &destination].map(|cluster| with(cluster, options));
    let copied = copy(&from, &to, "shop.orders");
    let said = String::from_utf8_lossy(&copied.stderr);
    assert_eq!(copied.status.code(), Some(0), "{said}");
    for name in [
        "compressors",
        "zlibCompressionLevel",
        "socketTimeoutMS",
        "timeoutMS",
        "waitQueueTimeoutMS",
        "readConcernLevel",
        "w is",
        "wTimeoutMS",
        "journal",
        "readPreference is",
        "readPreferenceTags",
        "maxStalenessSeconds",
        "proxyHost",
        "slaveOk",
        "maxPoolSize is raised from 1 to 10",
    ] {
        let of = |role: &str| format!("the {role}'s connection string: {name}");
        assert!(
            said.contains(&of("source")) && said.contains(&of("destination")),
            "{name}: {said}"
        );
    }
    assert!(!said.contains("uuidRepresentation"), "{said}");
    let there = connect(&destination.uri())
        .await
        .client()
        .database("shop")
        .collection::<Document>("orders");
    assert_eq!(there.count_documents(doc! {}).await.unwrap(), 1);
}
