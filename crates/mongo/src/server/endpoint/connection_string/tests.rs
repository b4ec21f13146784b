//! Connection strings as people have them, and as the specification's own tests do.

use mongodb::options::{ConnectionString, Tls};

use super::{OPTIONS, Use, accept};

const PLACE: &str = "mongodb://app:s3cret@db1.example.com:27017,db2.example.com/";

fn with(options: &str) -> String {
    format!("{PLACE}?{options}")
}

/// The notes of an accepted string, which the driver reads, too.
fn notes(options: &str) -> Vec<String> {
    let accepted = accept(&with(options)).unwrap_or_else(|fault| panic!("{options}: {fault:?}"));
    let read = ConnectionString::parse(&accepted.uri);
    read.unwrap_or_else(|error| panic!("{options}: {error}"));
    accepted.notes
}

fn fault(uri: &str) -> String {
    let fault = accept(uri).expect_err(uri);
    assert!(!fault.what.contains("s3cret") && !fault.what.contains("ss@"), "{fault:?}");
    format!("{}: {}", fault.what, fault.help)
}

/// A value that the specification allows for each option.
fn example(name: &str) -> &'static str {
    match name {
        "authMechanism" => "SCRAM-SHA-256",
        "authMechanismProperties" => "SERVICE_NAME:mongodb",
        "compressors" => "snappy,zlib",
        "authSource" | "appName" | "replicaSet" | "srvServiceName" => "admin",
        "proxyHost" => "localhost",
        "readConcernLevel" => "local",
        "readPreference" => "nearest",
        "readPreferenceTags" => "dc:ny,rack:1",
        "serverMonitoringMode" => "poll",
        "tlsCAFile" | "tlsCertificateKeyFile" => "%2Fetc%2Fssl%2Fdb.pem",
        "uuidRepresentation" => "standard",
        "journal" | "ssl" | "tls" | "retryReads" | "retryWrites" | "loadBalanced" => "true",
        "directConnection" | "tlsInsecure" | "tlsAllowInvalidCertificates" => "false",
        "tlsAllowInvalidHostnames" | "adaptiveRetries" | "enableOverloadRetargeting" => "true",
        _ => "20",
    }
}

#[test]
fn every_option_of_the_specification_is_taken_or_named() {
    for (name, effect) in OPTIONS.iter().filter(|(_, effect)| !matches!(effect, Use::Refused(_))) {
        let srv = matches!(*name, "srvMaxHosts" | "srvServiceName");
        let place = if srv { "mongodb+srv://db.example.com/" } else { PLACE };
        for name in [(*name).to_owned(), name.to_lowercase(), name.to_uppercase()] {
            let uri = format!("{place}?{name}={}", example(spelled(&name)));
            let accepted = accept(&uri).unwrap_or_else(|fault| panic!("{uri}: {fault:?}"));
            let read = ConnectionString::parse(&accepted.uri);
            assert!(read.is_ok(), "{uri} became {}: {read:?}", accepted.uri);
            let is_taken = accepted.uri.contains('?');
            let agrees = matches!(effect, Use::Anyway(..)) && accepted.notes.is_empty();
            let is_named = accepted.notes.iter().any(|note| note.contains(spelled(&name)));
            assert!(is_taken || agrees || is_named, "{uri}: {accepted:?}");
        }
    }
}

/// The name as the table spells it.
fn spelled(name: &str) -> &'static str {
    OPTIONS.iter().map(|(known, _)| *known).find(|known| known.eq_ignore_ascii_case(name)).unwrap()
}

#[test]
fn what_says_what_is_done_anyway_is_not_named() {
    let atlas = "retryWrites=true&w=majority&appName=Cluster0&authSource=admin&replicaSet=rs0";
    assert_eq!(notes(atlas), [""; 0]);
    for quiet in ["compressors=", "journal=true", "readConcernLevel=majority", "timeoutMS=0"] {
        assert_eq!(notes(quiet), [""; 0], "{quiet}");
    }
    for form in ["standard", "csharpLegacy", "JAVALEGACY", "pythonLegacy", "unspecified"] {
        assert_eq!(notes(&format!("uuidRepresentation={form}")), [""; 0], "{form}");
    }
}

