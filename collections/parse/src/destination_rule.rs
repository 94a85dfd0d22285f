//! DestinationRules (N14, N15): names resolved, mistakes noted.

use std::collections::BTreeSet;

use sluice_model::{
    ClientTls, ClientTlsMode, ConnectionPool, ConsistentHash, DestinationRule, HashAlgorithm, HashKey, Host,
    LoadBalancer, LocalityLb, Object, OutlierDetection, PortTrafficPolicy, RetryBudget, SimpleLb, Subset, Text,
    TrafficPolicy, Tunnel, Warmup,
};

use crate::traffic_policy::{client_tls, connection_pool, locality_lb, outlier_detection, zone_aware_lb};
use crate::{Fields, Findings, Item, is_dns_label, is_wildcard_domain, resolve_host};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let host = fields.text("host");
    let rule = DestinationRule {
        host: Host::new(&resolve_host(&host, &meta.namespace, item.domain)),
        traffic_policy: fields.read("trafficPolicy", traffic_policy),
        subsets: fields.list("subsets", |subset| Subset {
            name: subset.text("name"),
            labels: subset.text_map("labels"),
            traffic_policy: subset.read("trafficPolicy", traffic_policy),
        }),
        export_to: fields.texts("exportTo").into_iter().collect(),
        workload_selector: fields.read("workloadSelector", |selector| selector.text_map("matchLabels")),
        created: meta.created,
        namespace: meta.namespace,
        name: meta.name,
    };
    check(&fields, &rule, &host);
    drop(fields);
    (!findings.has_errors()).then_some(Object::DestinationRule(Box::new(rule)))
}

fn traffic_policy(fields: &Fields<'_>) -> TrafficPolicy {
    let policy = TrafficPolicy {
        load_balancer: fields.read("loadBalancer", load_balancer),
        connection_pool: fields.read("connectionPool", checked_pool),
        outlier_detection: fields.read("outlierDetection", checked_outlier),
        tls: fields.read("tls", checked_tls),
        port_level: fields.list("portLevelSettings", |level| PortTrafficPolicy {
            port: level.read("port", |port| port.integer("number")).unwrap_or_default(),
            load_balancer: level.read("loadBalancer", load_balancer),
            connection_pool: level.read("connectionPool", checked_pool),
            outlier_detection: level.read("outlierDetection", checked_outlier),
            tls: level.read("tls", checked_tls),
        }),
        tunnel: fields.read("tunnel", |tunnel| Tunnel {
            protocol: tunnel.text("protocol"),
            target_host: tunnel.text("targetHost"),
            target_port: tunnel.integer("targetPort"),
        }),
        proxy_protocol: fields
            .read("proxyProtocol", |proxy| proxy.choice("version", &[("V1", 1), ("V2", 2)]).unwrap_or(1)),
        retry_budget: fields.read("retryBudget", |budget| RetryBudget {
            percent: budget.opt_decimal("percent"),
            min_retry_concurrency: budget.integer("minRetryConcurrency"),
            budget_interval: budget.opt_duration("budgetInterval"),
        }),
    };
    let mut ports = BTreeSet::new();
    for level in &policy.port_level {
        if level.port == 0 || level.port > u32::from(u16::MAX) {
            fields.reject("portLevelSettings", "a port number is needed");
        } else if !ports.insert(level.port) {
            fields.warn("portLevelSettings", format!("port {} stands twice; the first counts", level.port));
        }
    }
    policy
}

fn load_balancer(fields: &Fields<'_>) -> LoadBalancer {
    let algorithms = [
        ("UNSPECIFIED", SimpleLb::Unspecified),
        ("LEAST_CONN", SimpleLb::LeastRequest),
        ("RANDOM", SimpleLb::Random),
        ("PASSTHROUGH", SimpleLb::Passthrough),
        ("ROUND_ROBIN", SimpleLb::RoundRobin),
        ("LEAST_REQUEST", SimpleLb::LeastRequest),
    ];
    if fields.has("simple") && fields.has("consistentHash") {
        fields.reject("", "simple and consistentHash exclude each other");
    }
    let locality = fields.read("localityLbSetting", checked_locality);
    let zone_aware = fields.read("zoneAwareLbSetting", zone_aware_lb);
    if locality.is_some() && zone_aware.is_some() {
        fields.reject("", "localityLbSetting and zoneAwareLbSetting exclude each other");
    }
    if fields.has("backendUtilization") {
        fields.warn("backendUtilization", "balancing by backend utilization is not supported yet");
    }
    LoadBalancer {
        simple: fields.choice("simple", &algorithms).unwrap_or_default(),
        consistent_hash: fields.read("consistentHash", consistent_hash),
        locality,
        zone_aware,
        warmup_duration: fields.opt_duration("warmupDurationSecs"),
        warmup: fields.read("warmup", |warmup| {
            let duration = warmup.opt_duration("duration");
            if duration.is_none() {
                warmup.reject("duration", "a duration is needed");
            }
            Warmup {
                duration: duration.unwrap_or_default(),
                minimum_percent: warmup.opt_decimal("minimumPercent"),
                aggression: warmup.opt_decimal("aggression"),
            }
        }),
    }
}

