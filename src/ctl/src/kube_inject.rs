//! The `kube-inject` subcommand (I07): adds the proxy to the pod templates of objects in a file.

mod configuration;
mod documents;

use std::io::{self, Write};

use configuration::Configuration;
use documents::DocumentError;

use crate::answer_output::fail;
use crate::connect::EXIT_INVALID;
use crate::inject_args::KubeInjectArgs;
use crate::proxy_config::read_file;

/// The webhook would deny the pods of an object.
const EXIT_DENIED: u8 = 1;

/// Runs the subcommand and returns the exit code. Nothing is written unless all objects are injected.
pub(crate) fn run(args: &KubeInjectArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let name = args.filename.display();
    let text = read_file(&args.filename).and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let text = match text {
        Ok(text) => text,
        Err(error) => {
            writeln!(errors, "sluicectl: --filename {name}: {error}")?;
            return Ok(EXIT_INVALID);
        }
    };
    let configuration = match Configuration::read(args) {
        Ok(configuration) => configuration,
        Err(error) => return fail(&error, EXIT_INVALID, errors),
    };
    let injected = match documents::inject(&text, &args.namespace, &configuration) {
        Ok(injected) => injected,
        Err(error) => {
            writeln!(errors, "sluicectl: {name}: {error}")?;
            return Ok(match error {
                DocumentError::Invalid { .. } => EXIT_INVALID,
                DocumentError::Denied { .. } => EXIT_DENIED,
            });
        }
    };
    for warning in &injected.warnings {
        writeln!(errors, "{warning}")?;
    }
    match &args.output {
        None => out.write_all(injected.text.as_bytes())?,
        Some(path) => {
            if let Err(error) = std::fs::write(path, &injected.text) {
                writeln!(errors, "sluicectl: --output {}: {error}", path.display())?;
                return Ok(EXIT_INVALID);
            }
        }
    }
    Ok(0)
}
