//! Output of `validate`.

use std::io::{self, Write};

use serde::Serialize;
use sluice_model::Severity;
use sluice_parse::Problem;

use crate::terminal::{Colour, paint, width};

/// The result of a validation.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Number of files that were read.
    pub(crate) files: usize,
    /// Number of objects that were validated.
    pub(crate) objects: usize,
    /// Number of objects of other kinds, which are not validated.
    pub(crate) skipped: usize,
    /// Findings, in the order of the files and their lines.
    pub(crate) findings: Vec<Finding>,
}

/// A finding with its file and object.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    file: String,
    line: usize,
    column: usize,
    kind: String,
    namespace: String,
    name: String,
    field: String,
    message: String,
    /// `error` if admission refuses the object or the field is unknown, otherwise `warning`.
    severity: &'static str,
    /// Whether the object has an effect where it is stored.
    applies: bool,
}

impl Finding {
    pub(crate) fn new(file: &str, problem: Problem) -> Self {
        Self {
            file: file.to_owned(),
            line: problem.position.line,
            column: problem.position.column,
            kind: problem.kind,
            namespace: problem.namespace,
            name: problem.name,
            field: problem.field_path.to_string(),
            message: problem.reason.to_string(),
            severity: if problem.severity.is_refusal() || problem.is_unknown_field { "error" } else { "warning" },
            applies: problem.severity != Severity::Error,
        }
    }

    pub(crate) fn is_error(&self) -> bool {
        self.severity == "error"
    }

    /// `Kind namespace/name`, without the parts that the document does not state.
    fn object(&self) -> String {
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        format!("{} {}{slash}{}", self.kind, self.namespace, self.name).trim().to_owned()
    }
}

/// Writes a line for each finding to `out`, and a summary to `errors`.
pub(crate) fn text(report: &Report, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<()> {
    for finding in &report.findings {
        let mut parts = Vec::new();
        if !finding.is_error() {
            parts.push(paint(Colour::Warning, "warning"));
        }
        parts.push(paint(Colour::Name, &finding.object()));
        parts.push(finding.field.clone());
        parts.push(if finding.is_error() { paint(Colour::Bad, &finding.message) } else { finding.message.clone() });
        parts.retain(|part| width(part) > 0);
        writeln!(out, "{}:{}:{}: {}", finding.file, finding.line, finding.column, parts.join(": "))?;
    }
    let error_count = report.findings.iter().filter(|finding| finding.is_error()).count();
    let warnings = report.findings.len() - error_count;
    let Report { files, objects, skipped, .. } = report;
    writeln!(
        errors,
        "{}, {}: {}, {}{}",
        count(*files, "file"),
        count(*objects, "object"),
        count(error_count, "error"),
        count(warnings, "warning"),
        if *skipped > 0 { format!("; {} of other kinds skipped", count(*skipped, "object")) } else { String::new() },
    )
}

fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}
