//! Validation of `MeshConfig`. An invalid one does not apply in any part: the last valid one stays in effect.

mod providers;

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_model::{MeshConfig, Text};

use crate::admission::is_port;
use crate::fields::one_of;
use crate::traffic_policy::{check_locality_lb, check_zone_aware_lb};
use crate::{Fields, is_admitted_host, is_any_case_label};

const CURVES: [&str; 7] = ["P-224", "P-256", "P-384", "P-521", "X25519", "X25519Kyber768Draft00", "X25519MLKEM768"];

/// Checks the fields that are present; the others have defaults or were checked in an earlier layer.
pub(super) fn check(fields: &Fields<'_>, mesh: &MeshConfig) {
    if !is_port(mesh.proxy_listen_port) {
        fields.refuse("proxyListenPort", "expected a port from 1 to 65535");
    }
    if fields.has("connectTimeout") {
        fields.check_timeout("connectTimeout", mesh.connect_timeout);
        if mesh.connect_timeout > Duration::from_secs(3600) {
            fields.refuse("connectTimeout", format!("a duration must be at most 1h, found {:?}", mesh.connect_timeout));
        }
    }
    if !mesh.protocol_detection_timeout.subsec_nanos().is_multiple_of(1_000_000) {
        fields.refuse("protocolDetectionTimeout", "a duration must be a whole number of milliseconds");
    }
    if let Some(setting) = fields.object("localityLbSetting") {
        let lb = &mesh.locality_lb;
        if !lb.distribute.is_empty() && !lb.failover.is_empty() {
            setting.refuse("failover", "`distribute` and `failover` are mutually exclusive");
        }
        for (n, distribute) in lb.distribute.iter().enumerate() {
            if distribute.to.values().map(|share| u64::from(*share)).sum::<u64>() != 100 {
                let reason = format!("the weights of `{}` must add up to 100", distribute.from);
                setting.refuse(&format!("distribute[{n}].to"), reason);
            }
        }
        for (n, (from, _)) in lb.failover.iter().enumerate().filter(|(_, (from, to))| from == to) {
            setting.refuse(&format!("failover[{n}]"), format!("region `{from}` must not fail over to itself"));
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
            fields.refuse(&path("backoff"), "retries are configured, but `attempts: 0` disables them");
        }
        for (name, set) in [
            ("perTryTimeout", retry.per_try_timeout.is_some()),
            ("retryRemoteLocalities", retry.retry_remote_localities.is_some()),
            ("retryIgnorePreviousHosts", retry.retry_ignore_previous_hosts.is_some()),
        ] {
            if set {
                fields.warn(&path(name), "no effect for inbound traffic: the workload is the only host");
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
        fields.refuse("trustDomain", format!("`{}` is not a trust domain: expected a DNS name", mesh.trust_domain));
    }
    for (n, alias) in fields.texts("trustDomainAliases").iter().enumerate() {
        if !is_trust_domain(alias) {
            fields.refuse(
                &format!("trustDomainAliases[{n}]"),
                format!("`{alias}` is not a trust domain: expected a DNS name"),
            );
        }
    }
    for (n, setting) in mesh.service_settings.iter().enumerate() {
        for (m, host) in setting.hosts.iter().enumerate().filter(|(_, host)| !is_admitted_host(host)) {
            fields.refuse(&format!("serviceSettings[{n}].hosts[{m}]"), format!("`{host}` is not a valid host"));
        }
    }
}

fn check_curves(fields: &Fields<'_>, mesh: &MeshConfig) {
    if mesh.mesh_mtls.as_ref().is_some_and(|tls| !tls.ecdh_curves.is_empty()) {
        fields
            .refuse("meshMTLS.ecdhCurves", "`ecdhCurves` is not supported for mesh mTLS: use `tlsDefaults.ecdhCurves`");
    }
    let curves: &[Text] = mesh.tls_defaults.as_ref().map(|tls| tls.ecdh_curves.as_slice()).unwrap_or_default();
    let mut seen = BTreeSet::new();
    for (n, curve) in curves.iter().enumerate().filter(|(_, curve)| !curve.is_empty()) {
        let path = format!("tlsDefaults.ecdhCurves[{n}]");
        if !CURVES.contains(&curve.as_str()) {
            fields.warn(&path, format!("`{curve}` is not a known curve; expected {}", one_of(CURVES.into_iter())));
        } else if !seen.insert(curve) {
            fields.warn(&path, format!("`{curve}` is listed twice"));
        }
    }
}
