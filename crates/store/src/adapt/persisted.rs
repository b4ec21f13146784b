//! Persisted state of adaptation, in the file `adapt.json` of the store's folder: decisions, the learned cost
//! functions, bans, limits that were set at run time, and whether adaptation is paused.
//!
//! The clock of decisions and bans continues where it stopped: time in which the store did not run does not count,
//! and the wall clock is not read. Changes that were still being measured when the store ended are not judged.
//!
//! Invariants:
//! - The file is replaced as a whole, at most every [`EVERY`] and at a clean end.
//! - An unusable file is renamed to `adapt.json.refused` and reported; adaptation then starts anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use imago_plan::store::cost::CostModel;
use imago_plan::store::guardrails::Guardrails;
use imago_plan::store::layout::Operator;
use imago_plan::store::regression::{Linear, Parts};
use serde::{Deserialize, Serialize};

use super::limits::LimitsRequest;
use super::report::{DecisionReport, KeptReport};
use crate::key::Key;

/// Interval at which `adapt.json` is written if the state has changed.
pub(super) const EVERY: Duration = Duration::from_secs(3);
/// Version of the format of `adapt.json`. The cost functions of earlier versions had other inputs, and are learned
/// anew.
pub(super) const VERSION: u32 = 4;
const NAME: &str = "adapt.json";

/// Content of `adapt.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Persisted {
    pub version: u32,
    /// The clock of decisions and bans when this state was taken, in ms; it counts only time in which the store
    /// adapted.
    pub now_ms: u64,
    /// Limits that were set at run time.
    pub limits: LimitsRequest,
    pub is_paused: bool,
    pub changes: u64,
    pub undone: u64,
    pub decisions: Vec<DecisionReport>,
    /// Number of sites of the store in which the cost functions were learned.
    pub sites: u16,
    /// Share of a CPU core that each site had when the cost functions were learned; `None` if unknown.
    pub site_cpu: Option<f64>,
    pub(super) functions: BTreeMap<String, Function>,
    pub(super) bans: Vec<Ban>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Function {
    numbers: Vec<f64>,
    samples: u64,
    held_out: Vec<(f64, f64)>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ban {
    operator: String,
    /// Key of the banned operator, in hexadecimal digits.
    key: String,
    site: Option<u16>,
    until_ms: u64,
    times: u32,
}

/// Writes the latest state of adaptation to `adapt.json`.
#[derive(Default)]
pub(super) struct StateWriter {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    report: KeptReport,
    latest: Option<Persisted>,
    written: Option<Persisted>,
}

impl StateWriter {
    /// Returns the writer for a folder's `adapt.json`, and the state that the file contains; an empty state if the
    /// file is absent or unusable, or `folder` is `None`.
    pub fn open(folder: Option<&Path>) -> (Self, Persisted) {
        let Some(file) = folder.map(|folder| folder.join(NAME)) else { return Default::default() };
        let (kept, refused) = match read(&file) {
            Ok(kept) => (kept, None),
            Err(why) => {
                let aside = file.with_extension("json.refused");
                let moved = match fs::rename(&file, &aside) {
                    Ok(()) => format!("it is now {}", aside.display()),
                    Err(error) => {
                        format!("it could not be renamed to {}: {error}", aside.display())
                    }
                };
                let why = format!(
                    "{} was not used ({why}), and adaptation starts anew: {moved}",
                    file.display()
                );
                tracing::warn!("{why}");
                (Persisted::default(), Some(why))
            }
        };
        let report = KeptReport { file: Some(file), refused, failure: None };
        let state = Mutex::new(State { report, latest: None, written: None });
        (Self { state }, kept)
    }

    pub fn report(&self) -> KeptReport {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).report.clone()
    }

    /// Sets the state to be written next; `kept` is called only if there is a file.
    pub fn offer(&self, kept: impl FnOnce() -> Persisted) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.report.file.is_some() {
            state.latest = Some(Persisted { version: VERSION, ..kept() });
        }
    }

    /// Changes the state to be written next. The planner's next offer replaces the changed state.
    pub fn amend(&self, change: impl FnOnce(&mut Persisted)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(latest) = &mut state.latest {
            change(latest);
        }
    }

    /// Writes the latest state to the file, if it differs from the written one in more than the clock.
    pub fn write(&self) {
        self.write_if(|latest, written| {
            *latest != Persisted { now_ms: latest.now_ms, ..written.clone() }
        });
    }

    pub(super) fn write_if(&self, is_due: impl FnOnce(&Persisted, &Persisted) -> bool) {
        let (file, latest) = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let (Some(file), Some(latest)) = (&state.report.file, &state.latest) else { return };
            if state.written.as_ref().is_some_and(|written| !is_due(latest, written)) {
                return;
            }
            (file.clone(), latest.clone())
        };
        let written = serde_json::to_vec(&latest)
            .map_err(io::Error::from)
            .and_then(|bytes| imago_job::atomic_file::replace(&file, &bytes));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match written {
            Ok(()) => (state.written, state.report.failure) = (Some(latest), None),
            Err(error) => {
                let failure = format!("cannot write {}: {error}", file.display());
                if state.report.failure.is_none() {
                    tracing::warn!("{failure}");
                }
                state.report.failure = Some(failure);
            }
        }
    }
}

