//! The environment variables and the command line.

use serde_json::{Value, json};

use crate::Topic;

/// Shown instead of a value.
const HIDDEN: &str = "(hidden: sluiced does not read this variable)";

/// The topic of the environment variables. `is_shown` says whether the value of a variable may be shown: a pod's environment can have
/// secrets of other containers and tools.
pub fn environment(is_shown: impl Fn(&str) -> bool + Clone + Send + Sync + 'static) -> Topic {
    Topic::of_value("env", "Environment Variables", "the environment of the process", move || {
        let mut variables: Vec<(String, String)> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        variables.sort();
        let row = |(name, value): (String, String)| {
            let value = if is_shown(&name) { value } else { HIDDEN.to_owned() };
            json!({"name": name, "value": value})
        };
        variables.into_iter().map(row).collect()
    })
}

/// The topic of the command line.
#[must_use]
pub fn arguments() -> Topic {
    Topic::of_value("arg", "Command-Line Arguments", "the command line of the process", || {
        let argument =
            |(number, text): (usize, std::ffi::OsString)| json!({"number": number, "argument": text.to_string_lossy()});
        Value::Array(std::env::args_os().enumerate().map(argument).collect())
    })
}
