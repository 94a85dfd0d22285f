//! The summary of the page: what was measured, the budgets beside istiod, the cost against the size of the mesh.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{count, machine};
use crate::budgets::{self, LAST, SERVER_CPU, Verdict};
use crate::plot::{Axis, Line, escape, plot, short};
use crate::result::RunResult;
use crate::shape::Layout;

/// The kinds of change that plots show: from the cheapest to those that change the most bytes.
const PLOTTED: [&str; 5] =
    ["authorization-policy", "endpoint-ready", "destination-rule", "service-add", "virtual-service"];

/// Plots show meshes with at most this number of endpoints for each service.
const MAX_PLOTTED_ENDPOINTS: usize = 5;

/// Smallest number of points of a line that shows a trend.
const MIN_TREND_POINTS: usize = 4;

/// Of several numbers of proxies with enough points, a plot shows the one nearest to this.
const USUAL_PROXIES: usize = 1000;
/// The same for numbers of services.
const USUAL_SERVICES: usize = 10_000;

pub(super) fn summary(results: &[RunResult]) -> String {
    let mut page = heading(results);
    let verdicts = verdicts(results);
    if !verdicts.is_empty() {
        page.push_str(&conclusion(&verdicts));
        page.push_str(&times(&verdicts));
        page.push_str(&others(&verdicts));
    }
    page.push_str(&plots(results));
    page
}

/// Dates, commits and machines, each once.
fn heading(results: &[RunResult]) -> String {
    let distinct = |value: &dyn Fn(&RunResult) -> String| {
        let values: BTreeSet<String> = results.iter().map(value).filter(|value| !value.is_empty()).collect();
        values.into_iter().collect::<Vec<_>>().join(", ")
    };
    let date = distinct(&|result| result.date.clone());
    let machines = distinct(&|result| {
        let text = machine(result);
        text.split(", load").next().unwrap_or_default().to_owned()
    });
    let date = if date.is_empty() { "on an unknown day".to_owned() } else { date };
    let commits = distinct(&|result| result.commit.clone());
    format!(
        "<p>Measured {}, commit {}, on {}. Simulated proxies run on the same CPUs as the server, and their time is \
         part of every latency.</p>",
        escape(&date),
        escape(&commits),
        escape(&machines)
    )
}

/// The figures that have a budget, each once. Of several runs with a figure, one without VHDS precedes, then the one
/// with the most starts.
fn verdicts(results: &[RunResult]) -> Vec<Verdict> {
    let mut ordered: Vec<&RunResult> = results.iter().collect();
    ordered.sort_by_key(|result| (result.virtual_hosts, std::cmp::Reverse(result.starts_seconds.len())));
    let mut out: Vec<Verdict> = Vec::new();
    for verdict in ordered.into_iter().flat_map(budgets::evaluate) {
        let is_same = |other: &Verdict| {
            (&other.shape, &other.what, other.figure) == (&verdict.shape, &verdict.what, verdict.figure)
        };
        if !out.iter().any(is_same) {
            out.push(verdict);
        }
    }
    out.sort_by_key(|verdict| verdict.shape != "M1");
    out
}

fn conclusion(verdicts: &[Verdict]) -> String {
    let met = verdicts.iter().filter(|verdict| verdict.is_met()).count();
    let ratios = |figure: &str| {
        let ratio = |verdict: &Verdict| Some(verdict.reference? / verdict.measured).filter(|ratio| ratio.is_finite());
        let of_figure = verdicts.iter().filter(|verdict| verdict.figure == figure && verdict.shape == "M1");
        let ratios: Vec<f64> = of_figure.filter_map(ratio).collect();
        let least = ratios.iter().copied().reduce(f64::min)?;
        Some((least, ratios.into_iter().reduce(f64::max)?))
    };
    let mut text = format!("<p><b>{met} of {} figures meet their budget.</b>", verdicts.len());
    if let (Some(last), Some(cpu)) = (ratios(LAST[0]), ratios(SERVER_CPU)) {
        let _ = write!(
            text,
            " On shape M1 (1,000 services with 5 endpoints each in 20 namespaces, 1,000 proxies) a change reaches \
             the last proxy {} to {} times sooner than with istiod, for {} to {} times less CPU time of the server.",
            short(last.0),
            short(last.1),
            short(cpu.0.round()),
            short(cpu.1.round())
        );
    }
    text.push_str(" The figures of istiod (Istio master 86c9f01) are of a machine of the same kind.</p>");
    text
}

