//! The libraries that scripts of Redis have besides Lua's own: cjson, cmsgpack, bit and struct. A library is
//! loaded when a script first uses it, since most scripts use none.
//!
//! They are written here, since scripts depend on each byte and each error of the C libraries of Redis; tests
//! compare the two. Each value that a library reads or writes counts as an instruction of the machine, and
//! its output is limited like the machine's memory.

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::machine::Meter;
use super::raise;
use super::value::as_number;

mod bits;
mod json;
mod msgpack;
mod records;

/// Maximum nesting depth, even if a script sets a greater one.
const DEPTH_MAX: usize = 1_000;

/// The result of a library function.
type Outcome = Result<MultiValue, Fault>;

/// The reason why a library function has no result.
enum Fault {
    /// An error that is raised in the script, with its position.
    Said(String),
    /// An error that ends the machine, such as exceeding its memory.
    Machine(mlua::Error),
}

impl From<mlua::Error> for Fault {
    fn from(error: mlua::Error) -> Self {
        Self::Machine(error)
    }
}

fn said<T>(text: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Said(text.into()))
}

/// The limits of library functions.
#[derive(Clone)]
pub(super) struct Bounds {
    pub bytes_max: usize,
    pub meter: Rc<Meter>,
}

impl Bounds {
    /// Counts a value as an instruction, and checks the size of the output so far, in bytes.
    fn check(&self, bytes: usize) -> Result<(), Fault> {
        if bytes > self.bytes_max {
            let error = mlua::Error::MemoryError("not enough memory".into());
            return Err(Fault::Machine(error));
        }
        Ok(self.meter.count()?)
    }
}

/// Loads the library with this name; returns `None` if there is none.
pub(super) fn library(lua: &Lua, name: &str, bounds: &Bounds) -> mlua::Result<Option<Table>> {
    match name {
        "bit" => bits::library(lua).map(Some),
        "cjson" => json::library(lua, bounds).map(Some),
        "cmsgpack" => msgpack::library(lua, bounds).map(Some),
        "struct" => records::library(lua, bounds).map(Some),
        _ => Ok(None),
    }
}

/// Makes a function of a library.
fn function(
    lua: &Lua,
    name: &'static str,
    run: impl Fn(&Lua, &Arguments<'_>) -> Outcome + 'static,
) -> mlua::Result<Function> {
    lua.create_function(move |lua, values: MultiValue| {
        run(lua, &Arguments { lua, name, values }).map_err(|fault| match fault {
            Fault::Said(text) => raise::here(lua, &text),
            Fault::Machine(error) => error,
        })
    })
}

fn one(value: Value) -> MultiValue {
    MultiValue::from_vec(vec![value])
}

/// Returns bytes as a string of Lua.
fn text(lua: &Lua, bytes: &[u8]) -> mlua::Result<MultiValue> {
    Ok(one(Value::String(lua.create_string(bytes)?)))
}

/// The arguments of a library function.
struct Arguments<'l> {
    lua: &'l Lua,
    name: &'static str,
    values: MultiValue,
}

impl Arguments<'_> {
    fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the argument with this number, from 1 on; nil if there is none.
    fn at(&self, number: usize) -> &Value {
        self.values.get(number - 1).unwrap_or(&Value::Nil)
    }

    fn wrong<T>(&self, number: usize, what: &str) -> Result<T, Fault> {
        said(format!("bad argument #{number} to '{}' ({what})", self.name))
    }

    fn mistyped<T>(&self, number: usize, expected: &str) -> Result<T, Fault> {
        let got = self.values.get(number - 1).map_or("no value", type_name);
        self.wrong(number, &format!("{expected} expected, got {got}"))
    }

    fn number(&self, number: usize) -> Result<f64, Fault> {
        match self.lua.coerce_number(self.at(number).clone())? {
            Some(value) => Ok(value),
            None => self.mistyped(number, "number"),
        }
    }

    fn number_or(&self, number: usize, other: f64) -> Result<f64, Fault> {
        if self.at(number).is_nil() { Ok(other) } else { self.number(number) }
    }

    fn bytes(&self, number: usize) -> Result<Vec<u8>, Fault> {
        match self.lua.coerce_string(self.at(number).clone())? {
            Some(value) => Ok(value.as_bytes().to_vec()),
            None => self.mistyped(number, "string"),
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::LightUserData(_) => "userdata",
        other => other.type_name(),
    }
}
