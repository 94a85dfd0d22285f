//! Traffic settings that the mesh config and DestinationRules share.

use sluice_model::{
    ClientTls, ClientTlsMode, ConnectionPool, H2Upgrade, HttpSettings, LocalityDistribute, LocalityLb,
    OutlierDetection, TcpKeepalive, TcpSettings, Text, ZoneAwareLb,
};

use crate::Fields;

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
    TcpSettings {
        max_connections: fields.integer("maxConnections"),
        connect_timeout: fields.opt_duration("connectTimeout"),
        tcp_keepalive: fields.read("tcpKeepalive", tcp_keepalive),
        max_connection_duration: fields.opt_duration("maxConnectionDuration"),
        idle_timeout: fields.opt_duration("idleTimeout"),
    }
}

fn http_settings(fields: &Fields<'_>) -> HttpSettings {
    let upgrades =
        [("DEFAULT", H2Upgrade::Default), ("DO_NOT_UPGRADE", H2Upgrade::DoNotUpgrade), ("UPGRADE", H2Upgrade::Upgrade)];
    HttpSettings {
        http1_max_pending_requests: fields.integer("http1MaxPendingRequests"),
        http2_max_requests: fields.integer("http2MaxRequests"),
        max_requests_per_connection: fields.integer("maxRequestsPerConnection"),
        max_retries: fields.integer("maxRetries"),
        idle_timeout: fields.opt_duration("idleTimeout"),
        h2_upgrade_policy: fields.choice("h2UpgradePolicy", &upgrades).unwrap_or_default(),
        use_client_protocol: fields.bool("useClientProtocol"),
        max_concurrent_streams: fields.integer("maxConcurrentStreams"),
        http2_keep_alive: fields.read("http2KeepAlive", |keepalive| {
            (keepalive.opt_duration("interval"), keepalive.opt_duration("timeout"))
        }),
    }
}

/// `OutlierDetection`.
pub(crate) fn outlier_detection(fields: &Fields<'_>) -> OutlierDetection {
    let codes = fields.value("outlierDetectionHttpErrorCodes").and_then(|codes| codes.as_array());
    let codes = codes.into_iter().flatten().filter_map(|code| code.as_u64());
    OutlierDetection {
        consecutive_errors: fields.integer("consecutiveErrors"),
        split_external_local_origin_errors: fields.bool("splitExternalLocalOriginErrors"),
        consecutive_local_origin_failures: fields.opt_integer("consecutiveLocalOriginFailures"),
        consecutive_gateway_errors: fields.opt_integer("consecutiveGatewayErrors"),
        consecutive_5xx_errors: fields.opt_integer("consecutive5xxErrors"),
        interval: fields.opt_duration("interval"),
        base_ejection_time: fields.opt_duration("baseEjectionTime"),
        max_ejection_percent: fields.integer("maxEjectionPercent"),
        min_health_percent: fields.integer("minHealthPercent"),
        http_error_codes: codes.filter_map(|code| u32::try_from(code).ok()).collect(),
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
        credential_name: fields.text("credentialName"),
        subject_alt_names: fields.texts("subjectAltNames"),
        sni: fields.text("sni"),
        insecure_skip_verify: fields.opt_bool("insecureSkipVerify"),
        ca_crl: fields.text("caCrl"),
    }
}

/// `LocalityLoadBalancerSetting`.
pub(crate) fn locality_lb(fields: &Fields<'_>) -> LocalityLb {
    LocalityLb {
        enabled: fields.opt_bool("enabled"),
        distribute: fields.list("distribute", |distribute| LocalityDistribute {
            from: distribute.text("from"),
            to: weights(distribute),
        }),
        failover: fields.list("failover", failover),
        failover_priority: fields.texts("failoverPriority"),
    }
}

fn weights(fields: &Fields<'_>) -> std::collections::BTreeMap<Text, u32> {
    let weights = fields.entries("to").into_iter().filter_map(|(locality, value, path)| {
        let weight = value.as_u64().and_then(|weight| u32::try_from(weight).ok());
        if weight.is_none() {
            fields.reject("to", format!("{path} is no weight"));
        }
        Some((locality, weight?))
    });
    weights.collect()
}

fn failover(fields: &Fields<'_>) -> (Text, Text) {
    (fields.text("from"), fields.text("to"))
}

/// `ZoneAwareLoadBalancerSetting`.
pub(crate) fn zone_aware_lb(fields: &Fields<'_>) -> ZoneAwareLb {
    ZoneAwareLb {
        enabled: fields.opt_bool("enabled"),
        failover: fields.list("failover", failover),
        failover_priority: fields.texts("failoverPriority"),
        min_cluster_size: fields.opt_integer("minClusterSize"),
    }
}
