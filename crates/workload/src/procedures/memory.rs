//! Rows in a map, with the rules of a store: undeclared keys are refused, and a transaction is applied as a whole.

use std::collections::BTreeMap;

use super::{Adjacent, Answer, Declared, Next, Procedure, READS_MAX, Rows, Value};

/// A store of rows in memory.
#[derive(Clone, Default)]
pub(super) struct Memory(pub BTreeMap<String, Vec<u8>>);

struct Open<'a> {
    rows: &'a BTreeMap<String, Vec<u8>>,
    declared: &'a Declared,
    written: BTreeMap<String, Value>,
}

impl Open<'_> {
    fn may_write(&self, key: &str) -> bool {
        self.declared.writes.iter().any(|own| own == key)
    }
}

impl Rows for Open<'_> {
    type Error = String;

    fn get_many(&mut self, keys: &[String]) -> Result<Vec<Value>, String> {
        let is_within = |key: &String| {
            let Declared { reads, ranges, .. } = self.declared;
            let has = |range: &Adjacent| {
                (&range.start..&range.end).contains(&key) && range.keys.contains(key)
            };
            reads.contains(key) || ranges.iter().any(has)
        };
        if let Some(key) = keys.iter().find(|key| !is_within(key) && !self.may_write(key)) {
            return Err(format!("{key} was not declared"));
        }
        let own = |key| self.written.get(key).cloned();
        Ok(keys.iter().map(|key| own(key).unwrap_or_else(|| self.rows.get(key).cloned())).collect())
    }

    fn visit(
        &mut self,
        start: &str,
        end: &str,
        _: &dyn Fn() -> Vec<String>,
        visit: &mut dyn FnMut(&str, &[u8]),
    ) -> Result<(), String> {
        let is_declared = |range: &Adjacent| *range.start <= *start && *end <= *range.end;
        if !self.declared.ranges.iter().any(is_declared) {
            return Err(format!("{start} to {end} was not declared"));
        }
        let mut rows = self.rows.clone();
        for (key, value) in &self.written {
            match value {
                Some(value) => _ = rows.insert(key.clone(), value.clone()),
                None => _ = rows.remove(key),
            }
        }
        rows.range(start.to_owned()..end.to_owned()).for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn put(&mut self, key: &str, value: Vec<u8>) -> Result<(), String> {
        if !self.may_write(key) {
            return Err(format!("{key} was not declared as written"));
        }
        self.written.insert(key.to_owned(), Some(value));
        Ok(())
    }

    fn delete(&mut self, key: &str) -> Result<(), String> {
        if !self.may_write(key) {
            return Err(format!("{key} was not declared as written"));
        }
        self.written.insert(key.to_owned(), None);
        Ok(())
    }
}

impl Memory {
    /// Declares the keys of a procedure, by the rows as they are.
    pub fn declare(&self, procedure: &mut Procedure) -> Option<Declared> {
        let mut found: Vec<Vec<Value>> = Vec::new();
        loop {
            match procedure.next(&found) {
                Next::Nothing => return None,
                Next::Run(declared) => return Some(declared),
                Next::Read(keys) => {
                    assert!(found.len() < READS_MAX, "{procedure:?} reads too often");
                    found.push(keys.iter().map(|key| self.0.get(key).cloned()).collect());
                }
            }
        }
    }

    /// Runs a procedure with the keys that were declared for it.
    pub fn run_declared(&mut self, procedure: &Procedure, declared: &Declared) -> Answer {
        let mut open = Open { rows: &self.0, declared, written: BTreeMap::new() };
        let answer = procedure.run(&mut open).unwrap();
        let written = open.written;
        assert!(matches!(answer, Answer::Done(_)) || written.is_empty(), "{answer:?} has written");
        for (key, value) in written {
            match value {
                Some(value) => _ = self.0.insert(key, value),
                None => _ = self.0.remove(&key),
            }
        }
        answer
    }

    /// Declares the keys of a procedure and runs it; `None` if it has nothing to do.
    pub fn run(&mut self, procedure: &mut Procedure) -> Option<Answer> {
        let declared = self.declare(procedure)?;
        Some(self.run_declared(procedure, &declared))
    }
}
