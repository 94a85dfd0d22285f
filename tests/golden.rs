//! Compares the resources of the server with recorded resources of istiod, in both protocols, over real sockets. Prints a
//! table. Fails if the resources that differ are not exactly those of `tests/cases/differences.json`, if a case cannot be
//! served, or if the server panics. `target/parity/differences.json` is the list of the last complete run.
//!
//! `FAMILY=service CASE=01 TYPE=LDS PROTOCOL=delta DIFFS=20 make parity` selects some of them. Received resources are in
//! `target/parity/`. `CASES=DIR` uses the cases of another directory. `sluice-adsdump` records such cases from any ADS
//! server.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use sluice_testkit::parity::report::Report;
use sluice_testkit::parity::{case, differences::KnownDifferences, run};

/// Number of differing resources to print for each proxy and type.
const MAX_RESOURCES: usize = 3;

fn main() -> Result<ExitCode> {
    // A test runner that lists tests by name gets an empty list.
    let mut arguments = std::env::args().skip(1);
    if arguments.any(|argument| argument == "--list") {
        return Ok(ExitCode::SUCCESS);
    }
    let out = target_dir().join("parity");
    let plan = run::Plan::from_env(out.clone(), |name| std::env::var(name).ok())?;
    let elsewhere = std::env::var_os("CASES").map(PathBuf::from);
    let root = elsewhere.clone().unwrap_or_else(case::root);
    let cases = case::cases(&root, |family, name| plan.includes(family, name))?;
    anyhow::ensure!(!cases.is_empty(), "no case matches FAMILY and CASE");
    let start = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start a runtime")?;
    let report = runtime.block_on(run::run(&plan, &cases))?;

    let differences = report.differences(MAX_RESOURCES);
    write(&out, "differences.txt", &differences)?;
    write(&out, "report.json", &format!("{:#}\n", report.to_json()))?;
    write(&out, "table.txt", &report.table())?;
    write(&out, "systematic.txt", &systematic(&report, usize::MAX))?;
    let violations = if plan.is_partial() || elsewhere.is_some() {
        Vec::new()
    } else {
        let known = KnownDifferences::read(&case::root().join("differences.json"))?;
        write(&out, "differences.json", &known.updated(&report))?;
        known.violations(&report)
    };

    let mut console = std::io::stdout().lock();
    if plan.is_partial() {
        writeln!(console, "{differences}")?;
    }
    writeln!(console, "{}", report.table())?;
    writeln!(console, "most frequent differences:\n{}", systematic(&report, 20))?;
    for (case, reason) in &report.failed {
        writeln!(console, "{case}: {reason}")?;
    }
    for line in &violations {
        writeln!(console, "{line}")?;
    }
    writeln!(console, "{} cases in {:.1} s; answers in {}", cases.len(), start.elapsed().as_secs_f64(), out.display())?;
    Ok(if violations.is_empty() && report.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
