//! Field-by-field reader of JSON objects that records findings with field paths.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::time::Duration;

use serde_json::{Map, Value};
use sluice_model::{Decimal, Labels, RejectCause, Severity, Text};
use sluice_proto::json::parse_duration;

use crate::findings::UNKNOWN_FIELD;
use crate::{FieldPath, Findings};

/// Longest beginning of a value that a message quotes.
const MAX_QUOTED_CHARS: usize = 60;
/// Largest edit distance of a name that is suggested.
const MAX_DISTANCE: usize = 2;
/// Longest name for which a similar one is suggested.
const MAX_SUGGESTION_CHARS: usize = 64;

/// Reader of one JSON object.
///
/// Every accessor takes the field's name in lower camel case (the snake-case name is accepted too), treats `null` as
/// absent and records a value of the wrong type as an error. When the reader is dropped, it records each field that no
/// accessor has read as a warning.
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: FieldPath<'a>,
    findings: &'a Findings,
    read: RefCell<BTreeSet<&'a str>>,
    ignores_rest: Cell<bool>,
    /// Names that an accessor has read and that the object does not have, each followed by a line feed. They are suggested
    /// for misspelt names.
    absent: RefCell<String>,
}

impl<'a> Fields<'a> {
    /// A reader of `value`, whose field path is `path`. Records an error if the value is not an object.
    pub fn new(value: &'a Value, path: impl Into<FieldPath<'a>>, findings: &'a Findings) -> Option<Self> {
        let path = path.into();
        let Value::Object(object) = value else {
            findings.error(&path, format!("expected an object, found `{}`", shorten(value)));
            return None;
        };
        let (read, absent) = Default::default();
        Some(Self { object, path, findings, read, ignores_rest: Cell::new(false), absent })
    }

    /// Field path of the field `name`.
    pub(crate) fn path_of(&self, name: &'a str) -> FieldPath<'a> {
        self.path.field(name)
    }

    /// Names of all fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.object.keys().map(String::as_str)
    }

