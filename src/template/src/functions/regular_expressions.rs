//! Functions of regular expressions, which take time in proportion to the text.

use regex::{NoExpand, Regex, RegexBuilder};

use crate::value::{Scope, Value};

use super::arguments::{Called, Table, exactly, text, to_integer};
use super::strings::check_growth;

/// Maximum size of a compiled expression.
const MAX_EXPRESSION_BYTES: usize = 1 << 20;

pub(super) const FUNCTIONS: Table = &[
    ("mustRegexMatch", matches),
    ("regexFind", find),
    ("regexFindAll", find_all),
    ("regexMatch", matches),
    ("regexQuoteMeta", |_, args| exactly::<1>(args).and_then(|[value]| Ok(Value::text(regex::escape(text(value)?))))),
    ("regexReplaceAll", replace),
    ("regexReplaceAllLiteral", replace_literal),
    ("regexSplit", split),
];

fn compile(expression: &Value) -> Result<Regex, String> {
    let built = RegexBuilder::new(text(expression)?).size_limit(MAX_EXPRESSION_BYTES).build();
    built.map_err(|error| format!("error parsing regexp: {error}"))
}

fn matches(_: &Scope<'_>, args: &[Value]) -> Called {
    let [expression, source] = exactly(args)?;
    Ok(Value::Bool(compile(expression)?.is_match(text(source)?)))
}

fn find(_: &Scope<'_>, args: &[Value]) -> Called {
    let [expression, source] = exactly(args)?;
    let source = text(source)?;
    Ok(Value::text(compile(expression)?.find(source).map_or("", |found| found.as_str())))
}

/// A negative number is no limit.
fn limit(count: &Value) -> usize {
    usize::try_from(to_integer(count)).unwrap_or(usize::MAX)
}

fn find_all(_: &Scope<'_>, args: &[Value]) -> Called {
    let [expression, source, count] = exactly(args)?;
    let (expression, source) = (compile(expression)?, text(source)?);
    let found = expression.find_iter(source).take(limit(count));
    Ok(Value::list(found.map(|found| Value::text(found.as_str())).collect()))
}

fn replace(_: &Scope<'_>, args: &[Value]) -> Called {
    let [expression, source, replacement] = exactly(args)?;
    let (expression, source, replacement) = (compile(expression)?, text(source)?, text(replacement)?);
    // Each reference can insert the whole match.
    let references = replacement.matches('$').count();
    check_growth(references.saturating_mul(source.len()))?;
    check_growth(expression.find_iter(source).count().saturating_mul(replacement.len()))?;
    Ok(Value::text(expression.replace_all(source, replacement)))
}

fn replace_literal(_: &Scope<'_>, args: &[Value]) -> Called {
    let [expression, source, replacement] = exactly(args)?;
    let (expression, source, replacement) = (compile(expression)?, text(source)?, text(replacement)?);
    check_growth(expression.find_iter(source).count().saturating_mul(replacement.len()))?;
    Ok(Value::text(expression.replace_all(source, NoExpand(replacement))))
}

fn split(_: &Scope<'_>, args: &[Value]) -> Called {
    let [expression, source, count] = exactly(args)?;
    let (expression, source) = (compile(expression)?, text(source)?);
    let parts = expression.splitn(source, limit(count));
    Ok(Value::list(parts.map(Value::text).collect()))
}
