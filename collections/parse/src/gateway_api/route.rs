//! Parents, host names and backends, which all routes have.

use sluice_model::gateway_api::{BackendRef, GROUP, INFERENCE_GROUP, ObjectRef, ParentRef};
use sluice_model::{MULTI_CLUSTER_GROUP, Text};

use super::reference::{object_ref, opt_port};
use crate::Fields;
use crate::names::is_dns_label;

/// Reads `parentRefs` of a route in the namespace `local`.
pub(super) fn parents(fields: &Fields<'_>, local: &Text) -> Vec<ParentRef> {
    fields.text("useDefaultGateways");
    fields.list("parentRefs", |parent| {
        let ObjectRef { kind, namespace, name } = object_ref(parent, GROUP, "Gateway");
        ParentRef {
            kind,
            has_namespace: namespace.is_some(),
            namespace: namespace.unwrap_or_else(|| local.clone()),
            name,
            section: parent.text("sectionName"),
            port: opt_port(parent, "port").unwrap_or_default(),
        }
    })
}

/// Reads `hostnames`.
pub(super) fn hostnames(fields: &Fields<'_>) -> Vec<Text> {
    let hostnames = fields.texts("hostnames");
    for (n, hostname) in hostnames.iter().enumerate() {
        check_hostname(fields, &format!("hostnames[{n}]"), hostname);
    }
    hostnames
}

/// Checks that a host name is a DNS name whose first label may be `*`.
pub(super) fn check_hostname(fields: &Fields<'_>, name: &str, hostname: &str) {
    let labels = hostname.strip_prefix("*.").unwrap_or(hostname);
    let valid = hostname.len() <= 253 && labels.split('.').all(is_dns_label);
    if !hostname.is_empty() && !valid {
        fields.refuse(name, format!("`{hostname}` is not a valid host name"));
    }
}

/// Reads a backend. If it is invalid by itself, the route does not apply, and its status says so.
pub(super) fn backend(fields: &Fields<'_>) -> BackendRef {
    let backend = BackendRef {
        target: object_ref(fields, "", "Service"),
        port: opt_port(fields, "port"),
        weight: fields.opt_integer("weight").unwrap_or(1),
    };
    if !(0..=1_000_000).contains(&backend.weight) {
        fields.reject("weight", "expected a weight from 0 to 1000000");
    }
    let kind = &backend.target.kind;
    let counts = backend.weight > 0;
    if counts && kind.is("", "Service") && backend.target.name.contains('.') {
        fields.refuse("name", "expected the name of a Service, without dots");
    }
    if counts && kind.is_hostname() && backend.target.namespace.is_some() {
        fields.refuse("namespace", "`namespace` is not supported for kind Hostname");
    }
    let by_port = kind.is("", "Service") || kind.is_hostname() || kind.is(MULTI_CLUSTER_GROUP, "ServiceImport");
    if counts && by_port && backend.port.is_none() {
        fields.refuse("port", "`port` is required");
    }
    if counts && kind.is(INFERENCE_GROUP, "InferencePool") && backend.target.name.contains('.') {
        fields.refuse("name", "expected the name of an InferencePool, without dots");
    }
    backend
}
