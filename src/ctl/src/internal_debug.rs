//! The `internal-debug` subcommand: a debug page as it is.

use std::io::{self, Write};

use serde_json::Value;

use crate::answer_output::{elements, fail};
use crate::connect::{MissingReplicas, PartialAnswers, QueryError, ReplicaAnswers, Server, connect};
use crate::operator_args::InternalDebugArgs;
use crate::similar_name::similar;

/// The page with the names of the pages.
const LIST: &str = "list";
const EXIT_NOT_FOUND: u8 = 1;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &InternalDebugArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match pages(args) {
        Ok((pages, missing)) => {
            missing.report(errors)?;
            for (replica, page) in pages {
                if args.all {
                    writeln!(out, "{replica}:")?;
                }
                out.write_all(&page)?;
                if !page.ends_with(b"\n") {
                    writeln!(out)?;
                }
            }
            Ok(missing.exit_code(0))
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

fn pages(args: &InternalDebugArgs) -> Result<(ReplicaAnswers<Vec<u8>>, MissingReplicas), QueryError> {
    let named = args.page.as_deref().filter(|_| !args.list).unwrap_or(LIST);
    let (page, query) = named.split_once('?').unwrap_or((named, ""));
    let parameters: Vec<(&str, &str)> =
        query.split('&').filter(|it| !it.is_empty()).map(|it| it.split_once('=').unwrap_or((it, "true"))).collect();
    let path = format!("/debug/{page}");
    let server = connect(&args.server)?;
    let asked = if args.all {
        server.ask_all(|replica| server.bytes_of(replica, &path, &parameters)).map(PartialAnswers::named)
    } else {
        let body = server.bytes(&path, &parameters);
        body.map(|body| (vec![(String::new(), body)], MissingReplicas::default()))
    };
    asked.map_err(|error| match error {
        QueryError::NoPage { .. } => unknown(page, &server),
        error => error,
    })
}

/// The error for a page that does not exist, with a similar name.
fn unknown(page: &str, server: &Server) -> QueryError {
    let list = server.get(LIST, &[]).unwrap_or_default();
    let similar = similar(page, elements(&list).iter().filter_map(Value::as_str));
    let hint = similar.map(|name| format!(", did you mean {name:?}?")).unwrap_or_default();
    QueryError::NotFound(format!("there is no debug page {page:?}{hint}; `sluicectl internal-debug --list` lists them"))
}