    /// The collection that findings are added to.
    pub fn findings(&self) -> &'a Findings {
        self.findings
    }

    /// Records an error at the field `name`; an empty name is the object itself.
    pub fn reject(&self, name: &str, reason: impl Into<Text>) {
        self.note(Severity::Error, name, reason);
    }

    /// Records that admission refuses the field `name`, which applies where it is stored.
    pub fn refuse(&self, name: &str, reason: impl Into<Text>) {
        self.note(Severity::Refused, name, reason);
    }

    /// Records a warning at the field `name`.
    pub fn warn(&self, name: &str, reason: impl Into<Text>) {
        self.note(Severity::Warning, name, reason);
    }

    /// Records a warning with its cause at the field `name`.
    pub(crate) fn warn_of(&self, cause: RejectCause, name: &str, reason: impl Into<Text>) {
        self.findings.note_of(cause, Severity::Warning, &self.path.with(name), reason);
    }

    fn note(&self, severity: Severity, name: &str, reason: impl Into<Text>) {
        self.findings.note(severity, &self.path.with(name), reason);
    }

    /// The value of a field that is present and not null.
    pub fn value(&self, name: &str) -> Option<&'a Value> {
        if self.object.is_empty() {
            // No name is suggested for a field of it.
            return None;
        }
        let found = self.object.get_key_value(name).or_else(|| self.object.get_key_value(&snake_case(name)?));
        let Some((key, value)) = found else {
            self.note_absent(name);
            return None;
        };
        self.read.borrow_mut().insert(key);
        if value.is_null() { None } else { Some(value) }
    }

    fn note_absent(&self, name: &str) {
        let mut absent = self.absent.borrow_mut();
        absent.push_str(name);
        absent.push('\n');
    }

    /// Whether the field is present and not null.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Whether the field is a list with elements.
    pub(crate) fn has_any(&self, name: &str) -> bool {
        self.value(name).and_then(Value::as_array).is_some_and(|elements| !elements.is_empty())
    }

    fn typed<T>(&self, name: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.value(name)?;
        let result = read(value);
        if result.is_none() {
            self.reject(name, format!("expected {expected}, found `{}`", shorten(value)));
        }
        result
    }

    /// A string.
    pub(crate) fn opt_text(&self, name: &str) -> Option<Text> {
        self.typed(name, "a string", |value| value.as_str().map(Text::from))
    }

    /// A string, empty if absent.
    pub fn text(&self, name: &str) -> Text {
        self.opt_text(name).unwrap_or_default()
    }

    /// A boolean.
    pub(crate) fn opt_bool(&self, name: &str) -> Option<bool> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    /// A boolean, false if absent.
    pub fn bool(&self, name: &str) -> bool {
        self.opt_bool(name).unwrap_or_default()
    }

    /// An integer of any width that fits `T`.
    pub(crate) fn opt_integer<T: TryFrom<i64>>(&self, name: &str) -> Option<T> {
        let value = self.value(name)?;
        let number = integer(value).and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            self.reject(name, format!("expected an integer{}, found `{}`", integer_range::<T>(), shorten(value)));
        }
        number
    }

    /// An integer, zero if absent.
    pub fn integer<T: TryFrom<i64> + Default>(&self, name: &str) -> T {
        self.opt_integer(name).unwrap_or_default()
    }

    /// A number.
    pub(crate) fn opt_decimal(&self, name: &str) -> Option<Decimal> {
        self.typed(name, "a number", |value| match value {
            Value::String(text) => text.parse().ok().filter(|number: &f64| number.is_finite()).map(Decimal::from_f64),
            value => value.as_f64().map(Decimal::from_f64),
        })
    }

    /// A duration in Go's syntax.
    pub(crate) fn opt_duration(&self, name: &str) -> Option<Duration> {
        self.typed(name, "a duration such as `1.5s`", |value| value.as_str().and_then(parse_duration))
    }

    /// A duration of whole milliseconds, at least 1 ms, as the admission rules of timeouts require.
    pub(crate) fn opt_timeout(&self, name: &str) -> Option<Duration> {
        let duration = self.opt_duration(name)?;
        self.check_timeout(name, duration);
        Some(duration)
    }

    /// Records that admission refuses a duration which is below 1 ms or not a whole number of milliseconds.
    pub(crate) fn check_timeout(&self, name: &str, duration: Duration) {
        if duration < Duration::from_millis(1) {
            self.refuse(name, format!("a duration must be at least 1ms, found {duration:?}"));
        } else if !duration.subsec_nanos().is_multiple_of(1_000_000) {
            self.refuse(name, format!("a duration must be a whole number of milliseconds, found {duration:?}"));
        }
    }

    /// An integer that admission refuses below zero.
    pub(crate) fn opt_count(&self, name: &str) -> Option<i32> {
        let number = self.opt_integer(name)?;
        if number < 0 {
            self.refuse(name, format!("expected an integer of at least 0, found {number}"));
        }
        Some(number)
    }

    /// As `opt_count`, zero if absent.
    pub fn count(&self, name: &str) -> i32 {
        self.opt_count(name).unwrap_or_default()
    }

    /// A value of an enumeration: its name, or its number, which is the index in `choices`. Any other value is an error.
    pub fn choice<T: Clone>(&self, name: &str, choices: &[(&str, T)]) -> Option<T> {
        let value = self.value(name)?;
        let choice = match value {
            Value::String(word) => choices.iter().find(|(known, _)| known == word),
            value => value.as_u64().and_then(|n| usize::try_from(n).ok()).and_then(|n| choices.get(n)),
        };
        if choice.is_none() {
            let words = one_of(choices.iter().map(|(word, _)| *word));
            self.reject(name, format!("expected {words}, found `{}`", shorten(value)));
        }
        choice.map(|(_, choice)| choice.clone())
    }

    /// An object.
    pub fn object(&self, name: &'a str) -> Option<Fields<'a>> {
        Fields::new(self.value(name)?, self.path_of(name), self.findings)
    }

    /// The result of `read` for an object field.
    pub fn read<T>(&self, name: &'a str, read: impl Fn(&Fields<'a>) -> T) -> Option<T> {
        self.object(name).map(|object| read(&object))
    }

    fn elements(&self, name: &str) -> &'a [Value] {
        self.typed(name, "a list", Value::as_array).map(Vec::as_slice).unwrap_or_default()
    }

    /// The result of `read` for each object of a list. A list that takes too much memory is an error and is left out: what
    /// is built from `{}` is much larger than its two bytes.
    fn read_elements<T>(&self, name: &'a str, read: impl Fn(Fields<'a>) -> T) -> Vec<T> {
        let elements = self.elements(name);
        let number = elements.iter().filter(|element| element.is_object()).count();
        if !self.findings.reserve_list(number.saturating_mul(size_of::<T>())) {
            self.reject(name, format!("the list has {number} elements; {}", Findings::MAX_LISTS));
            return Vec::new();
        }
        let path = self.path_of(name);
        // A vector that grows has up to three times the memory of its elements for a moment.
        let mut objects = Vec::with_capacity(number);
        let fields = |(n, value)| Fields::new(value, path.element(n), self.findings);
        objects.extend(elements.iter().enumerate().filter_map(fields).map(read));
        objects
    }

    /// A list of objects, empty if absent. An element that is not an object is an error and is left out.
    pub fn objects(&self, name: &'a str) -> Vec<Fields<'a>> {
        self.read_elements(name, |element| element)
    }

    /// The result of `read` for each object of a list.
    pub fn list<T>(&self, name: &'a str, read: impl Fn(&Fields<'a>) -> T) -> Vec<T> {
        self.read_elements(name, |element| read(&element))
    }

    /// A list of strings, empty if absent. An element that is not a string is an error and is left out.
    pub fn texts(&self, name: &str) -> Vec<Text> {
        let texts = self.elements(name).iter().enumerate().filter_map(|(n, value)| match value.as_str() {
            Some(text) => Some(text.into()),
            None => {
                self.reject(&format!("{name}[{n}]"), format!("expected a string, found `{}`", shorten(value)));
                None
            }
        });
        texts.collect()
    }

    /// The entries of a map with their paths, empty if absent. Values may be null.
    pub fn entries(&self, name: &'a str) -> impl Iterator<Item = (Text, &'a Value, FieldPath<'a>)> + use<'a> {
        let path = self.path_of(name);
        let map = self.typed(name, "an object", Value::as_object).into_iter().flatten();
        map.map(move |(key, value)| (key.into(), value, path.entry(key)))
    }

    /// A map of strings, empty if absent. An entry that is not a string is an error and is left out.
    pub fn text_map(&self, name: &str) -> BTreeMap<Text, Text> {
        let entries = self.typed(name, "an object", Value::as_object).into_iter().flatten();
        let entries = entries.filter_map(|(key, value)| match value.as_str() {
            Some(text) => Some((key.into(), text.into())),
            None => {
                let path = self.path.with(name);
                let reason = format!("expected a string, found `{}`", shorten(value));
                self.findings.error(&format_args!("{path}[{key}]"), reason);
                None
            }
        });
        entries.collect()
    }

    /// A map of labels, empty if absent.
    pub fn labels(&self, name: &str) -> Labels {
        self.text_map(name).into()
    }

    /// Whether there is a field that no accessor has read so far.
    pub(crate) fn has_unread(&self) -> bool {
        let read = self.read.borrow();
        self.object.keys().any(|name| !read.contains(name.as_str()))
    }

    /// Marks every field as read, so that none is reported as unknown.
    pub(crate) fn ignore_rest(&self) {
        self.ignores_rest.set(true);
    }
}

