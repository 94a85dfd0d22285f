//! Functions of texts, and of empty values.

use crate::text::{quoted, show};
use crate::value::{Scope, Value};

use super::arguments::{Called, Table, at_least_one, exactly, text, texts, to_integer, to_size};

/// Maximum length of a text that is built by repetition.
const MAX_REPEATED_BYTES: usize = 1 << 20;

/// Checks the number of bytes that repetition adds to a text.
pub(super) fn check_growth(bytes: usize) -> Result<(), String> {
    if bytes > MAX_REPEATED_BYTES {
        return Err(format!("the text exceeds the limit of {MAX_REPEATED_BYTES} bytes"));
    }
    Ok(())
}

pub(super) const FUNCTIONS: Table = &[
    ("all", |_, args| Ok(Value::Bool(args.iter().all(Value::is_true)))),
    ("any", |_, args| Ok(Value::Bool(args.iter().any(Value::is_true)))),
    ("camelcase", |_, args| on_text(args, |text| words(text).iter().map(|word| capitalised(word)).collect())),
    ("cat", cat),
    ("coalesce", |_, args| Ok(args.iter().find(|value| value.is_true()).cloned().unwrap_or(Value::Nil))),
    ("contains", |_, args| on_two(args, |part, whole| Value::Bool(whole.contains(part)))),
    ("default", default),
    ("empty", |_, args| exactly::<1>(args).map(|[value]| Value::Bool(!value.is_true()))),
    ("fail", |_, args| exactly::<1>(args).and_then(|[reason]| Err(text(reason)?.to_owned()))),
    ("hasPrefix", |_, args| on_two(args, |prefix, text| Value::Bool(text.starts_with(prefix)))),
    ("hasSuffix", |_, args| on_two(args, |suffix, text| Value::Bool(text.ends_with(suffix)))),
    ("indent", indent),
    ("join", join),
    ("kebabcase", |_, args| on_text(args, |text| words(text).join("-").to_lowercase())),
    ("lower", |_, args| on_text(args, str::to_lowercase)),
    ("nindent", nindent),
    ("nospace", |_, args| on_text(args, |text| text.split_whitespace().collect())),
    ("plural", plural),
    ("quote", |_, args| Ok(Value::text(each(args, |value| quoted(&show(value)))))),
    ("repeat", repeat),
    ("replace", replace),
    ("snakecase", |_, args| on_text(args, |text| words(text).join("_").to_lowercase())),
    ("split", split),
    ("splitList", split_list),
    ("splitn", splitn),
    ("squote", |_, args| Ok(Value::text(each(args, |value| format!("'{}'", show(value)))))),
    ("substr", substr),
    ("ternary", ternary),
    ("title", |_, args| on_text(args, title)),
    ("toString", |_, args| exactly::<1>(args).map(|[value]| Value::text(show(value)))),
    ("toStrings", |_, args| {
        exactly::<1>(args).map(|[value]| Value::list(texts(value).into_iter().map(Value::text).collect()))
    }),
    ("trim", |_, args| on_text(args, |text| text.trim().to_owned())),
    ("trimAll", trim_all),
    ("trimPrefix", |_, args| on_two(args, |prefix, text| Value::text(text.strip_prefix(prefix).unwrap_or(text)))),
    ("trimSuffix", |_, args| on_two(args, |suffix, text| Value::text(text.strip_suffix(suffix).unwrap_or(text)))),
    ("trimall", trim_all),
    ("trunc", trunc),
    ("untitle", |_, args| on_text(args, untitle)),
    ("upper", |_, args| on_text(args, str::to_uppercase)),
];

fn on_text(args: &[Value], function: impl Fn(&str) -> String) -> Called {
    let [value] = exactly(args)?;
    Ok(Value::text(function(text(value)?)))
}

fn on_two(args: &[Value], function: impl Fn(&str, &str) -> Value) -> Called {
    let [first, second] = exactly(args)?;
    Ok(function(text(first)?, text(second)?))
}

/// The texts of all values that are not null.
fn each(args: &[Value], function: impl Fn(&Value) -> String) -> String {
    let parts: Vec<String> = args.iter().filter(|value| !value.is_nil()).map(function).collect();
    parts.join(" ")
}

fn cat(_: &Scope<'_>, args: &[Value]) -> Called {
    Ok(Value::text(each(args, show)))
}

fn default(_: &Scope<'_>, args: &[Value]) -> Called {
    let (default, given) = at_least_one(args)?;
    Ok(given.first().filter(|given| given.is_true()).unwrap_or(default).clone())
}

fn ternary(_: &Scope<'_>, args: &[Value]) -> Called {
    let [when_true, when_false, condition] = exactly(args)?;
    match condition {
        Value::Bool(true) => Ok(when_true.clone()),
        Value::Bool(false) => Ok(when_false.clone()),
        other => Err(format!("wrong type for value; expected bool; got {}", other.type_name())),
    }
}

fn join(_: &Scope<'_>, args: &[Value]) -> Called {
    let [separator, list] = exactly(args)?;
    let (separator, texts) = (text(separator)?, texts(list));
    check_growth(texts.len().saturating_mul(separator.len()))?;
    Ok(Value::text(texts.join(separator)))
}

