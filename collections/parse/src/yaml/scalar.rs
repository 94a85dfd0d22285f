//! Values of plain scalars.

use serde_json::{Number, Value};

/// The scalar is a number that JSON cannot represent.
#[derive(Debug, thiserror::Error)]
#[error("{0} cannot be represented in JSON")]
pub(super) struct NotInJson(String);

/// The value of a plain scalar by the rules of YAML 1.1 as Go's library implements them, except that `y` and `n` are
/// strings.
///
/// # Errors
/// JSON cannot represent the number.
pub(super) fn resolve_plain(text: &str) -> Result<Value, NotInJson> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf"
        | "-.INF" => return Err(NotInJson(text.to_owned())),
        _ => parse_number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    })
}

/// The number of a plain scalar: decimal, octal with `0` or `0o`, `0x`, `0b`, with underscores between digits, or a float.
pub(super) fn parse_number(text: &str) -> Option<Number> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let plain = text.replace('_', "");
    parse_integer(&plain).or_else(|| parse_float(&plain))
}

fn parse_integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = if let Some(hex) = lower.strip_prefix("0x") {
        (16, hex)
    } else if let Some(octal) = lower.strip_prefix("0o") {
        (8, octal)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        (2, binary)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (8, &lower[1..])
    } else {
        (10, lower.as_str())
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if !negative {
        return Some(magnitude.into());
    }
    let value = i64::try_from(-i128::from(magnitude)).ok()?;
    Some(value.into())
}

/// `[-+]? ( . digits | digits [ . [digits] ] ) [ e [-+]? digits ]`
fn parse_float(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let all_digits = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if (whole.is_empty() && fraction.is_empty()) || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    if let Some(exponent) = exponent {
        let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
        if digits.is_empty() || !all_digits(digits) {
            return None;
        }
    }
    let value: f64 = text.parse().ok()?;
    // JSON writes a whole number without a fraction, in whichever form YAML has it.
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
        #[allow(clippy::cast_possible_truncation, reason = "whole, and within what a float holds exactly")]
        return Some((value as i64).into());
    }
    Number::from_f64(value)
}
