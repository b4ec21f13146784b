//! `imago store drain` and `add`: a drained site gives up its partitions and receives none until it is added again.

use std::time::Duration;

use imago_store::adapt::{DrainReport, DrainState};

use super::admin::{self, Where};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::options::ProgressMode;

/// Interval between two requests for the state of a drain.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Which site.
#[derive(Debug, clap::Args)]
pub struct SiteAt {
    /// The site's number, from 0 on.
    site: u16,
    #[command(flatten)]
    store: Where,
}

/// Drains a site, and waits until the site holds no copies of partitions.
pub async fn drain(at: SiteAt, context: &Context) -> Result<(), Failure> {
    let body = serde_json::json!({ "site": at.site });
    let mut report: DrainReport = admin::understood(admin::post(&at.store, "drain", body).await?)?;
    let mut told = None;
    loop {
        match report.state {
            DrainState::Drained => return context.output.result(&report, in_words),
            DrainState::Stuck => return Err(stuck(&report)),
            DrainState::Draining => {}
        }
        if told != Some(report.copies) {
            match context.progress {
                ProgressMode::None => {}
                ProgressMode::Json => eprintln!("{}", serde_json::json!(report)),
                ProgressMode::Auto | ProgressMode::Bar => {
                    eprintln!("site {}: {} copies left", at.site, report.copies);
                }
            }
            told = Some(report.copies);
        }
        tokio::select! {
            () = context.cancel.cancelled() => {
                let message = format!("site {} is still being drained, with {} copies left", at.site, report.copies);
                return Err(Failure::new(Exit::Interrupted, "drain_goes_on", message).help(
                    "the drain continues in the store; repeat `imago store drain` to see its \
                     progress, or end it with `imago store add`",
                ));
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        let all: Vec<DrainReport> = admin::understood(admin::ask(&at.store, "drain", None).await?)?;
        report = all.into_iter().find(|one| one.site == at.site).ok_or_else(|| {
            let message =
                format!("site {} was taken into use again before it was drained", at.site);
            Failure::new(Exit::Failed, "drain_ended", message)
        })?;
    }
}

fn in_words(report: &DrainReport) -> String {
    let kept = match report.is_kept {
        true => "",
        false => "; the store has no folder, so this is lost when it ends",
    };
    format!(
        "site {} is drained ({} changes): it holds no copies and receives none until `imago store \
         add {}`{kept}",
        report.site, report.changes, report.site
    )
}

fn stuck(report: &DrainReport) -> Failure {
    let why = report.failure.as_deref().unwrap_or("no change was refused");
    let message = format!(
        "site {} has {} copies left, and made no progress for a minute: {why}",
        report.site, report.copies
    );
    Failure::new(Exit::Failed, "drain_stuck", message).help(
        "the site receives no copies meanwhile; remove the cause and drain it again, or put it \
         into use with `imago store add`",
    )
}

/// Takes a drained site into use again.
pub async fn add(at: SiteAt, context: &Context) -> Result<(), Failure> {
    admin::post(&at.store, "add", serde_json::json!({ "site": at.site })).await?;
    let done = serde_json::json!({ "done": "add", "site": at.site });
    context.output.result(&done, |_| {
        format!("site {} is in use: it gets partitions by adaptation or by command", at.site)
    })
}
