//! Experimental XBackends (G06).

use sluice_model::Object;
use sluice_model::gateway_api::{Backend, BackendTls, BackendTlsMode};

use super::backend_tls_policy::validation;
use super::reference::{object_ref, opt_port};
use crate::{Fields, Findings, Item};

const TLS_MODES: [(&str, BackendTlsMode); 3] = [
    ("None", BackendTlsMode::None),
    ("ServerOnly", BackendTlsMode::ServerOnly),
    ("ClientAndServer", BackendTlsMode::ClientAndServer),
];

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    fields.text("protocol");
    let kind = fields.text("type");
    let hostname = fields.read("externalHostname", |host| host.text("hostname"));
    if kind != *"ExternalHostname" {
        fields.warn("type", format!("type `{kind}` is not supported; expected `ExternalHostname`"));
    }
    let port = fields.read("port", |port| {
        port.text("name");
        opt_port(port, "port")
    });
    let port = port.flatten();
    if port.is_none() {
        fields.reject("port", "`port` is required");
    }
    let backend = Backend {
        meta: item.meta(findings),
        hostname: hostname.filter(|_| kind == *"ExternalHostname"),
        kind,
        status: item.status(),
        port: port.unwrap_or_default(),
        tls: fields.read("tls", |tls| {
            tls.read("clientCertificateRef", |reference| object_ref(reference, "", "Secret"));
            BackendTls {
                mode: tls.choice("mode", &TLS_MODES).unwrap_or_default(),
                validation: tls.read("validation", validation).unwrap_or_default(),
            }
        }),
    };
    if backend.tls.as_ref().is_some_and(|tls| tls.mode == BackendTlsMode::ClientAndServer) {
        fields.warn("tls.mode", "client certificates are not supported; the backend is reached without TLS");
    }
    drop(fields);
    (!findings.has_errors()).then(|| Object::XBackend(Box::new(backend)))
}
