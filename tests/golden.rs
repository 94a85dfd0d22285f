//! What the server answers, against recorded answers of istiod, in both protocols, over real sockets. Prints a table and
//! fails when a family falls below its floor (`tests/cases/floors.txt`), a case cannot be served, or the server panics.
//!
//! `FAMILY=service CASE=01 TYPE=LDS PROTOCOL=delta DIFFS=20 make parity` narrows it; answers are in `target/parity/`.
//! `CASES=DIR` takes the cases of another directory; `sluice-adsdump` records such cases from any ADS server.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use sluice_testkit::parity::report::Report;
use sluice_testkit::parity::{case, floors::Floors, run};

/// Differing resources shown for a proxy and type.
const SHOWN: usize = 3;

fn main() -> Result<ExitCode> {
    // A runner that lists or filters tests by name asks for something else.
    let mut arguments = std::env::args().skip(1);
    if arguments.any(|argument| argument == "--list") {
        return Ok(ExitCode::SUCCESS);
    }
    let out = target_dir().join("parity");
    let plan = run::Plan::from_env(out.clone(), |name| std::env::var(name).ok())?;
    let elsewhere = std::env::var_os("CASES").map(PathBuf::from);
    let root = elsewhere.clone().unwrap_or_else(case::root);
    let cases = case::cases(&root, |family, name| plan.wants(family, name))?;
    anyhow::ensure!(!cases.is_empty(), "no case is called so");
    let start = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start a runtime")?;
    let report = runtime.block_on(run::run(&plan, &cases))?;

    let differences = report.differences(SHOWN);
    write(&out, "differences.txt", &differences)?;
    write(&out, "report.json", &format!("{:#}\n", report.to_json()))?;
    write(&out, "table.txt", &report.table())?;
    write(&out, "systematic.txt", &systematic(&report, usize::MAX))?;
    write(&out, "floors.txt", &reached(&report))?;

    let mut console = std::io::stdout().lock();
    if plan.is_partial() {
        writeln!(console, "{differences}")?;
    }
    writeln!(console, "{}", report.table())?;
    writeln!(console, "most frequent differences:\n{}", systematic(&report, 20))?;
    for (case, why) in &report.failed {
        writeln!(console, "{case}: {why}")?;
    }
    let below = if plan.is_partial() || elsewhere.is_some() { Vec::new() } else { below_floor(&report)? };
    for line in &below {
        writeln!(console, "{line}")?;
    }
    writeln!(console, "{} cases in {:.1} s; answers in {}", cases.len(), start.elapsed().as_secs_f64(), out.display())?;
    Ok(if below.is_empty() && report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn below_floor(report: &Report) -> Result<Vec<String>> {
    let floors = Floors::read(&case::root().join("floors.txt"))?;
    let families = report.families();
    let mut out = Vec::new();
    for ((family, protocol), sums) in families {
        let (floor, percent) = (floors.of(&family, protocol), sums.percent());
        if percent < floor {
            out.push(format!("BELOW THE FLOOR: {family} over {protocol}: {percent:.2} %, floor {floor} %"));
        }
    }
    Ok(out)
}

/// What has been reached, in the form of the floors file, cut to tenths.
fn reached(report: &Report) -> String {
    let mut percents: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for ((family, _), sums) in report.families() {
        percents.entry(family).or_default().push(format!("{:.1}", (sums.percent() * 10.0).floor() / 10.0));
    }
    percents.into_iter().map(|(family, percents)| format!("{family:<18}{}\n", percents.join(" "))).collect()
}

fn systematic(report: &Report, limit: usize) -> String {
    let lines = report.systematic().into_iter().take(limit);
    lines.map(|(count, kind, path)| format!("{count:>6} {:<4} {path}\n", kind.name())).collect()
}

fn write(dir: &Path, name: &str, text: &str) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    std::fs::write(dir.join(name), text).with_context(|| format!("write {name}"))
}

/// The target directory of this build.
fn target_dir() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_sluiced"));
    binary.parent().and_then(Path::parent).unwrap_or(Path::new("target")).to_owned()
}
