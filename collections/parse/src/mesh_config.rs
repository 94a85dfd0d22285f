//! `MeshConfig` (C13, C15).

mod check;
mod config_source;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sluice_model::{
    AccessLogEncoding, CaCertificate, DefaultProviders, GlobalServices, HttpRetry, InboundPolicy, LabelSelector,
    MeshConfig, OutboundPolicy, PathNormalization, ServiceEntryVisibility, ServiceSettings, Text, TlsSettings,
    TlsVersion, Visibility,
};

use crate::extension_provider::{extension_provider, is_log_format};
use crate::fields::set;
use crate::label_selector::label_selector;
use crate::proxy_config::merge_proxy_fields;
use crate::traffic_policy::{
    client_tls, connection_pool, locality_lb, outlier_detection, tcp_keepalive, zone_aware_lb,
};
use crate::virtual_service::parse_http_retry;
use crate::{Fields, Findings};

/// A field of filters that Envoy no longer has. It is accepted silently.
const UNUSED: &str = "thriftConfig";
/// Fields that istiod does not read either, and what has the effect instead.
const WITHOUT_EFFECT: [(&str, &str); 3] = [
    ("ca", "no effect, as in Istio: the variables `EXTERNAL_CA` and `CERT_SIGNER_DOMAIN` select another signer"),
    ("certificates", "no effect, as in Istio: another tool, such as cert-manager, issues certificates of DNS names"),
    (
        "verifyCertificateAtClient",
        "no effect, as in Istio: proxies verify servers, unless `insecureSkipVerify` of a DestinationRule is true",
    ),
];

/// Merges the `MeshConfig` in `value` into `base`. A field that is present replaces that of `base`; `defaultConfig` and
/// `defaultProviders` are merged field by field, providers replace those of the same name, and aliases are joined.
///
/// Findings have paths below `path`. For an invalid field, the value of `base` stays.
#[must_use]
pub fn merge_mesh_config(base: MeshConfig, value: &Value, path: &str, findings: &Findings) -> MeshConfig {
    let mut mesh = base;
    if let Some(fields) = Fields::new(value, path, findings) {
        fields.has(UNUSED);
        for (name, reason) in WITHOUT_EFFECT {
            if fields.value(name).is_some_and(asks_for_an_effect) {
                fields.warn(name, reason);
            }
        }
        listeners(&mut mesh, &fields);
        observability(&mut mesh, &fields);
        policies(&mut mesh, &fields);
        visibility(&mut mesh, &fields);
        traffic(&mut mesh, &fields);
        if fields.has("configSources") {
            mesh.config_sources = fields.list("configSources", config_source::config_source);
        }
        check::check(&fields, &mesh);
    }
    mesh
}

/// Whether the value of a field without effect differs from what happens without it.
fn asks_for_an_effect(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(true) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(false) | Value::Number(_) | Value::String(_) => true,
    }
}

fn listeners(mesh: &mut MeshConfig, fields: &Fields<'_>) {
    set(&mut mesh.proxy_listen_port, fields.opt_integer("proxyListenPort"));
    set(&mut mesh.proxy_inbound_listen_port, fields.opt_integer("proxyInboundListenPort"));
    set(&mut mesh.proxy_http_port, fields.opt_integer("proxyHttpPort"));
    set(&mut mesh.connect_timeout, fields.opt_duration("connectTimeout"));
    set(&mut mesh.hbone_idle_timeout, fields.opt_duration("hboneIdleTimeout").map(Some));
    set(&mut mesh.protocol_detection_timeout, fields.opt_duration("protocolDetectionTimeout"));
    set(&mut mesh.tcp_keepalive, fields.read("tcpKeepalive", tcp_keepalive).map(Some));
    set(&mut mesh.dns_refresh_rate, fields.opt_duration("dnsRefreshRate"));
    set(&mut mesh.ingress_class, fields.opt_text("ingressClass"));
    set(&mut mesh.ingress_service, fields.opt_text("ingressService"));
    set(&mut mesh.ingress_selector, fields.opt_text("ingressSelector"));
    let modes = ["UNSPECIFIED", "OFF", "DEFAULT", "STRICT"].map(|mode| (mode, Text::from(mode)));
    set(&mut mesh.ingress_controller_mode, fields.choice("ingressControllerMode", &modes));
    if let Some(config) = fields.object("defaultConfig") {
        mesh.default_config = merge_proxy_fields(std::mem::take(&mut mesh.default_config), &config);
    }
}

