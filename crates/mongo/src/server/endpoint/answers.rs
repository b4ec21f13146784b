//! Diagnosis of a cluster that could not be reached: each of its servers is asked separately.
//!
//! The driver ignores a server that belongs to another set than the named one, or uses another encryption, and
//! reports that no server replied. Here each server is sent a greeting (`hello`), without credentials, with TLS and
//! without. Invariant: only a greeting is sent over a connection that the user did not request.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::future::join_all;
use mongodb::Client;
use mongodb::options::{
    ClientOptions, ReadPreference, SelectionCriteria, ServerAddress, Tls, TlsOptions,
};

use super::Shape;
use crate::error::redacted_message;

/// Minimum and maximum of the wait for one server's greeting, to which the deadline of the cluster is clamped.
const GREETED_WITHIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
/// Maximum number of servers of a connection string that are asked.
const PROBED_MAX: usize = 8;

/// The reply of one server to the greeting (`hello`).
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// The server replied with the requested encryption. `shape` is its kind of cluster (`None` for a standalone
    /// server), `members` are the hosts of its replica set.
    AsRequested { shape: Option<Shape>, members: Vec<String> },
    /// The server replied with TLS although none was requested, or without TLS although it was requested.
    OtherEncryption,
    /// The server did not reply; contains the reason in words.
    None(String),
}

/// The cause of a failure to reach a cluster, and the remedy.
pub(super) struct Diagnosis {
    pub(super) cause: String,
    pub(super) help: String,
}

/// Asks each server of `options` separately, since none of them replied to a request within the time `waited`, and
/// returns the most likely cause.
pub(super) async fn diagnose(options: &ClientOptions, waited: Duration) -> Diagnosis {
    let within = options.server_selection_timeout.unwrap_or(waited).min(waited);
    let within = within.clamp(GREETED_WITHIN[0], GREETED_WITHIN[1]);
    let hosts = options.hosts.iter().take(PROBED_MAX);
    let asked =
        hosts.map(|host| async move { (host.to_string(), ask(host, options, within).await) });
    let answers = join_all(asked).await;
    let has_tls = matches!(options.tls, Some(Tls::Enabled(_)));
    conclude(options.repl_set_name.as_deref(), has_tls, waited, &answers)
}

async fn ask(host: &ServerAddress, options: &ClientOptions, within: Duration) -> Answer {
    let cause = match greet(host, options.tls.clone(), within).await {
        Ok(hello) => {
            let members = hello.get_array("hosts").into_iter().flatten();
            let members = members.filter_map(Bson::as_str).map(str::to_owned).collect();
            return Answer::AsRequested { shape: super::shape_of(&hello), members };
        }
        // No process listens there, with TLS or without.
        Err(cause) if cause.contains("refused") => return Answer::None(cause),
        Err(cause) => cause,
    };
    let other = match options.tls {
        Some(Tls::Enabled(_)) => None,
        // No credentials are sent, and the reply is not trusted, so the server's certificate does not matter.
        _ => {
            let any = TlsOptions::builder().allow_invalid_certificates(true).build();
            Some(Tls::Enabled(any))
        }
    };
    let is_tls = other.is_some();
    match greet(host, other, within).await {
        Ok(_) => Answer::OtherEncryption,
        // A server that requires a certificate of its client reports that by a TLS alert.
        Err(refused) if is_tls && refused.contains("alert") => Answer::OtherEncryption,
        Err(_) => Answer::None(cause),
    }
}

async fn greet(
    host: &ServerAddress,
    tls: Option<Tls>,
    within: Duration,
) -> Result<Document, String> {
    let mut options = ClientOptions::builder()
        .hosts(vec![host.clone()])
        .app_name("imago".to_owned())
        .direct_connection(true)
        .server_selection_timeout(within)
        .connect_timeout(within)
        .build();
    options.tls = tls;
    let client = Client::with_options(options).map_err(|error| redacted_message(&error))?;
    let any = SelectionCriteria::ReadPreference(ReadPreference::Nearest { options: None });
    let admin = client.database("admin");
    let hello = admin.run_command(doc! {"hello": 1}).selection_criteria(any).into_future();
    // The driver stops by itself shortly after its deadline.
    let bound = 2 * within;
    match tokio::time::timeout(bound, hello).await {
        Ok(answered) => answered.map_err(|error| part_about_one_server(&redacted_message(&error))),
        Err(_) => Err(format!("no answer within {:.1} s", bound.as_secs_f64())),
    }
}

/// Returns the part about one server of `message`, the driver's message about all servers.
fn part_about_one_server(message: &str) -> String {
    let Some((_, rest)) = message.split_once("Error: ") else { return message.to_owned() };
    let rest = rest.strip_prefix("Kind: ").unwrap_or(rest);
    let end = rest.find(", labels:").unwrap_or(rest.len());
    rest[..end].trim_end_matches(['}', ']', ' ', ',']).to_owned()
}

