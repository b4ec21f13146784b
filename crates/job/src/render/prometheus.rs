//! Renders events as Prometheus metrics, in base units, with the kind of operation in the name and no ids as
//! labels.
//!
//! | metric | |
//! |---|---|
//! | `imago_KIND_documents_total`, `imago_KIND_bytes_total` | documents and bytes done so far |
//! | `imago_KIND_documents_expected`, `imago_KIND_bytes_expected` | documents and bytes in total, if known |
//! | `imago_KIND_eta_seconds` | estimated time until the phase ends |
//! | `imago_change_applied_total`, `imago_change_lag_seconds` | changes applied, and their lag |
//! | `imago_job_phase{kind,phase}` | 1 for the present phase of a job, 0 for earlier phases |
//! | `imago_job_blocked{kind}`, `imago_job_paused{kind}`, `imago_job_cutover_ready{kind}` | 0 or 1 |
//! | `imago_job_warnings_total{code}`, `imago_job_ended_total{kind,how}` | number of warnings, and of ended jobs |
//! | `imago_KIND_NAME` | the last measurement of this name; milliseconds are converted to seconds |
//!
//! Unknown values are `NaN`, not zero.

use std::io;
use std::net::SocketAddr;

use metrics::{counter, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use super::Render;
use crate::event::{Body, Event, Progress};

/// The error that metrics cannot be served at the requested address.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics at {address}; choose an address of this machine and a free port")]
pub struct ServeError {
    address: SocketAddr,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// A renderer that records events as Prometheus metrics.
pub struct Prometheus {
    recorder: PrometheusRecorder,
}

/// Serves metrics over HTTP at `address` for as long as the process lives, and returns the renderer that records
/// them. Must be called within a Tokio runtime.
pub fn serve(address: SocketAddr) -> Result<Prometheus, ServeError> {
    let (recorder, server) = PrometheusBuilder::new()
        .with_http_listener(address)
        .build()
        .map_err(|source| ServeError { address, source: Box::new(source) })?;
    let handle = recorder.handle();
    tokio::spawn(async move {
        if let Err(error) = server.await {
            tracing::warn!(%address, ?error, "metrics are no longer served");
        }
    });
    tokio::spawn(tidy(handle));
    Ok(Prometheus { recorder })
}

/// Runs the upkeep of the metrics recorder every five seconds, for ever: the recorder stores all samples of a
/// histogram until its upkeep.
async fn tidy(handle: PrometheusHandle) {
    loop {
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        handle.run_upkeep();
    }
}

impl Prometheus {
    /// Returns a renderer that records metrics without serving them.
    #[cfg(test)]
    pub fn without_server() -> Self {
        Self { recorder: PrometheusBuilder::new().build_recorder() }
    }

    /// Returns all recorded metrics in the text format of Prometheus.
    pub fn text(&self) -> String {
        self.recorder.handle().render()
    }
}

impl Render for Prometheus {
    fn show(&mut self, event: &Event) -> io::Result<()> {
        with_local_recorder(&self.recorder, || record(&event.kind, &event.body));
        Ok(())
    }
}

fn record(kind: &str, body: &Body) {
    let of_kind = || [("kind", kind.to_owned())];
    let ended = |how: &'static str| {
        counter!("imago_job_ended_total", "kind" => kind.to_owned(), "how" => how).increment(1);
    };
    match body {
        Body::Phase { from, to } => {
            let phase = |phase: &str| gauge!("imago_job_phase", "kind" => kind.to_owned(), "phase" => phase.to_owned());
            if let Some(from) = from {
                phase(from).set(0.0);
            }
            phase(to).set(1.0);
        }
        Body::Progress(progress) => record_progress(kind, progress),
        Body::Warning { code, .. } => {
            counter!("imago_job_warnings_total", "code" => code.clone()).increment(1);
        }
        Body::Measurement { name, value, .. } => {
            let (name, value) = in_base_units(name, *value);
            gauge!(format!("imago_{kind}_{name}")).set(value);
        }
        Body::Paused { .. } => gauge!("imago_job_paused", &of_kind()).set(1.0),
        Body::Resumed => gauge!("imago_job_paused", &of_kind()).set(0.0),
        Body::Decision { .. } => {}
        Body::Done => ended("done"),
        Body::Failed { .. } => ended("failed"),
        Body::Cancelled => ended("cancelled"),
        Body::Interrupted => ended("interrupted"),
        Body::HandedOver => ended("handed_over"),
    }
}

fn record_progress(kind: &str, progress: &Progress) {
    let of_kind = [("kind", kind.to_owned())];
    let seconds = |ms: Option<u64>| ms.map_or(f64::NAN, |ms| ms as f64 / 1_000.0);
    let known = |number: Option<u64>| number.map_or(f64::NAN, |number| number as f64);
    let flag = |set: bool| f64::from(u8::from(set));
    counter!(format!("imago_{kind}_documents_total")).absolute(progress.documents_done);
    counter!(format!("imago_{kind}_bytes_total")).absolute(progress.bytes_done);
    gauge!(format!("imago_{kind}_documents_expected")).set(known(progress.documents_total));
    gauge!(format!("imago_{kind}_bytes_expected")).set(known(progress.bytes_total));
    gauge!(format!("imago_{kind}_eta_seconds")).set(seconds(progress.eta_ms));
    let bound = |bound: fn((u64, u64)) -> u64| seconds(progress.eta_interval_ms.map(bound));
    gauge!(format!("imago_{kind}_eta_low_seconds")).set(bound(|(low, _)| low));
    gauge!(format!("imago_{kind}_eta_high_seconds")).set(bound(|(_, high)| high));
    counter!("imago_change_applied_total").absolute(progress.changes_applied);
    gauge!("imago_change_lag_seconds").set(seconds(progress.lag_ms));
    gauge!("imago_job_blocked", &of_kind).set(flag(progress.blocked_by.is_some()));
    if let Some(ready) = progress.cutover_ready {
        gauge!("imago_job_cutover_ready", &of_kind).set(flag(ready));
    }
}

/// Converts the name and the value of a measurement to the base units of Prometheus: names that end in `_ms`, `_us`
/// or `_mb` become seconds and bytes, others stay as they are.
fn in_base_units(name: &str, value: f64) -> (String, f64) {
    let units = [("_ms", "_seconds", 1e-3), ("_us", "_seconds", 1e-6), ("_mb", "_bytes", 1e6)];
    for (unit, base, factor) in units {
        if let Some(stem) = name.strip_suffix(unit) {
            return (format!("{stem}{base}"), value * factor);
        }
    }
    (name.to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::JobId;

    fn text(bodies: impl IntoIterator<Item = Body>) -> String {
        let mut metrics = Prometheus::without_server();
        for body in bodies {
            let job = JobId::from_parts(1, 1);
            let event = Event { at_ms: 0, job, kind: "copy".to_owned(), body };
            metrics.show(&event).unwrap();
        }
        let text = metrics.text();
        assert!(!text.contains(JobId::from_parts(1, 1).as_str()), "an id is in:\n{text}");
        text
    }

    fn assert_line(text: &str, line: &str) {
        assert!(text.lines().any(|there| there == line), "{line} is not in:\n{text}");
    }

    #[test]
    fn progress_is_counted_in_base_units() {
        let progress = Progress {
            documents_done: 1_200,
            bytes_done: 5_000,
            lag_ms: Some(250),
            ..Progress::default()
        };
        let text = text([Body::Progress(Box::new(progress))]);
        assert_line(&text, "imago_copy_documents_total 1200");
        assert_line(&text, "imago_copy_bytes_total 5000");
        assert_line(&text, "imago_change_lag_seconds 0.25");
        assert_line(&text, "imago_copy_eta_seconds NaN");
    }

    #[test]
    fn one_phase_is_on() {
        let phase = |from: Option<&str>, to: &str| Body::Phase {
            from: from.map(str::to_owned),
            to: to.to_owned(),
        };
        let text = text([phase(None, "copy"), phase(Some("copy"), "replay")]);
        assert_line(&text, r#"imago_job_phase{kind="copy",phase="copy"} 0"#);
        assert_line(&text, r#"imago_job_phase{kind="copy",phase="replay"} 1"#);
    }

    #[test]
    fn milliseconds_become_seconds() {
        let measured = |name: &str, value| Body::Measurement {
            name: name.to_owned(),
            value,
            unit: String::new(),
        };
        let text = text([measured("write_block_ms", 125.0)]);
        assert_line(&text, "imago_copy_write_block_seconds 0.125");
    }

    #[test]
    fn warnings_and_endings_are_counted() {
        let warning = Body::Warning {
            code: "oplog_short".to_owned(),
            message: String::new(),
            help: String::new(),
        };
        let text = text([warning.clone(), warning, Body::Done]);
        assert_line(&text, r#"imago_job_warnings_total{code="oplog_short"} 2"#);
        assert_line(&text, r#"imago_job_ended_total{kind="copy",how="done"} 1"#);
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let refused = serve(address).err().map(|error| error.to_string());
        assert!(refused.is_some_and(|text| text.contains(&address.to_string())));
    }

    /// Another process may take a port that was free a moment ago: then the next.
    fn serve_somewhere() -> (Prometheus, SocketAddr) {
        let attempt = || {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            serve(free).ok().map(|metrics| (metrics, free))
        };
        (0..20).find_map(|_| attempt()).expect("one of twenty free ports is still free")
    }

    #[tokio::test]
    async fn the_metrics_are_served() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (mut metrics, address) = serve_somewhere();
        let body = Body::Progress(Box::new(Progress { documents_done: 7, ..Progress::default() }));
        let job = JobId::from_parts(1, 1);
        metrics.show(&Event { at_ms: 0, job, kind: "copy".to_owned(), body }).unwrap();
        let mut scraper = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = b"GET /metrics HTTP/1.1\r\nHost: imago\r\nConnection: close\r\n\r\n";
        scraper.write_all(request).await.unwrap();
        let mut answer = String::new();
        let read = scraper.read_to_string(&mut answer);
        tokio::time::timeout(std::time::Duration::from_secs(60), read).await.unwrap().unwrap();
        assert_line(&answer, "imago_copy_documents_total 7");
    }
}
