//! Checks a connection string against the specification of MongoDB's drivers, before the driver reads it.
//!
//! The driver refuses options that it does not have, although the specification requires a warning ("URI Options
//! Specification", "Connection String Specification"). The table `OPTIONS` has all options of the specification.
//! Invariants: an option without effect is named in a warning, unless its value requests what Imago does anyway; no
//! option for encryption or credentials is ignored; an error quotes no value, since a part of a password may be in
//! its place.

use std::collections::BTreeSet;

use mongodb::error::ErrorKind;
use mongodb::options::ClientOptions;

use crate::error::{Error, Result, redacted_message};

/// Minimum number of connections to each server that a pool must allow. A change stream uses one while it waits, and
/// workers, lanes, the lease renewal and the monitor use theirs at the same time. This is the driver's default, with
/// which all tests run.
const POOL_MIN: u32 = 10;

/// Returns the driver's options for the connection string `uri`, and logs the options without effect. `role` names
/// the cluster in errors: `source` or `destination`.
pub(super) async fn read(uri: &str, role: &'static str) -> Result<ClientOptions> {
    let unread = |what: &str, help: &str| {
        Error::usage(format!("the {role}'s connection string cannot be read: {what}"), help)
    };
    let accepted = accept(uri).map_err(|fault| unread(&fault.what, fault.help))?;
    for note in &accepted.notes {
        tracing::warn!("the {role}'s connection string: {note}");
    }
    ClientOptions::parse(&accepted.uri).await.map_err(|error| match error.kind.as_ref() {
        ErrorKind::DnsResolve { .. } => {
            let host = accepted.uri.split(['/', '?']).nth(2).unwrap_or_default();
            let host = host.rsplit('@').next().unwrap_or_default();
            let help = format!(
                "check that DNS has them (dig SRV _mongodb._tcp.{host}), or write the servers that \
                 they name as mongodb://host:port,…/?replicaSet=…, with tls=true unless it is \
                 switched off"
            );
            let cause = format!("its DNS records could not be read: {}", redacted_message(&error));
            Error::Unreachable { role, cluster: format!("mongodb+srv://{host}"), cause, help }
        }
        _ => unread(
            &redacted_message(&error),
            "write it as mongodb://[user:password@]host:port[,…]/[?options]",
        ),
    })
}

/// A connection string that the driver can read, and warnings about the original one.
#[derive(Debug, PartialEq, Eq)]
struct Accepted {
    /// The connection string for the driver, with user and password and without ignored options.
    uri: String,
    /// Warnings for the user: a sentence for each option that is ignored or changed.
    notes: Vec<String>,
}

/// A fault of a connection string, and the remedy.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    what: String,
    help: &'static str,
}

