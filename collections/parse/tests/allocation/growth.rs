//! Values in which one place has grown out of all proportion.

use serde_json::{Map, Value, json};

/// Nesting that every reader accepts.
const DEPTH: usize = 80;

/// A place in a value and what is put there.
type Growth = fn(&Value, usize) -> Option<Value>;
/// The end of the pointer to a list in the pointer to a place.
type ListPosition = fn(&str) -> Option<usize>;

const GROWTHS: [(&str, Growth); 21] = [
    ("long string", |_, bytes| Some("x".repeat(bytes).into())),
    ("long string of characters that are escaped", |_, bytes| Some("\u{1}\"\u{e9}".repeat(bytes / 4).into())),
    ("nested lists", |_, _| Some((0..DEPTH).fold(json!(1), |inner, _| json!([inner])))),
    ("nested objects", |_, bytes| {
        let long = "k".repeat(bytes / DEPTH);
        Some((0..DEPTH).fold(json!(1), |inner, _| json!({ long.as_str(): inner, "b": 1 })))
    }),
    ("list of numbers", |_, bytes| Some(vec![json!(0); bytes / 2].into())),
    ("list of objects", |_, bytes| Some(vec![json!({"a": 1}); bytes / 8].into())),
    ("list of strings", |_, bytes| Some(numbered(bytes, |n| format!("a{n}").into()))),
    ("map of strings", |_, bytes| Some(keyed(bytes, |n| n.into()))),
    ("expression with large classes", |old, bytes| old.is_string().then(|| r"\w".repeat(bytes / 2).into())),
    ("expression with repetitions", |old, _| old.is_string().then(|| "(a{500}){500}".into())),
    ("expression with open groups", |old, bytes| old.is_string().then(|| "(".repeat(bytes).into())),
    ("digits", |old, bytes| old.is_string().then(|| "9".repeat(bytes).into())),
    ("labels", |old, bytes| old.is_string().then(|| "a.".repeat(bytes / 2).into())),
    ("parts of a list", |old, bytes| old.is_string().then(|| "a,".repeat(bytes / 2).into())),
    ("same element again and again", |old, bytes| {
        let first = old.as_array()?.first()?;
        Some(vec![first.clone(); bytes / length(first) + 2].into())
    }),
    ("different elements", |old, bytes| {
        let first = old.as_array()?.first()?;
        Some(numbered(bytes, |n| renamed(first, n)))
    }),
    ("many unknown fields", |old, bytes| {
        let mut fields = old.as_object()?.clone();
        fields.extend(unknown(bytes));
        Some(fields.into())
    }),
    ("unknown fields in entries with a long key", |old, bytes| {
        let mut fields = old.as_object()?.clone();
        let mut entry = fields.values().find_map(|value| value.as_object().cloned()).unwrap_or_default();
        entry.extend(unknown(bytes / 2));
        fields.insert("k".repeat(bytes / 2), entry.into());
        Some(fields.into())
    }),
    ("many entries", |old, bytes| {
        let first = old.as_object()?.values().next()?.clone();
        Some(keyed(bytes, |n| renamed(&first, n)))
    }),
    ("many empty entries", |old, bytes| {
        let first = old.as_object()?.values().next()?;
        Some(keyed(bytes, |_| empty(first)))
    }),
    ("all fields of the wrong type", |old, bytes| {
        let wrong = "y".repeat(bytes / old.as_object()?.len().max(1));
        Some(old.as_object()?.keys().map(|name| (name.clone(), json!([wrong]))).collect::<Map<_, _>>().into())
    }),
];

/// Lists around a place. They grow with elements that have nothing but the place, which is empty: what is built from these is
/// largest for their bytes.
const LISTS: [(&str, ListPosition); 2] = [
    ("smallest elements of the inner list", |place| indices(place).last()),
    ("smallest elements of the outer list", |place| indices(place).next()),
];