fn consistent_hash(fields: &Fields<'_>) -> ConsistentHash {
    let cookie = fields.read("httpCookie", |cookie| HashKey::Cookie {
        name: cookie.text("name"),
        path: cookie.text("path"),
        ttl: cookie.opt_duration("ttl"),
        attributes: cookie.list("attributes", |attribute| (attribute.text("name"), attribute.text("value"))),
    });
    let keys = [
        fields.opt_text("httpHeaderName").map(HashKey::Header),
        cookie,
        fields.opt_bool("useSourceIp").map(HashKey::SourceIp),
        fields.opt_text("httpQueryParameterName").map(HashKey::QueryParameter),
    ];
    let mut keys = keys.into_iter().flatten();
    let key = keys.next();
    if key.is_none() || keys.next().is_some() {
        fields.reject("", "exactly one key to hash is needed");
    }
    let ring = fields.read("ringHash", |ring| HashAlgorithm::RingHash(unsigned(ring, "minimumRingSize")));
    let maglev = fields.read("maglev", |maglev| HashAlgorithm::Maglev(unsigned(maglev, "tableSize")));
    if ring.is_some() && maglev.is_some() {
        fields.reject("", "ringHash and maglev exclude each other");
    }
    ConsistentHash {
        key,
        algorithm: ring.or(maglev).unwrap_or_default(),
        minimum_ring_size: unsigned(fields, "minimumRingSize"),
    }
}

fn unsigned(fields: &Fields<'_>, name: &str) -> u64 {
    fields.integer(name)
}

fn checked_pool(fields: &Fields<'_>) -> ConnectionPool {
    let pool = connection_pool(fields);
    if pool.tcp.is_none() && pool.http.is_none() {
        fields.reject("", "tcp or http settings are needed");
    }
    if let Some(http) = &pool.http
        && http.use_client_protocol
        && http.h2_upgrade_policy == sluice_model::H2Upgrade::Upgrade
    {
        fields.reject("http", "an upgrade to HTTP/2 and the client's protocol exclude each other");
    }
    for name in ["tcp", "http"] {
        if fields.value(name).and_then(|part| part.as_object()).is_some_and(serde_json::Map::is_empty) {
            fields.reject(name, "at least one setting is needed");
        }
    }
    pool
}

fn checked_outlier(fields: &Fields<'_>) -> OutlierDetection {
    let outlier = outlier_detection(fields);
    for (name, percent) in
        [("maxEjectionPercent", outlier.max_ejection_percent), ("minHealthPercent", outlier.min_health_percent)]
    {
        if !(0..=100).contains(&percent) {
            fields.reject(name, "a percentage from 0 to 100 is expected");
        }
    }
    if outlier.consecutive_local_origin_failures.is_some_and(|failures| failures > 0)
        && !outlier.split_external_local_origin_errors
    {
        fields.reject("consecutiveLocalOriginFailures", "splitExternalLocalOriginErrors is needed too");
    }
    outlier
}

fn checked_tls(fields: &Fields<'_>) -> ClientTls {
    let tls = client_tls(fields);
    if tls.mode == ClientTlsMode::Mutual && tls.credential_name.is_empty() {
        for (name, file) in [("clientCertificate", &tls.client_certificate), ("privateKey", &tls.private_key)] {
            if file.is_empty() {
                fields.reject(name, "mode MUTUAL needs it, or a credentialName");
            }
        }
    }
    tls
}

fn checked_locality(fields: &Fields<'_>) -> LocalityLb {
    let locality = locality_lb(fields);
    for distribute in &locality.distribute {
        if distribute.to.values().map(|share| u64::from(*share)).sum::<u64>() != 100 {
            fields.reject("distribute", format!("shares of `{}` do not add up to 100", distribute.from));
        }
    }
    let ordered = !locality.failover.is_empty() || !locality.failover_priority.is_empty();
    if ordered && !locality.distribute.is_empty() {
        fields.reject("distribute", "shares and failover exclude each other");
    }
    for (from, to) in &locality.failover {
        if from == to {
            fields.reject("failover", format!("region `{from}` cannot fail over to itself"));
        }
    }
    locality
}

