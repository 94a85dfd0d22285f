//! The `validate` subcommand.

use std::io::{self, Write};

use sluice_parse::validate_text;

use crate::answer_output::print;
use crate::args::ValidateArgs;
use crate::report::{self, Finding, Report};
use crate::{EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE, files};

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &ValidateArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let (mut report, mut failures) = (Report::default(), Vec::new());
    for path in args.filenames.iter().chain(&args.paths) {
        for source in files::read(path, &mut failures) {
            let validation = validate_text(&source.text);
            report.files += 1;
            report.objects += validation.objects;
            report.skipped += validation.skipped;
            let findings = validation.problems.into_iter().map(|problem| Finding::new(&source.name, problem));
            report.findings.extend(findings);
        }
    }
    let answer = serde_json::to_value(&report)?;
    print(args.output, &answer, out, |_, out| report::text(&report, out, errors))?;
    for failure in &failures {
        writeln!(errors, "sluicectl: {failure}")?;
    }
    let fails = report.findings.iter().any(|finding| args.strict || finding.is_error());
    Ok(if !failures.is_empty() {
        EXIT_UNREADABLE
    } else if fails {
        EXIT_FINDINGS
    } else {
        EXIT_OK
    })
}
