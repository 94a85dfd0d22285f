//! The answer of a preview as text.

use std::io::{self, Write};

use serde_json::Value;

use crate::answer_output::{joined, list, proxies, text};
use crate::columns::{columns, table as titled};

/// Characters of a value.
const MAX_VALUE_CHARS: usize = 120;

/// Prints the answer: objects, findings, a summary by type, then each changed resource with its fields.
pub(super) fn table(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    objects(answer, out)?;
    findings("FINDINGS", list(answer, "findings"), out)?;
    findings("SOLVED FINDINGS", list(answer, "solved"), out)?;
    summary(answer, out)?;
    for change in list(answer, "changes") {
        resource(change, out)?;
    }
    match answer["changesLeftOut"].as_u64().unwrap_or_default() {
        0 => {}
        count => writeln!(out, "\n{count} more changed resources are not listed.")?,
    }
    for note in list(answer, "notes") {
        writeln!(out, "\nNote: {}.", note.as_str().unwrap_or_default())?;
    }
    if !list(answer, "unansweredReplicas").is_empty() {
        writeln!(out, "\nNot all replicas answered: the numbers are lower bounds.")?;
    } else if answer["isComplete"] == false {
        writeln!(out, "\nNot everything was compared in time: the numbers are lower bounds.")?;
    }
    Ok(())
}

fn place(entry: &Value) -> String {
    match (text(entry, "file"), entry["line"].as_u64()) {
        ("", _) | (_, None) => String::new(),
        (file, Some(line)) => format!("{file}:{line}"),
    }
}

fn objects(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let titles = ["OBJECT", "CHANGE", "SOURCE", "REASON"];
    let row = |object: &Value| {
        vec![
            text(object, "object").to_owned(),
            text(object, "change").to_owned(),
            place(object),
            text(object, "reason").to_owned(),
        ]
    };
    let rows = list(answer, "objects").iter().map(row);
    columns(&titled(&titles, rows), out)
}

fn findings(title: &str, found: &[Value], out: &mut dyn Write) -> io::Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for finding in found {
        let parts = [&place(finding), text(finding, "severity"), text(finding, "object"), text(finding, "field")];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        writeln!(out, "{}: {}", parts.join(": "), text(finding, "message"))?;
    }
    Ok(())
}

fn summary(answer: &Value, out: &mut dyn Write) -> io::Result<()> {
    let types = list(answer, "resources");
    if types.is_empty() {
        return writeln!(out, "\nNo connected proxy would be sent anything.");
    }
    writeln!(out)?;
    let count = |summary: &Value, field: &str| summary[field].as_u64().unwrap_or_default().to_string();
    let titles = ["TYPE", "ADDED", "CHANGED", "REMOVED", "PROXIES", "BYTES"];
    let row = |summary: &Value| {
        let mut row = vec![text(summary, "type").to_owned()];
        row.extend(["added", "changed", "removed", "proxies", "bytes"].map(|field| count(summary, field)));
        row
    };
    columns(&titled(&titles, types.iter().map(row)), out)?;
    let concerned = &answer["proxies"];
    let count = concerned["count"].as_u64().unwrap_or_default();
    let more = match count.saturating_sub(list(concerned, "names").len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    writeln!(
        out,
        "\n{} of {} connected{}, {} bytes: {}{more}",
        proxies(count),
        concerned["connected"].as_u64().unwrap_or_default(),
        match list(answer, "replicas").len() {
            0 | 1 => String::new(),
            count => format!(" to {count} replicas"),
        },
        answer["bytes"].as_u64().unwrap_or_default(),
        joined(concerned, "names", ", "),
    )
}

fn resource(change: &Value, out: &mut dyn Write) -> io::Result<()> {
    let sign = match text(change, "change") {
        "added" => '+',
        "removed" => '-',
        _ => '~',
    };
    let sizes: Vec<String> = ["bytesBefore", "bytesAfter"]
        .iter()
        .filter_map(|size| change[size].as_u64())
        .map(|it| it.to_string())
        .collect();
    writeln!(
        out,
        "\n{sign} {} {}: {}, {} bytes (such as {})",
        text(change, "type"),
        text(change, "name"),
        proxies(change["proxies"].as_u64().unwrap_or_default()),
        sizes.join(" -> "),
        text(change, "example"),
    )?;
    if !list(change, "parts").is_empty() && list(change, "fields").is_empty() {
        writeln!(out, "  parts: {}", joined(change, "parts", ", "))?;
    }
    for field in list(change, "fields") {
        writeln!(out, "  {}", text(field, "path"))?;
        for (sign, side) in [('-', "old"), ('+', "new")] {
            if let Some(value) = field.get(side) {
                writeln!(out, "  {sign} {}", shortened(value))?;
            }
        }
    }
    match change["fieldsLeftOut"].as_u64().unwrap_or_default() {
        0 => Ok(()),
        count => writeln!(out, "  {count} more fields differ."),
    }
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}… (-o json shows all)", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_field_has_both_values() {
        let answer = json!({
            "objects": [{"object": "VirtualService/shop/cart", "change": "changed", "file": "cart.yaml", "line": 1}],
            "findings": [{"object": "VirtualService/shop/cart", "field": "spec.hosts", "message": "odd",
                "severity": "warning", "file": "cart.yaml", "line": 3}],
            "resources": [{"type": "rds", "added": 0, "changed": 1, "removed": 0, "proxies": 1, "bytes": 20}],
            "proxies": {"count": 1, "connected": 4, "names": ["cart-1.shop"]},
            "bytes": 20,
            "replicas": [{"name": "istiod-a"}, {"name": "istiod-b"}],
            "changes": [{"type": "rds", "name": "80", "change": "changed", "bytesBefore": 19, "bytesAfter": 20,
                "proxies": 1, "example": "cart-1.shop", "parts": ["cart"], "fieldsLeftOut": 2,
                "fields": [{"path": "a.b", "old": "v1", "new": "v2"}]}],
            "changesLeftOut": 3,
            "isComplete": true,
        });
        let mut out = Vec::new();
        table(&answer, &mut out).expect("written");
        let expect = "\
OBJECT                     CHANGE    SOURCE        REASON
VirtualService/shop/cart   changed   cart.yaml:1

FINDINGS
cart.yaml:3: warning: VirtualService/shop/cart: spec.hosts: odd

TYPE   ADDED   CHANGED   REMOVED   PROXIES   BYTES
rds    0       1         0         1         20

1 proxy of 4 connected to 2 replicas, 20 bytes: cart-1.shop

~ rds 80: 1 proxy, 19 -> 20 bytes (such as cart-1.shop)
  a.b
  - \"v1\"
  + \"v2\"
  2 more fields differ.

3 more changed resources are not listed.
";
        assert_eq!(String::from_utf8_lossy(&out), expect);
    }
}
