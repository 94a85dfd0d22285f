//! The `why-not` subcommand: why a proxy does not have something.

use std::io::{self, Write};

use serde_json::Value;

use crate::answer_args::WhyNotArgs;
use crate::answer_output::{fail, joined, list, object, print, proxies, text};
use crate::connect::connect;

const EXIT_NO_REASON: u8 = 1;
const EXIT_PRESENT: u8 = 4;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &WhyNotArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    // An object is one argument.
    let (kind, name) = if args.name.is_empty() { ("object", &args.kind) } else { (args.kind.as_str(), &args.name) };
    let parameters = [("proxy", args.proxy.as_str()), ("type", kind), ("name", name), ("namespace", &args.namespace)];
    match connect(&args.server).and_then(|server| server.get("why_not", &parameters)) {
        Ok(answer) => print(args.output, &answer, out, table).map(|()| exit_code(&answer)),
        Err(error) => fail(&error, EXIT_NO_REASON, errors),
    }
}

fn exit_code(answer: &Value) -> u8 {
    let is_unknown = |finding: &Value| finding["reason"] == "unknown";
    match list(answer, "findings") {
        [] => EXIT_PRESENT,
        findings if findings.iter().all(is_unknown) => EXIT_NO_REASON,
        _ => 0,
    }
}

fn table(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let of = answer["proxiesOfWorkload"].as_u64().unwrap_or(1);
    let of = if of > 1 { format!(", the first of {} of the workload", proxies(of)) } else { String::new() };
    writeln!(out, "{} at {}{of}", text(answer, "subject"), text(answer, "proxy"))?;
    if answer["present"] == true {
        writeln!(out, "It is not absent: {}", joined(answer, "resources", ", "))?;
    }
    let findings = list(answer, "findings");
    if findings.is_empty() {
        return writeln!(out, "The proxy has acknowledged it.");
    }
    for finding in findings {
        let by =
            if finding["object"].is_object() { format!("{}: ", object(&finding["object"])) } else { String::new() };
        writeln!(out, "- {}: {by}{}", text(finding, "reason"), text(finding, "text"))?;
    }
    Ok(())
}
