//! Traffic settings that `MeshConfig` and DestinationRules share.

mod locality;

use std::time::Duration;

use sluice_model::{
    ClientCredential, ClientTls, ClientTlsMode, ConnectionPool, H2Upgrade, HttpSettings, OutlierDetection,
    TcpKeepalive, TcpSettings,
};

use crate::Fields;

pub(crate) use locality::{check_locality_lb, check_zone_aware_lb, locality_lb, zone_aware_lb};

/// `TcpKeepalive`.
pub(crate) fn tcp_keepalive(fields: &Fields<'_>) -> TcpKeepalive {
    TcpKeepalive {
        probes: fields.integer("probes"),
        time: fields.opt_duration("time"),
        interval: fields.opt_duration("interval"),
    }
}

/// `ConnectionPoolSettings`.
pub(crate) fn connection_pool(fields: &Fields<'_>) -> ConnectionPool {
    ConnectionPool { tcp: fields.read("tcp", tcp_settings), http: fields.read("http", http_settings) }
}

fn tcp_settings(fields: &Fields<'_>) -> TcpSettings {
    let idle_timeout = fields.opt_duration("idleTimeout");
    // 0s is a value too: it disables the timeout.
    if let Some(idle) = idle_timeout.filter(|idle| *idle >= Duration::from_millis(1)) {
        fields.check_timeout("idleTimeout", idle);
    }
    TcpSettings {
        max_connections: fields.count("maxConnections"),
        connect_timeout: fields.opt_timeout("connectTimeout"),
        tcp_keepalive: fields.read("tcpKeepalive", |keepalive| {
            let read = tcp_keepalive(keepalive);
            for (name, duration) in [("time", read.time), ("interval", read.interval)] {
                duration.into_iter().for_each(|duration| keepalive.check_timeout(name, duration));
            }
            read
        }),
        max_connection_duration: fields.opt_timeout("maxConnectionDuration"),
        idle_timeout,
    }
}

fn http_settings(fields: &Fields<'_>) -> HttpSettings {
    let upgrades =
        [("DEFAULT", H2Upgrade::Default), ("DO_NOT_UPGRADE", H2Upgrade::DoNotUpgrade), ("UPGRADE", H2Upgrade::Upgrade)];
    HttpSettings {
        http1_max_pending_requests: fields.count("http1MaxPendingRequests"),
        http2_max_requests: fields.count("http2MaxRequests"),
        max_requests_per_connection: fields.count("maxRequestsPerConnection"),
        max_retries: fields.count("maxRetries"),
        idle_timeout: fields.opt_timeout("idleTimeout"),
        h2_upgrade_policy: fields.choice("h2UpgradePolicy", &upgrades).unwrap_or_default(),
        use_client_protocol: fields.bool("useClientProtocol"),
        max_concurrent_streams: fields.count("maxConcurrentStreams"),
        http2_keep_alive: fields.read("http2KeepAlive", |keepalive| {
            for name in ["interval", "timeout"] {
                if !keepalive.has(name) {
                    keepalive.refuse(name, "`duration` is required");
                }
            }
            (keepalive.opt_timeout("interval"), keepalive.opt_timeout("timeout"))
        }),
    }
}

/// `OutlierDetection`.
pub(crate) fn outlier_detection(fields: &Fields<'_>) -> OutlierDetection {
    let codes = fields.value("outlierDetectionHttpErrorCodes").and_then(|codes| codes.as_array());
    let codes: Vec<u64> = codes.into_iter().flatten().filter_map(|code| code.as_u64()).collect();
    for (n, code) in codes.iter().enumerate().filter(|(_, code)| !(100..600).contains(*code)) {
        fields
            .refuse(&format!("outlierDetectionHttpErrorCodes[{n}]"), format!("expected an HTTP status, found {code}"));
    }
    if fields.has("consecutiveErrors") {
        fields.warn("consecutiveErrors", "deprecated: use `consecutiveGatewayErrors` and `consecutive5xxErrors`");
    }
    OutlierDetection {
        consecutive_errors: fields.integer("consecutiveErrors"),
        split_external_local_origin_errors: fields.bool("splitExternalLocalOriginErrors"),
        consecutive_local_origin_failures: fields.opt_integer("consecutiveLocalOriginFailures"),
        consecutive_gateway_errors: fields.opt_integer("consecutiveGatewayErrors"),
        consecutive_5xx_errors: fields.opt_integer("consecutive5xxErrors"),
        interval: fields.opt_timeout("interval"),
        base_ejection_time: fields.opt_timeout("baseEjectionTime"),
        max_ejection_percent: fields.integer("maxEjectionPercent"),
        min_health_percent: fields.integer("minHealthPercent"),
        http_error_codes: codes.into_iter().filter_map(|code| u32::try_from(code).ok()).collect(),
    }
}

/// `ClientTLSSettings`.
pub(crate) fn client_tls(fields: &Fields<'_>) -> ClientTls {
    let modes = [
        ("DISABLE", ClientTlsMode::Disable),
        ("SIMPLE", ClientTlsMode::Simple),
        ("MUTUAL", ClientTlsMode::Mutual),
        ("ISTIO_MUTUAL", ClientTlsMode::IstioMutual),
    ];
    ClientTls {
        mode: fields.choice("mode", &modes).unwrap_or_default(),
        client_certificate: fields.text("clientCertificate"),
        private_key: fields.text("privateKey"),
        ca_certificates: fields.text("caCertificates"),
        credential: ClientCredential::named(fields.text("credentialName")),
        subject_alt_names: fields.texts("subjectAltNames"),
        sni: fields.text("sni"),
        insecure_skip_verify: fields.opt_bool("insecureSkipVerify"),
        ca_crl: fields.text("caCrl"),
    }
}
