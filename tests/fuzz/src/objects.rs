//! Mutated objects through parsing and the whole graph.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::dice::Dice;
use crate::mesh::{Change, Finding, Mesh};
use crate::minimise::minimise;
use crate::mutate::mutate;
use crate::run::{Run, Tally};
use crate::seeds::{Seed, Seeds, World};

/// Turns that one world is used for.
const STAY: u64 = 60;
/// Every so often the state is compared with that of a graph that starts from it.
const FROM_SCRATCH: usize = 12;

/// How changes are made of a world.
pub type Maker = fn(&World, &Seeds, &mut Dice) -> Change;

/// Mutates objects and proxies of the cases until time is up.
pub fn run(run: &Run, seeds: &Seeds) -> Tally {
    let worlds: Vec<&World> = seeds.worlds.iter().collect();
    turns(run, seeds, &worlds, any_objects)
}

/// Turns over `worlds` with changes of `make`.
pub(crate) fn turns(run: &Run, seeds: &Seeds, worlds: &[&World], make: Maker) -> Tally {
    let mut tally = Tally::default();
    let mut turn = run.first_turn();
    while run.goes_on(turn) {
        let block = turn / STAY;
        let Some(world) = Dice::new(run.seed, u64::MAX - block).pick(worlds).copied() else { break };
        run.note(turn, &world.name);
        let (mut mesh, findings) = Mesh::start(world);
        report(run, &mut tally, turn, &findings, world, &Change::default());
        while turn / STAY == block && run.goes_on(turn) {
            run.note(turn, &world.name);
            let mut dice = Dice::new(run.seed, turn);
            let change = make(world, seeds, &mut dice);
            let mut findings = mesh.apply(&change);
            tally.effective += u64::from(mesh.effect > 0);
            if findings.is_empty() && dice.once_in(FROM_SCRATCH) && !keeps_the_last(&change) {
                findings.extend(mesh.differs_from(&from_scratch(world, &change, &mut dice)));
            }
            findings.extend(mesh.revert());
            tally.turns += 1;
            turn += 1;
            if !findings.is_empty() {
                report(run, &mut tally, turn - 1, &findings, world, &change);
                // What went wrong stays in the graph's records.
                mesh = Mesh::start(world).0;
            }
            run.progress(&tally, turn);
        }
    }
    tally
}

/// A wrong mesh config leaves the last good one in force, which a fresh graph has never seen.
fn keeps_the_last(change: &Change) -> bool {
    change.objects.iter().any(|seed| seed.kind() == "ConfigMap")
}

/// A graph that is given what is there after the change, in another order.
fn from_scratch(world: &World, change: &Change, dice: &mut Dice) -> Mesh {
    let (mut mesh, _) = Mesh::start(&World { name: world.name.clone(), ..World::default() });
    let mut all = Change { objects: world.objects.clone(), nodes: world.nodes.clone(), deletes: Vec::new() };
    dice.shuffle(&mut all.objects);
    mesh.apply(&all);
    mesh.apply(change);
    mesh
}

fn report(run: &Run, tally: &mut Tally, turn: u64, findings: &[Finding], world: &World, change: &Change) {
    let distinct: BTreeMap<&str, &Finding> = findings.iter().map(|f| (f.signature.as_str(), f)).collect();
    for (signature, finding) in distinct {
        if tally.count(signature) {
            let (world, change, again) =
                minimise(world.clone(), change.clone(), signature, Duration::from_secs(run.minimise));
            run.failed(turn, finding, &world, &change, again);
        }
    }
}

/// One to three objects mutated, often with one from elsewhere, at times a node, at times something deleted.
fn any_objects(world: &World, seeds: &Seeds, dice: &mut Dice) -> Change {
    let mut change = Change::default();
    let configuration: Vec<&Seed> = world.objects.iter().filter(|seed| seed.is_configuration()).collect();
    let all: Vec<&Seed> = world.objects.iter().collect();
    for _ in 0..=dice.roll(3) {
        let from = if dice.once_in(3) || configuration.is_empty() { &all } else { &configuration };
        let mut seed = match dice.roll(5) {
            0 => stray(world, seeds, dice),
            _ => dice.pick(from).map(|seed| (*seed).clone()),
        };
        if let Some(seed) = &mut seed {
            let times = if dice.once_in(8) { 12 } else { 1 + dice.roll(3) };
            mutate_object(seed, seeds, dice, times);
            change.objects.push(seed.clone());
        }
    }
    if dice.once_in(4)
        && let Some(node) = dice.pick(&world.nodes)
    {
        let mut node = node.clone();
        let times = 1 + dice.roll(3);
        mutate(&mut node, "", seeds, dice, times);
        change.nodes.push(node);
    }
    if dice.once_in(6)
        && let Some(seed) = dice.pick(&world.objects)
    {
        change.deletes.push(seed.clone());
    }
    change
}

/// Mutates mostly below what matters: the spec, seldom the metadata or what the object is.
pub(crate) fn mutate_object(seed: &mut Seed, seeds: &Seeds, dice: &mut Dice, times: usize) {
    for _ in 0..times {
        let roots: Vec<&str> = ["/spec", "/data/mesh", "/data/meshNetworks", "/endpoints", "/ports", "/status"]
            .into_iter()
            .filter(|root| seed.object.pointer(root).is_some_and(|value| !value.is_string()))
            .collect();
        let root = match dice.roll(12) {
            0 => "/metadata",
            1 => "",
            _ => dice.pick(&roots).copied().unwrap_or("/metadata"),
        };
        mutate(&mut seed.object, root, seeds, dice, 1);
    }
}

/// An object from elsewhere, moved into a namespace of the world.
pub(crate) fn stray(world: &World, seeds: &Seeds, dice: &mut Dice) -> Option<Seed> {
    let mut seed = match dice.once_in(3) {
        true => dice.pick(&seeds.strays)?.clone(),
        false => {
            let other = dice.pick(&seeds.worlds)?;
            let objects: Vec<&Seed> = other.objects.iter().filter(|seed| seed.is_configuration()).collect();
            (*dice.pick(&objects)?).clone()
        }
    };
    let namespace = dice.pick(&world.objects).and_then(|seed| seed.object.pointer("/metadata/namespace")).cloned();
    if let (Some(namespace), Some(metadata)) =
        (namespace, seed.object.get_mut("metadata").and_then(Value::as_object_mut))
        && seed.cluster.as_str() == "Kubernetes"
    {
        metadata.insert("namespace".to_owned(), namespace);
    }
    Some(seed)
}
