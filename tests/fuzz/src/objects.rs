//! Mutated objects, run through parsing and the whole graph.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::mesh::{EpochChange, FuzzedMesh};
use crate::minimise::minimise;
use crate::mutate::mutate;
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::{CaseMesh, Seed, Seeds};
use crate::violation::Violation;

/// Number of turns with one mesh.
const TURNS_PER_MESH: u64 = 60;
/// Number of turns between comparisons with a graph that starts with the present objects.
const COMPARISON_INTERVAL: usize = 12;

/// Generates a change of a case.
type ChangeGenerator = fn(&CaseMesh, &Seeds, &mut FuzzRng) -> EpochChange;

/// Mutates objects and proxies of the cases until the deadline.
pub fn run(run: &Run, seeds: &Seeds) -> FuzzStatistics {
    let cases: Vec<&CaseMesh> = seeds.cases.iter().collect();
    turns(run, seeds, &cases, any_objects)
}

/// Runs turns over `cases` with changes of `make`.
pub(crate) fn turns(run: &Run, seeds: &Seeds, cases: &[&CaseMesh], make: ChangeGenerator) -> FuzzStatistics {
    let mut statistics = FuzzStatistics::default();
    let mut turn = run.first_turn();
    while run.continues(turn) {
        let block = turn / TURNS_PER_MESH;
        let Some(case) = FuzzRng::new(run.seed, u64::MAX - block).choose(cases).copied() else { break };
        run.record_turn(turn, &case.name);
        let (mut mesh, findings) = FuzzedMesh::start(case);
        report(run, &mut statistics, turn, &findings, case, &EpochChange::default());
        while turn / TURNS_PER_MESH == block && run.continues(turn) {
            run.record_turn(turn, &case.name);
            let mut rng = FuzzRng::new(run.seed, turn);
            let change = make(case, seeds, &mut rng);
            let mut findings = mesh.apply(&change);
            statistics.effective += u64::from(mesh.effect > 0);
            if findings.is_empty() && rng.once_in(COMPARISON_INTERVAL) && !may_keep_last_config(&change) {
                findings.extend(mesh.differs_from(&fresh_graph(case, &change, &mut rng)));
            }
            findings.extend(mesh.revert());
            statistics.turns += 1;
            turn += 1;
            if !findings.is_empty() {
                report(run, &mut statistics, turn - 1, &findings, case, &change);
                // The records of a failed graph stay wrong, so a new graph is started.
                mesh = FuzzedMesh::start(case).0;
            }
            run.progress(&statistics, turn);
        }
    }
    statistics
}

/// Whether the change may have an invalid mesh config. Then the last valid one stays in effect, which a fresh graph does
/// not have.
fn may_keep_last_config(change: &EpochChange) -> bool {
    change.objects.iter().any(|seed| seed.kind() == "ConfigMap")
}

/// A fresh graph with the objects after the change, in another order.
fn fresh_graph(case: &CaseMesh, change: &EpochChange, rng: &mut FuzzRng) -> FuzzedMesh {
    let (mut mesh, _) = FuzzedMesh::start(&CaseMesh { name: case.name.clone(), ..CaseMesh::default() });
    let mut all = EpochChange { objects: case.objects.clone(), nodes: case.nodes.clone(), deletes: Vec::new() };
    rng.shuffle(&mut all.objects);
    mesh.apply(&all);
    mesh.apply(change);
    mesh
}

fn report(
    run: &Run,
    statistics: &mut FuzzStatistics,
    turn: u64,
    findings: &[Violation],
    case: &CaseMesh,
    change: &EpochChange,
) {
    let distinct: BTreeMap<&str, &Violation> = findings.iter().map(|f| (f.signature.as_str(), f)).collect();
    for (signature, finding) in distinct {
        if statistics.count(signature) {
            let (case, change, is_reproduced) =
                minimise(case.clone(), change.clone(), signature, Duration::from_secs(run.minimise));
            run.failed(turn, finding, &case, &change, is_reproduced);
        }
    }
}

/// Mutates one to three objects, often with one of another case, sometimes a node, and sometimes deletes objects.
fn any_objects(case: &CaseMesh, seeds: &Seeds, rng: &mut FuzzRng) -> EpochChange {
    let mut change = EpochChange::default();
    let configuration: Vec<&Seed> = case.objects.iter().filter(|seed| seed.is_configuration()).collect();
    let all: Vec<&Seed> = case.objects.iter().collect();
    for _ in 0..=rng.below(3) {
        let from = if rng.once_in(3) || configuration.is_empty() { &all } else { &configuration };
        let mut seed = match rng.below(5) {
            0 => foreign_object(case, seeds, rng),
            _ => rng.choose(from).map(|seed| (*seed).clone()),
        };
        if let Some(seed) = &mut seed {
            let times = if rng.once_in(8) { 12 } else { 1 + rng.below(3) };
            mutate_object(seed, seeds, rng, times);
            change.objects.push(seed.clone());
        }
    }
    if rng.once_in(4)
        && let Some(node) = rng.choose(&case.nodes)
    {
        let mut node = node.clone();
        let times = 1 + rng.below(3);
        mutate(&mut node, "", seeds, rng, times);
        change.nodes.push(node);
    }
    if rng.once_in(6)
        && let Some(seed) = rng.choose(&case.objects)
    {
        change.deletes.push(seed.clone());
    }
    change
}

/// Mutates an object, mostly below its spec, rarely its metadata or its type.
pub(crate) fn mutate_object(seed: &mut Seed, seeds: &Seeds, rng: &mut FuzzRng, times: usize) {
    for _ in 0..times {
        let roots: Vec<&str> = ["/spec", "/data/mesh", "/data/meshNetworks", "/endpoints", "/ports", "/status"]
            .into_iter()
            .filter(|root| seed.object.pointer(root).is_some_and(|value| !value.is_string()))
            .collect();
        let root = match rng.below(12) {
            0 => "/metadata",
            1 => "",
            _ => rng.choose(&roots).copied().unwrap_or("/metadata"),
        };
        mutate(&mut seed.object, root, seeds, rng, 1);
    }
}

/// An object of another case, moved into a namespace of this one.
pub(crate) fn foreign_object(case: &CaseMesh, seeds: &Seeds, rng: &mut FuzzRng) -> Option<Seed> {
    let mut seed = match rng.once_in(3) {
        true => rng.choose(&seeds.other_objects)?.clone(),
        false => {
            let other = rng.choose(&seeds.cases)?;
            let objects: Vec<&Seed> = other.objects.iter().filter(|seed| seed.is_configuration()).collect();
            (*rng.choose(&objects)?).clone()
        }
    };
    let namespace = rng.choose(&case.objects).and_then(|seed| seed.object.pointer("/metadata/namespace")).cloned();
    if let (Some(namespace), Some(metadata)) =
        (namespace, seed.object.get_mut("metadata").and_then(Value::as_object_mut))
        && seed.cluster.as_str() == "Kubernetes"
    {
        metadata.insert("namespace".to_owned(), namespace);
    }
    Some(seed)
}
