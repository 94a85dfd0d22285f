//! The `admin log` subcommand: log levels of the control plane, by ControlZ.

use std::io::{self, Write};

use http::Method;
use serde_json::{Value, json};

use crate::answer_output::{elements, fail, print, text};
use crate::columns::{print_columns, table};
use crate::connect::{PodEndpoint, QueryError, connect_to_address, connect_to_control_plane_port};
use crate::operator_args::AdminLogArgs;
use crate::similar_name::similar;

const EXIT_NOT_FOUND: u8 = 1;
const GAP: usize = 5;
const LEVELS: [&str; 5] = ["none", "error", "warn", "info", "debug"];

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &AdminLogArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match levels(args) {
        Ok(scopes) => print(args.output, &scopes, out, |scopes, out| {
            let fields = ["name", "output_level", "description"];
            let rows = elements(scopes).iter().map(|it| fields.map(|field| text(it, field).to_owned()).to_vec());
            print_columns(&table(&["SCOPE", "LEVEL", "DESCRIPTION"], rows), GAP, out)
        })
        .map(|()| 0),
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

/// Changes levels, and returns all of them.
fn levels(args: &AdminLogArgs) -> Result<Value, QueryError> {
    let changes = args.level.iter().map(|text| change(text)).collect::<Result<Vec<_>, _>>()?;
    let controlz = match &args.address {
        Some(address) => connect_to_address(address)?,
        None => connect_to_control_plane_port(&args.cluster, args.ctrlz_port)?,
    };
    let before = scopes(&controlz)?;
    let names: Vec<&str> = elements(&before).iter().map(|scope| text(scope, "name")).collect();
    let changes = match args.reset {
        true => names.iter().map(|name| (*name, "info")).collect(),
        false => changes,
    };
    if let Some((scope, _)) = changes.iter().find(|(scope, _)| !names.contains(scope)) {
        let hint = similar(scope, names.iter().copied()).map(|name| format!("; did you mean {name:?}?"));
        return Err(QueryError::NotFound(format!("there is no scope {scope:?}{}", hint.unwrap_or_default())));
    }
    for (scope, level) in &changes {
        let body = json!({"name": scope, "output_level": level}).to_string();
        controlz.request(Method::PUT, &format!("/scopej/{scope}"), &[], body)?;
    }
    if changes.is_empty() { Ok(before) } else { scopes(&controlz) }
}

fn scopes(controlz: &PodEndpoint) -> Result<Value, QueryError> {
    let answer = controlz.request(Method::GET, "/scopej/", &[], String::new())?;
    let failed = |error: serde_json::Error| QueryError::Response(format!("{}: {error}", controlz.name()));
    serde_json::from_slice(&answer).map_err(failed)
}

/// `SCOPE:LEVEL`, or a level of scope `default`.
fn change(text: &str) -> Result<(&str, &str), QueryError> {
    let (scope, level) = text.split_once(':').unwrap_or(("default", text));
    match LEVELS.contains(&level) && !scope.is_empty() {
        true => Ok((scope, level)),
        false => Err(QueryError::Flags(format!("--level {text:?}: a level is one of {}", LEVELS.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_checked() {
        assert_eq!(change("ads:debug").expect("valid"), ("ads", "debug"));
        assert_eq!(change("warn").expect("valid"), ("default", "warn"));
        for text in ["ads:loud", ":info", "ads:"] {
            let error = change(text).expect_err(text).to_string();
            assert!(error.contains("none, error, warn, info, debug"), "{error}");
        }
    }
}
