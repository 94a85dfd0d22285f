//! Inputs in which one place has grown out of all proportion. Reading them takes memory in proportion to their size.

use std::collections::BTreeMap;

use serde_json::Value;
use sluice_parse::yaml::{Limits, parse_documents};
use sluice_parse::{parse_object, parse_proxy};
use sluice_proto::envoy::config::core::v3::Node;

use crate::growth::{FORMS, grow, places};
use crate::memory_bound::within;
use crate::mutate::mutate;
use crate::objects::mutate_object;
use crate::rng::FuzzRng;
use crate::run::{FuzzStatistics, Run};
use crate::seeds::{Seed, Seeds};
use crate::turns;
use crate::violation::Violation;

/// Reads grown objects, nodes and texts until the deadline.
pub fn run(run: &Run, seeds: &Seeds) -> FuzzStatistics {
    turns::run(run, "grown inputs", |rng| {
        let Some(case) = rng.choose(&seeds.cases) else { return Ok(false) };
        let bytes = 1 << (10 + rng.below(8));
        match rng.below(4) {
            0 => {
                let Some(node) = rng.choose(&case.nodes) else { return Ok(false) };
                let mut node = node.clone();
                mutate(&mut node, "", seeds, rng, 1);
                read_node(&grow_anywhere(&node, bytes, rng))
            }
            1 => {
                let Some(seed) = rng.choose(&case.objects) else { return Ok(false) };
                let text = grow_anywhere(&seed.rendered(), bytes, rng).to_string();
                // JSON is YAML. Without the closing brace only the YAML reader reads it.
                let end = if rng.once_in(2) { text.len() } else { text.floor_char_boundary(rng.below(text.len())) };
                let text = &text[..end];
                within("YAML", text.len(), || drop(parse_documents(text, &Limits::default()))).map(|()| true)
            }
            _ => {
                let Some(seed) = rng.choose(&case.objects) else { return Ok(false) };
                let mut seed = seed.clone();
                mutate_object(&mut seed, seeds, rng, 1);
                seed.object = grow_anywhere(&seed.object, bytes, rng);
                read_object(&seed)
            }
        }
    })
}

/// The value with a random place in a random grown form.
pub(crate) fn grow_anywhere(value: &Value, bytes: usize, rng: &mut FuzzRng) -> Value {
    let places = places(value);
    // Most forms suit only some places.
    let mut tries = (0..20).filter_map(|_| grow(value, rng.choose(&places)?, rng.below(FORMS), bytes));
    tries.next().map_or_else(|| value.clone(), |(_, grown)| grown)
}

fn read_object(seed: &Seed) -> Result<bool, Violation> {
    let object = seed.rendered();
    let parse = || parse_object(&seed.cluster, "cluster.local", &object);
    within(&format!("{} objects", seed.kind()), object.to_string().len(), parse).map(|parsed| parsed.is_ok())
}

fn read_node(node: &Value) -> Result<bool, Violation> {
    let bytes = node.to_string().len();
    let Ok(node) = within("the JSON of nodes", bytes, || sluice_proto::json::decode::<Node>(node))? else {
        return Ok(false);
    };
    within("nodes", bytes, || parse_proxy(&node.message, &BTreeMap::new())).map(|proxy| proxy.is_ok())
}