/// The effect of an option of a connection string.
enum Use {
    /// The driver applies the option.
    Driver,
    /// The option has no effect; contains the reason.
    None(&'static str),
    /// The option has no effect; contains the values that request what Imago does anyway, and the reason for a
    /// warning about any other value.
    Anyway(&'static [&'static str], &'static str),
    /// The option cannot be ignored without harm, and is refused; contains the remedy.
    Refused(&'static str),
}

const ONE_OF_TWO: &str = "leave one of the two out";
const SECURES: &str = "an option about encryption or credentials is not ignored: correct it, or leave \
                       it out";
const ESCAPED: &str = "options are written as name=value, with & between them; in a user's name or \
                       password write ? as %3F, & as %26, @ as %40, / as %2F, % as %25";
const NO_COMPRESSION: &str = "connections are not compressed";
const OWN_DEADLINES: &str = "Imago has deadlines of its own for each request";
const OWN_WRITES: &str =
    "Imago writes with the concern that each write needs, majority where it counts";
const OWN_READS: &str =
    "Imago reads documents at a secondary where there is one, all else at the primary";
const OWN_CONCERN: &str = "Imago reads with the concern that each read needs";
const DECRYPT: &str = "decrypt the key (openssl pkey -in KEY -out PLAIN), and name a file that has the \
                       certificate and the decrypted key";
const QUEUE: &str = "a request waits for a connection as long as it may wait for its answer";
const NO_PROXY: &str = "connections are made without a proxy";
const NO_REVOCATION: &str = "the revocation of certificates is not checked";

/// All options of the specification, in its spelling, with their effects.
const OPTIONS: &[(&str, Use)] = &[
    ("adaptiveRetries", Use::None("the driver does not have it")),
    ("appName", Use::Driver),
    ("authMechanism", Use::Driver),
    ("authMechanismProperties", Use::Driver),
    ("authSource", Use::Driver),
    ("compressors", Use::Anyway(&[""], NO_COMPRESSION)),
    ("connectTimeoutMS", Use::Driver),
    ("directConnection", Use::Driver),
    ("enableOverloadRetargeting", Use::Driver),
    ("heartbeatFrequencyMS", Use::Driver),
    ("journal", Use::Anyway(&["true"], OWN_WRITES)),
    ("loadBalanced", Use::Driver),
    ("localThresholdMS", Use::Driver),
    ("maxAdaptiveRetries", Use::Driver),
    ("maxConnecting", Use::Driver),
    ("maxIdleTimeMS", Use::Driver),
    ("maxPoolSize", Use::Driver),
    ("maxStalenessSeconds", Use::None(OWN_READS)),
    ("minPoolSize", Use::Driver),
    ("proxyHost", Use::None(NO_PROXY)),
    ("proxyPassword", Use::None(NO_PROXY)),
    ("proxyPort", Use::None(NO_PROXY)),
    ("proxyUsername", Use::None(NO_PROXY)),
    ("readConcernLevel", Use::Anyway(&["majority"], OWN_CONCERN)),
    ("readPreference", Use::Anyway(&["secondaryPreferred"], OWN_READS)),
    ("readPreferenceTags", Use::None(OWN_READS)),
    ("replicaSet", Use::Driver),
    ("retryReads", Use::Driver),
    ("retryWrites", Use::Driver),
    ("serverMonitoringMode", Use::Driver),
    ("serverSelectionTimeoutMS", Use::Driver),
    ("serverSelectionTryOnce", Use::None("a server is looked for until the deadline")),
    ("socketTimeoutMS", Use::Anyway(&["0"], OWN_DEADLINES)),
    ("srvMaxHosts", Use::Driver),
    ("srvServiceName", Use::Driver),
    ("ssl", Use::Driver),
    ("timeoutMS", Use::Anyway(&["0"], OWN_DEADLINES)),
    ("tls", Use::Driver),
    ("tlsAllowInvalidCertificates", Use::Driver),
    (
        "tlsAllowInvalidHostnames",
        Use::Anyway(&["false"], "the host's name is compared with its certificate all the same"),
    ),
    ("tlsCAFile", Use::Driver),
    ("tlsCertificateKeyFile", Use::Driver),
    ("tlsCertificateKeyFilePassword", Use::Refused(DECRYPT)),
    ("tlsDisableCertificateRevocationCheck", Use::Anyway(&["true"], NO_REVOCATION)),
    ("tlsDisableOCSPEndpointCheck", Use::Anyway(&["true"], NO_REVOCATION)),
    ("tlsInsecure", Use::Driver),
    (
        "uuidRepresentation",
        Use::Anyway(
            &["unspecified", "standard", "csharpLegacy", "javaLegacy", "pythonLegacy"],
            "documents are copied byte by byte",
        ),
    ),
    ("w", Use::Anyway(&["majority"], OWN_WRITES)),
    ("waitQueueMultiple", Use::None(QUEUE)),
    ("waitQueueSize", Use::None(QUEUE)),
    ("waitQueueTimeoutMS", Use::None(QUEUE)),
    ("wTimeoutMS", Use::None(OWN_WRITES)),
    ("zlibCompressionLevel", Use::None(NO_COMPRESSION)),
];

/// The options of one connection string, in their order, each name in the spelling of [`OPTIONS`].
#[derive(Default)]
struct Options<'a> {
    taken: Vec<(&'static str, &'a str)>,
    /// Warnings about ignored or changed options. Each occurs once, although an option may be repeated.
    notes: BTreeSet<String>,
}

/// Returns the connection string `uri` as the driver is to read it, according to [`OPTIONS`], or its first fault.
fn accept(uri: &str) -> Result<Accepted, Fault> {
    let Some((place, written)) = uri.split_once('?') else {
        return Ok(Accepted { uri: uri.to_owned(), notes: Vec::new() });
    };
    let mut options = Options::default();
    for pair in written.split('&').filter(|pair| !pair.is_empty()) {
        // An "@" belongs before the options, so this text is the rest of a password.
        let Some((name, value)) = pair.split_once('=').filter(|_| !pair.contains('@')) else {
            return Err(Fault { what: "its options cannot be read".into(), help: ESCAPED });
        };
        options.add(name, value)?;
    }
    options.agree_on_encryption()?;
    let pool = options.pool()?;
    let taken = options.taken.iter().map(|(name, value)| format!("{name}={value}"));
    let written = taken.chain(pool).collect::<Vec<_>>().join("&");
    let separator = if written.is_empty() { "" } else { "?" };
    let notes = options.notes.into_iter().collect();
    Ok(Accepted { uri: format!("{place}{separator}{written}"), notes })
}

impl<'a> Options<'a> {
    fn add(&mut self, name: &str, value: &'a str) -> Result<(), Fault> {
        let found = OPTIONS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let Some((name, effect)) = found else { return self.add_unknown(name) };
        match effect {
            Use::Driver => self.take(name, value),
            Use::None(why) => {
                self.notes.insert(format!("{name} is ignored: {why}"));
                Ok(())
            }
            Use::Anyway(values, why) => {
                if !values.iter().any(|known| known.eq_ignore_ascii_case(value)) {
                    self.notes.insert(format!("{name} is ignored: {why}"));
                }
                Ok(())
            }
            Use::Refused(help) => {
                Err(Fault { what: format!("its option {name} cannot be followed"), help })
            }
        }
    }