fn observability(mesh: &mut MeshConfig, fields: &Fields<'_>) {
    let encodings = [("TEXT", AccessLogEncoding::Text), ("JSON", AccessLogEncoding::Json)];
    set(&mut mesh.enable_tracing, fields.opt_bool("enableTracing"));
    set(&mut mesh.access_log_file, fields.opt_text("accessLogFile"));
    let log_format = fields.opt_text("accessLogFormat").filter(|format| {
        // `accessLogEncoding` decides whether this is JSON. It may be set in another layer, so any JSON value is checked.
        serde_json::from_str(format).map_or(true, |value| is_log_format(fields, "accessLogFormat", &value))
    });
    set(&mut mesh.access_log_format, log_format);
    set(&mut mesh.access_log_encoding, fields.choice("accessLogEncoding", &encodings));
    set(&mut mesh.enable_envoy_access_log_service, fields.opt_bool("enableEnvoyAccessLogService"));
    set(&mut mesh.disable_envoy_listener_log, fields.opt_bool("disableEnvoyListenerLog"));
    set(&mut mesh.enable_prometheus_merge, fields.opt_bool("enablePrometheusMerge"));
    set(&mut mesh.inbound_cluster_stat_name, fields.opt_text("inboundClusterStatName"));
    set(&mut mesh.outbound_cluster_stat_name, fields.opt_text("outboundClusterStatName"));
    let places = mesh.extension_providers.iter().enumerate().rev().map(|(at, known)| (known.name.clone(), at));
    let mut places: BTreeMap<Text, usize> = places.collect();
    for provider in fields.list("extensionProviders", extension_provider) {
        match places.get(&provider.name) {
            Some(at) => mesh.extension_providers[*at] = provider,
            None => {
                places.insert(provider.name.clone(), mesh.extension_providers.len());
                mesh.extension_providers.push(provider);
            }
        }
    }
    if let Some(providers) = fields.object("defaultProviders") {
        let list = |target: &mut Vec<Text>, name: &str| {
            if providers.has(name) {
                *target = providers.texts(name);
            }
        };
        let DefaultProviders { tracing, metrics, access_logging } = &mut mesh.default_providers;
        list(tracing, "tracing");
        list(metrics, "metrics");
        list(access_logging, "accessLogging");
    }
}

fn policies(mesh: &mut MeshConfig, fields: &Fields<'_>) {
    let outbound = [
        ("REGISTRY_ONLY", OutboundPolicy::RegistryOnly),
        ("ALLOW_ANY", OutboundPolicy::AllowAny),
        ("VIRTUAL_SERVICE_ONLY", OutboundPolicy::RegistryOnly),
        ("ALLOW_ANY_DYNAMIC_DNS", OutboundPolicy::AllowAnyDynamicDns),
    ];
    let inbound = [("PASSTHROUGH", InboundPolicy::Passthrough), ("LOCALHOST", InboundPolicy::Localhost)];
    if let Some(policy) = fields.object("outboundTrafficPolicy") {
        // An unset enumeration has its first value.
        mesh.outbound_policy = policy.choice("mode", &outbound).unwrap_or(OutboundPolicy::RegistryOnly);
        mesh.outbound_tls = policy.read("tls", client_tls);
    }
    if let Some(policy) = fields.object("inboundTrafficPolicy") {
        mesh.inbound_policy = policy.choice("mode", &inbound).unwrap_or_default();
    }
    set(&mut mesh.enable_auto_mtls, fields.opt_bool("enableAutoMtls"));
    set(&mut mesh.trust_domain, fields.opt_text("trustDomain"));
    let aliases: BTreeSet<Text> =
        mesh.trust_domain_aliases.drain(..).chain(fields.texts("trustDomainAliases")).collect();
    mesh.trust_domain_aliases = aliases.into_iter().collect();
    if fields.has("caCertificates") {
        mesh.ca_certificates = fields.list("caCertificates", |certificate| CaCertificate {
            pem: certificate.text("pem"),
            spiffe_bundle_url: certificate.text("spiffeBundleUrl"),
            cert_signers: certificate.texts("certSigners"),
            trust_domains: certificate.texts("trustDomains"),
        });
    }
    set(&mut mesh.mesh_mtls, fields.read("meshMTLS", tls_settings).map(Some));
    if let Some(tls) = fields.read("mesh_mTLS", tls_settings) {
        mesh.mesh_mtls = Some(tls);
    }
    set(&mut mesh.tls_defaults, fields.read("tlsDefaults", tls_settings).map(Some));
    let normalizations = [
        ("DEFAULT", PathNormalization::Default),
        ("NONE", PathNormalization::None),
        ("BASE", PathNormalization::Base),
        ("MERGE_SLASHES", PathNormalization::MergeSlashes),
        ("DECODE_AND_MERGE_SLASHES", PathNormalization::DecodeAndMergeSlashes),
    ];
    if let Some(paths) = fields.object("pathNormalization") {
        mesh.path_normalization = paths.choice("normalization", &normalizations).unwrap_or_default();
    }
}