#[test]
fn what_has_no_effect_is_named_once() {
    let options = "compressors=snappy,zlib,zstd&zlibCompressionLevel=6&socketTimeoutMS=30000&\
                   timeoutMS=10000&w=0&readPreference=secondary&readPreferenceTags=dc:ny&\
                   readPreferenceTags=&maxStalenessSeconds=120&waitQueueTimeoutMS=1000";
    let notes = notes(options);
    let named: Vec<&str> = notes
        .iter()
        .filter_map(|note| note.split_once(" is ignored: "))
        .map(|(name, _)| name)
        .collect();
    let all = [
        "compressors",
        "maxStalenessSeconds",
        "readPreference",
        "readPreferenceTags",
        "socketTimeoutMS",
        "timeoutMS",
        "w",
        "waitQueueTimeoutMS",
        "zlibCompressionLevel",
    ];
    assert_eq!(named, all);
}

#[test]
fn pools_have_at_least_the_connections_that_are_needed() {
    let sizes = |options: &str| {
        let accepted = accept(&with(options)).unwrap();
        let read = ConnectionString::parse(&accepted.uri).unwrap();
        (read.max_pool_size, read.min_pool_size, accepted.notes.len())
    };
    assert_eq!(sizes("maxPoolSize=1"), (Some(10), None, 1));
    assert_eq!(sizes("maxpoolsize=100&minPoolSize=5"), (Some(100), Some(5), 0));
    assert_eq!(sizes("minPoolSize=50"), (Some(50), Some(50), 0), "the driver's limit is 10");
    assert_eq!(sizes("maxPoolSize=20&minPoolSize=50"), (Some(50), Some(50), 1));
    assert_eq!(sizes("maxPoolSize=0"), (Some(u32::MAX), None, 0), "it means no limit");
    assert_eq!(sizes("maxConnecting=1"), (None, None, 0));
    assert!(fault(&with("maxPoolSize=many")).contains("maxPoolSize"));
}

#[test]
fn an_unknown_option_is_ignored_unless_it_may_be_about_encryption_or_credentials() {
    assert_eq!(
        notes("retryWrite=true&slaveOk=true"),
        [
            "retryWrite is no option of a connection string; did you mean retryWrites?; it is ignored",
            "slaveOk is no option of a connection string; it is ignored",
        ]
    );
    for secures in ["tsl=true", "tlsCaFlie=x", "sslMode=require", "authSorce=admin"] {
        assert!(fault(&with(secures)).contains("encryption"), "{secures}");
    }
    assert!(fault(&with("tlsCertificateKeyFilePassword=s3cret")).contains("openssl pkey"));
}

#[test]
fn contradictions_are_refused_and_repetitions_are_not() {
    assert_eq!(notes("tls=true&ssl=true&tls=true&"), [""; 0]);
    assert!(fault(&with("tls=true&ssl=false")).contains("contradict"));
    assert!(fault(&with("ssl=false&tlsCAFile=ca.pem")).contains("tlsCAFile"));
    assert!(fault(&with("replicaSet=rs0&replicaSet=rs1")).contains("two different values"));
}

#[test]
fn a_piece_of_a_password_is_no_option_and_is_not_shown() {
    for uri in
        ["mongodb://app:s3?ss@db/", "mongodb://app:p?s3cret=ss@db/?w=1", "mongodb://db/?s3cret"]
    {
        assert!(fault(uri).contains("%3F"), "{uri}");
    }
}

#[test]
fn a_host_found_by_dns_has_tls_unless_it_is_switched_off() {
    for (options, is_on) in [("", true), ("?tls=false", false), ("?ssl=false", false)] {
        let accepted = accept(&format!("mongodb+srv://db.example.com/{options}")).unwrap();
        let read = ConnectionString::parse(&accepted.uri).unwrap();
        assert_eq!(matches!(read.tls, Some(Tls::Enabled(_))), is_on, "{options}");
    }
}
