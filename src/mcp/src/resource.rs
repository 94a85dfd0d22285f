//! Objects as resources of MCP.

use prost_reflect::DynamicMessage;
use serde_json::{Value, json};
use sluice_model::ObjectKey;
use sluice_parse::KindInfo;
use sluice_proto::google::protobuf::{Any, Timestamp};
use sluice_proto::istio::mcp::v1alpha1::{Metadata, Resource};
use sluice_proto::json::{FieldError, Shortened, decode_any};

use crate::kinds::{TYPE_URL_PREFIX, is_security_policy, message_name};
use crate::unknown_fields::add_unknown_fields;

/// Longest namespace and longest name, as of Kubernetes.
const MAX_NAME_BYTES: usize = 253;
/// Longest text of a server that an error quotes.
const MAX_QUOTED_BYTES: usize = 100;

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

/// The object of a resource of a kind. An unknown field of a security policy is a field `field_NUMBER`, so that the policy does
/// not allow more without it. Unknown fields of other kinds are left out.
///
/// # Errors
/// The metadata or the body is missing or invalid: the field of the resource and the reason.
pub(crate) fn object_of(info: &KindInfo, resource: Resource) -> Result<Value, FieldError> {
    let fail = |path: &str, reason: String| FieldError { path: path.to_owned(), reason };
    let metadata = resource.metadata.ok_or_else(|| fail("metadata", "is missing".to_owned()))?;
    let (namespace, name) = split_name(&metadata.name).map_err(|reason| fail("metadata.name", reason))?;
    let body = resource.body.ok_or_else(|| fail("body", "is missing".to_owned()))?;
    let expected = message_name(info);
    let actual = body.type_url.rsplit('/').next().unwrap_or_default();
    if !is_same_message(actual, &expected) {
        return Err(fail("body", format!("is of type {:?}, expected {expected}", shortened(actual))));
    }
    let descriptor = sluice_proto::pool().get_message_by_name(&expected);
    let descriptor = descriptor.ok_or_else(|| fail("body", format!("type {expected} is not known")))?;
    let spec = DynamicMessage::decode(descriptor, body.value.as_slice());
    let spec = spec.map_err(|error| fail("body", format!("is not a valid {expected}: {error}")))?;
    let created = metadata.create_time.map(|at| jiff::Timestamp::new(at.seconds, at.nanos));
    let created = created.transpose().map_err(|error| fail("metadata.createTime", error.to_string()))?;
    let mut fields = json!({"namespace": namespace, "name": name});
    if let Some(created) = created {
        fields["creationTimestamp"] = created.to_string().into();
    }
    if !metadata.version.is_empty() {
        fields["resourceVersion"] = metadata.version.into();
    }
    for (field, texts) in [("labels", metadata.labels), ("annotations", metadata.annotations)] {
        if !texts.is_empty() {
            fields[field] = json!(texts);
        }
    }
    let mut json = sluice_proto::json::encode_dynamic(&spec);
    if is_security_policy(info) {
        add_unknown_fields(&spec, &mut json);
    }
    Ok(object(info, fields, json))
}

/// The object of a resource whose body cannot be read: neither can its `spec`.
pub(crate) fn object_without_spec(info: &KindInfo, key: &ObjectKey, labels: &Value) -> Value {
    let fields = json!({"namespace": key.namespace, "name": key.name, "labels": labels});
    object(info, fields, Value::Null)
}

fn object(info: &KindInfo, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": info.api_version(), "kind": info.name, "metadata": metadata, "spec": spec})
}

/// Namespace and name of the name of a resource. All kinds that are exchanged have namespaces.
///
/// # Errors
/// The name has another form: the reason.
pub(crate) fn split_name(name: &str) -> Result<(&str, &str), String> {
    let is_part = |part: &str| !part.is_empty() && part.len() <= MAX_NAME_BYTES && !part.contains('/');
    let parts = name.split_once('/').filter(|(namespace, name)| is_part(namespace) && is_part(name));
    parts.ok_or_else(|| format!("{:?} is not of the form NAMESPACE/NAME", shortened(name)))
}

/// Whether two messages are of the same kind. All versions of a kind have the same fields.
fn is_same_message(actual: &str, expected: &str) -> bool {
    let parts = |name: &str| -> Option<(String, String)> {
        let (package, kind) = name.rsplit_once('.')?;
        Some((package.rsplit_once('.')?.0.to_owned(), kind.to_owned()))
    };
    parts(actual).is_some_and(|actual| Some(actual) == parts(expected))
}

/// The beginning of a text that another server sent.
fn shortened(text: &str) -> String {
    Shortened::of(text, MAX_QUOTED_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sluice_model::{Kind, Text};
    use sluice_parse::{identify, kind_info, parse_object};

    use super::*;

    /// The object as another control plane reads it.
    fn exchanged(object: &Value) -> Value {
        let id = identify(&"c".into(), object).expect("a kind");
        object_of(id.info, resource_of(id.info, &id.key, object).expect("a valid object")).expect("a valid resource")
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

    #[test]
    fn invalid_resource_is_refused_with_field_and_reason() {
        let info = kind_info(Kind::VirtualService).expect("a kind");
        let valid = object("networking.istio.io/v1", "VirtualService", json!({"hosts": ["a"]}));
        let valid = resource_of(info, &ObjectKey::new("c", "shop", "a"), &valid).expect("valid");
        let error = |change: &dyn Fn(&mut Resource)| {
            let mut resource = valid.clone();
            change(&mut resource);
            let FieldError { path, reason } = object_of(info, resource).expect_err("invalid");
            format!("{path}: {reason}")
        };
        let rename = |name: &'static str| {
            move |resource: &mut Resource| resource.metadata.as_mut().expect("metadata").name = name.to_owned()
        };
        assert_eq!(error(&|resource| resource.metadata = None), "metadata: is missing");
        for name in ["a", "/a", "shop/", "shop/a/b", ""] {
            let reason = format!("metadata.name: {name:?} is not of the form NAMESPACE/NAME");
            assert_eq!(error(&|resource| resource.metadata.as_mut().expect("metadata").name = name.to_owned()), reason);
        }
        assert!(error(&rename("shop/a\u{0}/b")).starts_with("metadata.name: "));
        assert_eq!(error(&|resource| resource.body = None), "body: is missing");
        let body = |change: &dyn Fn(&mut Any)| error(&|resource| change(resource.body.as_mut().expect("a body")));
        let other = body(&|body| body.type_url = "type.googleapis.com/istio.networking.v1alpha3.Gateway".to_owned());
        assert!(other.starts_with("body: is of type \"istio.networking.v1alpha3.Gateway\", expected "), "{other}");
        assert!(body(&|body| body.value = vec![0xff]).starts_with("body: is not a valid istio.networking."));
        let nanos = |resource: &mut Resource| {
            let metadata = resource.metadata.as_mut().expect("metadata");
            metadata.create_time = Some(Timestamp { seconds: i64::MAX, nanos: -1 });
        };
        assert!(error(&nanos).starts_with("metadata.createTime: "));
        // Messages of another version have the same fields.
        let mut other = valid.clone();
        other.body.as_mut().expect("a body").type_url =
            "type.googleapis.com/istio.networking.v1.VirtualService".to_owned();
        assert!(object_of(info, other).is_ok());
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
