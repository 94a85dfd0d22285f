//! Objects as resources of MCP.

use serde_json::Value;
use sluice_model::ObjectKey;
use sluice_parse::KindInfo;
use sluice_proto::google::protobuf::{Any, Timestamp};
use sluice_proto::istio::mcp::v1alpha1::{Metadata, Resource};
use sluice_proto::json::{FieldError, decode_any};

use crate::kinds::{TYPE_URL_PREFIX, message_name};

/// The name of the resource of an object.
pub(crate) fn resource_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// The resource of an object.
///
/// # Errors
/// The `spec` does not decode as the message of its kind: the field in it and the reason. Its unknown fields are left out.
pub(crate) fn resource_of(info: &KindInfo, key: &ObjectKey, object: &Value) -> Result<Resource, FieldError> {
    let metadata = &object["metadata"];
    let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
    spec.insert("@type".to_owned(), format!("{TYPE_URL_PREFIX}{}", message_name(info)).into());
    let (type_url, value) = decode_any(&Value::Object(spec))?.message;
    let created = metadata["creationTimestamp"].as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let texts = |field: &str| {
        let pairs = metadata[field].as_object().into_iter().flatten();
        pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
    };
    let metadata = Metadata {
        name: resource_name(&key.namespace, &key.name),
        create_time: created.map(|at| Timestamp { seconds: at.as_second(), nanos: at.subsec_nanosecond() }),
        version: metadata["resourceVersion"].as_str().unwrap_or_default().to_owned(),
        labels: texts("labels"),
        annotations: texts("annotations"),
    };
    Ok(Resource { metadata: Some(metadata), body: Some(Any { type_url, value }) })
}