fn check(fields: &Fields<'_>, rule: &DestinationRule, host: &Text) {
    if host.is_empty() {
        fields.reject("host", "a host is needed");
    } else if !is_wildcard_domain(rule.host.as_str()) && rule.host.as_str().parse::<std::net::IpAddr>().is_err() {
        fields.reject("host", format!("`{host}` is no host"));
    }
    let mut names = BTreeSet::new();
    for subset in &rule.subsets {
        if subset.name.is_empty() {
            fields.reject("subsets", "a subset needs a name");
        } else if !is_dns_label(&subset.name.to_ascii_lowercase()) {
            fields.reject("subsets", format!("`{}` is no name of a subset", subset.name));
        } else if !names.insert(&subset.name) {
            fields.warn("subsets", format!("subset `{}` stands twice", subset.name));
        }
    }
    let sole = |word: &str| rule.export_to.contains(word) && rule.export_to.len() > 1;
    if sole("*") || sole("~") {
        fields.reject("exportTo", "`*` and `~` stand alone");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sluice_model::{ClientTlsMode, HashKey, Object, Severity, SimpleLb};

    use crate::parse_object;

    fn parsed(spec: &Value) -> sluice_model::ParsedObject {
        let object = json!({
            "apiVersion": "networking.istio.io/v1", "kind": "DestinationRule",
            "metadata": { "name": "rule", "namespace": "shop" }, "spec": spec,
        });
        parse_object(&"c".into(), "cluster.local", &object).unwrap()
    }

    fn errors(spec: &Value) -> Vec<String> {
        let rejects = parsed(spec).rejects;
        rejects.iter().filter(|r| r.severity == Severity::Error).map(|r| r.field_path.to_string()).collect()
    }

    #[test]
    fn what_is_declared_is_read() {
        let spec = json!({
            "host": "cart", "exportTo": ["."],
            "trafficPolicy": {
                "loadBalancer": { "consistentHash": { "httpHeaderName": "x-user", "maglev": {} } },
                "portLevelSettings": [{ "port": { "number": 80 }, "tls": { "mode": "ISTIO_MUTUAL" } }],
            },
            "subsets": [{
                "name": "v1", "labels": { "version": "v1" },
                "trafficPolicy": { "loadBalancer": { "simple": "ROUND_ROBIN" } },
            }],
        });
        let Some(Object::DestinationRule(rule)) = parsed(&spec).object else { panic!("rejected") };
        assert_eq!(rule.host.as_str(), "cart.shop.svc.cluster.local");
        assert_eq!(rule.tls_mode("v1", 80), Some(ClientTlsMode::IstioMutual));
        let lb = rule.policy("", 90).unwrap().load_balancer.unwrap();
        assert_eq!(lb.consistent_hash.unwrap().key, Some(HashKey::Header("x-user".into())));
        assert_eq!(rule.policy("v1", 90).unwrap().load_balancer.unwrap().simple, SimpleLb::RoundRobin);
        assert!(parsed(&spec).rejects.is_empty());
    }

    #[test]
    fn what_cannot_apply_is_rejected_where_it_stands() {
        let policy = |policy: Value| json!({ "host": "a.b", "trafficPolicy": policy });
        let check = |spec: Value, path: &str| assert_eq!(errors(&spec), [path], "{spec}");
        check(json!({}), "spec.host");
        check(json!({ "host": "a.b", "subsets": [{ "name": "" }] }), "spec.subsets");
        check(json!({ "host": "a.b", "exportTo": ["*", "x"] }), "spec.exportTo");
        check(
            policy(json!({ "outlierDetection": { "maxEjectionPercent": 101 } })),
            "spec.trafficPolicy.outlierDetection.maxEjectionPercent",
        );
        check(policy(json!({ "connectionPool": { "tcp": {} } })), "spec.trafficPolicy.connectionPool.tcp");
        check(
            policy(json!({ "tls": { "mode": "MUTUAL", "privateKey": "k" } })),
            "spec.trafficPolicy.tls.clientCertificate",
        );
        check(
            policy(
                json!({ "loadBalancer": { "localityLbSetting": { "distribute": [{ "from": "r", "to": { "r": 99 } }] } } }),
            ),
            "spec.trafficPolicy.loadBalancer.localityLbSetting.distribute",
        );
    }
}
