//! Functions of templates: those of Go, the deterministic ones of the library sprig, and those of Istio's injector. Where
//! names are equal, Istio's apply.
//!
//! Left out are functions whose result is not determined by their arguments (time, random numbers, keys, network), and
//! the checksums and version comparisons of sprig.

mod arguments;
mod builtin;
mod dicts;
mod encoding;
mod istio;
mod lists;
mod numbers;
mod regular_expressions;
mod strings;
mod yaml;

#[cfg(test)]
mod tests;

use crate::template::value::Function;

/// Looks up a function.
pub(crate) fn find(name: &str) -> Option<Function> {
    let tables = [
        istio::FUNCTIONS,
        strings::FUNCTIONS,
        lists::FUNCTIONS,
        dicts::FUNCTIONS,
        numbers::FUNCTIONS,
        encoding::FUNCTIONS,
        regular_expressions::FUNCTIONS,
        builtin::FUNCTIONS,
    ];
    let mut rows = tables.iter().flat_map(|table| table.iter());
    rows.find(|(known, _)| *known == name).map(|(_, function)| *function)
}
