//! Each operation on each part of the configuration, in protobuf JSON.

mod clusters;
mod listeners;
mod merging;
mod routes;

use prost_reflect::prost::Message;
use serde_json::{Value, json};
use sluice_model::{
    ApplyTo, ClusterMatch, EnvoyPatch, FilterChainMatch, FilterMatch, ListenerMatch, ObjectMatch, PatchContext,
    PatchOperation, PatchValue, ProxyType, VersionMatch,
};
use sluice_proto::{json, pool, wire};

use crate::{PatchOutcome, decode};

/// Encodes protobuf JSON as the message of a part.
fn encoded(apply_to: ApplyTo, value: &Value) -> Vec<u8> {
    let name = apply_to.message_name();
    let descriptor = pool().get_message_by_name(name).expect("a known type");
    let decoded = json::decode_dynamic(&descriptor, value).expect("a message");
    assert_eq!(decoded.unknown, Vec::<String>::new());
    wire::sort_maps(name, decoded.message.encode_to_vec())
}

/// A patch for every context without a match.
fn patch(apply_to: ApplyTo, operation: PatchOperation, value: &Value) -> EnvoyPatch {
    let value = if value.is_null() { Vec::new() } else { encoded(apply_to, value) };
    EnvoyPatch {
        apply_to,
        context: PatchContext::Any,
        version: VersionMatch::Any,
        metadata: [].into(),
        object: ObjectMatch::Any,
        operation,
        value: PatchValue(value.into()),
    }
}

/// The changed resource, as JSON.
fn changed(apply_to: ApplyTo, outcome: PatchOutcome) -> Value {
    match outcome {
        PatchOutcome::Changed(bytes) => {
            json::encode_dynamic(&decode(apply_to.message_name(), &bytes).expect("decodes"))
        }
        other => panic!("{other:?}"),
    }
}

fn any(name: &str, mut fields: Value) -> Value {
    fields["@type"] = json!(format!("type.googleapis.com/{name}"));
    fields
}

fn buffer(bytes: u32) -> Value {
    any("envoy.extensions.filters.http.buffer.v3.Buffer", json!({"maxRequestBytes": bytes}))
}
