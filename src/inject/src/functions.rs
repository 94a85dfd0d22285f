//! Functions of templates: those of Go and sprig, and those of Istio's injector. Where names are equal, Istio's apply.

mod istio;

#[cfg(test)]
mod tests;

use sluice_template::Function;
use sluice_template::functions::in_table;

/// Looks up a function.
pub(crate) fn find(name: &str) -> Option<Function> {
    in_table(istio::FUNCTIONS, name).map(Function::Native).or_else(|| sluice_template::functions::find(name))
}
