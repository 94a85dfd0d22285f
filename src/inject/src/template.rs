//! Go's `text/template`: parsing and execution.
//!
//! Values keep what templates can observe of Go's types: a missing key is not an explicit null, a map of texts has the empty
//! text for a missing key, and a structure rejects a field that it does not have. The functions are in
//! [`crate::functions`].
//!
//! A template is bounded in its length, nesting, number of steps and output, because every user who can edit the
//! ConfigMap, and pods that templates read, could otherwise block the injector.

mod execute;
mod lexer;
mod node;
mod parser;
pub(crate) mod text;
pub(crate) mod value;

#[cfg(test)]
mod tests;

use thiserror::Error;

use node::Tree;
use value::{FindFunction, Scope, Value};

/// A text that does not parse as a template.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("template: inject:{line}: {reason}")]
pub struct TemplateError {
    /// Line, counted from 1.
    pub line: usize,
    /// Byte in the line, counted from 0.
    pub column: usize,
    /// What is wrong, a lower-case fragment.
    pub reason: String,
}

impl TemplateError {
    /// An error at a byte of the source.
    pub(crate) fn at(source: &str, position: usize, reason: impl Into<String>) -> Self {
        let before = source.get(..position).unwrap_or(source);
        let line = before.matches('\n').count() + 1;
        let column = before.len() - before.rfind('\n').map_or(0, |index| index + 1);
        Self { line, column, reason: reason.into() }
    }
}

/// Why the execution of a template ended.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("template: inject:{line}:{column}: executing \"inject\" at <{context}>: {reason}")]
pub(crate) struct TemplateFailure {
    line: usize,
    column: usize,
    context: String,
    reason: String,
}

/// A parsed template.
#[derive(Debug)]
pub(crate) struct Template(Tree);

impl Template {
    /// Parses a template that uses the functions of `find`.
    pub(crate) fn parse(source: &str, find: FindFunction) -> Result<Self, TemplateError> {
        parser::parse(source, find).map(Self)
    }

    /// The text of the template for `data`.
    pub(crate) fn execute(&self, data: &Value, scope: &Scope<'_>) -> Result<String, TemplateFailure> {
        execute::execute(&self.0, data, scope)
    }
}
