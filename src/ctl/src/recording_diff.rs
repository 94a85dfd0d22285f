//! The `diff` subcommand: what proxies have at the ends of two recordings.

use std::io::{self, Write};

use serde_json::{Value, json};
use similar::TextDiff;
use sluice_recording::{DifferentResource, ReplaySpeed, differences};

use crate::answer_output::{list, print, text};
use crate::recording_args::DiffArgs;
use crate::replay::{EXIT_NO_RECORDING, replay};

const EXIT_EQUAL: u8 = 0;
const EXIT_DIFFERENT: u8 = 1;

/// Lines around a difference.
const CONTEXT_LINES: usize = 3;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &DiffArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let mut outcomes = Vec::new();
    for path in [&args.first, &args.second] {
        match replay(path, ReplaySpeed::Max, None) {
            Ok(replayed) => outcomes.push(replayed.outcome),
            Err(error) => {
                writeln!(errors, "sluicectl: {}: {error}", path.display())?;
                return Ok(EXIT_NO_RECORDING);
            }
        }
    }
    // One more shows whether some are left out.
    let mut found = differences(&outcomes[0], &outcomes[1], args.limit.saturating_add(1));
    let more = found.len() > args.limit;
    found.truncate(args.limit);
    let answer = json!({"resources": found.iter().map(resource).collect::<Vec<_>>(), "more": more});
    print(args.output, &answer, out, table)?;
    Ok(if found.is_empty() && !more { EXIT_EQUAL } else { EXIT_DIFFERENT })
}

fn resource(different: &DifferentResource) -> Value {
    let message = |bytes: &Option<Vec<u8>>| {
        bytes.as_ref().map(|bytes| sluice_proto::json::encode_any(different.kind.type_url(), bytes))
    };
    json!({
        "proxy": different.proxy.0,
        "type": different.kind.type_url(),
        "name": different.name,
        "first": message(&different.first),
        "second": message(&different.second),
    })
}

fn table(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let resources = list(answer, "resources");
    if resources.is_empty() {
        return writeln!(out, "Both recordings end with the same resources.");
    }
    for resource in resources {
        let side = |side: &str| match &resource[side] {
            Value::Null => String::new(),
            value => serde_json::to_string_pretty(value).unwrap_or_default(),
        };
        let (first, second) = (side("first"), side("second"));
        let change = match (first.is_empty(), second.is_empty()) {
            (true, _) => "only in the second",
            (_, true) => "only in the first",
            _ => "differs",
        };
        let kind = text(resource, "type").rsplit('.').next().unwrap_or_default();
        writeln!(out, "{} {kind} {}: {change}", text(resource, "proxy"), text(resource, "name"))?;
        if change == "differs" {
            let diff = TextDiff::from_lines(&first, &second);
            write!(out, "{}", diff.unified_diff().context_radius(CONTEXT_LINES))?;
        }
    }
    match answer["more"] == true {
        true => writeln!(out, "There are more differences (--limit)."),
        false => Ok(()),
    }
}
