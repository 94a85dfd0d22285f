//! The `workload` subcommand (I12): WorkloadGroups, and the files with which the agent of a virtual machine joins the mesh. The
//! files are those of istioctl.

pub(crate) mod args;
mod configure;
mod files;
mod group;

use std::io::{self, Write};

use args::{EntryCommand, GroupCommand, WorkloadCommand};

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(command: &WorkloadCommand, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    match command {
        WorkloadCommand::Group { command: GroupCommand::Create(args) } => {
            serde_yaml_ng::to_writer(out, &group::object(args)).map_err(io::Error::other)?;
            Ok(0)
        }
        WorkloadCommand::Entry { command: EntryCommand::Configure(args) } => configure::run(args, out, errors),
    }
}
