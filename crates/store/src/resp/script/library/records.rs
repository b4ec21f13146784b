//! The library `struct`: packs numbers and texts into bytes by a format, and unpacks them.

use mlua::{Lua, MultiValue, Table, Value};

use super::{Arguments, Bounds, Fault, function, one, said, text};

/// Maximum size of an integer in a format, and default of the alignment that `!` sets, both in bytes.
const INTEGER_BYTES_MAX: usize = 32;
const ALIGNED_TO: usize = 8;

pub(super) fn library(lua: &Lua, bounds: &Bounds) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let within = bounds.clone();
    let pack = move |lua: &Lua, given: &Arguments<'_>| Ok(text(lua, &packed(given, &within)?)?);
    table.set("pack", function(lua, "pack", pack)?)?;
    let within = bounds.clone();
    let unpack = move |lua: &Lua, given: &Arguments<'_>| unpacked(lua, given, &within);
    table.set("unpack", function(lua, "unpack", unpack)?)?;
    table.set("size", function(lua, "size", |_, given| size(given))?)?;
    Ok(table)
}

/// One item of a format string, which packs or unpacks one value.
enum Item {
    Padding,
    Integer {
        bytes: usize,
        is_signed: bool,
    },
    Float,
    Double,
    /// A string of this many bytes; 0 means all that are there.
    Bytes(usize),
    /// A string that ends with a zero byte.
    Text,
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Padding => 1,
            Self::Integer { bytes, .. } | Self::Bytes(bytes) => *bytes,
            Self::Float => 4,
            Self::Double => 8,
            Self::Text => 0,
        }
    }
}

/// A format string, and the progress in reading it.
struct Format {
    letters: Vec<u8>,
    at: usize,
    is_big: bool,
    align: usize,
}

impl Format {
    fn new(letters: Vec<u8>) -> Self {
        Self { letters, at: 0, is_big: cfg!(target_endian = "big"), align: 1 }
    }

    fn digits(&mut self, other: usize) -> usize {
        let digits = self.letters[self.at..].iter().take_while(|letter| letter.is_ascii_digit());
        let digits: Vec<u8> = digits.copied().collect();
        if digits.is_empty() {
            return other;
        }
        self.at += digits.len();
        digits.iter().fold(0_usize, |all, digit| {
            all.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
        })
    }

    /// Returns the next item of the format, and the number of padding bytes before it if `behind` bytes precede;
    /// `None` at the end of the format.
    fn next(
        &mut self,
        given: &Arguments<'_>,
        behind: usize,
    ) -> Result<Option<(Item, usize)>, Fault> {
        // As in C, a zero byte ends the format.
        while let Some(letter) = self.letters.get(self.at).copied().filter(|letter| *letter != 0) {
            self.at += 1;
            let integer = |bytes, is_signed| Item::Integer { bytes, is_signed };
            let item = match letter {
                b'B' => integer(1, false),
                b'b' => integer(1, true),
                b'H' => integer(2, false),
                b'h' => integer(2, true),
                b'L' | b'T' => integer(8, false),
                b'l' => integer(8, true),
                b'i' | b'I' => {
                    let bytes = self.digits(4);
                    if bytes > INTEGER_BYTES_MAX {
                        return said(format!(
                            "integral size {bytes} is larger than limit of {INTEGER_BYTES_MAX}"
                        ));
                    }
                    integer(bytes, letter == b'i')
                }
                b'f' => Item::Float,
                b'd' => Item::Double,
                b'x' => Item::Padding,
                b's' => Item::Text,
                b'c' => Item::Bytes(self.digits(1)),
                b' ' => continue,
                b'>' => {
                    self.is_big = true;
                    continue;
                }
                b'<' => {
                    self.is_big = false;
                    continue;
                }
                b'!' => {
                    let align = self.digits(ALIGNED_TO);
                    if !align.is_power_of_two() {
                        return said(format!("alignment {align} is not a power of 2"));
                    }
                    self.align = align;
                    continue;
                }
                other => {
                    let letter = char::from(other);
                    let what = format!("invalid format option '{letter}'");
                    return given.wrong(1, &what);
                }
            };
            let to = match item {
                Item::Bytes(_) => 0,
                _ => item.bytes().min(self.align),
            };
            let padding = if to > 1 { (to - (behind & (to - 1))) & (to - 1) } else { 0 };
            return Ok(Some((item, padding)));
        }
        Ok(None)
    }
}