/// The form of a list whose elements have nothing but the place. If the place is an element, they are empty.
pub(crate) const SMALLEST_ELEMENTS: usize = GROWTHS.len();
/// Number of the forms that a place can grow into.
pub(crate) const FORMS: usize = SMALLEST_ELEMENTS + LISTS.len();

/// The value with one place in that grown form, of about that many bytes, and a name of it. `None` if the form does not suit
/// the place.
pub(crate) fn grow(value: &Value, place: &str, form: usize, bytes: usize) -> Option<(String, Value)> {
    let (what, at, new) = match GROWTHS.get(form) {
        Some((what, growth)) => (what, place, growth(value.pointer(place)?, bytes)?),
        None => {
            let (what, list) = LISTS.get(form - SMALLEST_ELEMENTS)?;
            let (at, rest) = place.split_at(list(place)?);
            let elements = smallest(value.pointer(at)?, rest)?;
            let element = elements.as_array()?.first()?;
            (what, at, vec![element.clone(); bytes / (length(element) + 1) + 2].into())
        }
    };
    let mut grown = value.clone();
    *grown.pointer_mut(at)? = new;
    Some((format!("{what} at {place}"), grown))
}

/// Positions of the indices in a place.
fn indices(place: &str) -> impl Iterator<Item = usize> {
    let found = place.match_indices("/0").map(|(at, _)| at);
    found.filter(|at| matches!(place.as_bytes().get(at + 2), None | Some(b'/')))
}

/// A value that has only that place, which is empty.
fn smallest(value: &Value, place: &str) -> Option<Value> {
    let Some(rest) = place.strip_prefix('/') else { return Some(empty(value)) };
    let end = rest.find('/').unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let inner = smallest(value.pointer(&place[..=end])?, rest)?;
    let name = name.replace("~1", "/").replace("~0", "~");
    Some(if value.is_array() { json!([inner]) } else { json!({ name: inner }) })
}

/// The empty value of the same type.
fn empty(value: &Value) -> Value {
    match value {
        Value::String(_) => "".into(),
        Value::Number(_) => 0.into(),
        Value::Array(_) => json!([]),
        Value::Object(_) => json!({}),
        other => other.clone(),
    }
}

/// Length of the JSON text.
pub(crate) fn length(value: &Value) -> usize {
    value.to_string().len()
}

/// JSON pointers to all parts of a value; of a list, to its first element.
pub(crate) fn places(value: &Value) -> Vec<String> {
    let mut places = Vec::new();
    find_places(value, String::new(), &mut places);
    places
}

fn find_places(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                find_places(inner, format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")), places);
            }
        }
        Value::Array(elements) => {
            if let Some(first) = elements.first() {
                find_places(first, format!("{at}/0"), places);
            }
        }
        _ => {}
    }
    places.push(at);
}

fn numbered(bytes: usize, element: impl Fn(usize) -> Value) -> Value {
    let size = length(&element(bytes)) + 1;
    (0..bytes / size + 2).map(element).collect::<Vec<_>>().into()
}

fn keyed(bytes: usize, entry: impl Fn(usize) -> Value) -> Value {
    let size = length(&entry(bytes)) + 10;
    (0..bytes / size + 2).map(|n| (format!("k{n}"), entry(n))).collect::<Map<_, _>>().into()
}

fn unknown(bytes: usize) -> impl Iterator<Item = (String, Value)> {
    (0..bytes / 10).map(|n| (format!("u{n}"), json!(1)))
}

/// A value whose strings and numbers contain `n`.
fn renamed(value: &Value, n: usize) -> Value {
    match value {
        Value::String(text) => match text.strip_prefix("*.") {
            Some(rest) => format!("*.x{n}.{rest}").into(),
            None => format!("x{n}{text}").into(),
        },
        Value::Number(_) => (n % 60_000).into(),
        Value::Array(elements) => elements.iter().map(|element| renamed(element, n)).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, inner)| (name.clone(), renamed(inner, n))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}
