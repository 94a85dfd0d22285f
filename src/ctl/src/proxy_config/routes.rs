//! The table of routes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::args::Filter;
use super::dump::origin;
use crate::answer_output::{list, text};

pub(super) const TITLES: [&str; 5] = ["NAME", "VHOST NAME", "DOMAINS", "MATCH", "VIRTUAL SERVICE"];
pub(super) const SHORT_TITLES: [&str; 2] = ["NAME", "VIRTUAL HOSTS"];

/// Domains of a virtual host in the table.
const MAX_DOMAINS: usize = 2;

/// The selected route tables: those of ports in their order, then others by name.
pub(super) fn select<'d>(mut tables: Vec<&'d Value>, filter: &Filter) -> Vec<&'d Value> {
    tables.retain(|table| filter.name.as_deref().is_none_or(|name| name == text(table, "name")));
    tables.sort_by_key(|table| {
        let name = text(table, "name");
        (name.parse::<u32>().unwrap_or(u32::MAX), name)
    });
    tables
}

/// Cells of a table's routes.
pub(super) fn rows(table: &Value, name: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for host in list(table, "virtualHosts") {
        let row = |matched: String, made_by: String| {
            vec![name.to_owned(), text(host, "name").to_owned(), domains(host), matched, made_by]
        };
        let routes = list(host, "routes");
        if routes.is_empty() {
            rows.push(row("/*".to_owned(), "404".to_owned()));
        }
        let shown = routes.iter().filter(|route| route["route"]["cluster"] != "PassthroughCluster");
        rows.extend(shown.map(|route| row(condition(&route["match"]), origin(route))));
    }
    rows
}

/// Cells of a table without its routes.
pub(super) fn short_row(table: &Value, name: &str) -> Vec<String> {
    vec![name.to_owned(), list(table, "virtualHosts").len().to_string()]
}

/// The path of a route.
pub(super) fn condition(condition: &Value) -> String {
    let with =
        |field: &str, form: &dyn Fn(&str) -> String| Some(text(condition, field)).filter(|it| !it.is_empty()).map(form);
    let parts = [
        with("prefix", &|prefix| format!("{prefix}*")),
        with("pathSeparatedPrefix", &|prefix| format!("PathPrefix:{prefix}")),
        with("path", &str::to_owned),
        condition["safeRegex"]["regex"].as_str().map(|regex| format!("regex {regex}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The first domains without ports. Of `a.svc.cluster.local`, `a.svc` and `a`, only the last is shown.
fn domains(host: &Value) -> String {
    let all: Vec<&str> = list(host, "domains").iter().filter_map(Value::as_str).collect();
    if let [only] = all[..] {
        return only.to_owned();
    }
    let has_no_port = |it: &str| !it.contains(':') || (it.matches(':').count() > 2 && it.ends_with(']'));
    let without_port: Vec<&str> = all.into_iter().filter(|it| has_no_port(it)).collect();
    let known: BTreeSet<&str> = without_port.iter().copied().collect();
    let is_longer = |it: &str| {
        [".svc.cluster.local", ".svc"].into_iter().filter_map(|end| it.strip_suffix(end)).any(|it| known.contains(it))
    };
    let shown: Vec<&str> = without_port.iter().copied().filter(|it| !is_longer(it)).collect();
    match shown.len().saturating_sub(MAX_DOMAINS) {
        0 => shown.join(", "),
        more => format!("{} + {more} more...", shown[..MAX_DOMAINS].join(", ")),
    }
}
