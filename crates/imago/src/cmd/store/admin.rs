//! `imago store design`, `split` and the others: requests by HTTP to the admin address of a store that serves.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use imago_store::admin::{ChangeRequest, DesignReport, Token};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::RequestBuilder;

use crate::cmd::secret;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// Maximum time for a reply of the store; the store's own deadline for a change of its design is shorter.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// The store.
#[derive(Debug, clap::Args)]
pub struct Where {
    /// Address at which the store takes changes of its design (`imago store serve --admin`).
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7379")]
    admin: SocketAddr,
    /// The file with the token that the store asks for there (`imago store serve --admin-token-file`).
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

/// The partition, and its store.
#[derive(Debug, clap::Args)]
pub struct At {
    /// A key: TABLE:ROW, for example 0:user42. The keys of database 0 are rows of table 0; bytes that
    /// cannot be typed are written \xNN.
    key: String,
    #[command(flatten)]
    store: Where,
}

/// The partition, and the site.
#[derive(Debug, clap::Args)]
pub struct AtSite {
    #[command(flatten)]
    at: At,
    /// The site's number, from 0 on.
    #[arg(long, value_name = "N", required = true)]
    site: Option<u16>,
}

impl From<At> for AtSite {
    fn from(at: At) -> Self {
        Self { at, site: None }
    }
}

pub async fn design(at: &Where, context: &Context) -> Result<(), Failure> {
    let asked = ask(at, "design", None).await?;
    let report: DesignReport = understood(asked)?;
    context.output.result(&report, in_words)
}

/// Decodes the JSON of a store's reply into `T`.
pub(super) fn understood<T: DeserializeOwned>(answer: Value) -> Result<T, Failure> {
    serde_json::from_value(answer).map_err(|cause| {
        Failure::new(Exit::Failed, "store_answer", "cannot parse the reply of the store")
            .because(&cause)
            .help("check that the store runs the same version of imago")
    })
}

pub async fn change(verb: &str, at: AtSite, context: &Context) -> Result<(), Failure> {
    let request = ChangeRequest { key: at.at.key, site: at.site };
    ask(&at.at.store, verb, Some(&request)).await?;
    context.output.result(&serde_json::json!({ "done": verb }), |_| format!("{verb}: done"))
}

fn in_words(report: &DesignReport) -> String {
    let number =
        |number: Option<u64>| number.map_or_else(|| "-".into(), |number| number.to_string());
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".into(), |rate| format!("{rate:.0}"));
    let site = |site: Option<u16>| site.map_or_else(|| "-".into(), |site| site.to_string());
    let title = ["from", "master", "pin", "replicas", "rows", "bytes", "writes/s", "reads/s"];
    let rows = report.partitions.iter().map(|partition| {
        let replicas: Vec<String> = partition.replicas.iter().map(u16::to_string).collect();
        [
            if partition.start.is_empty() { "(first)".into() } else { partition.start.clone() },
            match partition.is_available {
                true => partition.master.to_string(),
                false => format!("{} (down)", partition.master),
            },
            site(partition.pin),
            if replicas.is_empty() { "-".into() } else { replicas.join(",") },
            number(partition.rows),
            number(partition.bytes),
            rate(partition.writes_per_s),
            rate(partition.reads_per_s),
        ]
    });
    let mut text = crate::table::table(&title, rows, &[]);
    for site in &report.sites {
        let state = site.absence.map_or_else(String::new, |why| format!(", {why}"));
        let lost = match (site.absence, site.masters) {
            (None, _) | (_, 0) => String::new(),
            (Some(_), many) => {
                format!(
                    ": the keys of {many} partitions cannot be read or written until it is back"
                )
            }
        };
        let rack = site.rack.as_ref().map(|rack| format!(", rack {rack}")).unwrap_or_default();
        let used = if site.is_used { "" } else { ", not in use" };
        _ = writeln!(
            text,
            "site {}: epoch {}{rack}{state}{used}, masters {}, replicas {}, {} rows{lost}",
            site.site, site.epoch, site.masters, site.replicas, site.rows
        );
    }
    if report.below_replicas_min > 0 {
        _ = writeln!(
            text,
            "{} partitions have fewer replicas than --replicas-min {}",
            report.below_replicas_min, report.replicas_min
        );
    }
    if let Some(checkpoints) = &report.checkpoints {
        _ = match checkpoints.newest {
            0 => writeln!(text, "checkpoints: none yet"),
            newest => writeln!(text, "checkpoints: the newest is of entry {newest} of the log"),
        };
        if let Some(failure) = &checkpoints.failure {
            _ = writeln!(text, "the last checkpoint was not written: {failure}");
        }
    }
    if let Some(cut) = &report.cut_tail {
        _ = writeln!(
            text,
            "at the start, {} bytes were cut off from byte {} of {} on: they were not complete \
             commits",
            cut.bytes,
            cut.at,
            cut.path.display()
        );
    }
    if report.clients.closed > 0 {
        let closed = report.clients.closed;
        _ = writeln!(
            text,
            "{closed} connections were closed because their clients did not read replies"
        );
    }
    if let Some(trouble) = &report.trouble {
        _ = writeln!(text, "writes are not possible now: {trouble}");
    }
    text
}

/// Sends a request to `/path` of the store's admin address: GET without a body, POST with one. Returns the reply.
pub(super) async fn ask(
    at: &Where,
    path: &str,
    request: Option<&ChangeRequest>,
) -> Result<Value, Failure> {
    let request = request.map(|request| serde_json::json!(request));
    send_request(at, path, request).await
}

/// Sends a POST request without parameters to `/path` of the store's admin address. Returns the reply.
pub(super) async fn tell(at: &Where, path: &str) -> Result<Value, Failure> {
    post(at, path, serde_json::json!({})).await
}

/// Sends a POST request with this body to `/path` of the store's admin address. Returns the reply.
pub(super) async fn post(at: &Where, path: &str, body: Value) -> Result<Value, Failure> {
    send_request(at, path, Some(body)).await
}

async fn send_request(at: &Where, path: &str, request: Option<Value>) -> Result<Value, Failure> {
    let admin = at.admin;
    let token = at.token_file.as_deref().map(secret::token).transpose()?;
    let url = format!("http://{admin}/{path}");
    let asked = tokio::task::spawn_blocking(move || {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(ANSWER_WAIT))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let mut answer = match request {
            None => with_token(token.as_ref(), agent.get(&url)).call()?,
            Some(request) => with_token(token.as_ref(), agent.post(&url)).send_json(&request)?,
        };
        let status = answer.status().as_u16();
        Ok::<_, ureq::Error>((status, answer.body_mut().read_json::<Value>()?))
    });
    let (status, body) = match asked.await {
        Ok(Ok(answer)) => answer,
        Ok(Err(cause)) => {
            let message = format!("no store answers at {admin}");
            let failure = Failure::new(Exit::Failed, "store_silent", message).because(&cause);
            return Err(failure.help("--admin is the address that `imago store serve` printed"));
        }
        Err(cause) => return Err(Failure::from_error(Exit::Failed, "store_silent", &cause)),
    };
    let why = || body["error"].as_str().unwrap_or("no reason was given").to_owned();
    match status {
        200 => Ok(body),
        401 => Err(Failure::new(Exit::Precondition, "store_token", why()).help(
            "--token-file is a file with the token that `imago store serve --admin-token-file` was given",
        )),
        400 => Err(Failure::new(Exit::Usage, "store_order", why())),
        409 => Err(Failure::new(Exit::Precondition, "store_refused", why())),
        _ => Err(Failure::new(Exit::Failed, "store_failed", format!("{status}: {}", why()))),
    }
}

fn with_token<B>(token: Option<&Token>, request: RequestBuilder<B>) -> RequestBuilder<B> {
    match token {
        Some(token) => request.header("authorization", token.header()),
        None => request,
    }
}
