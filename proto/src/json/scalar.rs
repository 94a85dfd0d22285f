//! Values that are strings in JSON: durations, timestamps, bytes.

use std::time::Duration;

use base64::{
    Engine as _, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::Shortened;

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// Maximum of a protobuf duration: 10,000 years.
const MAX_DURATION_SECONDS: i128 = 315_576_000_000;
const NANOS: i128 = 1_000_000_000;

/// Longest quotation in an error.
const MAX_QUOTED_BYTES: usize = 200;

fn quoted(text: &str) -> String {
    Shortened::of(&format_args!("{text:?}"), MAX_QUOTED_BYTES)
}

/// Parses a duration in Go's syntax, which includes protobuf's (`1.5s`), to (seconds, nanoseconds) with the same sign.
///
/// # Errors
/// What is wrong, as a lower-case fragment.
pub(super) fn parse_signed_duration(text: &str) -> Result<(i64, i32), String> {
    let bad = || format!("not a duration: {}", quoted(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok((0, 0));
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (digits, tail) = rest.split_at(number);
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let scale: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => NANOS,
            "m" => 60 * NANOS,
            "h" => 3_600 * NANOS,
            "" => return Err(format!("duration without a unit: {}", quoted(text))),
            _ => return Err(format!("unknown unit {} in duration {}", quoted(unit), quoted(text))),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || whole.len() > 18 {
            return Err(bad());
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| bad())? };
        total += whole * scale;
        let fraction = &fraction[..fraction.len().min(18)];
        if !fraction.is_empty() {
            let value: i128 = fraction.parse().map_err(|_| bad())?;
            total += scale * value / 10_i128.pow(fraction.len() as u32);
        }
        rest = tail;
    }
    if total / NANOS > MAX_DURATION_SECONDS {
        return Err(format!("duration out of range: {}", quoted(text)));
    }
    let total = if negative { -total } else { total };
    // Both casts fit: seconds are limited above, and the remainder is less than a billion.
    Ok(((total / NANOS) as i64, (total % NANOS) as i32))
}

/// Parses a duration of zero or more in Go's syntax: decimal numbers, each with a unit, such as `1.5s`, `1h30m` or `250ms`.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (seconds, nanos) = parse_signed_duration(text).ok().filter(|_| !text.starts_with('-'))?;
    let duration = Duration::new(seconds.try_into().ok()?, nanos.try_into().ok()?);
    // Go's durations are 64-bit nanoseconds. A longer one is invalid.
    i64::try_from(duration.as_nanos()).is_ok().then_some(duration)
}

/// Formats a duration as protobuf JSON: `1s`, `0.250s`, `-0.000001s`.
pub(super) fn format_duration(seconds: i64, nanos: i32) -> String {
    let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
    format!("{sign}{}{}s", seconds.unsigned_abs(), fraction(nanos.unsigned_abs()))
}

/// A fraction of three, six or nine digits; empty for zero.
fn fraction(nanos: u32) -> String {
    match nanos {
        0 => String::new(),
        n if n % 1_000_000 == 0 => format!(".{:03}", n / 1_000_000),
        n if n % 1_000 == 0 => format!(".{:06}", n / 1_000),
        n => format!(".{n:09}"),
    }
}

/// Parses an RFC 3339 time to (seconds since 1970, nanoseconds).
pub(super) fn parse_timestamp(text: &str) -> Result<(i64, i32), String> {
    timestamp(text).ok_or_else(|| format!("not an RFC 3339 time: {}", quoted(text)))
}

fn timestamp(text: &str) -> Option<(i64, i32)> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let part = text.get(range)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let is = |at: usize, wanted: &[u8]| text.as_bytes().get(at).is_some_and(|b| wanted.contains(b));
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(tail) = rest.strip_prefix('.') {
        let digits = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if digits == 0 || digits > 9 {
            return None;
        }
        nanos = format!("{:0<9}", &tail[..digits]).parse().ok()?;
        rest = &tail[digits..];
    }
    let offset = match rest.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = text.len() - 5;
            let minutes = number(at..at + 2)? * 60 + number(at + 3..at + 5)?;
            if *sign == b'-' { -minutes } else { minutes }
        }
        _ => return None,
    };
    Some((days(year, month, day) * 86_400 + hour * 3_600 + (minute - offset) * 60 + second, nanos))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // The years of this computation start in March, so that the leap day is the last day.
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = year.rem_euclid(400);
    year.div_euclid(400) * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

/// Formats seconds since 1970 as RFC 3339 in UTC.
pub(super) fn format_timestamp(seconds: i64, nanos: i32) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}{}Z",
        second / 3_600,
        second / 60 % 60,
        second % 60,
        fraction(nanos.unsigned_abs()),
    )
}

/// Decodes base64 of either alphabet, padded or not.
pub(super) fn parse_bytes(text: &str) -> Result<Vec<u8>, String> {
    let engine = if text.contains(['-', '_']) { URL_SAFE } else { STANDARD };
    engine.decode(text).map_err(|e| format!("not base64: {e}"))
}

/// Encodes as standard, padded base64.
pub(super) fn format_bytes(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}
