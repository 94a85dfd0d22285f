//! Gateways of the Gateway API (G02).

use std::collections::BTreeMap;

use serde_json::Value;
use sluice_model::Object;
use sluice_model::gateway_api::{
    AddressKind, FrontendTls, FrontendValidation, Gateway, GatewayAddress, Infrastructure, NamespaceSelection,
};

use super::listener::{listeners, namespaces};
use super::reference::{object_ref, opt_port};
use crate::{Fields, Findings, Item};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let tls = fields.object("tls");
    let gateway = Gateway {
        meta: item.meta(findings),
        class: fields.text("gatewayClassName"),
        addresses: fields.list("addresses", address),
        listeners: listeners(&fields),
        allowed_listeners: fields
            .read("allowedListeners", |allowed| allowed.read("namespaces", namespaces).unwrap_or_default())
            .unwrap_or(NamespaceSelection::Unset),
        backend_certificate: tls.as_ref().and_then(|tls| {
            tls.read("backend", |backend| {
                backend.read("clientCertificateRef", |reference| object_ref(reference, "", "Secret"))
            })
            .flatten()
        }),
        frontend_tls: tls.as_ref().and_then(|tls| tls.read("frontend", frontend_tls)),
        infrastructure: fields.read("infrastructure", infrastructure).unwrap_or_default(),
        uid: item.object["metadata"]["uid"].as_str().unwrap_or_default().into(),
        assigned_addresses: assigned_addresses(item.object),
        status: item.status(),
    };
    if gateway.class.is_empty() {
        fields.reject("gatewayClassName", "`gatewayClassName` is required");
    }
    fields.text("defaultScope");
    drop((tls, fields));
    (!findings.has_errors()).then(|| Object::KubernetesGateway(Box::new(gateway)))
}

fn infrastructure(fields: &Fields<'_>) -> Infrastructure {
    let labels = |name: &'static str| fields.has(name).then(|| fields.labels(name));
    Infrastructure {
        labels: labels("labels"),
        annotations: labels("annotations"),
        parameters: fields.read("parametersRef", |reference| object_ref(reference, "", "")),
    }
}

fn address(fields: &Fields<'_>) -> GatewayAddress {
    let kind = match fields.opt_text("type") {
        None => AddressKind::Unset,
        Some(kind) if kind == *"IPAddress" => AddressKind::Ip,
        Some(kind) if kind == *"Hostname" => AddressKind::Hostname,
        Some(kind) => AddressKind::Other(kind),
    };
    let address = GatewayAddress { kind, value: fields.text("value") };
    let is_ip = matches!(address.kind, AddressKind::Unset | AddressKind::Ip);
    if is_ip && !address.value.is_empty() && address.value.parse::<std::net::IpAddr>().is_err() {
        fields.refuse("value", format!("`{}` is not an IP address", address.value));
    }
    address
}

fn frontend_tls(fields: &Fields<'_>) -> FrontendTls {
    let per_port = fields.objects("perPort");
    let mut ports = BTreeMap::new();
    for port in &per_port {
        let validation = port.read("tls", frontend_validation).unwrap_or_default();
        match opt_port(port, "port") {
            // The first configuration of a port is used.
            Some(number) if ports.contains_key(&number) => port.refuse("port", "the port is listed twice"),
            Some(number) => drop(ports.insert(number, validation)),
            None => port.reject("port", "`port` is required"),
        }
    }
    FrontendTls { default: fields.read("default", frontend_validation).unwrap_or_default(), per_port: ports }
}

fn frontend_validation(fields: &Fields<'_>) -> FrontendValidation {
    let modes = [("AllowValidOnly", false), ("AllowInsecureFallback", true)];
    fields
        .read("validation", |validation| FrontendValidation {
            roots: validation.list("caCertificateRefs", |reference| object_ref(reference, "", "")),
            allows_insecure: validation.choice("mode", &modes).unwrap_or_default(),
        })
        .unwrap_or_default()
}

/// Addresses in the status. A controller writes them, so invalid ones are not reported to the user.
fn assigned_addresses(object: &Value) -> Vec<GatewayAddress> {
    let Some(written) = object.pointer("/status/addresses") else { return Vec::new() };
    let status = serde_json::json!({ "addresses": written });
    let findings = Findings::default();
    Fields::new(&status, "status", &findings).map(|status| status.list("addresses", address)).unwrap_or_default()
}
