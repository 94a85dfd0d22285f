//! Quantities of resources in canonical form, such as `2` for `2000m` and `1Gi` for `1024Mi`.

/// What a text that is no quantity is answered with.
pub(crate) const SYNTAX: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
/// Decimal suffixes from 10⁻⁹ in steps of 10³.
const DECIMAL: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Maximum number of digits before an exponent is applied.
const MAX_DIGITS: usize = 18;
/// Quantities are rounded up to this power of ten.
const SMALLEST_EXPONENT: i32 = -9;

#[derive(Clone, Copy, PartialEq)]
enum Format {
    Binary,
    Decimal,
    Exponent,
}

/// The canonical form of a quantity.
pub(crate) fn canonical(text: &str) -> Result<String, &'static str> {
    let (sign, magnitude) = match text.as_bytes().first() {
        Some(b'-') => ("-", &text[1..]),
        Some(b'+') => ("", &text[1..]),
        _ => ("", text),
    };
    let length = magnitude.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(magnitude.len());
    let (number, suffix) = magnitude.split_at(length);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(SYNTAX);
    }
    let (format, scale) = scale(suffix).ok_or("unable to parse quantity's suffix")?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok("0".to_owned());
    }
    if digits.len() > MAX_DIGITS {
        // Such a number needs no canonical form: it exceeds what any node has.
        return Ok(text.to_owned());
    }
    let value: i128 = digits.parse().map_err(|_| SYNTAX)?;
    let places = i32::try_from(fraction.len()).map_err(|_| SYNTAX)?;
    Ok(format!("{sign}{}", write(value, places, format, scale)))
}

/// The format of a suffix, and its power of two or ten.
fn scale(suffix: &str) -> Option<(Format, i32)> {
    if let Some(index) = BINARY.iter().position(|known| *known == suffix && !suffix.is_empty()) {
        return Some((Format::Binary, i32::try_from(index).ok()? * 10));
    }
    if let Some(index) = DECIMAL.iter().position(|known| *known == suffix) {
        return Some((Format::Decimal, (i32::try_from(index).ok()? - 3) * 3));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let exponent: i32 = exponent.parse().ok()?;
    (-18..=18).contains(&exponent).then_some((Format::Exponent, exponent))
}

fn write(value: i128, places: i32, format: Format, scale: i32) -> String {
    if format == Format::Binary {
        let scaled = value << scale;
        let divisor = 10i128.pow(places.unsigned_abs());
        if scaled % divisor == 0 {
            return binary(scaled / divisor);
        }
        // A fraction of a binary suffix has no binary form.
        return decimal(scaled, -places, Format::Decimal);
    }
    decimal(value, scale - places, format)
}

fn binary(value: i128) -> String {
    let mut index = 0;
    let mut value = value;
    // Below 1024 there is no suffix.
    while value % 1024 == 0 && index + 1 < BINARY.len() {
        value /= 1024;
        index += 1;
    }
    format!("{value}{}", BINARY[index])
}

/// `value` times ten to the power of `exponent`, with the largest suffix that leaves a whole number.
fn decimal(value: i128, exponent: i32, format: Format) -> String {
    let (mut value, mut exponent) = (value, exponent);
    while exponent < SMALLEST_EXPONENT {
        value = (value + 9) / 10;
        exponent += 1;
    }
    while value % 10 == 0 && value != 0 {
        value /= 10;
        exponent += 1;
    }
    while exponent.rem_euclid(3) != 0 {
        value *= 10;
        exponent -= 1;
    }
    // The largest suffix is E.
    while exponent > 18 {
        value *= 10;
        exponent -= 1;
    }
    match format {
        Format::Exponent if exponent != 0 => format!("{value}e{exponent}"),
        _ => {
            let index = usize::try_from(exponent / 3 + 3).unwrap_or_default();
            format!("{value}{}", DECIMAL.get(index).copied().unwrap_or_default())
        }
    }
}
