//! Mutated EnvoyFilters on real resources.

use serde_json::{Value, json};

use crate::mesh::EpochChange;
use crate::mutate::mutate;
use crate::objects::{mutate_object, turns};
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::{CaseMesh, Seed, Seeds};

/// Values of `applyTo`: valid ones, and some invalid ones.
const APPLY_TO: [&str; 13] = [
    "LISTENER",
    "FILTER_CHAIN",
    "NETWORK_FILTER",
    "HTTP_FILTER",
    "ROUTE_CONFIGURATION",
    "VIRTUAL_HOST",
    "HTTP_ROUTE",
    "CLUSTER",
    "EXTENSION_CONFIG",
    "BOOTSTRAP",
    "LISTENER_FILTER",
    "INVALID",
    "NETWORK",
];
const OPERATIONS: [&str; 9] =
    ["INVALID", "MERGE", "ADD", "REMOVE", "INSERT_BEFORE", "INSERT_AFTER", "INSERT_FIRST", "REPLACE", "MIX"];

/// Mutates patches, and inserts parts of real resources, until the deadline.
pub fn run(run: &Run, seeds: &Seeds) -> FuzzStatistics {
    let cases: Vec<&CaseMesh> = seeds.cases.iter().filter(|case| case.objects.iter().any(is_filter)).collect();
    turns(run, seeds, &cases, filters)
}

fn is_filter(seed: &Seed) -> bool {
    seed.kind() == "EnvoyFilter"
}

fn filters(case: &CaseMesh, seeds: &Seeds, rng: &mut FuzzRng) -> EpochChange {
    let mut change = EpochChange::default();
    let own: Vec<&Seed> = case.objects.iter().filter(|seed| is_filter(seed)).collect();
    for _ in 0..=rng.below(2) {
        let Some(mut seed) = rng.choose(&own).map(|seed| (*seed).clone()) else { continue };
        let patches = seed.object.pointer("/spec/configPatches").and_then(Value::as_array).map_or(0, Vec::len);
        let at = format!("/spec/configPatches/{}", rng.below(patches));
        for _ in 0..=rng.below(3) {
            patch(&mut seed.object, &at, seeds, rng);
        }
        if rng.once_in(4) {
            mutate_object(&mut seed, seeds, rng, 1);
        }
        if rng.once_in(5)
            && let Some(name) = seed.object.pointer_mut("/metadata/name")
        {
            *name = json!(format!("also-{}", rng.below(3)));
        }
        change.objects.push(seed);
    }
    change
}

fn patch(object: &mut Value, at: &str, seeds: &Seeds, rng: &mut FuzzRng) {
    let Some(patch) = object.pointer_mut(at) else { return };
    match rng.below(8) {
        0 => patch["applyTo"] = json!(rng.choose(&APPLY_TO)),
        1 => patch["patch"]["operation"] = json!(rng.choose(&OPERATIONS)),
        2 => {
            if let Some(part) = part(seeds, rng) {
                patch["patch"]["value"] = part;
            }
        }
        3 => {
            let part = part(seeds, rng);
            if let (Some(Value::Object(more)), Some(value)) =
                (part, patch.pointer_mut("/patch/value").and_then(Value::as_object_mut))
            {
                value.extend(more);
            }
        }
        4 => mutate(patch, "/match", seeds, rng, 1),
        _ => mutate(patch, "/patch/value", seeds, rng, 1),
    }
}

/// A random object within a real resource.
fn part(seeds: &Seeds, rng: &mut FuzzRng) -> Option<Value> {
    let resource = rng.choose(&seeds.resources)?;
    let mut parts = Vec::new();
    objects(resource, &mut parts);
    rng.choose(&parts).map(|part| (*part).clone())
}

fn objects<'v>(value: &'v Value, out: &mut Vec<&'v Value>) {
    match value {
        Value::Object(fields) => {
            out.push(value);
            fields.values().for_each(|value| objects(value, out));
        }
        Value::Array(items) => items.iter().for_each(|item| objects(item, out)),
        _ => {}
    }
}
