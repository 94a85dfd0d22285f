//! What is printed.

use std::io::{self, Write};

use serde::Serialize;
use sluice_model::Severity;
use sluice_parse::Problem;

/// All there is to tell.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Texts read.
    pub(crate) files: usize,
    /// Objects looked at.
    pub(crate) objects: usize,
    /// Objects of kinds nothing is known of.
    pub(crate) skipped: usize,
    /// What was found, in order.
    pub(crate) findings: Vec<Finding>,
}

/// Something wrong with an object.
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
    /// `error` where the object is refused, `warning` where it is not.
    severity: &'static str,
    /// Whether the object has its effect where it is stored all the same.
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
            severity: if problem.severity.is_refusal() { "error" } else { "warning" },
            applies: problem.severity != Severity::Error,
        }
    }

    pub(crate) fn is_refusal(&self) -> bool {
        self.severity == "error"
    }

    /// `Kind namespace/name`, as far as these are known.
    fn object(&self) -> String {
        let slash = if self.namespace.is_empty() { "" } else { "/" };
        format!("{} {}{slash}{}", self.kind, self.namespace, self.name).trim().to_owned()
    }
}

/// Lines to `out`, and how many there are to `errors`.
pub(crate) fn text(report: &Report, colours: bool, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<()> {
    let paint = |code: &str, text: &str| if colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() };
    for finding in &report.findings {
        let mut parts = Vec::new();
        if !finding.is_refusal() {
            parts.push(paint("33", "warning"));
        }
        parts.push(paint("1", &finding.object()));
        parts.push(finding.field.clone());
        parts.push(if finding.is_refusal() { paint("31", &finding.message) } else { finding.message.clone() });
        parts.retain(|part| !part.is_empty() && part != "\x1b[1m\x1b[0m");
        writeln!(out, "{}:{}:{}: {}", finding.file, finding.line, finding.column, parts.join(": "))?;
    }
    let refusals = report.findings.iter().filter(|finding| finding.is_refusal()).count();
    let warnings = report.findings.len() - refusals;
    let Report { files, objects, skipped, .. } = report;
    writeln!(
        errors,
        "{}, {}: {}, {}{}",
        count(*files, "file"),
        count(*objects, "object"),
        count(refusals, "error"),
        count(warnings, "warning"),
        if *skipped > 0 { format!("; {} of other kinds skipped", count(*skipped, "object")) } else { String::new() },
    )
}

fn count(number: usize, word: &str) -> String {
    format!("{number} {word}{}", if number == 1 { "" } else { "s" })
}

/// One JSON object to `out`.
pub(crate) fn json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
}