fn indent(_: &Scope<'_>, args: &[Value]) -> Called {
    let [spaces, source] = exactly(args)?;
    Ok(Value::text(indented(to_size(spaces), text(source)?)))
}

fn nindent(_: &Scope<'_>, args: &[Value]) -> Called {
    let [spaces, source] = exactly(args)?;
    Ok(Value::text(format!("\n{}", indented(to_size(spaces), text(source)?))))
}

/// The text with spaces before each line.
fn indented(spaces: usize, source: &str) -> String {
    let pad = " ".repeat(spaces.min(MAX_INDENT));
    format!("{pad}{}", source.replace('\n', &format!("\n{pad}")))
}

/// Maximum number of spaces that lines are indented by.
pub const MAX_INDENT: usize = 100;

fn plural(_: &Scope<'_>, args: &[Value]) -> Called {
    let [one, many, count] = exactly(args)?;
    Ok(if to_integer(count) == 1 { one.clone() } else { many.clone() })
}

fn repeat(_: &Scope<'_>, args: &[Value]) -> Called {
    let [count, source] = exactly(args)?;
    let (count, source) = (to_size(count), text(source)?);
    check_growth(count.saturating_mul(source.len()))?;
    Ok(Value::text(source.repeat(count)))
}

fn replace(_: &Scope<'_>, args: &[Value]) -> Called {
    let [old, new, source] = exactly(args)?;
    let (old, new, source) = (text(old)?, text(new)?, text(source)?);
    check_growth(source.matches(old).count().saturating_mul(new.len()))?;
    Ok(Value::text(source.replace(old, new)))
}

fn parts<'t>(source: &'t str, separator: &str) -> Vec<&'t str> {
    if separator.is_empty() {
        let ends = source.char_indices().map(|(index, character)| &source[index..index + character.len_utf8()]);
        return ends.collect();
    }
    source.split(separator).collect()
}

fn split(_: &Scope<'_>, args: &[Value]) -> Called {
    let [separator, source] = exactly(args)?;
    let parts = parts(text(source)?, text(separator)?);
    let named = parts.iter().enumerate().map(|(index, part)| (format!("_{index}"), (*part).to_owned()));
    Ok(Value::text_dict(named))
}

fn splitn(_: &Scope<'_>, args: &[Value]) -> Called {
    let [separator, count, source] = exactly(args)?;
    let parts = text(source)?.splitn(to_size(count), text(separator)?);
    let named = parts.enumerate().map(|(index, part)| (format!("_{index}"), part.to_owned()));
    Ok(Value::text_dict(named))
}

fn split_list(_: &Scope<'_>, args: &[Value]) -> Called {
    let [separator, source] = exactly(args)?;
    Ok(Value::list(parts(text(source)?, text(separator)?).into_iter().map(Value::text).collect()))
}

/// The longest prefix of at most `length` bytes that does not split a character.
fn prefix(text: &str, length: usize) -> &str {
    &text[..text.floor_char_boundary(length)]
}

fn substr(_: &Scope<'_>, args: &[Value]) -> Called {
    let [start, end, source] = exactly(args)?;
    let (start, end, source) = (to_integer(start), to_integer(end), text(source)?);
    let end = usize::try_from(end).map_or(source.len(), |end| end.min(source.len()));
    let start = usize::try_from(start).unwrap_or_default().min(end);
    let head = prefix(source, end);
    Ok(Value::text(head.get(source.floor_char_boundary(start)..).unwrap_or_default()))
}

fn trunc(_: &Scope<'_>, args: &[Value]) -> Called {
    let [length, source] = exactly(args)?;
    let (length, source) = (to_integer(length), text(source)?);
    let size = usize::try_from(length.unsigned_abs()).unwrap_or(usize::MAX);
    let out = match length {
        ..0 if size < source.len() => &source[source.floor_char_boundary(source.len() - size)..],
        ..0 => source,
        _ => prefix(source, size.min(source.len())),
    };
    Ok(Value::text(out))
}

fn trim_all(_: &Scope<'_>, args: &[Value]) -> Called {
    on_two(args, |characters, text| Value::text(text.trim_matches(|c: char| characters.contains(c))))
}

fn capitalised(word: &str) -> String {
    let mut characters = word.chars();
    characters
        .next()
        .map(|first| first.to_uppercase().chain(characters.flat_map(char::to_lowercase)).collect())
        .unwrap_or_default()
}

/// Changes the first letter of each word.
fn first_letters(text: &str, change: fn(char) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for character in text.chars() {
        match begins {
            true => out.push_str(&change(character)),
            false => out.push(character),
        }
        begins = character.is_whitespace();
    }
    out
}

fn title(text: &str) -> String {
    first_letters(text, |character| character.to_uppercase().collect())
}

fn untitle(text: &str) -> String {
    first_letters(text, |character| character.to_lowercase().collect())
}

/// The words of an identifier.
fn words(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut previous = ' ';
    for character in text.chars() {
        if !character.is_alphanumeric() {
            previous = ' ';
            continue;
        }
        let begins = previous == ' ' || (character.is_uppercase() && previous.is_lowercase());
        if begins || out.is_empty() {
            out.push(String::new());
        }
        if let Some(word) = out.last_mut() {
            word.push(character);
        }
        previous = character;
    }
    out
}
