//! What a controller finds when it begins: the past, and what came of earlier changes.

use std::collections::BTreeMap;
use std::fs::File;

use imago_plan::tune::workload::{Interval, Mix};

use super::event::Judged;
use super::{BARRED_S, Request, now_s};
use crate::cluster::{Error, Result};
use crate::decisions::{DecisionLog, Kind};
use crate::trace::Trace;

/// The intervals that the trace has.
pub(super) fn past(request: &Request) -> Result<Vec<Interval>> {
    let path = &request.trace;
    let shown = path.display().to_string();
    let file = match File::open(path) {
        Ok(file) if file.metadata().is_ok_and(|of| of.len() > 0) => file,
        Ok(_) => return Ok(Vec::new()),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::Usage(format!("cannot read {shown}: {cause}"))),
    };
    let trace = Trace::read_to_add(&shown, file, request.interval.as_secs());
    let trace = trace.map_err(|error| Error::Usage(error.to_string()))?;
    // No database tells an insert from an update.
    let told = |one: Interval| Interval { mix: one.mix.map(Mix::with_inserts_as_updates), ..one };
    Ok(trace.intervals.into_iter().map(told).collect())
}

/// Changes that were undone within the last day, and the moments of all changes.
pub(super) async fn remembered(
    request: &Request,
    log: &impl DecisionLog,
) -> Result<(BTreeMap<(usize, usize), u64>, Vec<u64>)> {
    let (mut barred, mut changes) = (BTreeMap::new(), Vec::new());
    let number = |name: &str| request.measurements.names.iter().position(|one| one == name);
    for entry in log.decisions(now_s(), 2).await? {
        let at_s = u64::try_from(entry.at_ms / 1_000).unwrap_or(0);
        match entry.kind {
            Kind::Changing => changes.push(at_s),
            Kind::Judged => {
                let Ok(judged) = serde_json::from_value::<Judged>(entry.detail) else { continue };
                if let (Some(from), Some(to), Some(_)) =
                    (number(&judged.change.from), number(&judged.change.to), &judged.worse)
                {
                    barred.insert((from, to), at_s + BARRED_S);
                }
            }
            Kind::Decided | Kind::Changed => {}
        }
    }
    Ok((barred, changes))
}
