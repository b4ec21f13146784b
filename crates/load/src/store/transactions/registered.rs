//! The procedure that a store's processes register, so that loads can run transactions at its sites.

use imago_store::key::{Key, Table};
use imago_store::resp::Procedures;
use imago_store::transaction::{Abort, View};
use imago_workload::procedures::{Procedure, Rows, Value};

/// Name of the procedure.
pub(super) const NAME: &str = "workload";
/// The numbered table that has the rows: Redis's database 0.
const TABLE: Table = Table(0);

/// The rows of a transaction at a site.
struct AtSite<'a, 'v>(&'a mut View<'v>);

fn key(name: &str) -> Key {
    Key::new(TABLE, name.as_bytes())
}

impl Rows for AtSite<'_, '_> {
    type Error = Abort;

    fn get_many(&mut self, keys: &[String]) -> Result<Vec<Value>, Abort> {
        let keys: Vec<Key> = keys.iter().map(|name| key(name)).collect();
        let found = self.0.get_each(&keys)?;
        Ok(found.into_iter().map(|seen| seen.map(|seen| seen.value.to_vec())).collect())
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