fn tls_settings(fields: &Fields<'_>) -> TlsSettings {
    let versions = [("TLS_AUTO", TlsVersion::Auto), ("TLSV1_2", TlsVersion::V1_2), ("TLSV1_3", TlsVersion::V1_3)];
    TlsSettings {
        min_protocol_version: fields.choice("minProtocolVersion", &versions).unwrap_or_default(),
        ecdh_curves: fields.texts("ecdhCurves"),
        cipher_suites: fields.texts("cipherSuites"),
    }
}

fn visibility(mesh: &mut MeshConfig, fields: &Fields<'_>) {
    let list = |target: &mut Vec<Text>, name: &str| {
        if fields.has(name) {
            *target = fields.texts(name);
        }
    };
    list(&mut mesh.default_service_export_to, "defaultServiceExportTo");
    list(&mut mesh.default_virtual_service_export_to, "defaultVirtualServiceExportTo");
    list(&mut mesh.default_destination_rule_export_to, "defaultDestinationRuleExportTo");
    set(&mut mesh.root_namespace, fields.opt_text("rootNamespace"));
    if fields.has("serviceSettings") {
        mesh.service_settings = fields.list("serviceSettings", |setting| ServiceSettings {
            cluster_local: setting.read("settings", |settings| settings.bool("clusterLocal")).unwrap_or_default(),
            hosts: setting.texts("hosts"),
        });
    }
    if fields.has("discoverySelectors") {
        mesh.discovery_selectors = fields.list("discoverySelectors", label_selector);
    }
    if fields.has("serviceScopeConfigs") {
        let scopes = fields.list("serviceScopeConfigs", service_scope);
        mesh.global_services = scopes.into_iter().flatten().collect();
    }
    set(&mut mesh.service_entry_visibility, fields.read("serviceEntryVisibility", service_entry_visibility).map(Some));
}

/// The Services of a `serviceScopeConfigs` with the scope `GLOBAL`. The others are local, whatever else matches them.
fn service_scope(fields: &Fields<'_>) -> Option<GlobalServices> {
    let is_global = fields.choice("scope", &[("LOCAL", false), ("GLOBAL", true)]).unwrap_or_default();
    // An absent selector matches everything, an invalid one nothing.
    let selector = |name| match fields.value(name) {
        Some(_) => fields.read(name, label_selector),
        None => Some(LabelSelector::default()),
    };
    let services =
        GlobalServices { namespaces: selector("namespaceSelector")?, services: selector("servicesSelector")? };
    is_global.then_some(services)
}

fn service_entry_visibility(fields: &Fields<'_>) -> ServiceEntryVisibility {
    let words = [
        ("VISIBILITY_UNSPECIFIED", Visibility::Public),
        ("NONE", Visibility::None),
        ("NAMESPACE", Visibility::Namespace),
        ("PUBLIC", Visibility::Public),
    ];
    ServiceEntryVisibility {
        default_visibility: fields.choice("defaultVisibility", &words).unwrap_or_default(),
        apply_to_sidecars: fields.bool("applyToSidecars"),
        policies: fields.list("policies", |policy| {
            let rules = policy.objects("matchingRules");
            let selectors = rules.iter().map(|rule| rule.read("namespaceSelector", label_selector)).collect();
            (policy.choice("visibility", &words).unwrap_or_default(), selectors)
        }),
    }
}

fn traffic(mesh: &mut MeshConfig, fields: &Fields<'_>) {
    set(&mut mesh.locality_lb, fields.read("localityLbSetting", locality_lb));
    set(&mut mesh.zone_aware_lb, fields.read("zoneAwareLbSetting", zone_aware_lb).map(Some));
    let upgrades = [("DO_NOT_UPGRADE", false), ("UPGRADE", true)];
    set(&mut mesh.h2_upgrade, fields.choice("h2UpgradePolicy", &upgrades));
    let retry = |name: &'static str| -> Option<Option<HttpRetry>> { fields.read(name, parse_http_retry).map(Some) };
    set(&mut mesh.default_http_retry_policy, retry("defaultHttpRetryPolicy"));
    set(&mut mesh.default_inbound_http_retry_policy, retry("defaultInboundHttpRetryPolicy"));
    if let Some(policy) = fields.object("defaultTrafficPolicy") {
        mesh.default_connection_pool = policy.read("connectionPool", connection_pool);
        mesh.default_outlier_detection = policy.read("outlierDetection", outlier_detection);
    }
}

#[cfg(test)]
mod tests;
