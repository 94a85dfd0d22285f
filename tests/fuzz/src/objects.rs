//! Mutated objects through parsing and the whole graph.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::mesh::{EpochChange, FuzzedMesh, Violation};
use crate::minimise::minimise;
use crate::mutate::mutate;
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::{CaseMesh, Seed, Seeds};

/// Turns for which one mesh is used.
const TURNS_PER_MESH: u64 = 60;
/// Turns between comparisons with a graph that starts from the present objects.
const FROM_SCRATCH: usize = 12;

/// How changes are made of a world.
pub type Maker = fn(&CaseMesh, &Seeds, &mut FuzzRng) -> EpochChange;

/// Mutates objects and proxies of the cases until time is up.
pub fn run(run: &Run, seeds: &Seeds) -> FuzzStatistics {
    let worlds: Vec<&CaseMesh> = seeds.worlds.iter().collect();
    turns(run, seeds, &worlds, any_objects)
}

/// Turns over `worlds` with changes of `make`.
pub(crate) fn turns(run: &Run, seeds: &Seeds, worlds: &[&CaseMesh], make: Maker) -> FuzzStatistics {
    let mut statistics = FuzzStatistics::default();
    let mut turn = run.first_turn();
    while run.goes_on(turn) {
        let block = turn / TURNS_PER_MESH;
        let Some(world) = FuzzRng::new(run.seed, u64::MAX - block).pick(worlds).copied() else { break };
        run.note(turn, &world.name);
        let (mut mesh, findings) = FuzzedMesh::start(world);
        report(run, &mut statistics, turn, &findings, world, &EpochChange::default());
        while turn / TURNS_PER_MESH == block && run.goes_on(turn) {
            run.note(turn, &world.name);
            let mut rng = FuzzRng::new(run.seed, turn);
            let change = make(world, seeds, &mut rng);
            let mut findings = mesh.apply(&change);
            statistics.effective += u64::from(mesh.effect > 0);
            if findings.is_empty() && rng.once_in(FROM_SCRATCH) && !keeps_the_last(&change) {
                findings.extend(mesh.differs_from(&from_scratch(world, &change, &mut rng)));
            }
            findings.extend(mesh.revert());
            statistics.turns += 1;
            turn += 1;
            if !findings.is_empty() {
                report(run, &mut statistics, turn - 1, &findings, world, &change);
                // What went wrong stays in the graph's records.
                mesh = FuzzedMesh::start(world).0;
            }
            run.progress(&statistics, turn);
        }
    }
    statistics
}

/// A wrong mesh config leaves the last good one in force, which a fresh graph has never seen.
fn keeps_the_last(change: &EpochChange) -> bool {
    change.objects.iter().any(|seed| seed.kind() == "ConfigMap")
}

/// A graph that is given what is there after the change, in another order.
fn from_scratch(world: &CaseMesh, change: &EpochChange, rng: &mut FuzzRng) -> FuzzedMesh {
    let (mut mesh, _) = FuzzedMesh::start(&CaseMesh { name: world.name.clone(), ..CaseMesh::default() });
    let mut all = EpochChange { objects: world.objects.clone(), nodes: world.nodes.clone(), deletes: Vec::new() };
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
    world: &CaseMesh,
    change: &EpochChange,
) {
    let distinct: BTreeMap<&str, &Violation> = findings.iter().map(|f| (f.signature.as_str(), f)).collect();
    for (signature, finding) in distinct {
        if statistics.count(signature) {
            let (world, change, again) =
                minimise(world.clone(), change.clone(), signature, Duration::from_secs(run.minimise));
            run.failed(turn, finding, &world, &change, again);
        }
    }
}

/// One to three objects mutated, often with one from elsewhere, at times a node, at times something deleted.
fn any_objects(world: &CaseMesh, seeds: &Seeds, rng: &mut FuzzRng) -> EpochChange {
    let mut change = EpochChange::default();
    let configuration: Vec<&Seed> = world.objects.iter().filter(|seed| seed.is_configuration()).collect();
    let all: Vec<&Seed> = world.objects.iter().collect();
    for _ in 0..=rng.roll(3) {
        let from = if rng.once_in(3) || configuration.is_empty() { &all } else { &configuration };
        let mut seed = match rng.roll(5) {
            0 => stray(world, seeds, rng),
            _ => rng.pick(from).map(|seed| (*seed).clone()),
        };
        if let Some(seed) = &mut seed {
            let times = if rng.once_in(8) { 12 } else { 1 + rng.roll(3) };
            mutate_object(seed, seeds, rng, times);
            change.objects.push(seed.clone());
        }
    }
    if rng.once_in(4)
        && let Some(node) = rng.pick(&world.nodes)
    {
        let mut node = node.clone();
        let times = 1 + rng.roll(3);
        mutate(&mut node, "", seeds, rng, times);
        change.nodes.push(node);
    }
    if rng.once_in(6)
        && let Some(seed) = rng.pick(&world.objects)
    {
        change.deletes.push(seed.clone());
    }
    change
}

/// Mutates mostly below what matters: the spec, seldom the metadata or what the object is.
pub(crate) fn mutate_object(seed: &mut Seed, seeds: &Seeds, rng: &mut FuzzRng, times: usize) {
    for _ in 0..times {
        let roots: Vec<&str> = ["/spec", "/data/mesh", "/data/meshNetworks", "/endpoints", "/ports", "/status"]
            .into_iter()
            .filter(|root| seed.object.pointer(root).is_some_and(|value| !value.is_string()))
            .collect();
        let root = match rng.roll(12) {
            0 => "/metadata",
            1 => "",
            _ => rng.pick(&roots).copied().unwrap_or("/metadata"),
        };
        mutate(&mut seed.object, root, seeds, rng, 1);
    }
}

/// An object from elsewhere, moved into a namespace of the world.
pub(crate) fn stray(world: &CaseMesh, seeds: &Seeds, rng: &mut FuzzRng) -> Option<Seed> {
    let mut seed = match rng.once_in(3) {
        true => rng.pick(&seeds.strays)?.clone(),
        false => {
            let other = rng.pick(&seeds.worlds)?;
            let objects: Vec<&Seed> = other.objects.iter().filter(|seed| seed.is_configuration()).collect();
            (*rng.pick(&objects)?).clone()
        }
    };
    let namespace = rng.pick(&world.objects).and_then(|seed| seed.object.pointer("/metadata/namespace")).cloned();
    if let (Some(namespace), Some(metadata)) =
        (namespace, seed.object.get_mut("metadata").and_then(Value::as_object_mut))
        && seed.cluster.as_str() == "Kubernetes"
    {
        metadata.insert("namespace".to_owned(), namespace);
    }
    Some(seed)
}
