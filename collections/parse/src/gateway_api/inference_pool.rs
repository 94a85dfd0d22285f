//! InferencePools (G09).

use std::collections::BTreeSet;

use sluice_model::Object;
use sluice_model::gateway_api::{EndpointPickerRef, InferencePool};

use super::reference::opt_port;
use crate::{Fields, Findings, Item};

/// Most ports that a pool may have.
const MAX_TARGET_PORTS: usize = 8;

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    for required in ["selector", "endpointPickerRef"] {
        if !fields.has(required) {
            fields.reject(required, format!("`{required}` is required"));
        }
    }
    let protocols = [("http", "http"), ("kubernetes.io/h2c", "kubernetes.io/h2c")];
    let ports = fields.list("targetPorts", |port| {
        let number = opt_port(port, "number");
        if number.is_none() && !port.has("number") {
            port.reject("number", "`number` is required");
        }
        number
    });
    let pool = InferencePool {
        meta: item.meta(findings),
        selector: fields.read("selector", |selector| selector.labels("matchLabels")).unwrap_or_default(),
        target_ports: ports.into_iter().flatten().collect(),
        app_protocol: fields.choice("appProtocol", &protocols).unwrap_or("http").into(),
        picker: fields.read("endpointPickerRef", picker).unwrap_or_default(),
        uid: item.object["metadata"]["uid"].as_str().unwrap_or_default().into(),
        status: item.status(),
    };
    if fields.has("selector") && pool.selector.is_empty() {
        // A Service without a selector would have no endpoints, or those that others write.
        fields.reject("selector.matchLabels", "at least one label is required");
    }
    if pool.target_ports.is_empty() {
        fields.reject("targetPorts", "at least one port is required");
    }
    if pool.target_ports.len() > MAX_TARGET_PORTS {
        fields.reject("targetPorts", format!("expected at most {MAX_TARGET_PORTS} ports"));
    }
    if pool.target_ports.iter().collect::<BTreeSet<_>>().len() < pool.target_ports.len() {
        fields.refuse("targetPorts", "the ports must be unique");
    }
    drop(fields);
    (!findings.has_errors()).then(|| Object::InferencePool(Box::new(pool)))
}

fn picker(fields: &Fields<'_>) -> EndpointPickerRef {
    fields.text("group");
    let port = fields.read("port", |port| opt_port(port, "number")).flatten();
    let picker = EndpointPickerRef {
        kind: fields.opt_text("kind").unwrap_or_else(|| "Service".into()),
        name: fields.text("name"),
        port,
        fails_open: fields.choice("failureMode", &[("FailOpen", true), ("FailClose", false)]).unwrap_or_default(),
    };
    if picker.name.is_empty() {
        fields.reject("name", "the name of the Service is required");
    }
    if picker.kind != *"Service" {
        fields.warn("kind", format!("expected `Service`, found `{}`; no endpoints are picked", picker.kind));
    } else if picker.port.is_none() {
        fields.refuse("port", "`port` is required");
    }
    picker
}
