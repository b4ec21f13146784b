//! The machine that runs a script: Lua 5.1, as in Redis, without access to files, processes, other code or
//! state of earlier scripts, and with limits on memory, on instructions and, if there is a clock, on time.
//!
//! The prelude (`prelude.lua`) sets up the environment that scripts expect. A script that exceeds a limit rolls the
//! whole transaction back: a script may catch its own errors, but not the end that a limit imposes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::OnceLock;

use mlua::{ChunkMode, Function, HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

use super::super::answer::{Answer, Protocol};
use super::super::number::general;
use super::super::parse::Kept;
use super::super::rows::Rows;
use super::library::{Bounds, library};
use super::meter::{Meter, STEPS};
use super::raise;
use super::value::{as_number, reason, to_answer, to_lua, to_text};
use super::{Script, ScriptLimits, hash_of, hex};
use crate::transaction::Abort;

const PRELUDE: &str = include_str!("prelude.lua");
/// The low 16 bits of the random number generator's initial state, as in C's `drand48`; the seed is above them.
const SEED_END: u64 = 0x330e;
/// Checks that a text compiles as a script of Lua.
///
/// # Errors
/// Returns the error of the compiler.
pub(super) fn compile(text: &[u8], limits: &ScriptLimits) -> Result<(), Answer> {
    let lua = machine(limits).map_err(|error| failure(&error))?;
    load(&lua, text).map(|_| ())
}

/// Returns a new Lua machine with Lua's own libraries and the limit on memory.
fn machine(limits: &ScriptLimits) -> mlua::Result<Lua> {
    let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    lua.set_memory_limit(limits.memory_bytes_max)?;
    Ok(lua)
}

fn failure(error: &mlua::Error) -> Answer {
    Answer::error(format!("ERR {}", reason(error)))
}

/// Returns the function of the prelude. The prelude is compiled once in the process, since compiling would take most
/// of the time of a short script.
fn prelude(lua: &Lua) -> mlua::Result<Function> {
    static COMPILED: OnceLock<Vec<u8>> = OnceLock::new();
    if let Some(compiled) = COMPILED.get() {
        return lua.load(&compiled[..]).set_mode(ChunkMode::Binary).into_function();
    }
    let prelude = lua.load(PRELUDE).set_name("@prelude").into_function()?;
    _ = COMPILED.set(prelude.dump(true));
    Ok(prelude)
}

/// Compiles the text of a script to a function of Lua.
fn load(lua: &Lua, text: &[u8]) -> Result<Function, Answer> {
    let chunk = lua.load(text).set_name(raise::NAME).set_mode(ChunkMode::Text);
    chunk.into_function().map_err(|error| {
        let text = format!("ERR Error compiling script (new function): {}", reason(&error));
        Answer::error(text)
    })
}

/// Runs a script on the transaction's rows, and returns its answer.
///
/// # Errors
/// Returns the reason why the whole transaction is to have no effect.
pub(in super::super) fn run(script: &Script, rows: &mut Rows<'_, '_>) -> Result<Answer, Abort> {
    let limits = &script.settings.script_limits;
    let meter = Rc::new(Meter::new(limits, &rows.allowance));
    let calls = RefCell::new(Calls { script, rows, abort: None });
    let outcome = run_on_machine(script, limits, &meter, &calls);
    let Calls { rows, abort, .. } = calls.into_inner();
    rows.allowance.begun = Some((meter.steps_left.get(), meter.until_ms));
    if let Some(abort) = abort {
        return Err(abort);
    }
    if meter.is_over.get() {
        let text = "BUSY the script took too long, and nothing of the transaction happened";
        return Err(Abort::Refused(text.to_owned()));
    }
    Ok(outcome.unwrap_or_else(|error| failure(&error)))
}

fn run_on_machine(
    script: &Script,
    limits: &ScriptLimits,
    meter: &Rc<Meter>,
    calls: &RefCell<Calls<'_, '_, '_, '_>>,
) -> mlua::Result<Answer> {
    let lua = machine(limits)?;
    let xpcall: Function = lua.globals().get("xpcall")?;
    let protocol = Rc::new(Cell::new(Protocol::Two));
    let body = match load(&lua, &script.text) {
        Ok(body) => body,
        Err(answer) => return Ok(answer),
    };
    for (name, values) in [("KEYS", &script.names), ("ARGV", &script.arguments)] {
        let table = lua.create_table_with_capacity(values.len(), 0)?;
        for (at, value) in (1..).zip(values) {
            table.raw_set(at, lua.create_string(value)?)?;
        }
        lua.globals().set(name, table)?;
    }
    let of_hook = Rc::clone(meter);
    let triggers = HookTriggers::new().every_nth_instruction(STEPS);
    lua.set_hook(triggers, move |_, _| of_hook.step())?;
    lua.scope(|scope| {
        let call = scope.create_function(|lua, words: MultiValue| {
            let answer =
                calls.borrow_mut().call(&words).inspect_err(|_| meter.is_over.set(true))?;
            match answer {
                Answer::Error(text) => Err(raise::reply(text)),
                answer => to_lua(lua, &answer, protocol.get()),
            }
        })?;
        let pcall = scope.create_function(|lua, words: MultiValue| {
            let answer =
                calls.borrow_mut().call(&words).inspect_err(|_| meter.is_over.set(true))?;
            to_lua(lua, &answer, protocol.get())
        })?;
        let is_over = scope.create_function(|_, ()| Ok(meter.is_over.get()))?;
        // The numbers differ between runs, but are the same if a request runs again at another site.
        let state = Rc::new(Cell::new((script.seed << 16) + SEED_END));
        let of_random = Rc::clone(&state);
        let random = scope.create_function(move |_, ()| Ok(random(&of_random)))?;
        let seed = scope.create_function(move |_, seed: f64| {
            state.set((u64::from(seed as i64 as u32) << 16) + SEED_END);
            Ok(())
        })?;
        let redis = lua.create_table()?;
        redis.set("call", call)?;
        redis.set("pcall", pcall)?;
        add_redis_table(&lua, &redis, &protocol)?;
        redis.set("REDIS_VERSION", script.settings.redis_version.as_str())?;
        lua.globals().set("redis", redis)?;
        let caught = lua.create_function(raise::caught)?;
        let bounds = Bounds { bytes_max: limits.memory_bytes_max, meter: Rc::clone(meter) };
        let find = scope.create_function(move |lua, name: Value| match name.as_string() {
            Some(name) => library(lua, &name.to_string_lossy(), &bounds),
            None => Ok(None),
        })?;
        let given = (is_over, random, seed, find, caught);
        prelude(&lua)?.call::<()>(given)?;
        let line = Rc::new(Cell::new(None));
        let of_error = Rc::clone(&line);
        let handler = lua.create_function(move |lua, error: Value| {
            of_error.set(raise::line(lua));
            Ok(error)
        })?;
        let (is_done, value): (bool, Value) = xpcall.call((body, handler))?;
        if is_done {
            return to_answer(&value, protocol.get());
        }
        let mut text = to_text(&value);
        text.extend_from_slice(format!(" script: {}", hex(&script.hash)).as_bytes());
        if let Some(line) = line.get() {
            text.extend_from_slice(format!(", on {}:{line}.", raise::NAME).as_bytes());
        }
        Ok(Answer::Error(text))
    })
}

/// Adds the functions and constants of the table `redis`, except those that call commands. `protocol` is the version
/// that the script selects.
fn add_redis_table(lua: &Lua, redis: &Table, protocol: &Rc<Cell<Protocol>>) -> mlua::Result<()> {
    for (level, name) in
        ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"].iter().enumerate()
    {
        redis.set(*name, level)?;
    }
    let wrong = |given: &MultiValue, many: usize, text: &str| match given.len() == many {
        true => Ok(()),
        false => Err(raise::reply(text)),
    };
    let sha1hex = move |lua: &Lua, given: MultiValue| {
        wrong(&given, 1, "ERR wrong number of arguments")?;
        let text = lua.coerce_string(given[0].clone())?;
        Ok(hex(&hash_of(&text.map(|text| text.as_bytes().to_vec()).unwrap_or_default())))
    };
    redis.set("sha1hex", lua.create_function(sha1hex)?)?;
    let of_script = Rc::clone(protocol);
    let setresp = move |lua: &Lua, given: MultiValue| {
        wrong(&given, 1, "ERR redis.setresp() requires one argument.")?;
        of_script.set(match lua.coerce_number(given[0].clone())? {
            Some(2.0) => Protocol::Two,
            Some(3.0) => Protocol::Three,
            _ => return Err(raise::reply("ERR RESP version must be 2 or 3.")),
        });
        Ok(())
    };
    redis.set("setresp", lua.create_function(setresp)?)?;
    // Log messages are discarded.
    let log = |_: &Lua, given: MultiValue| match given.len() {
        ..2 => Err(raise::reply("ERR redis.log() requires two arguments or more.")),
        _ => Ok(()),
    };
    redis.set("log", lua.create_function(log)?)
}

/// Returns the next number of the random generator that Redis gives scripts, at least 0 and less than 1, and advances
/// `state`.
fn random(state: &Cell<u64>) -> f64 {
    state.set((state.get().wrapping_mul(0x5_deec_e66d).wrapping_add(0xb)) & 0xffff_ffff_ffff);
    let range = f64::from(i32::MAX);
    ((state.get() >> 17) as f64 % range) / range
}

/// Executes the commands that a script calls.
struct Calls<'s, 'w, 'r, 'v> {
    script: &'s Script,
    rows: &'w mut Rows<'r, 'v>,
    /// The reason why the whole transaction is to have no effect, once a command has one.
    abort: Option<Abort>,
}

impl Calls<'_, '_, '_, '_> {
    fn call(&mut self, words: &MultiValue) -> mlua::Result<Answer> {
        if words.is_empty() {
            let text = "ERR Please specify at least one argument for this redis lib call";
            return Ok(Answer::error(text));
        }
        let mut texts = Vec::with_capacity(words.len());
        for word in words {
            texts.push(match word {
                Value::String(text) => text.as_bytes().to_vec(),
                other => match as_number(other) {
                    Some(number) => general(number, 17).into_bytes(),
                    None => {
                        let text =
                            "ERR Lua redis lib command arguments must be strings or integers";
                        return Ok(Answer::error(text));
                    }
                },
            });
        }
        let kept = Kept::of(texts.iter().map(Vec::as_slice));
        let arguments = kept.arguments();
        let operation = match self.rows.commands.operation(&arguments, self.script.table) {
            Ok(operation) => operation,
            Err(answer) => return Ok(answer),
        };
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        operation.declare(&mut reads, &mut writes);
        if self.script.is_read_only && !writes.is_empty() {
            let text = "ERR Write commands are not allowed from read-only scripts.";
            return Ok(Answer::error(text));
        }
        let keys = &self.script.keys;
        if reads.iter().chain(&writes).any(|key| keys.binary_search(key).is_err()) {
            let text = "ERR a script may use no key that is not among its KEYS";
            return Ok(Answer::error(text));
        }
        operation.run(self.rows).map_err(|abort| {
            self.abort = Some(abort);
            mlua::Error::runtime("it is over")
        })
    }
}
