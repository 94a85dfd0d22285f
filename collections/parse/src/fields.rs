//! Reading a JSON object field by field, noting what is wrong and where.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sluice_model::{Decimal, Kind, Labels, ObjectKey, Reject, Severity, Text};

/// Something wrong in an object, before it is known which object that is.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct Finding {
    /// Path of the field, such as `spec.http[0].timeout`.
    pub field_path: Text,
    /// Why, a lower-case fragment.
    pub reason: Text,
    /// `Error` loses the object, `Refused` only admission, `Warning` nothing or a field that means nothing.
    pub severity: Severity,
}

impl Finding {
    /// The record of this finding in `object`.
    #[must_use]
    pub fn into_reject(self, kind: Kind, object: &ObjectKey) -> Reject {
        let Self { field_path, reason, severity } = self;
        Reject { kind, object: object.clone(), field_path, reason, severity }
    }
}

/// What was found while an object was read.
#[derive(Debug, Default)]
pub struct Findings(RefCell<Vec<Finding>>);

impl Findings {
    /// Notes something.
    pub fn note(&self, severity: Severity, field_path: &str, reason: impl Into<Text>) {
        self.0.borrow_mut().push(Finding { field_path: field_path.into(), reason: reason.into(), severity });
    }

    /// Notes that the part at `field_path` does not apply.
    pub fn error(&self, field_path: &str, reason: impl Into<Text>) {
        self.note(Severity::Error, field_path, reason);
    }

    /// Notes that admission refuses the part at `field_path`, which applies where it is stored.
    pub fn refuse(&self, field_path: &str, reason: impl Into<Text>) {
        self.note(Severity::Refused, field_path, reason);
    }

    /// Notes that the part at `field_path` is ignored.
    pub fn warning(&self, field_path: &str, reason: impl Into<Text>) {
        self.note(Severity::Warning, field_path, reason);
    }

    /// Reads a value whole, or notes where and why it cannot be read. Fields the type does not name are skipped: for the
    /// kinds of Kubernetes, of which few fields are used.
    pub(crate) fn deserialize<T: DeserializeOwned>(&self, value: &Value) -> Option<T> {
        match serde_path_to_error::deserialize(value) {
            Ok(read) => Some(read),
            Err(error) => {
                let path = error.path().to_string();
                self.error(if path == "." { "" } else { &path }, error.inner().to_string());
                None
            }
        }
    }

    /// Whether something makes the object unusable.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.0.borrow().iter().any(|finding| finding.severity == Severity::Error)
    }

    /// How many things make it unusable.
    pub(crate) fn errors(&self) -> usize {
        self.0.borrow().iter().filter(|finding| finding.severity == Severity::Error).count()
    }

    /// Whether admission refuses the object.
    #[must_use]
    pub fn has_refusals(&self) -> bool {
        self.0.borrow().iter().any(|finding| finding.severity.is_refusal())
    }

    /// All of it, in order of the fields.
    #[must_use]
    pub fn into_vec(self) -> Vec<Finding> {
        let mut findings = self.0.into_inner();
        findings.sort();
        // A field that is read twice is wrong once.
        findings.dedup();
        findings
    }
}

