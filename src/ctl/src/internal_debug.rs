//! The `internal-debug` subcommand: a debug page as it is.

use std::io::{self, Write};

use crate::answer_output::fail;
use crate::connect::{QueryError, connect};
use crate::operator_args::InternalDebugArgs;

const EXIT_NOT_FOUND: u8 = 1;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &InternalDebugArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match pages(args) {
        Ok(pages) => {
            for (replica, page) in pages {
                if args.all {
                    writeln!(out, "{replica}:")?;
                }
                out.write_all(&page)?;
                if !page.ends_with(b"\n") {
                    writeln!(out)?;
                }
            }
            Ok(0)
        }
        Err(error) => fail(&error, EXIT_NOT_FOUND, errors),
    }
}

fn pages(args: &InternalDebugArgs) -> Result<Vec<(String, Vec<u8>)>, QueryError> {
    let (page, query) = args.page.split_once('?').unwrap_or((&args.page, ""));
    let parameters: Vec<(&str, &str)> =
        query.split('&').filter(|it| !it.is_empty()).map(|it| it.split_once('=').unwrap_or((it, "true"))).collect();
    let path = format!("/debug/{page}");
    let server = connect(&args.server)?;
    if args.all {
        let pages = server.replicas.iter();
        return pages.map(|it| Ok((it.name.clone(), server.bytes_of(it, &path, &parameters)?))).collect();
    }
    Ok(vec![(String::new(), server.bytes(&path, &parameters)?)])
}
