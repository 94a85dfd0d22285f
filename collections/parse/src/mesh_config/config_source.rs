//! Sources of configuration (C08, C10).

use sluice_model::{ClientTls, ClientTlsMode, ConfigSource, ConfigSourceKind};

use crate::Fields;
use crate::traffic_policy::client_tls;

/// What a URL may be.
const SUPPORTED: &str = "xds://HOST:PORT, fs:///PATH or k8s://";
/// The prefix of credentials that are ConfigMaps.
const CONFIG_MAP_PREFIX: &str = "configmap://";

pub(super) fn config_source(fields: &Fields<'_>) -> ConfigSource {
    let address = fields.text("address");
    // It has no effect in Istio either.
    fields.has("subscribedResources");
    let tls = fields.read("tlsSettings", client_tls);
    let kind = match kind_of(&address) {
        Ok(ConfigSourceKind::Unsupported) => {
            fields.warn(
                "address",
                format!("`{address}` is not supported, nothing is read from it: expected {SUPPORTED}"),
            );
            ConfigSourceKind::Unsupported
        }
        Ok(kind) => kind,
        Err(reason) => {
            fields.refuse("address", reason);
            ConfigSourceKind::Unsupported
        }
    };
    if let (ConfigSourceKind::Xds(_), Some(tls)) = (&kind, &tls) {
        check_tls(fields, tls);
    }
    ConfigSource { address, kind, tls }
}

/// What a URL refers to.
fn kind_of(address: &str) -> Result<ConfigSourceKind, String> {
    let Some((scheme, rest)) = address.split_once("://") else { return Ok(ConfigSourceKind::Unsupported) };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    match scheme.to_ascii_lowercase().as_str() {
        "xds" if is_host_and_port(host) => Ok(ConfigSourceKind::Xds(host.into())),
        "xds" => Err(format!("expected xds://HOST:PORT, found `{address}`")),
        "fs" if path.is_empty() => Err(format!("expected fs:///PATH, found `{address}`, which has no path")),
        "fs" => Ok(ConfigSourceKind::Directory(path.into())),
        "k8s" if path.is_empty() || path == "/" => Ok(ConfigSourceKind::Cluster),
        _ => Ok(ConfigSourceKind::Unsupported),
    }
}

fn is_host_and_port(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        let has_host = !host.is_empty() && (is_bracketed || !host.contains(':')) && !host.contains('@');
        has_host && port.parse::<u16>().is_ok_and(|port| port != 0)
    })
}

/// Refuses settings that Istio refuses, and those that would leave a connection without the requested protection.
fn check_tls(fields: &Fields<'_>, tls: &ClientTls) {
    let refuse = |name: &str, reason: &str| fields.refuse(&format!("tlsSettings.{name}"), reason);
    if !matches!(tls.mode, ClientTlsMode::Simple | ClientTlsMode::Mutual) {
        return;
    }
    let files = [
        ("clientCertificate", &tls.client_certificate),
        ("privateKey", &tls.private_key),
        ("caCertificates", &tls.ca_certificates),
        ("caCrl", &tls.ca_crl),
    ];
    if tls.insecure_skip_verify == Some(true) {
        if tls.mode == ClientTlsMode::Mutual {
            refuse("insecureSkipVerify", "is supported with the mode `SIMPLE` only");
        }
        let verifying = [
            ("caCertificates", !tls.ca_certificates.is_empty()),
            ("credentialName", !tls.credential.is_none()),
            ("subjectAltNames", !tls.subject_alt_names.is_empty()),
        ];
        for (name, _) in verifying.iter().filter(|(_, is_set)| *is_set) {
            refuse(name, "must not be set with `insecureSkipVerify`: the server is not verified");
        }
    }
    if let Some(name) = tls.credential.name() {
        if name.starts_with(CONFIG_MAP_PREFIX) {
            refuse("credentialName", "a ConfigMap is not supported: expected the name of a Secret");
        }
        for (name, _) in files.iter().filter(|(_, value)| !value.is_empty()) {
            refuse(name, "must not be set with `credentialName`, whose Secret has the certificates");
        }
    } else if tls.mode == ClientTlsMode::Mutual {
        for (name, _) in files[..2].iter().filter(|(_, value)| value.is_empty()) {
            refuse(name, "is required with the mode `MUTUAL`");
        }
    }
}
