//! Go's `text/template`: parsing and execution, with the deterministic functions of the library sprig.
//!
//! Values keep what templates can observe of Go's types: a missing key is not an explicit null, a map of texts has the empty
//! text for a missing key, and a structure rejects a field that it does not have. A program adds its own functions by its own
//! [`FindFunction`], which falls back to [`functions::find`].
//!
//! A template is bounded in its length, nesting, number of steps and output ([`ExecutionLimits`]), because a user who can edit a template,
//! or what it reads, could otherwise block the program. The crate does no I/O.

#![forbid(unsafe_code)]

mod execute;
pub mod functions;
mod lexer;
mod limits;
mod node;
mod parser;
mod text;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use thiserror::Error;

use node::{Definition, Definitions, Tree};

pub use limits::ExecutionLimits;
pub use text::{quoted, show};
pub use value::{
    Dict, Extent, FindFunction, Function, List, Lookup, MissingKeys, NamedFields, NativeFunction, Scope,
    TemplateObject, Value,
};

/// A text that does not parse as a template.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("template: {name}:{line}: {reason}")]
pub struct TemplateError {
    /// The name of the template.
    pub name: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Byte in the line, counted from 0.
    pub column: usize,
    /// What is wrong, a lower-case fragment.
    pub reason: String,
}

impl TemplateError {
    /// An error at a byte of the source.
    pub(crate) fn at(name: &str, source: &str, position: usize, reason: impl Into<String>) -> Self {
        let (line, column) = place(source, position);
        Self { name: name.to_owned(), line, column, reason: reason.into() }
    }
}

/// Line and column of a byte.
fn place(source: &str, position: usize) -> (usize, usize) {
    let before = source.get(..position).unwrap_or(source);
    (before.matches('\n').count() + 1, before.len() - before.rfind('\n').map_or(0, |index| index + 1))
}

/// Why the execution of a template ended.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("template: {name}:{line}:{column}: executing \"{name}\" at <{context}>: {reason}")]
pub struct TemplateFailure {
    name: String,
    line: usize,
    column: usize,
    context: String,
    reason: String,
}

impl TemplateFailure {
    /// The cause, without the place.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    tree: Tree,
    find: FindFunction,
}

impl Template {
    /// Parses a template that uses the functions of `find`. Errors state its name.
    ///
    /// # Errors
    /// The text is not a template, or it uses a function that does not exist.
    pub fn parse(name: &str, source: &str, find: FindFunction) -> Result<Self, TemplateError> {
        let mut defined = Definitions::new();
        let mut tree = parser::parse(name, source, find, &mut defined)?;
        tree.defined = defined;
        Ok(Self { tree, find })
    }

    /// The text of the template for `data`.
    ///
    /// # Errors
    /// An action fails, or a limit is exceeded.
    pub fn execute(&self, data: &Value, scope: &Scope<'_>) -> Result<String, TemplateFailure> {
        execute::execute((&self.tree.source, &self.tree.main), &self.tree.defined, self.find, data, scope)
    }
}

/// Templates that use each other's definitions, as the files of a chart do.
#[derive(Debug)]
pub struct TemplateSet {
    /// The names of the texts.
    names: BTreeSet<String>,
    /// The texts, and what they define.
    defined: Definitions,
    find: FindFunction,
}

impl TemplateSet {
    /// Parses templates by their names, by which they can include each other. A later definition of a name replaces an earlier one.
    ///
    /// # Errors
    /// A text is not a template, or it uses a function that does not exist.
    pub fn parse<'s>(
        sources: impl IntoIterator<Item = (&'s str, &'s str)>,
        find: FindFunction,
    ) -> Result<Self, TemplateError> {
        let mut defined = Definitions::new();
        let mut names = BTreeSet::new();
        for (name, source) in sources {
            let tree = parser::parse(name, source, find, &mut defined)?;
            defined.insert(name.to_owned(), Definition { source: tree.source, body: tree.main });
            names.insert(name.to_owned());
        }
        Ok(Self { names, defined, find })
    }

    /// The text of one of the templates for `data`. `None` if there is none of this name.
    ///
    /// # Errors
    /// An action fails, or a limit is exceeded.
    pub fn execute(&self, name: &str, data: &Value, scope: &Scope<'_>) -> Result<Option<String>, TemplateFailure> {
        let Some(text) = self.defined.get(name).filter(|_| self.names.contains(name)) else { return Ok(None) };
        execute::execute((&text.source, &text.body), &self.defined, self.find, data, scope).map(Some)
    }
}

/// The name and text of a template.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn new(name: &str, text: &str) -> Arc<Self> {
        Arc::new(Self { name: name.to_owned(), text: text.to_owned() })
    }
}
