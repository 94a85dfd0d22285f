//! What decoding protobuf JSON reports of unknown fields is bounded.

use serde_json::{Map, Value, json};
use sluice_proto::json::{MAX_UNKNOWN_FIELDS, decode_dynamic};
use sluice_proto::pool;

#[test]
fn unknown_fields_above_the_limit_are_counted() {
    let descriptor = pool().get_message_by_name("envoy.config.cluster.v3.Cluster").expect("a message");
    let fields: Map<String, Value> = (0..150).map(|n| (format!("unknown{n}"), json!(1))).collect();
    let decoded = decode_dynamic(&descriptor, &fields.into()).expect("a cluster");
    assert_eq!((decoded.unknown.len(), decoded.more_unknown), (MAX_UNKNOWN_FIELDS, 150 - MAX_UNKNOWN_FIELDS));
}
