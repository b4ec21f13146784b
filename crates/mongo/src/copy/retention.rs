//! The retention rules of a job's destination: suspended when a process starts, restored at the end of the job.
//!
//! See [`crate::server::retention`] for the reason. The end is one of: the cut-over, once clients have moved; the
//! operator's statement that they have moved; the cancellation of the job. Until then the job's state holds the rules.

use futures_util::{StreamExt, TryStreamExt, stream};
use imago_job::record::Record;
use imago_job::reporter::Reporter;
use imago_job::run::Run;

use super::{Clusters, INSPECTIONS_MAX, State, plan_with, retry_transient, save, state_of};
use crate::copy::preflight::{Paired, Plan, Planned, definition_of};
use crate::error::{Error, Result};
use crate::server::collection::{Definition, Handle, name_of};
use crate::server::endpoint::Endpoint;
use crate::server::retention::{self, Retention, Suspension};

impl State {
    /// Records the retention rules that collection `n` of the destination gets at the end of the job: those of the
    /// source, and those of the destination's own indexes.
    pub(super) fn note_retention(
        &mut self,
        n: usize,
        suspension: Suspension,
        source: &Definition,
        destination: Option<&Definition>,
    ) {
        let mut known = self.retention.get(&n).cloned().unwrap_or_default();
        let mut own = destination.map(|of| suspension.of(of)).unwrap_or_default();
        // The source's indexes determine the rules, even if an index never expires anything.
        for index in &source.indexes {
            known.indexes.remove(name_of(index));
            own.indexes.remove(name_of(index));
        }
        let rules = known.overridden_by(own).overridden_by(suspension.of(source));
        if rules.is_empty() {
            self.retention.remove(&n);
        } else {
            self.retention.insert(n, rules);
        }
    }
}

/// Records in the job's state the retention rules of the source's collections from number `first` on, before any of
/// them is created at the destination.
///
/// # Errors
/// Fails if a cluster does not reply, a collection is gone, or the job was taken over.
pub(super) async fn note_from(
    first: usize,
    clusters: &Clusters,
    run: &Run,
    plan: &Plan,
    state: &mut State,
) -> Result<()> {
    let suspension = Suspension::between(&clusters.source, &clusters.destination);
    let before = state.retention.clone();
    let present = plan.collections.iter().enumerate().skip(first);
    let present = present.filter(|(_, planned)| planned.gone.is_none());
    let looks = present.map(|(n, planned)| async move {
        let from = Handle::new(clusters.source.clone(), planned.from.clone());
        let ask = || definition_of(&from);
        Ok::<_, Error>((n, retry_transient("look at a collection", run.control(), ask).await?))
    });
    let looks: Vec<_> = looks.collect();
    let sources: Vec<_> = stream::iter(looks).buffered(INSPECTIONS_MAX).try_collect().await?;
    for (n, source) in sources {
        state.note_retention(n, suspension, &source, None);
    }
    if state.retention == before { Ok(()) } else { save(run, state).await }
}

/// Records in the job's state the retention rules that the collections in `found` get at the end, and then suspends
/// the rules of those that exist at the destination.
///
/// # Errors
/// Fails if the destination stays unavailable or refuses, or the job was taken over.
pub(super) async fn suspend(
    clusters: &Clusters,
    run: &Run,
    plan: &Plan,
    found: &[Paired],
    state: &mut State,
) -> Result<()> {
    let suspension = Suspension::between(&clusters.source, &clusters.destination);
    let present = || found.iter().enumerate().filter(|(n, _)| plan.collections[*n].gone.is_none());
    let before = state.retention.clone();
    for (n, of) in present() {
        state.note_retention(n, suspension, &of.definition, of.existing.as_ref());
    }
    if state.retention != before {
        save(run, state).await?;
    }
    for (_, of) in present() {
        let Some(existing) = &of.existing else { continue };
        let mut to = of.pair.destination.clone();
        to.owner = Some(run.ownership());
        let suspend = || retention::suspend(&to, existing, suspension);
        retry_transient("suspend the expiry of documents", run.control(), suspend).await?;
    }
    Ok(())
}

/// Sets the retention rules that a job's collections get at the destination at its end. By then clients have moved or
/// the job was cancelled, so a rule that the server refuses is reported as a warning and is not an error.
///
/// # Errors
/// Fails if the record is not one of a copy, or the destination does not reply.
#[crate::boxed]
pub async fn restore_retention(
    destination: &Endpoint,
    record: &Record,
    reporter: &Reporter,
) -> Result<()> {
    if record.checkpoint.is_null() {
        return Ok(());
    }
    let state = state_of(record)?;
    if state.retention.is_empty() {
        return Ok(());
    }
    restore(destination, &plan_with(record, &state)?, &state, reporter).await
}

/// Sets the retention rules as [`restore_retention`] does, for a job whose state is newer than its record.
pub(super) async fn restore(
    destination: &Endpoint,
    plan: &Plan,
    state: &State,
    reporter: &Reporter,
) -> Result<()> {
    for (&n, rules) in &state.retention {
        let planned = &plan.collections[n];
        // A later collection of the same name has its own rules.
        let is_later = |of: &Planned| of.gone.is_none() && of.to == planned.to;
        if planned.gone.is_some() && plan.collections.iter().any(is_later) {
            continue;
        }
        let to = Handle::new(destination.clone(), planned.to.clone());
        match retention::restore(&to, rules).await {
            Err(error) if error.is_transient() => return Err(error),
            Err(error) => {
                let rules = serde_json::to_string(rules).unwrap_or_default();
                reporter.warning(
                    "expiry_suspended",
                    format!("{} does not expire documents by itself yet: {error}", planned.to),
                    format!("put its rules in force with collMod: {rules}"),
                );
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Returns the retention rules, according to the source's `definitions`, of the plan's collections that the source
/// still has, numbered as in the plan of the reverse job.
pub(super) fn reverse_retention(
    clusters: &Clusters,
    plan: &Plan,
    definitions: &[Definition],
) -> std::collections::BTreeMap<usize, Retention> {
    let suspension = Suspension::between(&clusters.source, &clusters.destination);
    let present = plan.collections.iter().zip(definitions).filter(|(of, _)| of.gone.is_none());
    let rules = present.map(|(_, definition)| suspension.of(definition)).enumerate();
    rules.filter(|(_, rules)| !rules.is_empty()).collect()
}
