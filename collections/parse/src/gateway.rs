//! Istio Gateways (N22).

use std::collections::BTreeSet;

use serde_json::Value;
use sluice_model::{
    Gateway, GatewayServer, ObjectMeta, Protocol, ServerTls, ServerTlsMode, Text, TlsCertificateFiles, TlsProtocol,
    UNIX_PREFIX, is_cipher_suite,
};

use crate::names::{is_admitted_host, is_dns_label, is_socket_path, is_wildcard_domain};
use crate::{Fields, Findings, protocol};

/// TLS modes by their names in the API.
const TLS_MODES: [(&str, ServerTlsMode); 6] = [
    ("PASSTHROUGH", ServerTlsMode::Passthrough),
    ("SIMPLE", ServerTlsMode::Simple),
    ("MUTUAL", ServerTlsMode::Mutual),
    ("AUTO_PASSTHROUGH", ServerTlsMode::AutoPassthrough),
    ("ISTIO_MUTUAL", ServerTlsMode::IstioMutual),
    ("OPTIONAL_MUTUAL", ServerTlsMode::OptionalMutual),
];

/// Parses the `spec` of an Istio Gateway; `None` if the object does not apply.
pub(crate) fn parse_gateway(meta: &ObjectMeta, spec: &Value, findings: &Findings) -> Option<Gateway> {
    let fields = Fields::new(spec, "spec", findings)?;
    if !is_dns_label(&meta.name) {
        findings.note(sluice_model::Severity::Error, "metadata.name", "the name of a Gateway must not contain dots");
    }
    let gateway = Gateway {
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        created: meta.created,
        selector: fields.labels("selector"),
        servers: fields.list("servers", |server| self::server(server, &meta.namespace)),
        owner: None,
    };
    if gateway.servers.is_empty() {
        fields.reject("servers", "at least one server is required");
    }
    let mut names = BTreeSet::new();
    for (n, server) in gateway.servers.iter().enumerate() {
        if !names.insert(&server.port_name) {
            fields.reject(
                &format!("servers[{n}].port.name"),
                format!("port name `{}` is used by another server", server.port_name),
            );
        }
    }
    drop(fields);
    (!findings.has_errors()).then_some(gateway)
}

/// The protocol of a server's port by its name; an unknown name is [`Protocol::Unsupported`].
#[must_use]
pub(crate) fn parse_protocol(word: &str) -> Protocol {
    // Protocols that only a Gateway server has.
    if word.eq_ignore_ascii_case("hbone") { Protocol::Hbone } else { protocol::named(word) }
}

fn server(fields: &Fields<'_>, namespace: &str) -> GatewayServer {
    let port = fields.object("port");
    if port.is_none() {
        fields.reject("port", "`port` is required");
    }
    let protocol_text = port.as_ref().map(|port| port.text("protocol")).unwrap_or_default();
    let protocol = parse_protocol(&protocol_text);
    let bind = fields.text("bind");
    let number: u32 = port.as_ref().map(|port| port.integer("number")).unwrap_or_default();
    let port_name = port.as_ref().map(|port| port.text("name")).unwrap_or_default();
    if let Some(port) = &port {
        if protocol == Protocol::Unsupported {
            port.reject("protocol", format!("`{protocol_text}` is not a protocol: expected one of HTTP, HTTPS, GRPC, GRPC-WEB, HTTP2, MONGO, TCP, TLS"));
        }
        let is_socket = number == 0 && bind.starts_with(UNIX_PREFIX);
        if !is_socket && !(1..=65535).contains(&number) {
            port.reject("number", format!("expected a port from 1 to 65535, found {number}"));
        }
        if port_name.is_empty() {
            port.reject("name", "the name of the port is required");
        }
        if port.has("targetPort") {
            port.refuse("targetPort", "`targetPort` has no effect in a Gateway");
        }
        if number != 0 && bind.starts_with(UNIX_PREFIX) {
            port.reject("number", "a Unix domain socket requires port number 0");
        }
    }
    let is_address = match bind.strip_prefix(UNIX_PREFIX) {
        Some(path) => is_socket_path(path),
        None => bind.is_empty() || bind.parse::<std::net::IpAddr>().is_ok(),
    };
    if !is_address {
        fields.reject("bind", format!("`{bind}` is not an IP address or the path of a Unix domain socket"));
    }
    fields.text("defaultEndpoint");
    let server = GatewayServer {
        name: fields.text("name"),
        port: number,
        port_name,
        protocol,
        protocol_text,
        bind,
        hosts: hosts(fields, namespace),
        tls: fields.read("tls", server_tls),
    };
    if protocol.is_tls() && server.tls.is_none() {
        fields.reject("tls", "protocols HTTPS and TLS require `tls`");
    }
    if let Some(tls) = &server.tls {
        let certificates = [&tls.ca_certificates, &tls.private_key, &tls.server_certificate];
        let plain_http = protocol.is_http() && (!server.is_passthrough() || certificates.iter().any(|c| !c.is_empty()));
        if !protocol.is_tls() && (!protocol.is_http() || plain_http) {
            fields.reject(
                "tls",
                "`tls` is supported only for protocols HTTPS and TLS; HTTP supports only `tls.httpsRedirect`",
            );
        }
        if tls.https_redirect && !protocol.is_http() {
            fields.warn("tls.httpsRedirect", "`httpsRedirect` has an effect only for protocol HTTP");
        }
    }
    server
}

