//! Exact comparison of numbers of BSON's four numeric types.
//!
//! No value is converted to a type that cannot represent it: 2^53 + 1 as a long differs from 2^53 as a double, and
//! the decimal 0.1 is smaller than the double 0.1. Decimals are IEEE 754-2008 in the binary integer encoding, as
//! the BSON specification requires.

use std::cmp::Ordering;
use std::hash::Hasher;

/// A number of one of BSON's numeric types; `Int` stands for both integer types.
#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    Int(i64),
    Double(f64),
    Decimal(Decimal),
}

/// A decoded number of the type decimal128.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decimal {
    NaN,
    Infinite {
        negative: bool,
    },
    /// The number `±coefficient · 10^exponent`, with a coefficient below 10^34.
    Finite {
        negative: bool,
        coefficient: u128,
        exponent: i32,
    },
}

const MAX_COEFFICIENT: u128 = 10u128.pow(34) - 1;
const EXPONENT_BIAS: i32 = 6176;

/// Range of powers of ten outside which no finite double but zero lies: the smallest is 4.9e-324, the largest
/// 1.8e308. A decimal whose most significant digit is outside the range needs no further comparison with a double.
const DOUBLE_DIGITS_MIN: i32 = -330;
const DOUBLE_DIGITS_MAX: i32 = 310;

impl Decimal {
    fn decode(bytes: [u8; 16]) -> Self {
        let bits = u128::from_le_bytes(bytes);
        let negative = bits >> 127 == 1;
        match (bits >> 122) & 0x1f {
            0x1f => return Decimal::NaN,
            0x1e => return Decimal::Infinite { negative },
            _ => {}
        }
        // Two leading ones select the form whose coefficients are all above 10^34 - 1. Such a coefficient is not
        // canonical and represents zero.
        let (field, coefficient) = if (bits >> 125) & 3 == 3 {
            ((bits >> 111) & 0x3fff, 0)
        } else {
            ((bits >> 113) & 0x3fff, bits & ((1 << 113) - 1))
        };
        let coefficient = if coefficient > MAX_COEFFICIENT { 0 } else { coefficient };
        let exponent = i32::try_from(field).expect("14 bits fit") - EXPONENT_BIAS;
        Decimal::Finite { negative, coefficient, exponent }
    }
}

/// Absolute value of a finite number, for comparing two numbers of the same sign.
#[derive(Clone, Copy)]
enum Magnitude {
    /// The value `digits · 10^exponent`.
    Ten { digits: u128, exponent: i32 },
    /// The value `bits · 2^exponent`.
    Two { bits: u64, exponent: i32 },
}

/// Position of a number in the order: `NaN`, minus infinity, the finite numbers, infinity.
enum Place {
    NaN,
    NegativeInfinity,
    /// A finite number: its sign (-1, 0 or 1) and its absolute value.
    Finite(i8, Magnitude),
    Infinity,
}

impl Place {
    fn rank(&self) -> i8 {
        match self {
            Place::NaN => -3,
            Place::NegativeInfinity => -2,
            Place::Finite(sign, _) => *sign,
            Place::Infinity => 2,
        }
    }
}

impl Number {
    pub(super) fn from_decimal(bytes: [u8; 16]) -> Self {
        Number::Decimal(Decimal::decode(bytes))
    }

    pub(super) fn cmp(&self, other: &Self) -> Ordering {
        if let (Number::Int(a), Number::Int(b)) = (self, other) {
            return a.cmp(b);
        }
        let (a, b) = (self.place(), other.place());
        a.rank().cmp(&b.rank()).then_with(|| match (&a, &b) {
            (Place::Finite(sign, x), Place::Finite(_, y)) => match sign {
                0 => Ordering::Equal,
                1 => cmp_magnitudes(*x, *y),
                _ => cmp_magnitudes(*y, *x),
            },
            _ => Ordering::Equal,
        })
    }

