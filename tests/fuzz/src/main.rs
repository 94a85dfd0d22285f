//! `sluice-fuzz`: see the library.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use sluice_fuzz::epochs::EpochSequence;
use sluice_fuzz::mesh::{EpochChange, FuzzedMesh};
use sluice_fuzz::run::{FuzzStatistics, Run};
use sluice_fuzz::seeds::Seeds;
use sluice_fuzz::violation::Violation;
use sluice_fuzz::{analysis, csr, epochs, failure, identity, jwt, memory, objects, patches, xds, yaml};
use sluice_testkit::parity::case::root;

/// Fuzzes the control plane with mutated cases.
#[derive(Debug, Parser)]
#[command(name = "sluice-fuzz", max_term_width = 100)]
struct Args {
    /// Target to fuzz.
    #[arg(value_enum, default_value = "objects")]
    target: Target,
    /// Duration in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of all random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The first turn and the number of turns, to reproduce a turn.
    #[arg(long, num_args = 2, value_names = ["FIRST", "COUNT"])]
    turns: Option<Vec<u64>>,
    /// Longest time to minimise a failure, in seconds.
    #[arg(long, default_value_t = 45)]
    minimise: u64,
    /// Directory for failures.
    #[arg(long, default_value = "target/fuzz")]
    out: PathBuf,
    /// Replay this failure instead of fuzzing.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Target {
    /// Objects and nodes, through parsing and the graph.
    Objects,
    /// EnvoyFilters on the resources of the cases.
    Patches,
    /// xDS requests to a server process (`sluiced` must be built).
    Xds,
    /// Random epochs, compared with a graph that starts from scratch.
    Epochs,
    /// Signing requests to a certificate authority.
    Csr,
    /// Tokens and JWKS, at the authenticators that read them.
    Jwt,
    /// Credentials of callers, and nodes that claim an identity.
    Identity,
    /// YAML texts, at the fast path of the reader and at the complete parser.
    Yaml,
    /// Sets of objects, at the analyzers of `sluicectl analyze`.
    Analysis,
    /// Objects, nodes and texts in which one place has grown out of all proportion.
    Memory,
}

fn main() -> ExitCode {
    match fuzz(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error:#}");
            ExitCode::from(2)
        }
    }
}

fn fuzz(args: &Args) -> Result<bool> {
    if let Some(path) = &args.replay {
        return replay(path);
    }
    let mut seeds = Seeds::read(&root())?;
    let name = match args.target {
        Target::Objects => "objects",
        Target::Patches => "patches",
        Target::Xds => "xds",
        Target::Epochs => "epochs",
        Target::Csr => "csr",
        Target::Jwt => "jwt",
        Target::Identity => "identity",
        Target::Yaml => "yaml",
        Target::Analysis => "analysis",
        Target::Memory => "memory",
    };
    let mut run = Run::new(name, args.seed, args.seconds, args.out.clone());
    run.turns = args.turns.as_deref().and_then(|turns| Some((*turns.first()?, *turns.get(1)?)));
    run.minimise = args.minimise;
    run.verbose = true;
    let run = Arc::new(run);
    run.watch();
    let statistics = match args.target {
        Target::Objects => objects::run(&run, &seeds),
        Target::Patches => {
            seeds.read_resources(&root(), "envoyfilter")?;
            patches::run(&run, &seeds)
        }
        Target::Xds => xds::run(&run, &seeds)?,
        Target::Epochs => epochs::run(&run, &seeds)?,
        Target::Csr => csr::run(&run)?,
        Target::Jwt => jwt::run(&run, &seeds)?,
        Target::Identity => identity::run(&run, &seeds)?,
        Target::Yaml => yaml::run(&run, &root())?,
        Target::Analysis => analysis::run(&run, &seeds, &root())?,
        Target::Memory => memory::run(&run, &seeds),
    };
    Ok(print_result(name, &statistics))
}

fn print_result(name: &str, statistics: &FuzzStatistics) -> bool {
    let mut out = std::io::stdout();
    let _ = writeln!(
        out,
        "{name}: {} turns, {} of them effective, {} kinds of finding",
        statistics.turns,
        statistics.effective,
        statistics.findings.len()
    );
    for (signature, count) in &statistics.findings {
        let _ = writeln!(out, "{count:6}  {signature}");
    }
    statistics.findings.is_empty()
}

fn replay(path: &std::path::Path) -> Result<bool> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let findings: Vec<Violation> = match EpochSequence::read(&text)? {
        Some(sequence) => sequence.replay().into_iter().collect(),
        None => replay_change(path)?,
    };
    for finding in &findings {
        let _ = writeln!(std::io::stdout(), "{}\n    {}", finding.signature, finding.message);
    }
    Ok(findings.is_empty())
}

fn replay_change(path: &std::path::Path) -> Result<Vec<Violation>> {
    let (mesh_objects, change): (_, EpochChange) = failure::read(path)?;
    let (mut mesh, mut findings) = FuzzedMesh::start(&mesh_objects);
    findings.extend(mesh.apply(&change));
    findings.extend(mesh.revert());
    Ok(findings)
}
