//! The `history` subcommand: recent changes of objects, and the proxies that each concerned.

use std::io::{self, Write};

use serde_json::Value;

use crate::answer_args::HistoryArgs;
use crate::answer_output::{fail, list, object, print, text};
use crate::columns::{columns, table as titled};
use crate::connect::{connect, seconds};

const EXIT_NONE: u8 = 1;
/// Objects and proxies of a change in the table.
const MAX_LISTED: usize = 3;

/// Runs the subcommand and returns the exit code.
pub(crate) fn run(args: &HistoryArgs, out: &mut dyn Write, errors: &mut dyn Write) -> io::Result<u8> {
    let since = args.since.map(seconds).unwrap_or_default();
    let limit = args.limit.to_string();
    let parameters = [
        ("since", since.as_str()),
        ("limit", &limit),
        ("object", &args.object),
        ("proxy", &args.proxy),
        ("namespace", &args.namespace),
    ];
    match connect(&args.server).and_then(|server| server.get_with_replica("history", &parameters)) {
        Ok((answer, missing)) => {
            missing.report(errors)?;
            print(args.output, &answer, out, table)?;
            Ok(if list(&answer, "changes").is_empty() { EXIT_NONE } else { 0 })
        }
        Err(error) => fail(&error, EXIT_NONE, errors),
    }
}

fn table(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let changes = list(answer, "changes");
    if changes.is_empty() {
        return writeln!(out, "There are no such changes.");
    }
    if answer["more"] == true {
        writeln!(out, "Older changes are left out: --limit shows more.")?;
    }
    let titles = ["EPOCH", "TIME", "OBJECTS", "RESOURCES", "PROXIES"];
    columns(&titled(&titles, changes.iter().map(row)), out)?;
    writeln!(out, "\nEpochs and proxies are those of replica {}.", text(answer, "replica"))
}

fn row(change: &Value) -> Vec<String> {
    let objects: Vec<String> = list(change, "objects").iter().map(object).collect();
    let resources = match change["resources"].as_array() {
        Some(types) => {
            let of_type = |it: &Value| format!("{} {}", it["count"], text(it, "type"));
            types.iter().map(of_type).collect::<Vec<_>>().join(", ")
        }
        None => "many".to_owned(),
    };
    let proxies = match &change["proxies"] {
        Value::Object(_) => {
            let names = list(&change["proxies"], "names").iter().filter_map(Value::as_str).map(str::to_owned);
            shortened(names.collect(), change["proxies"]["count"].as_u64().unwrap_or_default())
        }
        _ => "not known".to_owned(),
    };
    let count = change["writes"].as_u64().unwrap_or_default().max(objects.len() as u64);
    let (epoch, time) = (change["epoch"].to_string(), text(change, "at").to_owned());
    vec![epoch, time, shortened(objects, count), dash(resources), dash(proxies)]
}

/// The first texts, and the number of the others.
fn shortened(mut texts: Vec<String>, count: u64) -> String {
    texts.truncate(MAX_LISTED);
    let more = count - texts.len() as u64;
    if more > 0 {
        texts.push(format!("{more} more"));
    }
    texts.join(", ")
}

fn dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_short() {
        let change = json!({
            "epoch": 7, "at": "2026-01-01T00:00:00Z", "writes": 5,
            "objects": [{"object": "Pod/a/1"}, {"object": "Pod/a/2"}, {"object": "Pod/a/3"}, {"object": "Pod/a/4"}],
            "resources": [{"type": "eds", "count": 2}],
            "proxies": {"count": 30, "names": ["x.a", "y.a", "z.a", "w.a"]},
        });
        let expected =
            ["7", "2026-01-01T00:00:00Z", "Pod/a/1, Pod/a/2, Pod/a/3, 2 more", "2 eds", "x.a, y.a, z.a, 27 more"];
        assert_eq!(row(&change), expected);
        let unknown = json!({"epoch": 8, "at": "", "objects": [{"object": "Pod/a/1"}]});
        assert_eq!(row(&unknown), ["8", "", "Pod/a/1", "many", "not known"]);
    }
}
