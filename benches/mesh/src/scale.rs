//! Runs over several sizes of mesh, and the large shapes.

use std::path::Path;

use anyhow::{Context, Result};

use crate::arguments::{Grid, Large, ScaleArguments};
use crate::measured_mesh::{MeasuredMesh, Setup};
use crate::report;
use crate::result::{RunResult, read};
use crate::shape::{Layout, Shape};

/// Runs every shape. A shape that fails is reported, and the others continue.
pub(crate) async fn run(arguments: &ScaleArguments) -> Result<()> {
    std::fs::create_dir_all(&arguments.out).with_context(|| format!("make {}", arguments.out.display()))?;
    let mut results = Vec::new();
    let mut failed = Vec::new();
    let shapes = shapes(arguments);
    for (number, (name, shape, proxies)) in shapes.iter().enumerate() {
        let path = arguments.out.join(format!("{name}.json"));
        if arguments.resume && path.exists() {
            results.push(read(&path)?);
            continue;
        }
        eprintln!("== {} of {}: {name}", number + 1, shapes.len());
        match one(*shape, *proxies, arguments, &path).await {
            Ok(result) => results.push(result),
            Err(error) => {
                eprintln!("{name}: {error:#}");
                failed.push(name.as_str());
            }
        }
        // The report of finished shapes can be read while the rest runs.
        report::page::write(&results, &arguments.out.join("report.html"))?;
    }
    println!("{}", report::scale_tables(&results));
    anyhow::ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

async fn one(shape: Shape, proxies: usize, arguments: &ScaleArguments, path: &Path) -> Result<RunResult> {
    let setup = Setup::started(shape, proxies, &arguments.sluiced);
    let mut mesh = MeasuredMesh::open(&setup, &arguments.measure).await?;
    let changes = mesh.every_change(&arguments.changes).await?;
    let result = mesh.result(changes, Vec::new())?;
    result.write(path)?;
    mesh.fleet.disconnect().await;
    Ok(result)
}

/// Names, shapes and proxies to run, the small ones first.
fn shapes(arguments: &ScaleArguments) -> Vec<(String, Shape, usize)> {
    let mut shapes = Vec::new();
    if arguments.grid == Grid::Full {
        for services in &arguments.services {
            for proxies in &arguments.proxies {
                if services * proxies <= arguments.at_most {
                    // Enough pods for the proxies.
                    let endpoints = proxies.div_ceil(*services).max(2);
                    let namespaces = (services / 50).clamp(1, 200);
                    let shape = Shape { services: *services, namespaces, endpoints, ..BASE };
                    shapes.push((format!("grid-{services}-{proxies}"), shape, *proxies));
                }
            }
        }
        shapes.sort_by_key(|(_, shape, proxies)| shape.services * proxies);
    }
    let is_requested = |large: Large| arguments.large.contains(&large) || arguments.large.contains(&Large::All);
    let large = [
        (Large::Services, "large-services", Shape { services: 10_000, namespaces: 200, endpoints: 5, ..BASE }, 1000),
        (Large::Entries, "large-entries", Shape { services: 200, service_entries: 30_000, ..BASE }, 100),
        (
            Large::Endpoints,
            "large-endpoints",
            Shape { services: 1, namespaces: 1, endpoints: 100_000, gateways: 0, ..BASE },
            100,
        ),
        (Large::Huge, "large-huge", Shape { services: 50_000, namespaces: 200, endpoints: 2, ..BASE }, 20),
    ];
    let large = large.into_iter().filter(|(kind, ..)| is_requested(*kind));
    shapes.extend(large.map(|(_, name, shape, proxies)| (name.to_owned(), shape, proxies)));
    shapes
}

const BASE: Shape = Shape {
    services: 1000,
    namespaces: 20,
    endpoints: 2,
    service_entries: 0,
    gateways: 1,
    waypoints: 0,
    ztunnels: 0,
    layout: Layout::Flat,
};

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    #[test]
    fn grid_has_the_requested_sizes() {
        let shapes = |line: &str| {
            let line = format!("sluice-bench scale --sluiced s --out o {line}");
            match Arguments::parse_from(line.split_whitespace()).command {
                Command::Scale(arguments) => shapes(&arguments).into_iter().map(|(name, ..)| name).collect::<Vec<_>>(),
                _ => unreachable!("the command is given"),
            }
        };
        assert_eq!(shapes("").len(), 20 + 4);
        assert_eq!(shapes("--at-most 100000000").len(), 20 - 1 + 4, "the biggest of the grid is over the limit");
        let some = shapes("--services 3000,1000 --proxies 10 --large entries");
        assert_eq!(some, ["grid-1000-10", "grid-3000-10", "large-entries"]);
        assert_eq!(shapes("--grid none --large huge"), ["large-huge"]);
        assert!(shapes("--grid none --large none").is_empty());
    }
}
