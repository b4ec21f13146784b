//! A log on a broker that demands TLS, a client's certificate, and authentication.

use std::path::Path;
use std::time::Duration;

use imago_store::kafka::{ClientConfig, KafkaLog, KafkaSpec};
use imago_store::log::RedoLog as _;
use imago_store::record::Position;
use imago_testbed::{Certificates, KafkaSecurity, Single, SingleSpec, find_kafka, require};

use super::kafka::{entry, read};

const USER: &str = "imago";
const PASSWORD: &str = "correct-horse=battery";

/// A broker whose second listener demands a certificate and this user.
async fn start(folder: &Path) -> Option<(Single, Certificates)> {
    require(find_kafka())?;
    let certificates = require(Certificates::create(folder))?;
    let (user, password) = (USER.into(), PASSWORD.into());
    let secured = Some(KafkaSecurity { certificates: certificates.clone(), user, password });
    let spec = SingleSpec { secured, ..SingleSpec::kafka("secured") };
    Some((Single::start(spec).await.unwrap(), certificates))
}

/// The properties of a client that the broker accepts.
fn properties(certificates: &Certificates, mechanism: &str, compression: &str) -> String {
    let Certificates { server, authority } = certificates;
    let (server, authority) = (server.display(), authority.display());
    format!(
        "security.protocol=SASL_SSL\nssl.ca.location={authority}\nssl.certificate.location={server}\n\
         ssl.key.location={server}\nsasl.mechanism={mechanism}\nsasl.username={USER}\n\
         sasl.password={PASSWORD}\ncompression.type={compression}\n"
    )
}

fn spec(kafka: &Single, topic: &str, folder: &Path, properties: &str) -> KafkaSpec {
    let file = folder.join("client.properties");
    std::fs::write(&file, properties).unwrap();
    let client = ClientConfig::read(&file).unwrap();
    let (brokers, patience) = (vec![kafka.secured_uri().unwrap()], Duration::from_secs(20));
    KafkaSpec { brokers, topic: topic.into(), replicas: 1, patience, client }
}

#[tokio::test]
async fn a_broker_that_demands_tls_and_authentication_has_a_log_by_each_mechanism() {
    let folder = tempfile::tempdir().unwrap();
    let Some((kafka, certificates)) = start(folder.path()).await else { return };
    let clients = [("PLAIN", "none"), ("SCRAM-SHA-256", "gzip"), ("SCRAM-SHA-512", "lz4")];
    let mut number = 0;
    for (mechanism, compression) in clients {
        let properties = properties(&certificates, mechanism, compression);
        let mut log = KafkaLog::open(spec(&kafka, "redo", folder.path(), &properties)).unwrap();
        for entries in [1, 400] {
            let group: Vec<_> = (number + 1..=number + entries).map(|at| entry(1, at)).collect();
            log.append(&group).unwrap();
            number += entries;
        }
        // Each client reads the entries of all clients before it, in every compression.
        let read: Vec<_> =
            read(&mut log, Position(1)).into_iter().map(|(_, entry)| entry).collect();
        assert_eq!(read, (1..=number).map(|at| entry(1, at)).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_client_without_what_the_broker_demands_is_refused_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let Some((kafka, certificates)) = start(folder.path()).await else { return };
    let good = properties(&certificates, "SCRAM-SHA-256", "none");
    let without = |names: &[&str]| -> String {
        let kept = good.lines().filter(|line| !names.iter().any(|name| line.starts_with(name)));
        kept.map(|line| format!("{line}\n")).collect()
    };
    let refused = [
        (good.replace(PASSWORD, "wrong"), "SCRAM-SHA-256 authentication of user imago failed"),
        (without(&["ssl.ca.location"]), "TLS failed: invalid peer certificate: UnknownIssuer"),
        (without(&["ssl.certificate", "ssl.key"]), "TLS failed"),
        (
            without(&["sasl."]).replace("SASL_SSL", "SSL"),
            "it closed the connection, as a broker does that demands TLS or SASL",
        ),
        (String::new(), "it demands TLS: set security.protocol"),
    ];
    for (properties, why) in refused {
        let spec = spec(&kafka, "refused", folder.path(), &properties);
        let short = KafkaSpec { patience: Duration::from_secs(1), ..spec };
        let refused = KafkaLog::open(short).unwrap_err().to_string();
        assert!(refused.contains(why), "{properties}: {refused}");
        assert!(!refused.contains(PASSWORD), "{refused}");
        assert!(refused.contains(&kafka.secured_uri().unwrap()), "{refused}");
    }
}
