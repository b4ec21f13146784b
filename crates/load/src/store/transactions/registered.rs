//! The procedure that a store's processes register, so that loads can run transactions at its sites; and the same
//! transactions for a store in this process.

use imago_store::key::{Key, KeyRange, Table};
use imago_store::resp::Procedures;
use imago_store::transaction::{self, Abort, View};
use imago_workload::procedures::{Answer, Declared, Procedure, Rows, Value};

/// Name of the procedure.
pub(super) const NAME: &str = "workload";
/// The numbered table that has the rows: Redis's database 0.
const TABLE: Table = Table(0);

/// The rows of a transaction at a site.
struct AtSite<'a, 'v>(&'a mut View<'v>);

/// Returns the store's key of a row.
#[must_use]
pub fn key(name: &str) -> Key {
    Key::new(TABLE, name.as_bytes())
}

impl Rows for AtSite<'_, '_> {
    type Error = Abort;

    fn get_many(&mut self, keys: &[String]) -> Result<Vec<Value>, Abort> {
        let keys: Vec<Key> = keys.iter().map(|name| key(name)).collect();
        let found = self.0.get_each(&keys)?;
        Ok(found.into_iter().map(|seen| seen.map(|seen| seen.value.to_vec())).collect())
    }

    fn visit(
        &mut self,
        start: &str,
        end: &str,
        keys: &dyn Fn() -> Vec<String>,
        visit: &mut dyn FnMut(&str, &[u8]),
    ) -> Result<(), Abort> {
        let range = KeyRange { start: key(start), end: Some(key(end)) };
        let visited = self.0.visit(&range, &mut |key, value| {
            let name = key.row().and_then(|(_, name)| std::str::from_utf8(name).ok());
            visit(name.unwrap_or_default(), value);
        });
        // A client over the network declares keys, not ranges. Nothing was visited then.
        let Err(Abort::Undeclared(_)) = visited else { return visited };
        let keys = keys();
        let rows = self.get_many(&keys)?;
        let found = keys.iter().zip(&rows).filter_map(|(key, row)| Some((key, row.as_ref()?)));
        found.for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn put(&mut self, name: &str, value: Vec<u8>) -> Result<(), Abort> {
        self.0.put(&key(name), value.into())
    }

    fn delete(&mut self, name: &str) -> Result<(), Abort> {
        self.0.delete(&key(name))
    }
}

/// Registers the procedure `workload`, whose only argument is an encoded transaction of a benchmark, and which returns
/// the encoded answer.
pub fn register(procedures: &mut Procedures) {
    procedures.register(NAME, |view, _, arguments| {
        let refused = || Abort::Refused("ERR the argument is no transaction of a workload".into());
        let [encoded] = arguments else { return Err(refused()) };
        let procedure = Procedure::from_bytes(encoded).ok_or_else(refused)?;
        Ok(procedure.run(&mut AtSite(view))?.to_bytes())
    });
}

/// Returns the ranges that a transaction reads and the keys that it writes, as a store in this process needs them.
#[must_use]
pub fn declared(declared: &Declared) -> (Vec<KeyRange>, Vec<Key>) {
    let adjacent = declared
        .ranges
        .iter()
        .map(|range| KeyRange { start: key(&range.start), end: Some(key(&range.end)) });
    let single = declared.reads.iter().map(|name| KeyRange::only(&key(name)));
    let writes = declared.writes.iter().map(|name| key(name));
    (adjacent.chain(single).collect(), writes.collect())
}

/// Returns a transaction for a store in this process; its reply is an encoded answer ([`Answer::from_bytes`]).
#[must_use]
pub fn in_process(procedure: Procedure) -> Box<dyn transaction::Procedure> {
    Box::new(move |view: &mut View<'_>| {
        let answer: Answer = procedure.run(&mut AtSite(view))?;
        Ok(answer.to_bytes())
    })
}