fn hosts(fields: &Fields<'_>, namespace: &str) -> Vec<Text> {
    let written = fields.texts("hosts");
    if written.is_empty() {
        fields.reject("hosts", "at least one host is required");
    }
    let mut hosts = Vec::with_capacity(written.len());
    for (n, host) in written.iter().enumerate() {
        let (of, name) = host.split_once('/').unwrap_or(("*", host));
        let valid_namespace = of == "." || of == "*" || is_dns_label(of);
        if !valid_namespace || (!is_wildcard_domain(name) && name.parse::<std::net::IpAddr>().is_err()) {
            fields.reject(
                &format!("hosts[{n}]"),
                format!("`{host}` is not a valid host: expected `HOST` or `NAMESPACE/HOST`"),
            );
        } else if let Some(reason) = refused(name) {
            fields.refuse(&format!("hosts[{n}]"), format!("`{host}` {reason}"));
        }
        match of {
            // `*/*` selects every host of every namespace, so the other entries are redundant.
            "*" if name == "*" && host.contains('/') => return vec!["*".into()],
            "*" => hosts.push(name.into()),
            "." => hosts.push(format!("{namespace}/{name}").into()),
            _ => hosts.push(host.clone()),
        }
    }
    hosts
}

/// The reason why admission refuses a host name, if it does.
fn refused(name: &str) -> Option<&'static str> {
    if name != "*" && !name.contains('.') {
        return Some("is a short name: a Gateway requires fully qualified names");
    }
    if name.len() > 1 && name.contains('*') && !name.starts_with("*.") {
        return Some("has a wildcard that replaces part of a label: `*` must replace whole labels");
    }
    (!is_admitted_host(name) && name.parse::<std::net::IpAddr>().is_err()).then_some("is not a valid host name")
}

pub(crate) fn server_tls(fields: &Fields<'_>) -> ServerTls {
    let versions = [
        ("TLS_AUTO", TlsProtocol::Auto),
        ("TLSV1_0", TlsProtocol::V1_0),
        ("TLSV1_1", TlsProtocol::V1_1),
        ("TLSV1_2", TlsProtocol::V1_2),
        ("TLSV1_3", TlsProtocol::V1_3),
    ];
    let tls = ServerTls {
        mode: fields.choice("mode", &TLS_MODES).unwrap_or_default(),
        https_redirect: fields.bool("httpsRedirect"),
        server_certificate: fields.text("serverCertificate"),
        private_key: fields.text("privateKey"),
        ca_certificates: fields.text("caCertificates"),
        ca_crl: fields.text("caCrl"),
        credential_name: fields.text("credentialName"),
        credential_names: fields.texts("credentialNames"),
        ca_cert_credential_name: fields.text("caCertCredentialName"),
        tls_certificates: fields.list("tlsCertificates", |files| TlsCertificateFiles {
            server_certificate: files.text("serverCertificate"),
            private_key: files.text("privateKey"),
            ca_certificates: files.text("caCertificates"),
        }),
        subject_alt_names: fields.texts("subjectAltNames"),
        verify_certificate_spki: fields.texts("verifyCertificateSpki"),
        verify_certificate_hash: fields.texts("verifyCertificateHash"),
        min_protocol_version: fields.choice("minProtocolVersion", &versions).unwrap_or_default(),
        max_protocol_version: fields.choice("maxProtocolVersion", &versions).unwrap_or_default(),
        cipher_suites: fields.texts("cipherSuites"),
        ecdh_curves: fields.texts("ecdhCurves"),
        insecure_skip_verify: fields.opt_bool("insecureSkipVerify"),
    };
    check_cipher_suites(fields, &tls);
    check_certificates(fields, &tls);
    tls
}

