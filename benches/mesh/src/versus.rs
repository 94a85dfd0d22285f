//! Measures two builds in one run.

use anyhow::{Context, Result};

use crate::arguments::VersusArguments;
use crate::change::ChangeKind;
use crate::measured_mesh::{MeasuredMesh, Setup};
use crate::report;
use crate::result::ChangeResult;

/// Applies each change to the mesh of one build, then of the other. Returns whether the ratios are within the limit.
pub(crate) async fn run(arguments: &VersusArguments) -> Result<bool> {
    let setup = |binary: &std::path::Path| -> Result<Setup> {
        Ok(Setup::started(arguments.shape.shape()?, arguments.proxies, binary))
    };
    let before = MeasuredMesh::open(&setup(&arguments.before)?, &arguments.measure).await?;
    let after = MeasuredMesh::open(&setup(&arguments.after)?, &arguments.measure).await?;
    let mut meshes = [(before, Vec::new()), (after, Vec::new())];
    for kind in meshes[0].0.kinds(&arguments.changes)? {
        let results = changes(&[&meshes[0].0, &meshes[1].0], kind, arguments.measure.repeat).await?;
        meshes.iter_mut().zip(results).for_each(|((_, changes), result)| changes.push(result));
    }
    let mut results = Vec::new();
    for (mut mesh, changes) in meshes {
        results.push(mesh.result(changes, Vec::new())?);
        mesh.fleet.disconnect().await;
    }
    if let Some(out) = &arguments.out {
        std::fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
        for (name, result) in ["before.json", "after.json"].into_iter().zip(&results) {
            result.write(&out.join(name))?;
        }
    }
    match results.as_slice() {
        [before, after] => report::compare(before, after, arguments.limit),
        _ => anyhow::bail!("there are two builds"),
    }
}

/// Makes the changes of a kind on each mesh in turn, after a round that is not counted, and prints the results.
pub(crate) async fn changes(meshes: &[&MeasuredMesh], kind: ChangeKind, repeat: usize) -> Result<Vec<ChangeResult>> {
    let new = |_| ChangeResult { kind, affected: 0, rounds: Vec::new(), loopback_ms: None };
    let mut results: Vec<_> = meshes.iter().map(new).collect();
    for number in 0..=repeat {
        // Each mesh is first in as many rounds, of odd and of even numbers: many changes alternate between two states.
        for at in (0..meshes.len()).map(|at| (at + number / 2) % meshes.len()) {
            let (affected, round) = meshes[at].round(kind, number).await?;
            results[at].affected = affected;
            if number > 0 {
                results[at].rounds.push(round);
            }
        }
    }
    results.iter().for_each(|result| eprintln!("{}", report::change_line(result)));
    Ok(results)
}