/// Latency and CPU of changes and storms, beside budget and istiod.
fn times(verdicts: &[Verdict]) -> String {
    let rows: Vec<(&Verdict, Option<&Verdict>)> = verdicts
        .iter()
        .filter(|verdict| verdict.figure == LAST[0])
        .map(|last| {
            let cpu = |other: &&Verdict| {
                other.figure == SERVER_CPU && (&other.shape, &other.what) == (&last.shape, &last.what)
            };
            (last, verdicts.iter().find(cpu))
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut out = "<h2>Budgets: time and CPU of a change</h2><table>\
        <tr><th></th><th colspan=\"3\" class=\"group\">last proxy, ms</th>\
        <th colspan=\"3\" class=\"group\">server CPU, s</th><th></th></tr>\
        <tr><th>change</th><th>measured</th><th>budget</th><th>istiod</th>\
        <th>measured</th><th>budget</th><th>istiod</th><th class=\"text\">result</th></tr>"
        .to_owned();
    for (last, cpu) in rows {
        let over: Vec<&str> = [(Some(last), "last proxy"), (cpu, "server CPU")]
            .into_iter()
            .filter(|(verdict, _)| verdict.is_some_and(|verdict| !verdict.is_met()))
            .map(|(_, name)| name)
            .collect();
        let _ = write!(
            out,
            "<tr><td>{}</td>{}{}{}</tr>",
            escape(&format!("{}: {}", last.shape, last.what)),
            figures(Some(last)),
            figures(cpu),
            outcome(&over.join(", "))
        );
    }
    out.push_str("</table>");
    out
}

/// Every other figure that has a budget.
fn others(verdicts: &[Verdict]) -> String {
    let rows = verdicts.iter().filter(|verdict| verdict.figure != LAST[0] && verdict.figure != SERVER_CPU);
    let mut out = "<h2>Budgets: bytes, memory, starts</h2><table><tr><th>what</th><th class=\"text\">figure</th>\
        <th>measured</th><th>budget</th><th>istiod</th><th class=\"text\">result</th></tr>"
        .to_owned();
    let mut is_empty = true;
    for verdict in rows {
        is_empty = false;
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"text\">{}</td>{}{}</tr>",
            escape(&format!("{}: {}", verdict.shape, verdict.what)),
            escape(verdict.figure),
            figures(Some(verdict)),
            outcome(if verdict.is_met() { "" } else { verdict.figure })
        );
    }
    out.push_str("</table>");
    if is_empty { String::new() } else { out }
}

fn figures(verdict: Option<&Verdict>) -> String {
    let Some(verdict) = verdict else { return "<td>–</td>".repeat(3) };
    let reference = verdict.reference.map_or_else(|| "–".to_owned(), short);
    let class = if verdict.is_met() { "" } else { " class=\"over\"" };
    format!(
        "<td{class}>{}</td><td>{}</td><td>{}</td>",
        short(verdict.measured),
        short(verdict.budget),
        escape(&reference)
    )
}

/// The last cell of a row: `met` only if no figure of the row is over its budget.
fn outcome(over: &str) -> String {
    match over {
        "" => "<td class=\"text\">met</td>".to_owned(),
        over => format!("<td class=\"text over\">over budget: {}</td>", escape(over)),
    }
}

/// Server CPU of a change against services and against proxies.
fn plots(results: &[RunResult]) -> String {
    let plain: Vec<&RunResult> = results
        .iter()
        .filter(|result| {
            let shape = &result.shape;
            let is_usual = shape.service_entries == 0 && shape.endpoints <= MAX_PLOTTED_ENDPOINTS;
            is_usual && shape.layout == Layout::Flat && !result.virtual_hosts
        })
        .collect();
    let (services, proxies): (Size, Size) = (|result| result.shape.services, |result| result.proxies);
    let mut out = String::new();
    for (along, fixed, usual, unit, title) in [
        (services, proxies, USUAL_PROXIES, "proxies", "services"),
        (proxies, services, USUAL_SERVICES, "services", "proxies"),
    ] {
        let Some(size) = most_measured(&plain, along, fixed, usual) else { continue };
        let group: Vec<&RunResult> = plain.iter().copied().filter(|result| fixed(result) == size).collect();
        let lines = cost(&group, along);
        let caption = format!("Server CPU of a change against {title} ({size} {unit})");
        let x = Axis { title, logarithmic: true };
        out.push_str(&plot(&caption, &lines, &x, &Axis { title: "ms of CPU", logarithmic: true }));
    }
    if out.is_empty() {
        out
    } else {
        format!("<h2>Cost against the size of the mesh</h2><div class=\"plots\">{out}</div>")
    }
}

/// Reads a size of the mesh of a result.
type Size = fn(&RunResult) -> usize;

/// The value of `fixed` for which a plot along `along` is drawn: the one nearest to `usual` of those with at least
/// [`MIN_TREND_POINTS`] values of `along`, or else the one with the most values, which are at least two.
fn most_measured(results: &[&RunResult], along: Size, fixed: Size, usual: usize) -> Option<usize> {
    let sizes: BTreeSet<usize> = results.iter().map(|result| fixed(result)).collect();
    let points = |size: usize| {
        let group = results.iter().filter(|result| fixed(result) == size && !result.changes.is_empty());
        group.map(|result| along(result)).collect::<BTreeSet<_>>().len()
    };
    let best = sizes
        .into_iter()
        .max_by_key(|size| (points(*size).min(MIN_TREND_POINTS), std::cmp::Reverse(size.abs_diff(usual))))?;
    (points(best) > 1).then_some(best)
}

/// A line for each plotted kind: median milliseconds of server CPU. Of the runs of a size, the one with the fewest
/// endpoints is used.
fn cost(results: &[&RunResult], along: Size) -> Vec<Line> {
    let mut ordered = results.to_vec();
    ordered.sort_by_key(|result| (along(result), result.shape.endpoints));
    ordered.dedup_by_key(|result| along(result));
    let line = |name: &&str| {
        let point = |result: &&RunResult| {
            let change = result.changes.iter().find(|change| change.kind.name() == **name)?;
            let cpu = change.median(|round| round.server_cpu_seconds)?;
            Some((count(along(result)), cpu * 1000.0))
        };
        Line { name: (*name).to_owned(), points: ordered.iter().filter_map(point).collect() }
    };
    PLOTTED.iter().map(line).filter(|line| line.points.len() > 1).collect()
}
