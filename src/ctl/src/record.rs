//! The `record` subcommand: writes the recording that a running control plane sends.

use std::fs::File;
use std::io::{self, Write};
use std::time::Duration;

use crate::answer_output::fail;
use crate::connect::{EXIT_UNREACHABLE, connect, seconds};
use crate::recording_args::RecordArgs;

/// The file cannot be written.
const EXIT_UNWRITABLE: u8 = 1;
/// Time for the first step, which has all inputs, and for the end.
const ADDITIONAL_TIME: Duration = Duration::from_secs(120);

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &RecordArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let server = match connect(&args.server) {
        Ok(server) => server,
        Err(error) => return fail(&error, EXIT_UNREACHABLE, errors),
    };
    let replica = match server.replica(args.replica.as_deref()) {
        Ok(replica) => replica,
        Err(error) => return fail(&error, EXIT_UNREACHABLE, errors),
    };
    let mut file = match File::create(&args.out) {
        Ok(file) => file,
        Err(error) => {
            writeln!(errors, "sluicectl: --out {}: {error}", args.out.display())?;
            return Ok(EXIT_UNWRITABLE);
        }
    };
    let (mut written, mut failed) = (0, None);
    let duration = seconds(args.duration);
    let parameters = [("duration", duration.as_str())];
    // Each chunk is written as it arrives, so that a recording that is interrupted can be replayed.
    let received = server.stream(replica, "record", &parameters, args.duration + ADDITIONAL_TIME, &mut |chunk| {
        written += chunk.len();
        if failed.is_none() {
            failed = file.write_all(chunk).err();
        }
    });
    if let Some(error) = failed {
        writeln!(errors, "sluicectl: --out {}: {error}", args.out.display())?;
        return Ok(EXIT_UNWRITABLE);
    }
    match received {
        Ok(()) => {
            writeln!(out, "{}: {written} bytes, recorded at {}", args.out.display(), replica.name)?;
            Ok(0)
        }
        Err(error) => fail(&error, EXIT_UNREACHABLE, errors),
    }
}