/// Reads the state in a file; an empty state if the file is absent. The error is the reason why the file is unusable.
fn read(file: &Path) -> Result<Persisted, String> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let bytes = match fs::read(file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Persisted::default()),
        Err(error) => return Err(error.to_string()),
    };
    let damaged = |error: serde_json::Error| format!("it is damaged: {error}");
    let Versioned { version } = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version > VERSION {
        return Err(format!("it is of version {version}, and this program knows {VERSION}"));
    }
    let mut kept: Persisted = serde_json::from_slice(&bytes).map_err(damaged)?;
    if version < VERSION {
        kept.functions.clear();
    }
    kept.check()?;
    Ok(kept)
}

impl Persisted {
    /// Checks that the cost functions and bans can be restored.
    fn check(&self) -> Result<(), String> {
        self.model(&mut CostModel::default())?;
        self.restore_bans(&mut Guardrails::new(Default::default()))
    }

    /// Copies the learned cost functions of a model into this state.
    pub fn learn(&mut self, cost: &CostModel) {
        let mut add = |name: &str, parts: Parts| {
            let Parts { numbers, samples, held_out } = parts;
            self.functions.insert(name.to_owned(), Function { numbers, samples, held_out });
        };
        add("service", cost.service.parts());
        add("wait_updates", cost.wait_updates.parts());
        add("lock", cost.lock.parts());
        add("read_write", cost.read_write.parts());
        add("change", cost.change.parts());
        add("commit", cost.commit.parts());
        add("cpu", cost.cpu.parts());
    }

    /// Restores the cost functions into a new model. A function that this state lacks stays as it is in the model.
    pub fn model(&self, cost: &mut CostModel) -> Result<(), String> {
        self.function("service", &mut cost.service)?;
        self.function("wait_updates", &mut cost.wait_updates)?;
        self.function("lock", &mut cost.lock)?;
        self.function("read_write", &mut cost.read_write)?;
        self.function("change", &mut cost.change)?;
        self.function("commit", &mut cost.commit)?;
        self.function("cpu", &mut cost.cpu)
    }

    fn function<const N: usize>(&self, name: &str, into: &mut Linear<N>) -> Result<(), String> {
        let Some(Function { numbers, samples, held_out }) = self.functions.get(name) else {
            return Ok(());
        };
        let parts =
            Parts { numbers: numbers.clone(), samples: *samples, held_out: held_out.clone() };
        let restored = into.clone().restored(&parts);
        *into = restored.ok_or_else(|| format!("the cost function {name} is damaged"))?;
        Ok(())
    }

    /// Copies the bans that have not expired at `now_ms` from the guardrails into this state.
    pub fn copy_bans(&mut self, brakes: &Guardrails<Key>) {
        let now_ms = self.now_ms;
        let bans = brakes.bans().filter(|(_, until_ms, _)| *until_ms > now_ms);
        self.bans =
            bans.map(|(operator, until_ms, times)| Ban::of(operator, until_ms, times)).collect();
    }

    /// Restores the bans of this state into the guardrails.
    pub fn restore_bans(&self, brakes: &mut Guardrails<Key>) -> Result<(), String> {
        for ban in &self.bans {
            let operator = ban.operator().ok_or_else(|| format!("a ban is damaged: {ban:?}"))?;
            brakes.restore_ban(operator, ban.until_ms, ban.times);
        }
        Ok(())
    }
}

impl Ban {
    fn of(operator: &Operator<Key>, until_ms: u64, times: u32) -> Self {
        let (name, site) = match operator {
            Operator::Split(_) => ("split", None),
            Operator::Merge(_) => ("merge", None),
            Operator::AddReplica(_, site) => ("add-replica", Some(*site)),
            Operator::RemoveReplica(_, site) => ("remove-replica", Some(*site)),
            Operator::Remaster(_, site) => ("remaster", Some(*site)),
        };
        let key = operator.key().as_bytes().iter().fold(String::new(), |mut text, byte| {
            _ = write!(text, "{byte:02x}");
            text
        });
        Self { operator: name.to_owned(), key, site, until_ms, times }
    }

