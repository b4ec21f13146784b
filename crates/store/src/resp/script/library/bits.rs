//! The library `bit`: bitwise operations on integers modulo 2^32, with signed results.

use mlua::{Lua, Table, Value};

use super::{Arguments, Fault, function, one, text};

pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let unary = |name: &'static str, run: fn(u32) -> u32| {
        let run = move |_: &Lua, given: &Arguments<'_>| Ok(signed(run(bits(given, 1)?)));
        table.set(name, function(lua, name, run)?)
    };
    unary("tobit", |bits| bits)?;
    unary("bnot", |bits| !bits)?;
    unary("bswap", u32::swap_bytes)?;
    let many = |name: &'static str, run: fn(u32, u32) -> u32| {
        let run = move |_: &Lua, given: &Arguments<'_>| {
            let mut all = bits(given, 1)?;
            for number in 2..=given.len() {
                all = run(all, bits(given, number)?);
            }
            Ok(signed(all))
        };
        table.set(name, function(lua, name, run)?)
    };
    many("band", |one, other| one & other)?;
    many("bor", |one, other| one | other)?;
    many("bxor", |one, other| one ^ other)?;
    // Only the lowest five bits of the shift distance count.
    let shift = |name: &'static str, run: fn(u32, u32) -> u32| {
        let run = move |_: &Lua, given: &Arguments<'_>| {
            let (value, by) = (bits(given, 1)?, bits(given, 2)? & 31);
            Ok(signed(run(value, by)))
        };
        table.set(name, function(lua, name, run)?)
    };
    shift("lshift", |value, by| value << by)?;
    shift("rshift", |value, by| value >> by)?;
    shift("arshift", |value, by| (value.cast_signed() >> by).cast_unsigned())?;
    shift("rol", u32::rotate_left)?;
    shift("ror", u32::rotate_right)?;
    let hex = |lua: &Lua, given: &Arguments<'_>| {
        let value = bits(given, 1)?;
        let digits = if given.at(2).is_nil() { 8 } else { bits(given, 2)?.cast_signed() };
        let all = match digits {
            ..0 => format!("{value:08X}"),
            _ => format!("{value:08x}"),
        };
        let digits = digits.unsigned_abs().min(8) as usize;
        Ok(text(lua, &all.as_bytes()[8 - digits..])?)
    };
    table.set("tohex", function(lua, "tohex", hex)?)?;
    Ok(table)
}

/// Returns the bits of the argument with this number: rounded, half to even, and modulo 2^32.
fn bits(given: &Arguments<'_>, number: usize) -> Result<u32, Fault> {
    // 2^52 + 2^51: the low bits of the sum are those of the rounded number.
    const ALIGNS: f64 = 6_755_399_441_055_744.0;
    Ok((given.number(number)? + ALIGNS).to_bits() as u32)
}

fn signed(bits: u32) -> mlua::MultiValue {
    one(Value::Number(f64::from(bits.cast_signed())))
}