/// The object of a resource, as another control plane reads it.
#[cfg(test)]
pub(crate) fn object_of(info: &KindInfo, resource: Resource) -> Value {
    use prost_reflect::DynamicMessage;

    let (metadata, body) = (resource.metadata.expect("metadata"), resource.body.expect("a body"));
    let descriptor = sluice_proto::pool().get_message_by_name(&message_name(info)).expect("a message");
    let spec = DynamicMessage::decode(descriptor, body.value.as_slice()).expect("a valid body");
    let (namespace, name) = metadata.name.split_once('/').expect("a name");
    let created = metadata.create_time.and_then(|at| jiff::Timestamp::new(at.seconds, at.nanos).ok());
    serde_json::json!({
        "apiVersion": info.api_version(), "kind": info.name,
        "metadata": {
            "namespace": namespace, "name": name, "resourceVersion": metadata.version,
            "creationTimestamp": created.map(|created| created.to_string()),
            "labels": metadata.labels, "annotations": metadata.annotations,
        },
        "spec": sluice_proto::json::encode_dynamic(&spec),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use sluice_model::{Kind, Text};
    use sluice_parse::{identify, kind_info, parse_object};

    use super::*;

    /// The object as another control plane reads it.
    fn exchanged(object: &Value) -> Value {
        let id = identify(&"c".into(), object).expect("a kind");
        object_of(id.info, resource_of(id.info, &id.key, object).expect("a valid object"))
    }

    fn object(api_version: &str, kind: &str, spec: Value) -> Value {
        json!({
            "apiVersion": api_version, "kind": kind,
            "metadata": {
                "namespace": "shop", "name": "a", "creationTimestamp": "2026-02-03T04:05:06Z", "resourceVersion": "17",
                "labels": {"istio.io/rev": "canary"}, "annotations": {"networking.istio.io/exportTo": "*"},
            },
            "spec": spec,
        })
    }

    /// Objects with what differs in protobuf: durations, maps, wrappers, empty messages, oneofs, structs, and enumerations.
    fn objects() -> Vec<Value> {
        let networking = |kind, spec| object("networking.istio.io/v1", kind, spec);
        vec![
            networking(
                "VirtualService",
                json!({
                    "hosts": ["web"], "exportTo": ["."],
                    "http": [{
                        "match": [{"uri": {"prefix": "/v2"}, "headers": {"end-user": {"exact": "a"}}, "queryParams": {"q": {"regex": ".*"}}}],
                        "timeout": "1500ms", "retries": {"attempts": 2, "perTryTimeout": "1h30m", "retryOn": "5xx"},
                        "fault": {"delay": {"fixedDelay": "0.25s", "percentage": {"value": 12.5}}},
                        "headers": {"request": {"set": {"a": "1"}, "remove": ["b"]}},
                        "route": [{"destination": {"host": "web", "subset": "v2", "port": {"number": 80}}, "weight": 30},
                            {"destination": {"host": "web"}, "weight": 70}],
                        "corsPolicy": {"allowCredentials": true, "allowOrigins": [{"exact": "https://a"}], "maxAge": "24h"},
                    }],
                    "tcp": [{"match": [{"port": 27017}], "route": [{"destination": {"host": "mongo"}}]}],
                }),
            ),
            networking(
                "DestinationRule",
                json!({
                    "host": "web", "subsets": [{"name": "v2", "labels": {"version": "v2"}}],
                    "trafficPolicy": {
                        "loadBalancer": {"simple": "LEAST_REQUEST", "warmup": {"duration": "10s"}},
                        "connectionPool": {"tcp": {"maxConnections": 10, "connectTimeout": "30ms"}, "http": {"h2UpgradePolicy": "UPGRADE"}},
                        "outlierDetection": {"consecutive5xxErrors": 0, "interval": "5m"},
                        "tls": {"mode": "SIMPLE", "insecureSkipVerify": false},
                    },
                }),
            ),
            networking(
                "ServiceEntry",
                json!({
                    "hosts": ["api.example.com"], "location": "MESH_EXTERNAL", "resolution": "STATIC",
                    "ports": [{"number": 443, "name": "tls", "protocol": "TLS"}],
                    "endpoints": [{"address": "192.0.2.1", "ports": {"tls": 8443}, "labels": {"a": "b"}, "weight": 3}],
                }),
            ),
            networking(
                "Gateway",
                json!({
                    "selector": {"app": "gateway"},
                    "servers": [{"port": {"number": 443, "name": "https", "protocol": "HTTPS"}, "hosts": ["*"],
                        "tls": {"mode": "MUTUAL", "credentialName": "cert", "minProtocolVersion": "TLSV1_2"}}],
                }),
            ),
            networking(
                "Sidecar",
                json!({
                    "workloadSelector": {"labels": {"app": "web"}}, "egress": [{"hosts": ["./*", "istio-system/*"]}],
                    "outboundTrafficPolicy": {"mode": "REGISTRY_ONLY"},
                }),
            ),
            networking(
                "WorkloadEntry",
                json!({"address": "192.0.2.2", "labels": {"app": "web"}, "serviceAccount": "web"}),
            ),
            networking(
                "WorkloadGroup",
                json!({
                    "metadata": {"labels": {"app": "vm"}}, "template": {"serviceAccount": "vm"},
                    "probe": {"periodSeconds": 5, "httpGet": {"port": 8080, "path": "/ready"}},
                }),
            ),
            object(
                "networking.istio.io/v1alpha3",
                "EnvoyFilter",
                json!({
                    "configPatches": [{"applyTo": "CLUSTER", "match": {"context": "SIDECAR_OUTBOUND", "cluster": {"service": "web"}},
                        "patch": {"operation": "MERGE", "value": {"lb_policy": "RANDOM", "n": [1, 2.5, null, {"deep": true}]}}}],
                }),
            ),
            object(
                "networking.istio.io/v1beta1",
                "ProxyConfig",
                json!({
                    "concurrency": 0, "environmentVariables": {"A": "1"}, "image": {"imageType": "distroless"},
                }),
            ),
            object(
                "security.istio.io/v1",
                "AuthorizationPolicy",
                json!({
                    "action": "DENY", "rules": [{}, {"from": [{"source": {"namespaces": ["other"]}}],
                        "to": [{"operation": {"methods": ["GET"]}}], "when": [{"key": "request.headers[a]", "values": ["b"]}]}],
                }),
            ),
            object(
                "security.istio.io/v1",
                "PeerAuthentication",
                json!({
                    "selector": {"matchLabels": {"app": "web"}}, "mtls": {"mode": "STRICT"}, "portLevelMtls": {"8080": {"mode": "DISABLE"}},
                }),
            ),
            object(
                "security.istio.io/v1",
                "RequestAuthentication",
                json!({
                    "jwtRules": [{"issuer": "i", "jwksUri": "https://i/keys", "fromHeaders": [{"name": "a", "prefix": "Bearer "}], "timeout": "5s"}],
                }),
            ),
            object(
                "telemetry.istio.io/v1",
                "Telemetry",
                json!({
                    "accessLogging": [{"providers": [{"name": "envoy"}], "filter": {"expression": "response.code >= 400"}}],
                    "tracing": [{"randomSamplingPercentage": 0, "customTags": {"a": {"literal": {"value": "b"}}}}],
                }),
            ),
            object(
                "extensions.istio.io/v1alpha1",
                "WasmPlugin",
                json!({
                    "url": "oci://registry/plugin:1", "phase": "AUTHN", "pluginConfig": {"a": [1]}, "priority": 3,
                }),
            ),
        ]
    }

    #[test]
    fn exchanged_object_has_the_same_model_value() {
        for object in objects() {
            let parse = |object: &Value| parse_object(&"c".into(), "cluster.local", object).expect("a known kind");
            let (own, exchanged) = (parse(&object), parse(&exchanged(&object)));
            assert!(own.object.is_some(), "{object}: {:?}", own.rejects);
            assert_eq!(own, exchanged, "{object}");
        }
    }

    #[test]
    fn metadata_is_exchanged() {
        let object = object("networking.istio.io/v1", "VirtualService", json!({"hosts": ["a"]}));
        assert_eq!(exchanged(&object)["metadata"], object["metadata"]);
    }

    #[test]
    fn invalid_spec_is_refused_with_field_and_reason() {
        let invalid = object("networking.istio.io/v1", "VirtualService", json!({"hosts": "a"}));
        let info = kind_info(Kind::VirtualService).expect("a kind");
        let error = resource_of(info, &ObjectKey::new("c", "shop", "a"), &invalid).expect_err("invalid");
        assert_eq!(error.path, "hosts");
    }

    proptest! {
        #[test]
        fn random_labels_names_and_durations_are_exchanged(
            name in "[a-z][a-z0-9-]{0,20}",
            labels in prop::collection::btree_map("[a-z]{1,8}", "[A-Za-z0-9]{0,8}", 0..4),
            millis in 1_u32..10_000_000,
            weight in 0_i32..100,
        ) {
            let mut object = object("networking.istio.io/v1", "VirtualService", json!({
                "hosts": [name], "http": [{"timeout": format!("{millis}ms"), "route": [
                    {"destination": {"host": name}, "weight": weight}, {"destination": {"host": "b"}, "weight": 100 - weight},
                ]}],
            }));
            object["metadata"]["name"] = name.into();
            object["metadata"]["labels"] = json!(labels);
            let parse = |object: &Value| parse_object(&Text::from("c"), "cluster.local", object).expect("a known kind");
            prop_assert_eq!(parse(&object), parse(&exchanged(&object)));
        }
    }
}