/// A JSON object that is being read.
///
/// Every accessor takes the field's name in lower camel case (the snake-case name is understood too), treats `null` as
/// absent and notes a value of the wrong type as an error. Fields nobody asked for are noted as warnings when the reader
/// is dropped.
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
    findings: &'a Findings,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Fields<'a> {
    /// A reader of `value`, which stands at `path`; notes an error if it is no object.
    pub fn new(value: &'a Value, path: impl Into<String>, findings: &'a Findings) -> Option<Self> {
        let path = path.into();
        match value {
            Value::Object(object) => Some(Self { object, path, findings, read: RefCell::default() }),
            _ => {
                findings.note(Severity::Error, &path, "an object is expected");
                None
            }
        }
    }

    /// Path of the field of that name.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.into() } else { format!("{}.{name}", self.path) }
    }

    /// Where what is found is noted.
    pub fn findings(&self) -> &'a Findings {
        self.findings
    }

    /// Path of this object.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Notes an error at the field of that name; an empty name is the object itself.
    pub fn reject(&self, name: &str, reason: impl Into<Text>) {
        self.note(Severity::Error, name, reason);
    }

    /// Notes at the field of that name that admission refuses it.
    pub fn refuse(&self, name: &str, reason: impl Into<Text>) {
        self.note(Severity::Refused, name, reason);
    }

    /// Notes a warning at the field of that name.
    pub fn warn(&self, name: &str, reason: impl Into<Text>) {
        self.note(Severity::Warning, name, reason);
    }

    fn note(&self, severity: Severity, name: &str, reason: impl Into<Text>) {
        let path = if name.is_empty() { self.path.clone() } else { self.path_of(name) };
        self.findings.note(severity, &path, reason);
    }

    /// The value of a field, if it is there and not null.
    pub fn value(&self, name: &str) -> Option<&'a Value> {
        let value = match self.object.get(name) {
            Some(value) => {
                self.read.borrow_mut().insert(name.into());
                value
            }
            None => {
                let snake = snake_case(name);
                let value = self.object.get(&snake)?;
                self.read.borrow_mut().insert(snake);
                value
            }
        };
        if value.is_null() { None } else { Some(value) }
    }

    /// Whether the field is there.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    fn typed<T>(&self, name: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.value(name)?;
        let result = read(value);
        if result.is_none() {
            self.reject(name, format!("{expected} is expected, not `{}`", shorten(value)));
        }
        result
    }

    /// A text.
    pub fn opt_text(&self, name: &str) -> Option<Text> {
        self.typed(name, "a text", |value| value.as_str().map(Text::from))
    }

    /// A text, empty if absent.
    pub fn text(&self, name: &str) -> Text {
        self.opt_text(name).unwrap_or_default()
    }

    /// A boolean.
    pub fn opt_bool(&self, name: &str) -> Option<bool> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    /// A boolean, false if absent.
    pub fn bool(&self, name: &str) -> bool {
        self.opt_bool(name).unwrap_or_default()
    }

    /// An integer of any width that fits `T`.
    pub fn opt_integer<T: TryFrom<i64>>(&self, name: &str) -> Option<T> {
        self.typed(name, "an integer in range", |value| integer(value).and_then(|number| T::try_from(number).ok()))
    }

    /// An integer, zero if absent.
    pub fn integer<T: TryFrom<i64> + Default>(&self, name: &str) -> T {
        self.opt_integer(name).unwrap_or_default()
    }

    /// A number.
    pub fn opt_decimal(&self, name: &str) -> Option<Decimal> {
        self.typed(name, "a number", |value| match value {
            Value::String(text) => text.parse().ok().filter(|number: &f64| number.is_finite()).map(Decimal::from_f64),
            value => value.as_f64().map(Decimal::from_f64),
        })
    }

    /// A duration in Go's syntax.
    pub fn opt_duration(&self, name: &str) -> Option<Duration> {
        self.typed(name, "a duration such as `1.5s`", |value| value.as_str().and_then(parse_duration))
    }

    /// A duration of whole milliseconds, at least one: the least the rules of admission know.
    pub fn opt_timeout(&self, name: &str) -> Option<Duration> {
        let duration = self.opt_duration(name)?;
        self.check_timeout(name, duration);
        Some(duration)
    }

    /// Notes a duration that is not whole milliseconds, or less than one.
    pub fn check_timeout(&self, name: &str, duration: Duration) {
        if duration < Duration::from_millis(1) {
            self.refuse(name, "a duration is at least 1ms");
        } else if !duration.subsec_nanos().is_multiple_of(1_000_000) {
            self.refuse(name, "a duration is whole milliseconds");
        }
    }

    /// An integer that admission refuses below zero.
    pub fn opt_count(&self, name: &str) -> Option<i32> {
        let number = self.opt_integer(name)?;
        if number < 0 {
            self.refuse(name, format!("{number} is below zero"));
        }
        Some(number)
    }

    /// The same, zero if absent.
    pub fn count(&self, name: &str) -> i32 {
        self.opt_count(name).unwrap_or_default()
    }

    /// One of a few words; a word that is none of them is an error. Numbers stand for the words in order.
    pub fn choice<T: Clone>(&self, name: &str, choices: &[(&str, T)]) -> Option<T> {
        self.typed(name, "one of the known words", |value| match value {
            Value::String(word) => choices.iter().find(|(known, _)| known == word).map(|(_, choice)| choice.clone()),
            value => {
                usize::try_from(value.as_u64()?).ok().and_then(|n| choices.get(n)).map(|(_, choice)| choice.clone())
            }
        })
    }

    /// An object.
    pub fn object(&self, name: &str) -> Option<Fields<'a>> {
        Fields::new(self.value(name)?, self.path_of(name), self.findings)
    }

    /// What `read` makes of an object.
    pub fn read<T>(&self, name: &str, read: impl Fn(&Fields<'a>) -> T) -> Option<T> {
        self.object(name).map(|object| read(&object))
    }

    fn elements(&self, name: &str) -> impl Iterator<Item = (&'a Value, String)> {
        let elements = self.typed(name, "a list", Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let path = self.path_of(name);
        elements.iter().enumerate().map(move |(n, value)| (value, format!("{path}[{n}]")))
    }

    /// A list of objects, empty if absent; an element that is none is an error and left out.
    pub fn objects(&self, name: &str) -> Vec<Fields<'a>> {
        self.elements(name).filter_map(|(value, path)| Fields::new(value, path, self.findings)).collect()
    }

    /// What `read` makes of each object of a list.
    pub fn list<T>(&self, name: &str, read: impl Fn(&Fields<'a>) -> T) -> Vec<T> {
        self.objects(name).iter().map(read).collect()
    }

    /// A list of texts, empty if absent.
    pub fn texts(&self, name: &str) -> Vec<Text> {
        let texts = self.elements(name).filter_map(|(value, path)| match value.as_str() {
            Some(text) => Some(text.into()),
            None => {
                self.findings.note(Severity::Error, &path, "a text is expected");
                None
            }
        });
        texts.collect()
    }

    /// The entries of a map with their paths, empty if absent. Values may be null.
    pub fn entries(&self, name: &str) -> Vec<(Text, &'a Value, String)> {
        let Some(map) = self.typed(name, "an object", Value::as_object) else { return Vec::new() };
        let path = self.path_of(name);
        map.iter().map(|(key, value)| (key.into(), value, format!("{path}[{key}]"))).collect()
    }

    /// A map of texts, empty if absent.
    pub fn text_map(&self, name: &str) -> BTreeMap<Text, Text> {
        let entries = self.entries(name).into_iter().filter_map(|(key, value, path)| match value.as_str() {
            Some(text) => Some((key, text.into())),
            None => {
                self.findings.note(Severity::Error, &path, "a text is expected");
                None
            }
        });
        entries.collect()
    }

    /// A map of labels, empty if absent.
    pub fn labels(&self, name: &str) -> Labels {
        self.text_map(name).into()
    }

    /// Takes every field as read, so that none is noted as unknown.
    pub fn ignore_rest(&self) {
        self.read.borrow_mut().extend(self.object.keys().cloned());
    }
}

impl Drop for Fields<'_> {
    fn drop(&mut self) {
        let read = self.read.borrow();
        for name in self.object.keys().filter(|name| !read.contains(*name)) {
            self.warn(name, "unknown field");
        }
    }
}

fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => text.parse().ok(),
        // A whole number may be written as 8080.0.
        value => value.as_i64().or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).and_then(whole)),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn whole(number: f64) -> Option<i64> {
    (number.abs() < 9e15).then_some(number as i64)
}

fn shorten(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// A duration that is not negative, in Go's syntax: decimal numbers, each with a unit, such as `1.5s`, `1h30m` or `250ms`.
#[must_use]
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let scale: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 24 {
            return None;
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        nanos = nanos.checked_add(whole.checked_mul(scale)?)?;
        let mut place = scale;
        for digit in fraction.bytes() {
            place /= 10;
            nanos = nanos.checked_add(u128::from(digit - b'0') * place)?;
        }
        rest = tail;
    }
    // Go's durations are 64-bit nanoseconds; beyond that the object is wrong.
    i64::try_from(nanos).ok().map(|nanos| Duration::from_nanos(nanos.unsigned_abs()))
}

#[cfg(test)]
mod tests;