impl Drop for Fields<'_> {
    fn drop(&mut self) {
        // After a panic, what has been read is incomplete.
        if self.ignores_rest.get() || std::thread::panicking() {
            return;
        }
        let (read, absent) = (self.read.borrow(), self.absent.borrow());
        for name in self.object.keys().filter(|name| !read.contains(name.as_str())) {
            self.findings.count_unknown();
            if self.findings.keeps(Severity::Warning) {
                self.warn(name, unknown_field(name, absent.lines()));
            } else {
                self.findings.omit(Severity::Warning, 1);
            }
        }
    }
}

/// Replaces `target` if there is a value.
pub(crate) fn set<T>(target: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *target = value;
    }
}

/// The message for an unknown field. It suggests the name among `known` that is nearest to `name`.
pub(crate) fn unknown_field<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    let name: String = name.chars().take(MAX_SUGGESTION_CHARS).map(|c| c.to_ascii_lowercase()).collect();
    // The distance is at least the difference of the lengths.
    let known = known.filter(|known| known.len().abs_diff(name.len()) <= MAX_DISTANCE);
    let near = known.map(|known| (edit_distance(&name, &known.to_ascii_lowercase()), known)).min();
    match near {
        Some((distance, known)) if distance <= MAX_DISTANCE && distance * 3 <= known.len() => {
            format!("{UNKNOWN_FIELD}, it is ignored; did you mean `{known}`?")
        }
        _ => format!("{UNKNOWN_FIELD}, it is ignored"),
    }
}

/// Insertions, deletions, replacements and swaps of neighbouring characters that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().take(MAX_SUGGESTION_CHARS).collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// `one of A, B, C` with each word in backticks, for messages.
pub(crate) fn one_of<'w>(words: impl Iterator<Item = &'w str>) -> String {
    format!(
        "one of {}",
        words.filter(|word| !word.is_empty()).map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
    )
}

/// The range of an integer type, for messages.
fn integer_range<T: TryFrom<i64>>() -> String {
    let fits = |number: &i64| T::try_from(*number).is_ok();
    let least = [i64::MIN, i32::MIN.into(), 0].into_iter().find(fits);
    let most = [i64::MAX, u32::MAX.into(), i32::MAX.into(), u16::MAX.into(), u8::MAX.into()].into_iter().find(fits);
    match (least, most) {
        (Some(0), Some(i64::MAX)) => " of at least 0".to_owned(),
        (Some(least), Some(most)) if most < i64::MAX => format!(" from {least} to {most}"),
        _ => String::new(),
    }
}

fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => text.parse().ok(),
        // JSON may write a whole number as 8080.0.
        value => value.as_i64().or_else(|| value.as_f64().filter(|number| number.fract() == 0.0).and_then(whole)),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn whole(number: f64) -> Option<i64> {
    (number.abs() < 9e15).then_some(number as i64)
}

/// The beginning of a value.
fn shorten(value: &Value) -> String {
    /// Ends the output after this number of characters.
    struct Beginning(String, usize);

    impl fmt::Write for Beginning {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for c in text.chars() {
                self.1 = self.1.checked_sub(1).ok_or(fmt::Error)?;
                self.0.push(c);
            }
            Ok(())
        }
    }

    let mut beginning = Beginning(String::new(), MAX_QUOTED_CHARS);
    // Fails where the text is cut.
    let _ = write!(beginning, "{value}");
    beginning.0
}

/// The snake-case form of a lower-camel-case name; `None` if it is the same.
fn snake_case(name: &str) -> Option<String> {
    if !name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return None;
    }
    let mut snake = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    Some(snake)
}

#[cfg(test)]
mod tests;