    fn place(&self) -> Place {
        match *self {
            Number::Int(v) => {
                let sign = i8::try_from(v.signum()).expect("a sign is -1, 0 or 1");
                Place::Finite(sign, Magnitude::Two { bits: v.unsigned_abs(), exponent: 0 })
            }
            Number::Double(v) if v.is_nan() => Place::NaN,
            Number::Double(v) if v.is_infinite() => infinity(v < 0.0),
            Number::Double(v) => {
                let (bits, exponent) = split_double(v);
                Place::Finite(sign_of(v < 0.0, bits == 0), Magnitude::Two { bits, exponent })
            }
            Number::Decimal(Decimal::NaN) => Place::NaN,
            Number::Decimal(Decimal::Infinite { negative }) => infinity(negative),
            Number::Decimal(Decimal::Finite { negative, coefficient, exponent }) => {
                let sign = sign_of(negative, coefficient == 0);
                Place::Finite(sign, Magnitude::Ten { digits: coefficient, exponent })
            }
        }
    }

    /// Feeds the number to the hasher so that equal numbers of different types feed the same bytes: as a long if a
    /// long can represent the number, else as a double if a double can, else as a decimal without trailing zeros.
    pub(super) fn hash_into<H: Hasher>(&self, state: &mut H) {
        match *self {
            Number::Int(v) => hash_int(v, state),
            Number::Double(v) => hash_double(v, state),
            Number::Decimal(Decimal::NaN) => hash_double(f64::NAN, state),
            Number::Decimal(Decimal::Infinite { negative }) => {
                hash_double(if negative { f64::NEG_INFINITY } else { f64::INFINITY }, state);
            }
            Number::Decimal(Decimal::Finite { negative, coefficient, exponent }) => {
                hash_decimal(*self, negative, coefficient, exponent, state);
            }
        }
    }
}

fn infinity(negative: bool) -> Place {
    if negative { Place::NegativeInfinity } else { Place::Infinity }
}

fn sign_of(negative: bool, zero: bool) -> i8 {
    match (zero, negative) {
        (true, _) => 0,
        (_, true) => -1,
        _ => 1,
    }
}

/// Returns the absolute value of the finite double `v`, as `bits · 2^exponent`.
fn split_double(v: f64) -> (u64, i32) {
    let raw = v.to_bits();
    let field = i32::try_from((raw >> 52) & 0x7ff).expect("11 bits fit");
    let fraction = raw & ((1 << 52) - 1);
    if field == 0 { (fraction, -1074) } else { (fraction | (1 << 52), field - 1075) }
}

/// Compares two absolute values, neither of them zero.
fn cmp_magnitudes(a: Magnitude, b: Magnitude) -> Ordering {
    match (a, b) {
        (Magnitude::Two { bits: x, exponent: e }, Magnitude::Two { bits: y, exponent: f }) => {
            cmp_powers_of_two((x, e), (y, f))
        }
        (Magnitude::Ten { digits: x, exponent: e }, Magnitude::Ten { digits: y, exponent: f }) => {
            cmp_powers_of_ten((x, e), (y, f))
        }
        (Magnitude::Ten { digits, exponent }, Magnitude::Two { bits, exponent: two }) => {
            cmp_ten_two((digits, exponent), (bits, two))
        }
        (Magnitude::Two { .. }, Magnitude::Ten { .. }) => cmp_magnitudes(b, a).reverse(),
    }
}

fn cmp_powers_of_two((x, e): (u64, i32), (y, f): (u64, i32)) -> Ordering {
    let top = |bits: u64, exponent: i32| i64::from(exponent) + 64 - i64::from(bits.leading_zeros());
    // The highest bits have the same position, so both are shifted up until they are at the top, and then compared.
    top(x, e).cmp(&top(y, f)).then_with(|| (x << x.leading_zeros()).cmp(&(y << y.leading_zeros())))
}

fn cmp_powers_of_ten((x, e): (u128, i32), (y, f): (u128, i32)) -> Ordering {
    cmp_top_digit((x, e), (y, f)).then_with(|| {
        // The highest digits have the same position, so both numbers fit in 34 digits on the lower exponent.
        let low = e.min(f);
        let scaled = |digits: u128, exponent: i32| digits * 10u128.pow(exponent.abs_diff(low));
        scaled(x, e).cmp(&scaled(y, f))
    })
}

fn cmp_top_digit(a: (u128, i32), b: (u128, i32)) -> Ordering {
    top_digit(a).cmp(&top_digit(b))
}

fn top_digit((digits, exponent): (u128, i32)) -> i32 {
    exponent + i32::try_from(digits.ilog10()).expect("at most 38 digits")
}

