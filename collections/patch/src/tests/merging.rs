use super::*;
use crate::patch_cluster;

fn merged(operation: PatchOperation, cluster: &Value, over: &Value) -> Value {
    let outcome = patch_cluster(
        "c",
        &encoded(ApplyTo::Cluster, cluster),
        &[patch(ApplyTo::Cluster, operation, over)],
        ProxyType::Sidecar,
    );
    changed(ApplyTo::Cluster, outcome)
}

#[test]
fn messages_are_merged_lists_extended_and_durations_replaced() {
    let cluster = json!({
        "name": "c",
        "connectTimeout": "10.5s",
        "outlierDetection": {"consecutive5xx": 3, "interval": "2s"},
        "edsClusterConfig": {"serviceName": "s", "edsConfig": {"ads": {}}},
        "circuitBreakers": {"thresholds": [{"maxConnections": 1}]},
        "metadata": {"filterMetadata": {"a": {"x": 1, "y": 2}, "b": {}}},
    });
    let over = json!({
        "connectTimeout": "1s",
        "outlierDetection": {"interval": "3s"},
        "edsClusterConfig": {"edsConfig": {"path": "/p"}},
        "circuitBreakers": {"thresholds": [{"maxConnections": 2}]},
        "metadata": {"filterMetadata": {"a": {"z": 3}}},
    });
    let result = merged(PatchOperation::Merge, &cluster, &over);
    assert_eq!(result["connectTimeout"], "1s");
    assert_eq!(result["outlierDetection"], json!({"consecutive5xx": 3, "interval": "3s"}));
    // A member of a oneof replaces the other member.
    assert_eq!(result["edsClusterConfig"], json!({"serviceName": "s", "edsConfig": {"path": "/p"}}));
    assert_eq!(result["circuitBreakers"]["thresholds"], json!([{"maxConnections": 1}, {"maxConnections": 2}]));
    // Map entries are replaced.
    assert_eq!(result["metadata"]["filterMetadata"], json!({"a": {"z": 3}, "b": {}}));
    let result = merged(PatchOperation::MergeAndReplaceList, &cluster, &over);
    assert_eq!(result["circuitBreakers"]["thresholds"], json!([{"maxConnections": 2}]));
    assert_eq!(result["name"], "c");
}

#[test]
fn wrapped_default_value_is_merged_as_unset() {
    let cluster = json!({"name": "c", "perConnectionBufferLimitBytes": 7});
    let over = json!({"perConnectionBufferLimitBytes": 0, "altStatName": "x"});
    assert_eq!(merged(PatchOperation::Merge, &cluster, &over)["perConnectionBufferLimitBytes"], 7);
}

#[test]
fn merging_an_equal_value_is_no_change() {
    let cluster = encoded(ApplyTo::Cluster, &json!({"name": "c", "altStatName": "x"}));
    let same = patch(ApplyTo::Cluster, PatchOperation::Merge, &json!({"altStatName": "x"}));
    assert_eq!(patch_cluster("c", &cluster, &[same], ProxyType::Sidecar), PatchOutcome::Unchanged);
}
