//! Functions of templates: those of Go, and the deterministic ones of the library sprig.
//!
//! Left out are functions whose result is not determined by their arguments (time, random numbers, keys, network), and
//! the checksums and version comparisons of sprig.

pub mod arguments;
mod builtin;
mod dicts;
mod encoding;
mod lists;
mod numbers;
mod regular_expressions;
mod strings;
mod yaml;

#[cfg(test)]
mod tests;

use crate::value::{Function, NativeFunction};
use arguments::Table;

pub use encoding::parse_json;
pub use strings::MAX_INDENT;
pub use yaml::to_yaml;

/// Looks up a function.
#[must_use]
pub fn find(name: &str) -> Option<Function> {
    let tables = [
        strings::FUNCTIONS,
        lists::FUNCTIONS,
        dicts::FUNCTIONS,
        numbers::FUNCTIONS,
        encoding::FUNCTIONS,
        regular_expressions::FUNCTIONS,
        builtin::FUNCTIONS,
    ];
    tables.iter().find_map(|table| in_table(table, name)).map(Function::Native)
}

/// Looks up a function of a table.
#[must_use]
pub fn in_table(table: Table, name: &str) -> Option<NativeFunction> {
    table.iter().find(|(known, _)| *known == name).map(|(_, function)| *function)
}