fn cmp_ten_two(ten: (u128, i32), two: (u64, i32)) -> Ordering {
    let top = top_digit(ten);
    if top > DOUBLE_DIGITS_MAX {
        return Ordering::Greater;
    }
    if top < DOUBLE_DIGITS_MIN {
        return Ordering::Less;
    }
    // Compares digits · 10^e with bits · 2^k; negative powers are moved to the other side.
    let mut left = Big::new(ten.0);
    let mut right = Big::new(u128::from(two.0));
    let (e, k) = (ten.1, two.1);
    let (tens, twos) = (e.unsigned_abs(), k.unsigned_abs());
    (if e >= 0 { &mut left } else { &mut right }).times_power_of_ten(tens);
    (if k >= 0 { &mut right } else { &mut left }).shift_left(twos);
    left.cmp(&right)
}

/// A natural number of any size: its 32-bit limbs, the lowest first, with no zero limb on top.
#[derive(Debug, PartialEq, Eq)]
struct Big(Vec<u32>);

impl Big {
    fn new(mut v: u128) -> Self {
        let mut limbs = Vec::new();
        while v > 0 {
            limbs.push(u32::try_from(v & 0xffff_ffff).expect("masked to 32 bits"));
            v >>= 32;
        }
        Big(limbs)
    }

    fn times(&mut self, factor: u32) {
        let mut carry = 0u64;
        for limb in &mut self.0 {
            let product = u64::from(*limb) * u64::from(factor) + carry;
            *limb = u32::try_from(product & 0xffff_ffff).expect("masked to 32 bits");
            carry = product >> 32;
        }
        if carry > 0 {
            self.0.push(u32::try_from(carry).expect("the high half of a product"));
        }
    }

    fn times_power_of_ten(&mut self, exponent: u32) {
        for _ in 0..exponent / 9 {
            self.times(1_000_000_000);
        }
        self.times(10u32.pow(exponent % 9));
    }

    fn shift_left(&mut self, by: u32) {
        self.times(1 << (by % 32));
        let zeros = usize::try_from(by / 32).expect("a small shift");
        self.0.splice(0..0, std::iter::repeat_n(0, zeros));
    }

    fn cmp(&self, other: &Self) -> Ordering {
        let by_limbs = || self.0.iter().rev().cmp(other.0.iter().rev());
        self.0.len().cmp(&other.0.len()).then_with(by_limbs)
    }
}

fn hash_int<H: Hasher>(v: i64, state: &mut H) {
    state.write_u8(1);
    state.write(&v.to_le_bytes());
}

fn hash_double<H: Hasher>(v: f64, state: &mut H) {
    const TWO_TO_63: f64 = 9_223_372_036_854_775_808.0;
    if v.trunc() == v && (-TWO_TO_63..TWO_TO_63).contains(&v) {
        // The value is whole and in range, so the conversion is exact. It also maps -0.0 to 0.
        #[allow(clippy::cast_possible_truncation)]
        return hash_int(v as i64, state);
    }
    state.write_u8(2);
    let bits = if v.is_nan() { f64::NAN.to_bits() } else { v.to_bits() };
    state.write(&bits.to_le_bytes());
}

fn hash_decimal<H: Hasher>(
    number: Number,
    negative: bool,
    mut digits: u128,
    mut exponent: i32,
    state: &mut H,
) {
    if digits == 0 {
        return hash_int(0, state);
    }
    while digits.is_multiple_of(10) {
        digits /= 10;
        exponent += 1;
    }
    let sign = if negative { "-" } else { "" };
    if (0..19).contains(&exponent) {
        // The conversion goes through text, because -2^63 has no positive counterpart. A value that is too large
        // fails.
        let text = format!("{sign}{digits}{:0<1$}", "", usize::try_from(exponent).unwrap_or(0));
        if let Ok(v) = text.parse::<i64>() {
            return hash_int(v, state);
        }
    }
    // The nearest double, by correctly rounded parsing. If any double equals the decimal, it is this one.
    let nearest = format!("{sign}{digits}e{exponent}").parse::<f64>().unwrap_or(f64::NAN);
    if nearest.is_finite() && number.cmp(&Number::Double(nearest)) == Ordering::Equal {
        return hash_double(nearest, state);
    }
    state.write_u8(3);
    state.write_u8(u8::from(negative));
    state.write(&digits.to_le_bytes());
    state.write(&exponent.to_le_bytes());
}
