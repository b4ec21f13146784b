//! The library `cjson`: converts values of Lua to JSON and back.
//!
//! A table whose keys are positive integers is encoded as an array, with nulls in its gaps. An excessively
//! sparse array is an error, and an empty table is an object. Numbers are written with 14 digits by default.
//! The decoder accepts numbers that JSON does not allow, unless a script forbids it.

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::{Arguments, Bounds, Fault, Outcome, function, one, text};

mod decode;
mod encode;

/// The settings of the library `cjson`, which a script may change for itself.
#[derive(Clone)]
struct Config {
    sparse_convert: bool,
    sparse_ratio: i64,
    sparse_safe: i64,
    encode_depth_max: i64,
    decode_depth_max: i64,
    precision: i64,
    encode_invalid: Invalid,
    decode_invalid: bool,
    keep_buffer: bool,
}

/// The treatment, by the encoder, of numbers that JSON cannot represent, such as infinity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Invalid {
    Error,
    Number,
    Null,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth_max: 1_000,
            decode_depth_max: 1_000,
            precision: 14,
            encode_invalid: Invalid::Error,
            decode_invalid: true,
            keep_buffer: true,
        }
    }
}

type Shared = Rc<RefCell<Config>>;

pub(super) fn library(lua: &Lua, bounds: &Bounds) -> mlua::Result<Table> {
    let config = Shared::default();
    let table = lua.create_table()?;
    let next: Function = lua.globals().get("next")?;
    let (of, within) = (Rc::clone(&config), bounds.clone());
    let encode = move |lua: &Lua, given: &Arguments<'_>| {
        if given.len() != 1 {
            return given.wrong(1, "expected 1 argument");
        }
        let out = encode::encoded(given.at(1), &next, &of.borrow(), &within)?;
        Ok(text(lua, &out)?)
    };
    table.set("encode", function(lua, "encode", encode)?)?;
    let (of, within) = (Rc::clone(&config), bounds.clone());
    let decode = move |lua: &Lua, given: &Arguments<'_>| {
        if given.len() != 1 {
            return given.wrong(1, "expected 1 argument");
        }
        Ok(one(decode::decoded(lua, &given.bytes(1)?, &of.borrow(), &within)?))
    };
    table.set("decode", function(lua, "decode", decode)?)?;
    let set = |name: &'static str, run: fn(&mut Config, &Arguments<'_>, &Lua) -> Outcome| {
        let of = Rc::clone(&config);
        let run = move |lua: &Lua, given: &Arguments<'_>| run(&mut of.borrow_mut(), given, lua);
        table.set(name, function(lua, name, run)?)
    };
    set("encode_sparse_array", |config, given, _| {
        check_many(given, 3)?;
        set_flag(&mut config.sparse_convert, given, 1)?;
        set_number(&mut config.sparse_ratio, given, 2, 0..=i32::MAX.into())?;
        set_number(&mut config.sparse_safe, given, 3, 0..=i32::MAX.into())?;
        let values = [config.sparse_ratio, config.sparse_safe].map(|it| Value::Number(it as f64));
        let [ratio, safe] = values;
        Ok(MultiValue::from_vec(vec![Value::Boolean(config.sparse_convert), ratio, safe]))
    })?;
    set("encode_max_depth", |config, given, _| {
        check_many(given, 1)?;
        set_number(&mut config.encode_depth_max, given, 1, 1..=i32::MAX.into())
    })?;
    set("decode_max_depth", |config, given, _| {
        check_many(given, 1)?;
        set_number(&mut config.decode_depth_max, given, 1, 1..=i32::MAX.into())
    })?;
    set("encode_number_precision", |config, given, _| {
        check_many(given, 1)?;
        set_number(&mut config.precision, given, 1, 1..=14)
    })?;
    set("encode_keep_buffer", |config, given, _| {
        check_many(given, 1)?;
        set_flag(&mut config.keep_buffer, given, 1)?;
        Ok(one(Value::Boolean(config.keep_buffer)))
    })?;
    set("decode_invalid_numbers", |config, given, _| {
        check_many(given, 1)?;
        set_flag(&mut config.decode_invalid, given, 1)?;
        Ok(one(Value::Boolean(config.decode_invalid)))
    })?;
    set("encode_invalid_numbers", |config, given, lua| {
        check_many(given, 1)?;
        match given.at(1) {
            Value::Nil => {}
            Value::Boolean(true) => config.encode_invalid = Invalid::Number,
            Value::Boolean(false) => config.encode_invalid = Invalid::Error,
            _ => match &*given.bytes(1)? {
                b"off" => config.encode_invalid = Invalid::Error,
                b"on" => config.encode_invalid = Invalid::Number,
                b"null" => config.encode_invalid = Invalid::Null,
                other => {
                    let what = format!("invalid option '{}'", String::from_utf8_lossy(other));
                    return given.wrong(1, &what);
                }
            },
        }
        Ok(match config.encode_invalid {
            Invalid::Error => one(Value::Boolean(false)),
            Invalid::Number => one(Value::Boolean(true)),
            Invalid::Null => text(lua, b"null")?,
        })
    })?;
    let within = bounds.clone();
    let new = move |lua: &Lua, _: &Arguments<'_>| Ok(one(Value::Table(library(lua, &within)?)));
    table.set("new", function(lua, "new", new)?)?;
    table.set("null", Value::NULL)?;
    table.set("_NAME", "cjson")?;
    table.set("_VERSION", "2.1.0")?;
    Ok(table)
}

fn check_many(given: &Arguments<'_>, most: usize) -> Result<(), Fault> {
    if given.len() > most {
        return given.wrong(most + 1, "found too many arguments");
    }
    Ok(())
}

fn set_flag(flag: &mut bool, given: &Arguments<'_>, number: usize) -> Result<(), Fault> {
    match given.at(number) {
        Value::Nil => {}
        Value::Boolean(is) => *flag = *is,
        _ => match &*given.bytes(number)? {
            b"off" => *flag = false,
            b"on" => *flag = true,
            other => {
                let what = format!("invalid option '{}'", String::from_utf8_lossy(other));
                return given.wrong(number, &what);
            }
        },
    }
    Ok(())
}

fn set_number(
    to: &mut i64,
    given: &Arguments<'_>,
    number: usize,
    range: std::ops::RangeInclusive<i64>,
) -> Outcome {
    if !given.at(number).is_nil() {
        let value = given.number(number)? as i64;
        if !range.contains(&value) {
            let what = format!("expected integer between {} and {}", range.start(), range.end());
            return given.wrong(number, &what);
        }
        *to = value;
    }
    Ok(one(Value::Number(*to as f64)))
}