/// Returns the finding that explains best why no server of `answers` replied to the cluster's connection. `wanted` is
/// the requested replica set, `waited` the time that the connection waited.
fn conclude(
    wanted: Option<&str>,
    has_tls: bool,
    waited: Duration,
    answers: &[(String, Answer)],
) -> Diagnosis {
    let found = |cause: String, help: &str| Diagnosis { cause, help: help.to_owned() };
    for (host, answer) in answers {
        let (at, is) = (format!("a server at {host} answered, but"), wanted.unwrap_or_default());
        match answer {
            Answer::AsRequested { shape: Some(Shape::ReplicaSet(name)), .. }
                if wanted.is_some_and(|wanted| wanted != name) =>
            {
                return found(
                    format!("{at} its replica set is named {name}, not {is}"),
                    &format!("write replicaSet={name}, or name the servers of {is}"),
                );
            }
            Answer::AsRequested { shape: Some(Shape::Sharded), .. } if wanted.is_some() => {
                return found(
                    format!("{at} it is a router of a sharded cluster, and no member of {is}"),
                    "leave replicaSet out",
                );
            }
            Answer::AsRequested { shape: None, .. } if wanted.is_some() => {
                return found(
                    format!("{at} it is not a member of {is}, or of any replica set"),
                    "restart it with --replSet and run rs.initiate(), even with a single member",
                );
            }
            Answer::OtherEncryption if has_tls => {
                return found(
                    format!("{at} without TLS, which the connection string asks for"),
                    "leave tls=true out, or have the server use TLS (net.tls.mode)",
                );
            }
            Answer::OtherEncryption => {
                return found(
                    format!("{at} only with TLS, which the connection string does not ask for"),
                    "add tls=true; tlsCAFile=FILE if its certificate is signed by an authority of \
                     your own, and tlsCertificateKeyFile=FILE if it requires one of its clients",
                );
            }
            Answer::None(cause) if has_tls && cause.contains("certificate") => {
                return found(
                    format!("{at} its certificate is not accepted: {cause}"),
                    "name the certificate of the authority that signed it (tlsCAFile=FILE), and the \
                     server as its certificate does",
                );
            }
            Answer::AsRequested { .. } | Answer::None(_) => {}
        }
    }
    for (host, answer) in answers {
        if let Answer::AsRequested { members, .. } = answer {
            let cause = if members.is_empty() {
                format!("a server at {host} answered by itself, but not when it was asked first")
            } else {
                format!(
                    "a server at {host} answered, but none of its set's members answers under the \
                     name that the set has for it: {}",
                    members.join(", ")
                )
            };
            let help = "have these names resolve to the members from here (rs.conf() has them), or \
                        try again if the set was just electing";
            return found(cause, help);
        }
    }
    let causes: Vec<String> = answers
        .iter()
        .map(|(host, answer)| match answer {
            Answer::None(cause) => format!("{host}: {cause}"),
            Answer::AsRequested { .. } | Answer::OtherEncryption => host.clone(),
        })
        .collect();
    found(
        format!("no server answered within {:.1} s ({})", waited.as_secs_f64(), causes.join("; ")),
        "check the host, the port and the network path",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn concluded(wanted: Option<&str>, has_tls: bool, answer: Answer) -> String {
        let refused = Answer::None("Connection refused".into());
        let answers = [("a:1".to_owned(), refused), ("b:2".to_owned(), answer)];
        let Diagnosis { cause, help } = conclude(wanted, has_tls, Duration::from_secs(5), &answers);
        format!("{cause}; {help}")
    }

    fn as_asked(shape: Option<Shape>) -> Answer {
        Answer::AsRequested { shape, members: vec!["mongo1:27017".into(), "mongo2:27017".into()] }
    }

    #[test]
    fn an_answer_that_the_driver_passes_over_is_named() {
        let set = || as_asked(Some(Shape::ReplicaSet("rs0".into())));
        let wrong = concluded(Some("rs1"), false, set());
        assert!(
            wrong.contains("b:2 answered, but its replica set is named rs0, not rs1"),
            "{wrong}"
        );
        let right = concluded(Some("rs0"), false, set());
        assert!(right.contains("mongo1:27017, mongo2:27017"), "{right}");
        let unnamed = concluded(None, true, set());
        assert!(unnamed.contains("mongo1:27017, mongo2:27017"), "{unnamed}");
        let router = concluded(Some("rs0"), false, as_asked(Some(Shape::Sharded)));
        assert!(router.contains("router") && router.contains("leave replicaSet out"), "{router}");
        let alone = concluded(Some("rs0"), false, as_asked(None));
        assert!(alone.contains("rs.initiate()"), "{alone}");
        let plain = concluded(None, true, Answer::OtherEncryption);
        assert!(plain.contains("without TLS") && plain.contains("leave tls=true out"), "{plain}");
        let encrypted = concluded(None, false, Answer::OtherEncryption);
        assert!(encrypted.contains("only with TLS") && encrypted.contains("add tls=true"));
        let foreign = Answer::None("invalid peer certificate: UnknownIssuer".into());
        let foreign = concluded(None, true, foreign);
        assert!(foreign.contains("certificate is not accepted") && foreign.contains("tlsCAFile"));
        let none = concluded(None, false, Answer::None("no answer within 4 s".into()));
        assert!(none.contains("a:1: Connection refused; b:2: no answer within 4 s"), "{none}");
    }

    #[test]
    fn of_the_drivers_message_the_cause_is_left() {
        let message = "Server selection timeout: No available servers. Topology: { Type: Single, \
                       Servers: [ { Address: a:1, Type: Unknown, Error: Kind: I/O error: Connection \
                       refused (os error 111), labels: {} } ] }";
        assert_eq!(part_about_one_server(message), "I/O error: Connection refused (os error 111)");
        assert_eq!(part_about_one_server("other"), "other");
    }
}
