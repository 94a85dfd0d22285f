//! The `preview` subcommand: what a change would do at the proxies of a running control plane, or offline for one proxy.

mod live;
mod live_table;
mod objects;
mod offline;
mod proxy;
mod served;

use std::io::{self, Write};

use crate::preview_args::PreviewArgs;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &PreviewArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    if args.pod.is_none() && args.node.is_none() {
        live::run(args, out, errors)
    } else {
        offline::run(args, out, errors)
    }
}
