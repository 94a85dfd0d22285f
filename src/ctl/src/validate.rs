//! The `validate` subcommand.

mod advice;
mod operator;

use std::io::{self, Write};

use serde_json::Value;
use sluice_model::{RejectCause, Severity};
use sluice_parse::{Finding as RuleFinding, validate_text_with};

use crate::answer_output::{print, text};
use crate::args::ValidateArgs;
use crate::report::{self, Finding, Report};
use crate::{EXIT_FINDINGS, EXIT_OK, EXIT_UNREADABLE, files};

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &ValidateArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let (mut report, mut failures) = (Report::default(), Vec::new());
    for path in args.filenames.iter().chain(&args.paths) {
        for source in files::read(path, &mut failures) {
            let validation = validate_text_with(&source.text, &further_findings);
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

/// Findings about what the rules of admission do not cover: installations, and objects of Kubernetes that do not state what the mesh
/// reads.
fn further_findings(object: &Value) -> Option<Vec<RuleFinding>> {
    match (text(object, "apiVersion"), text(object, "kind")) {
        ("install.istio.io/v1alpha1", "IstioOperator") => Some(operator::findings(object)),
        ("v1", "Service") => Some(advice::of_service(object)),
        ("apps/v1", "Deployment") => Some(advice::of_deployment(object)),
        _ => None,
    }
}

fn finding(field_path: &str, reason: &str, severity: Severity) -> RuleFinding {
    RuleFinding { field_path: field_path.into(), reason: reason.into(), severity, cause: RejectCause::Other }
}
