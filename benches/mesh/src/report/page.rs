//! The HTML page: a summary, then the details of each run.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::{
    BUDGET_HEAD, CHANGE_HEAD, SHAPE_HEAD, STORM_HEAD, change_cells, grids, machine, mebibytes, memory, shape_cells,
    storm_cells, summary, title_of, verdicts,
};
use crate::plot::{Axis, Line, escape, plot};
use crate::result::{Round, RunResult, SHARES};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1200px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .6em;border-bottom:1px solid #ddd;text-align:right}\
td:first-child,th:first-child{text-align:left}td.text,th.text{text-align:left}.over{color:#a11;font-weight:600}\
.group{text-align:center;border-bottom:2px solid #bbb}\
.details table{font-size:11.5px;width:100%;table-layout:auto}.details td,.details th{padding:.15em .3em;overflow-wrap:anywhere}\
.plots{display:flex;flex-wrap:wrap;gap:1em}figure{flex:1 1 440px;max-width:570px;margin:0 0 1em}\
figcaption{font-weight:600}svg{width:100%}svg text{font-size:11px;fill:#444}.grid{stroke:#e4e4e4}\
summary{cursor:pointer;font-weight:600;margin:.4em 0}";

/// Writes results as one page.
pub(crate) fn write(results: &[RunResult], path: &Path) -> Result<()> {
    std::fs::write(path, page(results)).with_context(|| format!("write {}", path.display()))
}

fn page(results: &[RunResult]) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Sluice benchmarks</title><style>{STYLE}</style><h1>Sluice benchmarks</h1>"
    );
    page.push_str(&summary::summary(results));
    page.push_str("<div class=\"details\"><h2>Details</h2>");
    if results.len() > 1 {
        page.push_str("<details><summary>All shapes: start, memory, connecting</summary>");
        let plots = memory_plot(results);
        let _ = write!(page, "<div class=\"plots\">{plots}</div>");
        table(&mut page, &SHAPE_HEAD, &results.iter().map(shape_cells).collect::<Vec<_>>());
        page.push_str("</details><details><summary>Each kind of change over services and proxies</summary>");
        for (title, head, body) in grids(results) {
            let head: Vec<&str> = head.iter().map(String::as_str).collect();
            let _ = write!(page, "<h3>{}</h3>", escape(&title));
            table(&mut page, &head, &body);
        }
        page.push_str("</details>");
    }
    for result in results {
        let open = if results.len() == 1 { " open" } else { "" };
        let _ = write!(
            page,
            "<details{open}><summary>{}</summary><p>{}<br>{}</p>",
            escape(&title_of(result)),
            escape(&machine(result)),
            escape(&memory(result))
        );
        let _ = write!(page, "<div class=\"plots\">{}</div>", distributions(result));
        let storms: Vec<_> = std::iter::once(&result.connect).chain(&result.storms).map(storm_cells).collect();
        table(&mut page, &STORM_HEAD, &storms);
        table(&mut page, &CHANGE_HEAD, &result.changes.iter().map(change_cells).collect::<Vec<_>>());
        let verdicts = verdicts(result);
        if !verdicts.is_empty() {
            table(&mut page, &BUDGET_HEAD, &verdicts);
        }
        page.push_str("</details>");
    }
    page.push_str("</div></html>\n");
    page
}

fn table(page: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let cells = |tag: &str, cells: &[String]| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    let head: Vec<String> = head.iter().map(|&name| name.to_owned()).collect();
    let body: String = rows.iter().map(|row| cells("td", row)).collect();
    let _ = write!(page, "<table>{}{body}</table>", cells("th", &head));
}

/// Latency over proxies, by kind and by storm.
fn distributions(result: &RunResult) -> String {
    let percent = |values: &[f64]| values.iter().zip(SHARES).map(|(ms, share)| (*ms, share * 100.0)).collect();
    let changes: Vec<Line> = result
        .changes
        .iter()
        .filter_map(|change| {
            let mut rounds: Vec<&Round> =
                change.rounds.iter().filter(|round| !round.distribution_ms.is_empty()).collect();
            // The median round by its last proxy.
            rounds.sort_by(|a, b| a.last_ms.unwrap_or_default().total_cmp(&b.last_ms.unwrap_or_default()));
            let round = rounds.get(rounds.len() / 2)?;
            Some(Line { name: change.kind.name(), points: percent(&round.distribution_ms) })
        })
        .collect();
    let storms: Vec<Line> = std::iter::once(&result.connect)
        .chain(&result.storms)
        .map(|storm| Line { name: storm.name.clone(), points: percent(&storm.distribution_ms) })
        .collect();
    let share = Axis { title: "% of proxies", logarithmic: false };
    let mut plots = String::new();
    if !changes.is_empty() {
        let ms = Axis { title: "ms since the write", logarithmic: true };
        plots.push_str(&plot("Latency of a change (median round)", &changes, &ms, &share));
    }
    let ms = Axis { title: "ms since the first connect", logarithmic: true };
    plots.push_str(&plot("Proxies configured", &storms, &ms, &share));
    plots
}

/// Memory against the number of proxies, a line for each number of services.
fn memory_plot(results: &[RunResult]) -> String {
    let mut lines: Vec<Line> = Vec::new();
    for result in results.iter().filter(|result| result.shape.service_entries == 0) {
        let Some(used) = result.connect.memory else { continue };
        let name = format!("{} services", result.shape.services);
        let point = (super::count(result.proxies), mebibytes(used.resident_kib));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    lines.retain(|line| line.points.len() > 1);
    for line in &mut lines {
        line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    let proxies = Axis { title: "proxies", logarithmic: true };
    plot("Memory with proxies connected", &lines, &proxies, &Axis { title: "MiB", logarithmic: false })
}
