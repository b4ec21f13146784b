//! A Cassandra table whose configurations are measured. The table is filled once: compaction merges the data under
//! each configuration, so the rows need not be written again.

use imago_job::reporter::Events;
use imago_tune::cassandra::background::BackgroundWork;
use imago_tune::cassandra::roll::{Roller, Spec};
use imago_tune::cassandra::{ClusterFile, Consistency, knobs};
use imago_tune::cluster::{Error, Result};
use imago_tune::configurations::Configuration;
use imago_workload::history::IdForm;

use super::{Caller, Request, ResourceUsage, Sampled};
use crate::Schema;
use crate::cassandra::{CassandraTarget, count_rows, preload};

/// The Cassandra table under whose load the configurations are measured.
#[derive(Debug)]
pub struct Table {
    file: ClusterFile,
    /// Names of the keyspace and of the table in it.
    name: (String, String),
    consistency: Consistency,
    background: BackgroundWork,
}

impl Table {
    /// Returns the table of this keyspace and name in the cluster of the file; `consistency` is the level of all operations of
    /// the load.
    #[must_use]
    pub fn new(file: ClusterFile, name: (String, String), consistency: Consistency) -> Self {
        let background = BackgroundWork::new(file.clone());
        Self { file, name, consistency, background }
    }

    fn label(&self) -> String {
        format!("{}.{}", self.name.0, self.name.1)
    }
}

impl Sampled for Table {
    type Target = CassandraTarget;
    const REPORTS_USAGE: bool = false;

    async fn prepare(&self, request: &Request, caller: &Caller<'_>) -> Result<()> {
        let (target, label, rows) = (self.target(request).await?, self.label(), request.documents);
        match count_rows(&target, rows).await? {
            0 => {
                (caller.say)(format!("filling {label} with {rows} rows"));
                preload(&target, rows, |_| {}).await
            }
            found if found < rows => Err(Error::Precondition {
                what: format!("{label} has {found} rows, not {rows}"),
                help: "drop it, and it is filled again; or name as many --documents as it has"
                    .into(),
            }),
            _ => Ok(()),
        }
    }

    async fn roll(&mut self, request: &Request, number: usize, caller: &Caller<'_>) -> Result<()> {
        let spec = Spec::of(&request.configurations, number, &self.label());
        if spec.changes.is_empty() && spec.compaction.is_empty() {
            return Ok(());
        }
        let roller = Roller::connect(self.file.clone(), spec).await?;
        let events = Events::default();
        let rolled = Box::pin(roller.begin(caller.process, &events, caller.cancel.clone())).await;
        self.background.forget();
        rolled.map(drop)
    }

    fn can_take_turns(from: &Configuration, to: &Configuration) -> Result<bool> {
        knobs::can_take_turns(from, to)
    }

    async fn switch(
        &mut self,
        request: &Request,
        number: usize,
        caller: &Caller<'_>,
    ) -> Result<()> {
        self.roll(request, number, caller).await
    }

    async fn target(&self, request: &Request) -> Result<CassandraTarget> {
        let schema = Schema { id_form: IdForm::Text, reviews: request.reviews() };
        let name = (&*self.name.0, &*self.name.1);
        CassandraTarget::connect(&self.file.uri, name, self.consistency, schema).await
    }

    async fn used(&self) -> Result<Option<ResourceUsage>> {
        Ok(None)
    }

    async fn background(&mut self, counts_data: bool) -> Result<Option<String>> {
        if counts_data && let Some(what) = self.background.data_tasks().await? {
            return Ok(Some(what));
        }
        self.background.compilation().await
    }
}
