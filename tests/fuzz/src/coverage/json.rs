//! Protobuf JSON: messages of objects, and the values of EnvoyFilters.

use anyhow::Result;
use prost_reflect::MessageDescriptor;
use serde_json::Value;
use sluice_parse::yaml::{Limits, parse_value};
use sluice_proto::json::{decode_any, decode_dynamic, encode_dynamic};
use sluice_proto::pool;

use super::{CoverageTarget, of};
use crate::mutate::mutate;
use crate::rng::FuzzRng;
use crate::seeds::Seeds;
use crate::violation::{Violation, violation};

/// Messages that objects, nodes and patches are decoded as.
const MESSAGES: [&str; 30] = [
    "istio.networking.v1alpha3.VirtualService",
    "istio.networking.v1alpha3.DestinationRule",
    "istio.networking.v1alpha3.Gateway",
    "istio.networking.v1alpha3.ServiceEntry",
    "istio.networking.v1alpha3.Sidecar",
    "istio.networking.v1alpha3.EnvoyFilter",
    "istio.networking.v1alpha3.WorkloadEntry",
    "istio.security.v1beta1.AuthorizationPolicy",
    "istio.security.v1beta1.RequestAuthentication",
    "istio.security.v1beta1.PeerAuthentication",
    "istio.telemetry.v1alpha1.Telemetry",
    "istio.extensions.v1alpha1.WasmPlugin",
    "istio.mesh.v1alpha1.MeshConfig",
    "istio.mesh.v1alpha1.ProxyConfig",
    "istio.mesh.v1alpha1.MeshNetworks",
    "envoy.config.listener.v3.Listener",
    "envoy.config.listener.v3.FilterChain",
    "envoy.config.listener.v3.Filter",
    "envoy.config.listener.v3.ListenerFilter",
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter",
    "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "envoy.config.route.v3.RouteConfiguration",
    "envoy.config.route.v3.VirtualHost",
    "envoy.config.route.v3.Route",
    "envoy.config.cluster.v3.Cluster",
    "envoy.config.core.v3.TypedExtensionConfig",
    "envoy.config.core.v3.Node",
    "google.protobuf.Struct",
    "google.protobuf.Any",
    "google.protobuf.Duration",
];
/// From this first byte, the others are choices.
const CHOICES: u8 = 128;

/// JSON text, or choices of changes of a value in the cases. The first byte selects the message.
pub(super) fn target(seeds: &'static Seeds) -> Result<CoverageTarget> {
    let messages: Vec<MessageDescriptor> =
        MESSAGES.iter().filter_map(|name| pool().get_message_by_name(name)).collect();
    anyhow::ensure!(!messages.is_empty(), "the pool has none of the messages");
    // The value that a kind has in the cases decodes as the message of that kind.
    let mut examples: Vec<(u8, Vec<u8>)> = Vec::new();
    let mut specs: Vec<Vec<Value>> = vec![Vec::new(); messages.len()];
    for (number, message) in messages.iter().enumerate() {
        let objects = seeds.cases.iter().flat_map(|case| &case.objects).chain(&seeds.other_objects);
        specs[number].extend(
            objects.filter(|seed| seed.kind() == message.name()).filter_map(|seed| seed.object.get("spec")).cloned(),
        );
        specs[number].extend(match message.name() {
            "EnvoyFilter" | "Sidecar" => Vec::new(),
            "MeshConfig" => mesh_configs(seeds),
            "Node" => seeds.cases.iter().flat_map(|case| case.nodes.clone()).collect(),
            "Cluster" | "Listener" | "Route" | "HttpFilter" | "Any" | "VirtualHost" | "Filter" => patch_values(seeds),
            _ => Vec::new(),
        });
        specs[number].truncate(150);
        let first = u8::try_from(number).unwrap_or_default();
        examples.extend(specs[number].iter().map(|spec| (first, spec.to_string().into_bytes())));
    }
    let fields = messages.iter().flat_map(MessageDescriptor::fields).map(|field| format!("\"{}\":", field.json_name()));
    let words: Vec<String> = fields.chain(["\"@type\":\"type.googleapis.com/".to_owned()]).collect();
    let check = move |first: u8, rest: &[u8]| {
        let number = usize::from(first % CHOICES) % messages.len();
        let message = &messages[number];
        if first < CHOICES {
            let Ok(value) = parse_value(&String::from_utf8_lossy(rest), &Limits::default()) else { return Ok(false) };
            return decode(message, &value);
        }
        let mut rng = FuzzRng::of_bytes(rest);
        let Some(mut value) = rng.choose(&specs[number]).cloned() else { return Ok(false) };
        let times = 1 + rng.below(8);
        mutate(&mut value, "", seeds, &mut rng, times);
        decode(message, &value)
    };
    let mut target = of(check).with_words(words);
    for (first, example) in examples {
        target = target.with_seeds(first, [example]);
    }
    Ok(target.with_choices(CHOICES).with_choices(CHOICES + 5).with_choices(CHOICES + 15).with_choices(CHOICES + 24))
}

fn mesh_configs(seeds: &Seeds) -> Vec<Value> {
    let objects = seeds.cases.iter().flat_map(|case| &case.objects);
    objects.filter_map(|seed| seed.object.pointer("/data/mesh")).filter(|mesh| mesh.is_object()).cloned().collect()
}

/// The values of all patches.
fn patch_values(seeds: &Seeds) -> Vec<Value> {
    let objects = seeds.cases.iter().flat_map(|case| &case.objects);
    let patches = objects.filter_map(|seed| seed.object.pointer("/spec/configPatches")?.as_array()).flatten();
    patches.filter_map(|patch| patch.pointer("/patch/value")).cloned().collect()
}

/// Decodes a value. The message in canonical JSON decodes as the same message, without unknown fields.
fn decode(message: &MessageDescriptor, value: &Value) -> Result<bool, Violation> {
    // The same value inside `Any`; its type is that of the value.
    if message.full_name() == "google.protobuf.Any"
        && let Ok(decoded) = decode_any(value)
    {
        let (url, bytes) = decoded.message;
        if !url.contains('/') && !bytes.is_empty() {
            return violation("an Any has no type URL", value.to_string());
        }
    }
    let Ok(decoded) = decode_dynamic(message, value) else { return Ok(false) };
    let canonical = encode_dynamic(&decoded.message);
    match decode_dynamic(message, &canonical) {
        Ok(again) if again.unknown.is_empty() && encode_dynamic(&again.message) == canonical => Ok(true),
        Ok(again) => {
            let shown = format!("{canonical}\n{}\n{:?}", encode_dynamic(&again.message), again.unknown);
            violation("canonical JSON decodes as another message", format!("{}: {shown}", message.full_name()))
        }
        Err(error) => {
            violation("canonical JSON does not decode", format!("{}: {error}\n{canonical}", message.full_name()))
        }
    }
}