fn packed(given: &Arguments<'_>, bounds: &Bounds) -> Result<Vec<u8>, Fault> {
    let mut format = Format::new(given.bytes(1)?);
    // A missing value counts as nil, not as a missing argument.
    let with_nil = given.values.iter().cloned().chain([Value::Nil, Value::Nil]).collect();
    let given = &Arguments { values: with_nil, ..*given };
    let (mut out, mut number) = (Vec::new(), 2);
    while let Some((item, padding)) = format.next(given, out.len())? {
        out.resize(out.len() + padding, 0);
        bounds.check(out.len())?;
        match item {
            Item::Padding => {
                out.push(0);
                continue;
            }
            Item::Integer { bytes, .. } => {
                let value = given.number(number)?;
                let value = if value < 0.0 { (value as i64).cast_unsigned() } else { value as u64 };
                let mut all = [0; INTEGER_BYTES_MAX];
                all[..8].copy_from_slice(&value.to_le_bytes());
                if format.is_big {
                    all[..bytes].reverse();
                }
                out.extend_from_slice(&all[..bytes]);
            }
            Item::Float => {
                let value = given.number(number)? as f32;
                out.extend(if format.is_big { value.to_be_bytes() } else { value.to_le_bytes() });
            }
            Item::Double => {
                let value = given.number(number)?;
                out.extend(if format.is_big { value.to_be_bytes() } else { value.to_le_bytes() });
            }
            Item::Bytes(bytes) => {
                let value = given.bytes(number)?;
                let bytes = if bytes == 0 { value.len() } else { bytes };
                let Some(value) = value.get(..bytes) else {
                    return given.wrong(number + 1, "string too short");
                };
                out.extend_from_slice(value);
            }
            Item::Text => {
                out.extend(given.bytes(number)?);
                out.push(0);
            }
        }
        number += 1;
    }
    Ok(out)
}

fn unpacked(lua: &Lua, given: &Arguments<'_>, bounds: &Bounds) -> super::Outcome {
    let mut format = Format::new(given.bytes(1)?);
    let data = given.bytes(2)?;
    let init = given.number_or(3, 1.0)? as i64;
    let Ok(mut at) = usize::try_from(init - 1) else {
        return given.wrong(3, "offset must be 1 or greater");
    };
    let mut values: Vec<Value> = Vec::new();
    while let Some((item, padding)) = format.next(given, at)? {
        bounds.check(0)?;
        at = at.saturating_add(padding);
        let too_short = || given.wrong(2, "data string too short");
        let taken = |bytes: usize| data.get(at..at.saturating_add(bytes));
        let Some(mut bytes) = taken(item.bytes()) else { return too_short() };
        match item {
            Item::Padding => {}
            Item::Integer { is_signed, .. } => {
                values.push(Value::Number(integer(bytes, format.is_big, is_signed)));
            }
            Item::Float => {
                let bytes = bytes.try_into().expect("four");
                let value = if format.is_big {
                    f32::from_be_bytes(bytes)
                } else {
                    f32::from_le_bytes(bytes)
                };
                values.push(Value::Number(value.into()));
            }
            Item::Double => {
                let bytes = bytes.try_into().expect("eight");
                let value = if format.is_big {
                    f64::from_be_bytes(bytes)
                } else {
                    f64::from_le_bytes(bytes)
                };
                values.push(Value::Number(value));
            }
            Item::Bytes(length) => {
                if length == 0 {
                    let Some(before) = values.pop().as_ref().and_then(super::as_number) else {
                        return said("format 'c0' needs a previous size");
                    };
                    let Some(taken) = taken(before as usize) else { return too_short() };
                    bytes = taken;
                }
                values.push(Value::String(lua.create_string(bytes)?));
            }
            Item::Text => {
                let Some(length) = data[at..].iter().position(|byte| *byte == 0) else {
                    return said("unfinished string in data");
                };
                bytes = &data[at..=at + length];
                values.push(Value::String(lua.create_string(&bytes[..length])?));
            }
        }
        at += bytes.len();
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

/// Returns the value of an integer of any size, of which only the eight lowest bytes count.
fn integer(bytes: &[u8], is_big: bool, is_signed: bool) -> f64 {
    let place = |at: usize| if is_big { bytes[bytes.len() - 1 - at] } else { bytes[at] };
    let value = (0..bytes.len().min(8)).fold(0, |all, at| all | u64::from(place(at)) << (8 * at));
    if !is_signed {
        return value as f64;
    }
    let unused = 64 - 8 * bytes.len().min(8) as u32;
    let value = value.checked_shl(unused).unwrap_or(0).cast_signed();
    value.checked_shr(unused).unwrap_or(0) as f64
}

fn size(given: &Arguments<'_>) -> super::Outcome {
    let mut format = Format::new(given.bytes(1)?);
    let mut all = 0_usize;
    while let Some((item, padding)) = format.next(given, all)? {
        match item {
            Item::Text => return given.wrong(1, "option 's' has no fixed size"),
            Item::Bytes(0) => return given.wrong(1, "option 'c0' has no fixed size"),
            _ => all = all.saturating_add(padding).saturating_add(item.bytes()),
        }
    }
    Ok(one(Value::Number(all as f64)))
}