    fn take(&mut self, name: &'static str, value: &'a str) -> Result<(), Fault> {
        match self.value(name) {
            None => self.taken.push((name, value)),
            Some(before) if before == value => {}
            Some(_) => {
                let what = format!("its option {name} has two different values");
                return Err(Fault { what, help: ONE_OF_TWO });
            }
        }
        Ok(())
    }

    fn add_unknown(&mut self, name: &str) -> Result<(), Fault> {
        let is_name = name.len() <= 40 && name.chars().all(|letter| letter.is_ascii_alphanumeric());
        if !is_name {
            return Err(Fault { what: "its options cannot be read".into(), help: ESCAPED });
        }
        let lower = name.to_ascii_lowercase();
        let names = OPTIONS.iter().map(|(known, _)| *known);
        let distance =
            |known: &&str| strsim::damerau_levenshtein(&known.to_ascii_lowercase(), &lower);
        let is_near = |known: &&str| distance(known) <= 2 && distance(known) * 2 <= lower.len();
        let near = names.min_by_key(distance).filter(is_near);
        let instead = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
        let unknown = format!("{name} is no option of a connection string{instead}");
        let secures = |name: &str| ["tls", "ssl", "auth"].iter().any(|with| name.starts_with(with));
        if secures(&lower) || near.is_some_and(secures) {
            return Err(Fault { what: unknown, help: SECURES });
        }
        self.notes.insert(format!("{unknown}; it is ignored"));
        Ok(())
    }

    fn value(&self, name: &str) -> Option<&'a str> {
        self.taken.iter().find(|(taken, _)| *taken == name).map(|(_, value)| *value)
    }

    /// Checks the options of TLS: `ssl` is an older name of `tls`, and an option of TLS contradicts its absence.
    fn agree_on_encryption(&mut self) -> Result<(), Fault> {
        let fault = |what: String| Err(Fault { what, help: ONE_OF_TWO });
        let (tls, ssl) = (self.value("tls"), self.value("ssl"));
        if let (Some(tls), Some(ssl)) = (tls, ssl) {
            if tls != ssl {
                return fault("its options tls and ssl contradict each other".into());
            }
            self.taken.retain(|(name, _)| *name != "ssl");
        }
        if tls.or(ssl) == Some("false") {
            let of_tls = |(name, _): &&(&str, &str)| name.starts_with("tls") && *name != "tls";
            if let Some((name, _)) = self.taken.iter().find(of_tls) {
                return fault(format!("its option {name} needs TLS, which tls=false switches off"));
            }
        }
        Ok(())
    }

    /// Removes `maxPoolSize` and `minPoolSize` from the options, and returns them as `name=value`, raised to the
    /// connections that Imago needs.
    fn pool(&mut self) -> Result<Vec<String>, Fault> {
        let size = |name: &str| {
            let parsed = self.value(name).map(str::parse::<u32>).transpose();
            parsed.map_err(|_| Fault {
                what: format!("its option {name} is no number of connections"),
                help: "write a whole number, or leave it out",
            })
        };
        let (max, min) = (size("maxPoolSize")?, size("minPoolSize")?);
        self.taken.retain(|(name, _)| !matches!(*name, "maxPoolSize" | "minPoolSize"));
        let needed = POOL_MIN.max(min.unwrap_or(0));
        let raised = match max {
            // In the specification 0 means no limit; the driver cannot express that.
            Some(0) => Some(u32::MAX),
            Some(max) if max < needed => {
                self.notes.insert(format!(
                    "maxPoolSize is raised from {max} to {needed}, the fewest connections to a \
                     server with which Imago works"
                ));
                Some(needed)
            }
            Some(max) => Some(max),
            None => (needed > POOL_MIN).then_some(needed),
        };
        let written = |name: &str, size: Option<u32>| size.map(|size| format!("{name}={size}"));
        let written = [written("maxPoolSize", raised), written("minPoolSize", min)];
        Ok(written.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests;
