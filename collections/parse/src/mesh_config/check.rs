//! What makes a mesh config invalid. It is one only as a whole: the last good one stays in force.

mod providers;

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_model::{MeshConfig, Text};

use crate::admission::is_port;
use crate::traffic_policy::{check_locality_lb, check_zone_aware_lb};
use crate::{Fields, is_admitted_host, is_any_case_label};

const CURVES: [&str; 7] = ["P-224", "P-256", "P-384", "P-521", "X25519", "X25519Kyber768Draft00", "X25519MLKEM768"];

/// Notes what is wrong with the fields that are there; the rest is the default or was checked before.
pub(super) fn check(fields: &Fields<'_>, mesh: &MeshConfig) {
    if !is_port(mesh.proxy_listen_port) {
        fields.refuse("proxyListenPort", "a port number is 1 to 65535");
    }
    if fields.has("connectTimeout") {
        fields.check_timeout("connectTimeout", mesh.connect_timeout);
        if mesh.connect_timeout > Duration::from_secs(3600) {
            fields.refuse("connectTimeout", "an hour is the most");
        }
    }
    if !mesh.protocol_detection_timeout.subsec_nanos().is_multiple_of(1_000_000) {
        fields.refuse("protocolDetectionTimeout", "a duration is whole milliseconds");
    }
    if let Some(setting) = fields.object("localityLbSetting") {
        let lb = &mesh.locality_lb;
        if !lb.distribute.is_empty() && !lb.failover.is_empty() {
            setting.refuse("failover", "shares and failover exclude each other");
        }
        for (n, distribute) in lb.distribute.iter().enumerate() {
            if distribute.to.values().map(|share| u64::from(*share)).sum::<u64>() != 100 {
                let reason = format!("shares of `{}` do not add up to 100", distribute.from);
                setting.refuse(&format!("distribute[{n}].to"), reason);
            }
        }
        for (n, (from, _)) in lb.failover.iter().enumerate().filter(|(_, (from, to))| from == to) {
            setting.refuse(&format!("failover[{n}]"), format!("region `{from}` cannot fail over to itself"));
        }
        check_locality_lb(&setting, lb);
        setting.ignore_rest();
    }
    if let (Some(setting), Some(lb)) = (fields.object("zoneAwareLbSetting"), &mesh.zone_aware_lb) {
        check_zone_aware_lb(&setting, lb);
        setting.ignore_rest();
    }
    check_names(fields, mesh);
    check_curves(fields, mesh);
    providers::check(fields);
    if let Some(retry) = &mesh.default_inbound_http_retry_policy {
        let path = |name: &str| format!("defaultInboundHttpRetryPolicy.{name}");
        if retry.attempts == 0 && retry.backoff.is_some() {
            fields.refuse(&path("backoff"), "retries are configured but switched off by zero attempts");
        }
        for (name, set) in [
            ("perTryTimeout", retry.per_try_timeout.is_some()),
            ("retryRemoteLocalities", retry.retry_remote_localities.is_some()),
            ("retryIgnorePreviousHosts", retry.retry_ignore_previous_hosts.is_some()),
        ] {
            if set {
                fields.warn(&path(name), "means nothing where there is one host to try: the workload itself");
            }
        }
    }
}

fn check_names(fields: &Fields<'_>, mesh: &MeshConfig) {
    let is_trust_domain = |name: &str| {
        let labels = name.strip_suffix('.').unwrap_or(name);
        !name.is_empty() && labels.split('.').all(is_any_case_label)
    };
    if !is_trust_domain(&mesh.trust_domain) {
        fields.refuse("trustDomain", format!("`{}` is no trust domain", mesh.trust_domain));
    }
    for (n, alias) in fields.texts("trustDomainAliases").iter().enumerate() {
        if !is_trust_domain(alias) {
            fields.refuse(&format!("trustDomainAliases[{n}]"), format!("`{alias}` is no trust domain"));
        }
    }
    for (n, setting) in mesh.service_settings.iter().enumerate() {
        for (m, host) in setting.hosts.iter().enumerate().filter(|(_, host)| !is_admitted_host(host)) {
            fields.refuse(&format!("serviceSettings[{n}].hosts[{m}]"), format!("`{host}` is no host"));
        }
    }
}

fn check_curves(fields: &Fields<'_>, mesh: &MeshConfig) {
    if mesh.mesh_mtls.as_ref().is_some_and(|tls| !tls.ecdh_curves.is_empty()) {
        fields.refuse("meshMTLS.ecdhCurves", "curves of TLS within the mesh cannot be chosen");
    }
    let curves: &[Text] = mesh.tls_defaults.as_ref().map(|tls| tls.ecdh_curves.as_slice()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (n, curve) in curves.iter().enumerate().filter(|(_, curve)| !curve.is_empty()) {
        let path = format!("tlsDefaults.ecdhCurves[{n}]");
        if !CURVES.contains(&curve.as_str()) {
            fields.warn(&path, format!("`{curve}` is no known curve"));
        } else if !seen.insert(curve) {
            fields.warn(&path, format!("`{curve}` stands twice"));
        }
    }
}
