//! The library `cmsgpack`: converts values of Lua to MessagePack and back.
//!
//! A number without a fraction is packed as an integer in its shortest form; other numbers take four bytes if
//! that is exact, and otherwise eight. A table whose keys are 1 to n is packed as an array. Values without a
//! representation are packed as nil.

use mlua::{Lua, MultiValue, Table, Value};

use super::{Arguments, Bounds, Fault, Outcome, as_number, function, said, text};

/// Maximum number of values that one call of a function returns: the machine's stack is limited.
const UNPACKED_MAX: usize = 4_000;
/// Maximum nesting of tables that are packed; deeper ones are packed as nil.
const PACKED_DEPTH_MAX: usize = 16;
/// Maximum nesting of values that are unpacked: a thread's stack is small.
const UNPACKED_DEPTH_MAX: usize = 100;

pub(super) fn library(lua: &Lua, bounds: &Bounds) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let within = bounds.clone();
    let pack = move |lua: &Lua, given: &Arguments<'_>| {
        if given.len() == 0 {
            return given.wrong(0, "MessagePack pack needs input.");
        }
        let mut out = Vec::new();
        for value in &given.values {
            packed(value, 0, &within, &mut out)?;
        }
        Ok(text(lua, &out)?)
    };
    table.set("pack", function(lua, "pack", pack)?)?;
    let within = bounds.clone();
    let all = move |lua: &Lua, given: &Arguments<'_>| {
        unpacked(lua, &given.bytes(1)?, (0.0, 0.0), &within)
    };
    table.set("unpack", function(lua, "unpack", all)?)?;
    let within = bounds.clone();
    let first = move |lua: &Lua, given: &Arguments<'_>| {
        let offset = given.number_or(2, 0.0)?;
        unpacked(lua, &given.bytes(1)?, (1.0, offset), &within)
    };
    table.set("unpack_one", function(lua, "unpack_one", first)?)?;
    let within = bounds.clone();
    let some = move |lua: &Lua, given: &Arguments<'_>| {
        let (limit, offset) = (given.number(2)?, given.number_or(3, 0.0)?);
        unpacked(lua, &given.bytes(1)?, (limit, offset), &within)
    };
    table.set("unpack_limit", function(lua, "unpack_limit", some)?)?;
    table.set("_NAME", "cmsgpack")?;
    table.set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    table.set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    Ok(table)
}

fn packed(value: &Value, depth: usize, bounds: &Bounds, out: &mut Vec<u8>) -> Result<(), Fault> {
    bounds.check(out.len())?;
    match value {
        Value::Boolean(is) => out.push(if *is { 0xc3 } else { 0xc2 }),
        Value::Integer(value) => integer(*value, out),
        Value::Number(value) => number(*value, out),
        Value::String(text) => {
            let bytes = text.as_bytes();
            bounds.check(out.len() + bytes.len())?;
            head(out, bytes.len(), Some((0xa0, 31)), Some(0xd9), 0xda, 0xdb);
            out.extend_from_slice(&bytes);
        }
        Value::Table(table) if depth < PACKED_DEPTH_MAX => {
            let (items, is_array) = shape(table)?;
            if is_array {
                head(out, items, Some((0x90, 15)), None, 0xdc, 0xdd);
                for at in 1..=items {
                    packed(&table.get(at)?, depth + 1, bounds, out)?;
                }
            } else {
                head(out, items, Some((0x80, 15)), None, 0xde, 0xdf);
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair?;
                    packed(&key, depth + 1, bounds, out)?;
                    packed(&value, depth + 1, bounds, out)?;
                }
            }
        }
        _ => out.push(0xc0),
    }
    Ok(())
}

/// Returns the number of items of a table, and whether their keys are 1 to that number, so that it is packed as an
/// array.
fn shape(table: &Table) -> mlua::Result<(usize, bool)> {
    let (mut items, mut most, mut is_array) = (0_usize, 0.0_f64, true);
    for pair in table.pairs::<Value, Value>() {
        items += 1;
        match as_number(&pair?.0) {
            Some(key) if key >= 1.0 && key.fract() == 0.0 => most = most.max(key),
            _ => is_array = false,
        }
    }
    Ok((items, is_array && most == items as f64))
}

/// Appends a type and a length in their shortest form. The other parameters are the type bytes for the forms of the
/// length: in the type byte itself, with the greatest length that fits; in 8 bits; in 16 bits; and in 32 bits.
fn head(
    out: &mut Vec<u8>,
    length: usize,
    short: Option<(u8, usize)>,
    of_8: Option<u8>,
    of_16: u8,
    of_32: u8,
) {
    match (short, of_8) {
        (Some((kind, most)), _) if length <= most => out.push(kind | length as u8),
        (_, Some(kind)) if length <= 0xff => out.extend([kind, length as u8]),
        _ if length <= 0xffff => {
            out.push(of_16);
            out.extend((length as u16).to_be_bytes());
        }
        _ => {
            out.push(of_32);
            out.extend((length as u32).to_be_bytes());
        }
    }
}

