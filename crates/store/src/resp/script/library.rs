//! The libraries that scripts of Redis have besides Lua's own: cjson, cmsgpack, bit and struct. A library is
//! loaded when a script first uses it, since most scripts use none.
//!
//! These libraries are written in Rust, since scripts depend on each byte and each error of the C libraries of Redis;
//! tests compare the two. Each value that a library reads or writes counts as an instruction of the machine, and the
//! library's output is limited like the machine's memory.

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::meter::Meter;
use super::raise;
use super::value::as_number;

mod bits;
mod json;
mod msgpack;
mod records;

/// Maximum nesting depth of the values that the JSON library converts, even if a script sets a greater one.
const DEPTH_MAX: usize = 1_000;

/// The result of a library function: the values that it returns to the script.
type Outcome = Result<MultiValue, Fault>;

/// The reason why a library function has no result.
enum Fault {
    /// An error that is raised in the script, after its position in the script.
    Said(String),
    /// An error of the Lua machine, such as exceeding its memory.
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

/// The limits of the library functions of one script.
#[derive(Clone)]
pub(super) struct Bounds {
    /// Maximum size of the output of one function, in bytes.
    pub bytes_max: usize,
    /// The counter of the script's instructions.
    pub meter: Rc<Meter>,
}

impl Bounds {
    /// Counts a value as an instruction, and returns an error if the script is over its limits or the function's
    /// output so far, of `bytes` bytes, is too large.
    fn check(&self, bytes: usize) -> Result<(), Fault> {
        if bytes > self.bytes_max {
            let error = mlua::Error::MemoryError("not enough memory".into());
            return Err(Fault::Machine(error));
        }
        Ok(self.meter.count()?)
    }
}

/// Returns the table of the library with this name; `None` if there is none.
pub(super) fn library(lua: &Lua, name: &str, bounds: &Bounds) -> mlua::Result<Option<Table>> {
    match name {
        "bit" => bits::library(lua).map(Some),
        "cjson" => json::library(lua, bounds).map(Some),
        "cmsgpack" => msgpack::library(lua, bounds).map(Some),
        "struct" => records::library(lua, bounds).map(Some),
        _ => Ok(None),
    }
}

/// Returns a function of a library with this name, which runs `run`.
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

/// Returns bytes as the result of a function that returns one string.
fn text(lua: &Lua, bytes: &[u8]) -> mlua::Result<MultiValue> {
    Ok(one(Value::String(lua.create_string(bytes)?)))
}

/// The arguments with which a script called a library function.
struct Arguments<'l> {
    lua: &'l Lua,
    name: &'static str,
    values: MultiValue,
}

impl Arguments<'_> {
    fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the argument with this number, from 1 on; nil if the script passed fewer.
    fn at(&self, number: usize) -> &Value {
        self.values.get(number - 1).unwrap_or(&Value::Nil)
    }

    /// Returns an error about the argument with this number.
    fn wrong<T>(&self, number: usize, what: &str) -> Result<T, Fault> {
        said(format!("bad argument #{number} to '{}' ({what})", self.name))
    }

    /// Returns an error for an argument of another type than expected.
    fn mistyped<T>(&self, number: usize, expected: &str) -> Result<T, Fault> {
        let got = self.values.get(number - 1).map_or("no value", type_name);
        self.wrong(number, &format!("{expected} expected, got {got}"))
    }

    /// Returns the argument with this number as a number, or an error.
    fn number(&self, number: usize) -> Result<f64, Fault> {
        match self.lua.coerce_number(self.at(number).clone())? {
            Some(value) => Ok(value),
            None => self.mistyped(number, "number"),
        }
    }

    /// Returns the argument with this number as a number, or `other` if it is nil.
    fn number_or(&self, number: usize, other: f64) -> Result<f64, Fault> {
        if self.at(number).is_nil() { Ok(other) } else { self.number(number) }
    }

    /// Returns the argument with this number as a byte string, or an error.
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
