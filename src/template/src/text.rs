//! How Go prints values.

use std::fmt::{self, Write};

use super::value::Value;

/// The text of a value, as `%v`. Null is `<nil>`.
#[must_use]
pub fn show(value: &Value) -> String {
    match value {
        Value::Missing | Value::Nil => "<nil>".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => float(*number),
        Value::Text(text) => text.to_string(),
        Value::List(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" ")),
        Value::Dict(dict) => {
            let entries: Vec<String> =
                dict.entries.iter().map(|(key, value)| format!("{key}:{}", show(value))).collect();
            format!("map[{}]", entries.join(" "))
        }
        Value::Object(object) if object.is_nil() => "<nil>".to_owned(),
        Value::Object(object) => object.text(),
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&show(self))
    }
}

/// The text of a value at the end of an action. Null is `<no value>`.
pub(crate) fn printed(value: &Value) -> String {
    match value {
        Value::Missing | Value::Nil => "<no value>".to_owned(),
        other => show(other),
    }
}

/// A floating-point number as `%v`: `1000000` is `1e+06`.
pub(crate) fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if number != 0.0 && !(-4..EXPONENT_LIMIT).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{number}")
}

/// Numbers from this power of ten on are printed with an exponent.
const EXPONENT_LIMIT: i32 = 6;

/// A text in double quotes with the escapes of Go.
#[must_use]
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            c if c.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(c)).unwrap_or_default(),
            c if c.is_control() => write!(out, "\\u{:04x}", u32::from(c)).unwrap_or_default(),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Largest width and precision of `printf`.
const MAX_WIDTH: usize = 100;

/// A verb of a format with its flags.
#[derive(Default)]
struct Verb {
    minus: bool,
    plus: bool,
    zero: bool,
    sharp: bool,
    width: usize,
    precision: Option<usize>,
}

/// `fmt.Sprintf`.
pub(crate) fn sprintf(format: &str, args: &[Value]) -> String {
    let mut out = String::new();
    let mut args = args.iter();
    let mut rest = format.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut verb = Verb::default();
        while let Some(flag) = rest.next_if(|c| "-+0# ".contains(*c)) {
            match flag {
                '-' => verb.minus = true,
                '+' => verb.plus = true,
                '0' => verb.zero = true,
                '#' => verb.sharp = true,
                _ => {}
            }
        }
        let mut number = || {
            let mut number = None;
            while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                rest.next();
                number = Some((number.unwrap_or(0) * 10 + digit as usize).min(MAX_WIDTH));
            }
            number
        };
        verb.width = number().unwrap_or_default();
        if rest.next_if_eq(&'.').is_some() {
            let mut precision = 0;
            while let Some(digit) = rest.peek().and_then(|c| c.to_digit(10)) {
                rest.next();
                precision = (precision * 10 + digit as usize).min(MAX_WIDTH);
            }
            verb.precision = Some(precision);
        }
        match rest.next() {
            None => out.push_str("%!(NOVERB)"),
            Some('%') => out.push('%'),
            Some(letter) => match args.next() {
                None => out.push_str(&format!("%!{letter}(MISSING)")),
                Some(value) => out.push_str(&verb.apply(letter, value)),
            },
        }
    }
    let extra: Vec<String> = args.map(|value| format!("{}={}", value.type_name(), show(value))).collect();
    if !extra.is_empty() {
        out.push_str(&format!("%!(EXTRA {})", extra.join(", ")));
    }
    out
}

impl Verb {
    fn apply(&self, letter: char, value: &Value) -> String {
        let text = match (letter, value) {
            ('v', value) => self.signed(show(value), value),
            ('s', Value::Text(_) | Value::List(_) | Value::Dict(_) | Value::Object(_)) => self.cut(show(value)),
            ('q', Value::Text(text)) => quoted(&self.cut(text.to_string())),
            ('d', Value::Integer(number)) => self.signed(number.to_string(), value),
            ('x', Value::Integer(number)) => self.hexadecimal(format!("{number:x}")),
            ('X', Value::Integer(number)) => self.hexadecimal(format!("{number:X}")),
            ('o', Value::Integer(number)) => format!("{number:o}"),
            ('b', Value::Integer(number)) => format!("{number:b}"),
            ('x', Value::Text(text)) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
            ('f' | 'F', Value::Float(number)) => {
                self.signed(format!("{number:.*}", self.precision.unwrap_or(6)), value)
            }
            ('g', Value::Float(number)) => self.signed(float(*number), value),
            ('t', Value::Bool(flag)) => flag.to_string(),
            ('T', value) => value.type_name(),
            (letter, Value::Missing | Value::Nil) => format!("%!{letter}(<nil>)"),
            (letter, value) => format!("%!{letter}({}={})", value.type_name(), show(value)),
        };
        self.padded(text)
    }

    fn cut(&self, text: String) -> String {
        match self.precision {
            Some(precision) => text.chars().take(precision).collect(),
            None => text,
        }
    }

    fn hexadecimal(&self, digits: String) -> String {
        if self.sharp { format!("0x{digits}") } else { digits }
    }

    fn signed(&self, text: String, value: &Value) -> String {
        let is_number = matches!(value, Value::Integer(_) | Value::Float(_));
        if self.plus && is_number && !text.starts_with('-') { format!("+{text}") } else { text }
    }

    fn padded(&self, text: String) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        if self.minus {
            return text + &" ".repeat(missing);
        }
        if self.zero && missing > 0 {
            let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        " ".repeat(missing) + &text
    }
}