fn number(value: f64, out: &mut Vec<u8>) {
    const LIMIT: f64 = (1_u64 << 63) as f64;
    // Numbers from 2^63 on do not fit in 64 bits.
    let is_integer = value.fract() == 0.0 && (-LIMIT..LIMIT).contains(&value);
    if is_integer {
        return integer(value as i64, out);
    }
    let short = value as f32;
    if f64::from(short) == value {
        out.push(0xca);
        out.extend(short.to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend(value.to_be_bytes());
    }
}

fn integer(value: i64, out: &mut Vec<u8>) {
    match value {
        0..=0x7f => out.push(value as u8),
        0x80..=0xff => out.extend([0xcc, value as u8]),
        0x100..=0xffff => {
            out.push(0xcd);
            out.extend((value as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xce);
            out.extend((value as u32).to_be_bytes());
        }
        0x1_0000_0000.. => {
            out.push(0xcf);
            out.extend(value.to_be_bytes());
        }
        -32..=-1 => out.push(value as u8),
        -128..=-33 => out.extend([0xd0, value as u8]),
        -0x8000..=-129 => {
            out.push(0xd1);
            out.extend((value as i16).to_be_bytes());
        }
        -0x8000_0000..=-0x8001 => {
            out.push(0xd2);
            out.extend((value as i32).to_be_bytes());
        }
        _ => {
            out.push(0xd3);
            out.extend(value.to_be_bytes());
        }
    }
}

/// Unpacks values from the bytes. Returns at most `some.0` values from offset `some.1` on, preceded by the offset
/// after them, or -1 at the end. If both are 0, returns all values without the offset.
fn unpacked(lua: &Lua, bytes: &[u8], some: (f64, f64), bounds: &Bounds) -> Outcome {
    let (limit, offset) = (some.0 as i32, some.1 as i32);
    if offset < 0 || limit < 0 {
        return said(format!(
            "Invalid request to unpack with offset of {offset} and limit of {}.",
            bytes.len()
        ));
    }
    let start = offset.unsigned_abs() as usize;
    if start > bytes.len() {
        return said(format!("Start offset {start} greater than input length {}.", bytes.len()));
    }
    let mut from = Reader { lua, bounds, bytes: &bytes[start..] };
    let mut values = Vec::new();
    let is_all = limit == 0 && offset == 0;
    let limit = if is_all { usize::MAX } else { limit.unsigned_abs() as usize };
    while !from.bytes.is_empty() && values.len() < limit {
        if values.len() == UNPACKED_MAX {
            return said(format!("too many values: at most {UNPACKED_MAX}"));
        }
        values.push(from.value(0)?);
    }
    if !is_all {
        let behind = bytes.len() - from.bytes.len();
        let behind = if from.bytes.is_empty() { -1.0 } else { behind as f64 };
        values.insert(0, Value::Number(behind));
    }
    Ok(MultiValue::from_vec(values))
}

struct Reader<'l, 'b> {
    lua: &'l Lua,
    bounds: &'l Bounds,
    bytes: &'b [u8],
}

impl<'b> Reader<'_, 'b> {
    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        if depth > UNPACKED_DEPTH_MAX {
            return said(format!("too many values in one another: at most {UNPACKED_DEPTH_MAX}"));
        }
        // The machine itself counts the memory of its values.
        self.bounds.check(0)?;
        let number = |value: f64| Ok(Value::Number(value));
        match self.fixed::<1>()?[0] {
            kind @ 0..=0x7f => number(f64::from(kind)),
            kind @ 0xe0..=0xff => number(f64::from(kind.cast_signed())),
            kind @ 0x80..=0x8f => self.map(usize::from(kind & 15), depth),
            kind @ 0x90..=0x9f => self.array(usize::from(kind & 15), depth),
            kind @ 0xa0..=0xbf => self.text(usize::from(kind & 31)),
            0xc0 => Ok(Value::Nil),
            0xc2 => Ok(Value::Boolean(false)),
            0xc3 => Ok(Value::Boolean(true)),
            0xd9 => self.length::<1>().and_then(|length| self.text(length)),
            0xda => self.length::<2>().and_then(|length| self.text(length)),
            0xdb => self.length::<4>().and_then(|length| self.text(length)),
            0xca => number(f32::from_be_bytes(self.fixed()?).into()),
            0xcb => number(f64::from_be_bytes(self.fixed()?)),
            0xcc => number(u8::from_be_bytes(self.fixed()?).into()),
            0xcd => number(u16::from_be_bytes(self.fixed()?).into()),
            0xce => number(u32::from_be_bytes(self.fixed()?).into()),
            0xcf => number(u64::from_be_bytes(self.fixed()?) as f64),
            0xd0 => number(i8::from_be_bytes(self.fixed()?).into()),
            0xd1 => number(i16::from_be_bytes(self.fixed()?).into()),
            0xd2 => number(i32::from_be_bytes(self.fixed()?).into()),
            0xd3 => number(i64::from_be_bytes(self.fixed()?) as f64),
            0xdc => self.length::<2>().and_then(|length| self.array(length, depth)),
            0xdd => self.length::<4>().and_then(|length| self.array(length, depth)),
            0xde => self.length::<2>().and_then(|length| self.map(length, depth)),
            0xdf => self.length::<4>().and_then(|length| self.map(length, depth)),
            0xc1 | 0xc4..=0xc9 | 0xd4..=0xd8 => said("Bad data format in input."),
        }
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], Fault> {
        let Some((taken, rest)) = self.bytes.split_at_checked(length) else {
            return said("Missing bytes in input.");
        };
        self.bytes = rest;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        Ok(self.take(N)?.try_into().expect("it is as long as asked for"))
    }

    fn length<const N: usize>(&mut self) -> Result<usize, Fault> {
        let bytes = self.fixed::<N>()?;
        Ok(bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn text(&mut self, length: usize) -> Result<Value, Fault> {
        let bytes = self.take(length)?;
        Ok(Value::String(self.lua.create_string(bytes)?))
    }

    fn array(&mut self, length: usize, depth: usize) -> Result<Value, Fault> {
        let table = self.lua.create_table()?;
        for at in 1..=length {
            table.raw_set(at, self.value(depth + 1)?)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, length: usize, depth: usize) -> Result<Value, Fault> {
        let table = self.lua.create_table()?;
        for _ in 0..length {
            let key = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            // A key that Lua does not allow ends the script with an error, as in C.
            table.raw_set(key, value)?;
        }
        Ok(Value::Table(table))
    }
}