    fn operator(&self) -> Option<Operator<Key>> {
        if !self.key.is_ascii() || !self.key.len().is_multiple_of(2) {
            return None;
        }
        let digits = (0..self.key.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&self.key[at..at + 2], 16).ok());
        let key = Key::from_bytes(&digits.collect::<Option<Vec<u8>>>()?);
        Some(match (self.operator.as_str(), self.site) {
            ("split", None) => Operator::Split(key),
            ("merge", None) => Operator::Merge(key),
            ("add-replica", Some(site)) => Operator::AddReplica(key, site),
            ("remove-replica", Some(site)) => Operator::RemoveReplica(key, site),
            ("remaster", Some(site)) => Operator::Remaster(key, site),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use imago_plan::store::cost::{Inputs, Measured, Operation};

    use super::*;
    use crate::key::Table;

    fn kept() -> (Persisted, CostModel, Guardrails<Key>) {
        let (mut cost, mut brakes) = (CostModel::default(), Guardrails::new(Default::default()));
        for _ in 0..60 {
            let inputs = Inputs { rows: (3.0, 1.0), ..Inputs::default() };
            let measured = Measured { read_write: Some(9.0), ..Measured::default() };
            cost.observe(Operation::Transaction { reads: false, writes: true }, &inputs, &measured);
        }
        let key = Key::new(Table(1), b"k\x00\xff");
        brakes.restore_ban(Operator::Split(key.clone()), 90_000, 2);
        brakes.restore_ban(Operator::Remaster(Key::least(), 3), 70_000, 1);
        // Expired when the state is persisted.
        brakes.restore_ban(Operator::AddReplica(key, 1), 4_000, 1);
        let mut kept =
            Persisted { now_ms: 5_000, sites: 4, is_paused: true, ..Persisted::default() };
        kept.learn(&cost);
        kept.copy_bans(&brakes);
        (kept, cost, brakes)
    }

    #[test]
    fn what_is_kept_is_read_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, nothing) = StateWriter::open(Some(folder.path()));
        assert_eq!((nothing, writer.report().refused), (Persisted::default(), None));
        let (kept, cost, _) = kept();
        writer.offer(|| kept.clone());
        writer.write();
        let (again, read) = StateWriter::open(Some(folder.path()));
        assert_eq!(
            (&read, again.report().refused),
            (&Persisted { version: VERSION, ..kept }, None)
        );
        let (mut restored, mut brakes) =
            (CostModel::default(), Guardrails::new(Default::default()));
        read.model(&mut restored).unwrap();
        read.restore_bans(&mut brakes).unwrap();
        assert_eq!(restored, cost);
        let bans: Vec<(String, u64, u32)> = brakes
            .bans()
            .map(|(operator, until, times)| (format!("{operator:?}"), until, times))
            .collect();
        assert_eq!(bans[0], ("Split(1:k\\x00\\xff)".to_owned(), 90_000, 2));
        assert_eq!((bans.len(), bans[1].1), (2, 70_000));
    }

    #[test]
    fn functions_of_an_earlier_version_are_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Persisted { version: VERSION - 1, ..kept().0 };
        fs::write(folder.path().join("adapt.json"), serde_json::to_string(&kept).unwrap()).unwrap();
        let (writer, read) = StateWriter::open(Some(folder.path()));
        assert_eq!(writer.report().refused, None);
        assert_eq!(read, Persisted { functions: BTreeMap::new(), ..kept });
    }

    #[test]
    fn a_file_that_cannot_be_used_is_told_and_put_aside() {
        let (good, _, _) = kept();
        let good = serde_json::to_string(&Persisted { version: VERSION, ..good }).unwrap();
        let cut = good[..good.len() / 2].to_owned();
        let newer = good.replacen("\"version\":4", "\"version\":5", 1);
        let unknown = good.replace("\"split\"", "\"explode\"");
        let short = good.replace("\"numbers\":[", "\"numbers\":[1.0,");
        for (content, why) in [
            (cut, "damaged"),
            (String::new(), "damaged"),
            ("[]".to_owned(), "damaged"),
            (newer, "version 5, and this program knows 4"),
            (unknown, "a ban is damaged"),
            (short, "cost function"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("adapt.json");
            fs::write(&file, &content).unwrap();
            let (writer, read) = StateWriter::open(Some(folder.path()));
            let refused = writer.report().refused.expect(why);
            assert!(refused.contains(why) && read == Persisted::default(), "{refused}");
            assert_eq!(
                fs::read_to_string(folder.path().join("adapt.json.refused")).unwrap(),
                content
            );
            writer.offer(Persisted::default);
            writer.write();
            assert_eq!(StateWriter::open(Some(folder.path())).0.report().refused, None);
        }
    }

    #[test]
    fn a_store_without_a_folder_keeps_nothing_and_says_so() {
        let (writer, _) = StateWriter::open(None);
        writer.offer(|| unreachable!("it is not wanted"));
        writer.write();
        assert_eq!(writer.report(), KeptReport::default());
    }

    #[test]
    fn a_disk_that_is_full_is_told_and_what_was_kept_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, _) = StateWriter::open(Some(folder.path()));
        writer.offer(Persisted::default);
        writer.write();
        // A folder stands where the new file is written.
        fs::create_dir(folder.path().join("adapt.new")).unwrap();
        writer.offer(|| Persisted { changes: 7, ..Persisted::default() });
        writer.write();
        assert!(writer.report().failure.unwrap().contains("adapt.json"));
        assert_eq!(StateWriter::open(Some(folder.path())).1.changes, 0);
        fs::remove_dir(folder.path().join("adapt.new")).unwrap();
        writer.write();
        assert_eq!(
            (writer.report().failure, StateWriter::open(Some(folder.path())).1.changes),
            (None, 7)
        );
    }
}