/// Reports cipher suites that are left out, and TLS versions that no default cipher suite supports.
fn check_cipher_suites(fields: &Fields<'_>, tls: &ServerTls) {
    let mut known = BTreeSet::new();
    for (n, suite) in tls.cipher_suites.iter().enumerate() {
        if !is_cipher_suite(suite) {
            fields.warn(
                &format!("cipherSuites[{n}]"),
                format!("`{suite}` is not a supported cipher suite; it is ignored"),
            );
        } else if !known.insert(suite) {
            fields.warn(&format!("cipherSuites[{n}]"), format!("`{suite}` is listed twice"));
        }
    }
    if matches!(tls.min_protocol_version, TlsProtocol::V1_0 | TlsProtocol::V1_1) && tls.cipher_suites.is_empty() {
        fields.warn(
            "minProtocolVersion",
            "versions below TLSV1_2 require `cipherSuites`: no default cipher suite supports them",
        );
    }
}

/// Reports certificates that are missing or configured twice.
fn check_certificates(fields: &Fields<'_>, tls: &ServerTls) {
    let by_file = is_by_file(tls);
    let by_name = !tls.credential_name.is_empty() || !tls.credential_names.is_empty();
    let any = by_name
        || !tls.tls_certificates.is_empty()
        || [&tls.server_certificate, &tls.private_key, &tls.ca_certificates].iter().any(|file| !file.is_empty());
    match tls.mode {
        ServerTlsMode::IstioMutual if any => {
            fields.reject("mode", "mode ISTIO_MUTUAL uses the workload certificate: no other certificate can be set");
        }
        ServerTlsMode::IstioMutual => {}
        ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough => {
            if any || !tls.ca_crl.is_empty() {
                fields.warn("mode", "certificates have no effect in this mode: TLS is passed through");
            }
            if !tls.ca_crl.is_empty() && !tls.credential_name.is_empty() {
                fields.refuse(
                    "caCrl",
                    "`caCrl` and `credentialName` are mutually exclusive: put `ca.crl` into the Secret",
                );
            }
            check_sources(fields, tls);
        }
        ServerTlsMode::Simple | ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual => {
            check_sources(fields, tls);
            if tls.tls_certificates.len() > 2 {
                fields.refuse("tlsCertificates", "at most two certificates are supported");
            }
            if tls.credential_names.len() > 2 {
                fields.refuse("credentialNames", "at most two certificates are supported");
            }
            if by_name {
                return;
            }
            if tls.mode != ServerTlsMode::Simple && tls.ca_certificates.is_empty() {
                fields.reject("caCertificates", "root certificates that verify the client are required");
            }
            let complete = tls
                .tls_certificates
                .iter()
                .all(|files| !files.server_certificate.is_empty() && !files.private_key.is_empty());
            if !(by_file || (!tls.tls_certificates.is_empty() && complete)) {
                fields.reject(
                    "serverCertificate",
                    "`serverCertificate` and `privateKey`, or `credentialName`, are required",
                );
            }
            if tls.mode == ServerTlsMode::Simple && !tls.ca_crl.is_empty() {
                fields.refuse("caCrl", "`caCrl` has no effect in mode SIMPLE: no client certificate is verified");
            }
        }
    }
}

fn is_by_file(tls: &ServerTls) -> bool {
    !tls.server_certificate.is_empty() && !tls.private_key.is_empty()
}

/// Reports certificates that are configured in more than one way.
fn check_sources(fields: &Fields<'_>, tls: &ServerTls) {
    let sources = [
        is_by_file(tls),
        !tls.credential_name.is_empty(),
        !tls.credential_names.is_empty(),
        !tls.tls_certificates.is_empty(),
    ];
    if sources.iter().filter(|source| **source).count() > 1 {
        fields.reject(
            "",
            "credentialName, credentialNames, tlsCertificates and certificate files are mutually exclusive",
        );
    }
}

#[cfg(test)]
mod tests;
