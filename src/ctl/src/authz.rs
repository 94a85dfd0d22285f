//! The `experimental authz check` subcommand: the policies in the configuration of a proxy, and how policies decide about a
//! request (I08).

mod filters;
mod request;

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::answer_output::{fail, list, print, text};
use crate::authz_args::{AuthzCheckArgs, AuthzCommand};
use crate::columns::{print_columns, table};
use crate::proxy_config;

const EXIT_NOT_FOUND: u8 = 1;
const GAP: usize = 3;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(command: &AuthzCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let AuthzCommand::Check(args) = command;
    match &args.request {
        Some(asked) => request::run(args, asked, out, errors),
        None => policies(args, out, errors),
    }
}

fn policies(args: &AuthzCheckArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match proxy_config::read(&args.source) {
        Ok(dump) => {
            let found = filters::policies(&dump.listeners());
            let rows: Vec<Value> = found
                .into_iter()
                .map(|it| json!({"action": it.action, "policy": it.policy, "rules": it.rules}))
                .collect();
            print(args.output, &json!({"policies": rows}), out, |answer, out| {
                let row = |it: &Value| {
                    vec![text(it, "action").to_owned(), text(it, "policy").to_owned(), it["rules"].to_string()]
                };
                let rows = list(answer, "policies").iter().map(row);
                print_columns(&table(&["ACTION", "AuthorizationPolicy", "RULES"], rows), GAP, out)
            })
            .map(|()| 0)
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}
