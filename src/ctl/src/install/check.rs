//! `precheck` and `verify-install`.

use std::io::{self, Write};

use serde_json::{Value, json};
use sluice_install::{Severity, precheck as find_obstacles, verify as compare};

use super::{Done, Streams, connect, read, render};
use crate::install_args::{CheckArgs, CheckOutput, PrecheckArgs};
use crate::{EXIT_FINDINGS, EXIT_OK};

/// Checks whether an installation is possible.
pub(super) async fn precheck(args: &PrecheckArgs, streams: &mut Streams<'_>) -> Done {
    let PrecheckArgs { check: args, from_version } = args;
    let (installation, charts) = read(&args.source, streams.errors)?;
    let cluster = connect(&args.cluster).await?;
    let findings = find_obstacles(&installation, &charts, &cluster, *from_version).await?;
    let error_count = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    let name = |severity: Severity| if severity == Severity::Error { "error" } else { "warning" };
    if args.output == CheckOutput::Text {
        for finding in &findings {
            let code = finding.code.map(|code| format!(" [{code}]")).unwrap_or_default();
            writeln!(streams.out, "{}{code}: {}: {}", name(finding.severity), finding.subject, finding.reason)?;
        }
        let warnings = findings.len() - error_count;
        writeln!(streams.errors, "{error_count} errors, {warnings} warnings")?;
    } else {
        let findings: Vec<Value> = findings
            .iter()
            .map(|it| {
                let mut finding = json!({"severity": name(it.severity), "subject": it.subject, "reason": it.reason});
                if let Some(code) = it.code {
                    finding["code"] = code.into();
                }
                finding
            })
            .collect();
        write_structured(&json!({"findings": findings}), args.output, streams.out)?;
    }
    Ok(if error_count > 0 { EXIT_FINDINGS } else { EXIT_OK })
}

/// Checks whether an installation is complete and ready.
pub(super) async fn verify(args: &CheckArgs, streams: &mut Streams<'_>) -> Done {
    let (installation, charts) = read(&args.source, streams.errors)?;
    let cluster = connect(&args.cluster).await?;
    let manifests = render(&installation, &charts, &cluster).await?;
    let verification = compare(&installation, &manifests, &cluster).await?;
    if args.output == CheckOutput::Text {
        for problem in &verification.problems {
            writeln!(streams.out, "{problem}")?;
        }
        writeln!(streams.errors, "{} objects, {} problems", verification.objects, verification.problems.len())?;
    } else {
        let result = json!({"objects": verification.objects, "problems": verification.problems});
        write_structured(&result, args.output, streams.out)?;
    }
    Ok(if verification.problems.is_empty() { EXIT_OK } else { EXIT_FINDINGS })
}

fn write_structured(value: &Value, output: CheckOutput, out: &mut dyn Write) -> io::Result<()> {
    match output {
        CheckOutput::Yaml => write!(out, "{}", sluice_install::to_yaml(value).map_err(io::Error::other)?),
        CheckOutput::Text | CheckOutput::Json => {
            serde_json::to_writer_pretty(&mut *out, value)?;
            writeln!(out)
        }
    }
}
