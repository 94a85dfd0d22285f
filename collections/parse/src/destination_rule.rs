//! DestinationRules (N14, N15): names are resolved and invalid parts are reported.

use std::collections::BTreeSet;
use std::net::IpAddr;

use sluice_model::{
    ClientTls, ClientTlsMode, ConnectionPool, ConsistentHash, CredentialKind, Decimal, DestinationRule, HashAlgorithm,
    HashKey, Host, LoadBalancer, LocalityLb, Object, OutlierDetection, PortTrafficPolicy, RetryBudget, SimpleLb,
    Subset, Text, TrafficPolicy, Tunnel, Warmup,
};

use crate::admission::{check_export_to, check_labels, check_selector, is_port};
use crate::traffic_policy::{
    check_locality_lb, check_zone_aware_lb, client_tls, connection_pool, locality_lb, outlier_detection, zone_aware_lb,
};
use crate::{Fields, Findings, Item, is_admitted_host, is_any_case_label, is_fqdn, is_wildcard_domain, resolve_host};

pub(crate) fn parse(item: &Item<'_>, findings: &Findings) -> Option<Object> {
    let fields = Fields::new(item.spec(), "spec", findings)?;
    let meta = item.meta(findings);
    let host = fields.text("host");
    let rule = DestinationRule {
        host: Host::new(&resolve_host(&host, &meta.namespace, item.domain)),
        traffic_policy: fields.read("trafficPolicy", |policy| traffic_policy(policy, &meta.namespace)),
        subsets: fields.list("subsets", |subset| self::subset(subset, &meta.namespace)),
        export_to: fields.texts("exportTo").into_iter().collect(),
        workload_selector: fields.read("workloadSelector", |selector| {
            let labels = selector.labels("matchLabels");
            check_selector(selector, "matchLabels", &labels);
            labels
        }),
        created: meta.created,
        namespace: meta.namespace,
        name: meta.name,
        of_backend_policy: false,
    };
    check(&fields, &rule, &host);
    drop(fields);
    (!findings.has_errors()).then_some(Object::DestinationRule(Box::new(rule)))
}

fn subset(fields: &Fields<'_>, namespace: &Text) -> Subset {
    let subset = Subset {
        name: fields.text("name"),
        labels: fields.labels("labels"),
        traffic_policy: fields.read("trafficPolicy", |policy| traffic_policy(policy, namespace).into()),
    };
    check_labels(fields, "labels", &subset.labels);
    subset
}

/// The settings that a policy has once, for all ports or for one.
const PARTS: [&str; 8] = [
    "loadBalancer",
    "connectionPool",
    "outlierDetection",
    "tls",
    "portLevelSettings",
    "tunnel",
    "proxyProtocol",
    "retryBudget",
];

fn traffic_policy(fields: &Fields<'_>, namespace: &Text) -> TrafficPolicy {
    if !PARTS.iter().any(|part| fields.has(part)) {
        fields.refuse("", "at least one setting is required");
    }
    if fields.has("tunnel") && fields.has("proxyProtocol") {
        fields.refuse("proxyProtocol", "`proxyProtocol` and `tunnel` are mutually exclusive");
    }
    let outlier = fields.has("outlierDetection");
    let policy = TrafficPolicy {
        load_balancer: fields.read("loadBalancer", |lb| load_balancer(lb, outlier)),
        connection_pool: fields.read("connectionPool", checked_pool),
        outlier_detection: fields.read("outlierDetection", checked_outlier),
        tls: fields.read("tls", |tls| checked_tls(tls, namespace)),
        port_level: fields.list("portLevelSettings", |level| port_level(level, namespace)),
        tunnel: fields.read("tunnel", tunnel),
        proxy_protocol: fields
            .read("proxyProtocol", |proxy| proxy.choice("version", &[("V1", 1), ("V2", 2)]).unwrap_or(1)),
        retry_budget: fields.read("retryBudget", |budget| RetryBudget {
            percent: percentage(budget, "percent"),
            min_retry_concurrency: budget.integer("minRetryConcurrency"),
            budget_interval: budget.opt_duration("budgetInterval"),
        }),
    };
    let mut ports = BTreeSet::new();
    for level in &policy.port_level {
        if level.port == 0 || level.port > u32::from(u16::MAX) {
            fields.reject("portLevelSettings", "`port.number` is required");
        } else if !ports.insert(level.port) {
            fields.warn("portLevelSettings", format!("port {} is listed twice; the first entry is used", level.port));
        }
    }
    policy
}

fn port_level(fields: &Fields<'_>, namespace: &Text) -> PortTrafficPolicy {
    if !PARTS.iter().take(4).any(|part| fields.has(part)) {
        fields.refuse("", "at least one setting is required");
    }
    let outlier = fields.has("outlierDetection");
    PortTrafficPolicy {
        port: fields.read("port", |port| port.integer("number")).unwrap_or_default(),
        load_balancer: fields.read("loadBalancer", |lb| load_balancer(lb, outlier)),
        connection_pool: fields.read("connectionPool", checked_pool),
        outlier_detection: fields.read("outlierDetection", checked_outlier),
        tls: fields.read("tls", |tls| checked_tls(tls, namespace)),
    }
}

fn tunnel(fields: &Fields<'_>) -> Tunnel {
    let tunnel = Tunnel {
        protocol: fields.text("protocol"),
        target_host: fields.text("targetHost"),
        target_port: fields.integer("targetPort"),
    };
    if !matches!(tunnel.protocol.as_str(), "" | "CONNECT" | "POST") {
        fields.refuse("protocol", "expected `CONNECT` or `POST`");
    }
    if !is_fqdn(&tunnel.target_host) && tunnel.target_host.parse::<IpAddr>().is_err() {
        fields.refuse("targetHost", format!("`{}` is not a host name or an IP address", tunnel.target_host));
    }
    if !is_port(tunnel.target_port) {
        fields.refuse("targetPort", format!("expected a port from 1 to 65535, found {}", tunnel.target_port));
    }
    tunnel
}

fn percentage(fields: &Fields<'_>, name: &str) -> Option<Decimal> {
    let value = fields.opt_decimal(name)?;
    if !(Decimal::default()..=Decimal::from_f64(100.0)).contains(&value) {
        fields.refuse(name, "expected a percentage from 0 to 100");
    }
    Some(value)
}

/// Reads `loadBalancer`. `outlier` is whether outlier detection is configured, which failover requires.
fn load_balancer(fields: &Fields<'_>, outlier: bool) -> LoadBalancer {
    let algorithms = [
        ("UNSPECIFIED", SimpleLb::Unspecified),
        ("LEAST_CONN", SimpleLb::LeastRequest),
        ("RANDOM", SimpleLb::Random),
        ("PASSTHROUGH", SimpleLb::Passthrough),
        ("ROUND_ROBIN", SimpleLb::RoundRobin),
        ("LEAST_REQUEST", SimpleLb::LeastRequest),
    ];
    if fields.has("simple") && fields.has("consistentHash") {
        fields.reject("", "`simple` and `consistentHash` are mutually exclusive");
    }
    let locality = fields.read("localityLbSetting", checked_locality);
    let zone_aware = fields.read("zoneAwareLbSetting", |setting| {
        let zone_aware = zone_aware_lb(setting);
        check_zone_aware_lb(setting, &zone_aware);
        zone_aware
    });
    let fails_over = locality.as_ref().is_some_and(|lb| !lb.failover.is_empty() || !lb.failover_priority.is_empty())
        || zone_aware.as_ref().is_some_and(|lb| !lb.failover.is_empty() || !lb.failover_priority.is_empty());
    if fails_over && !outlier {
        fields.warn("", "failover has no effect without `outlierDetection`");
    }
    if locality.is_some() && zone_aware.is_some() {
        fields.reject("", "`localityLbSetting` and `zoneAwareLbSetting` are mutually exclusive");
    }
    if fields.has("backendUtilization") {
        fields.warn("backendUtilization", "`backendUtilization` is not supported; it is ignored");
    }
    LoadBalancer {
        simple: fields.choice("simple", &algorithms).unwrap_or_default(),
        consistent_hash: fields.read("consistentHash", consistent_hash),
        locality,
        zone_aware,
        warmup_duration: fields.opt_timeout("warmupDurationSecs"),
        warmup: fields.read("warmup", |warmup| {
            let duration = warmup.opt_timeout("duration");
            if duration.is_none() {
                warmup.reject("duration", "`duration` is required");
            }
            let aggression = warmup.opt_decimal("aggression");
            if aggression.is_some_and(|aggression| aggression <= Decimal::default()) {
                warmup.refuse("aggression", "expected a number above 0");
            }
            let minimum_percent = percentage(warmup, "minimumPercent");
            Warmup { duration: duration.unwrap_or_default(), minimum_percent, aggression }
        }),
    }
}

fn consistent_hash(fields: &Fields<'_>) -> ConsistentHash {
    let cookie = fields.read("httpCookie", cookie);
    let keys = [
        fields.opt_text("httpHeaderName").map(HashKey::Header),
        cookie,
        fields.opt_bool("useSourceIp").map(HashKey::SourceIp),
        fields.opt_text("httpQueryParameterName").map(HashKey::QueryParameter),
    ];
    let mut keys = keys.into_iter().flatten();
    let key = keys.next();
    if key.is_none() {
        fields.warn("", "without a hash key, requests are distributed at random");
    } else if keys.next().is_some() {
        fields.reject("", "only one hash key can be set");
    }
    let ring = fields.read("ringHash", |ring| HashAlgorithm::RingHash(unsigned(ring, "minimumRingSize")));
    let maglev = fields.read("maglev", |maglev| {
        let size = unsigned(maglev, "tableSize");
        if size >= MAX_MAGLEV_TABLE_SIZE || !is_prime(size) {
            maglev.refuse("tableSize", format!("expected a prime number below {MAX_MAGLEV_TABLE_SIZE}"));
        }
        HashAlgorithm::Maglev(size)
    });
    if fields.has("minimumRingSize") {
        fields.warn("minimumRingSize", "deprecated: use `ringHash.minimumRingSize`");
        if ring.is_some() || maglev.is_some() {
            fields.refuse("minimumRingSize", "`minimumRingSize` and `ringHash` or `maglev` are mutually exclusive");
        }
    }
    if ring.is_some() && maglev.is_some() {
        fields.reject("", "`ringHash` and `maglev` are mutually exclusive");
    }
    ConsistentHash {
        key,
        algorithm: ring.or(maglev).unwrap_or_default(),
        minimum_ring_size: unsigned(fields, "minimumRingSize"),
    }
}

const MAX_MAGLEV_TABLE_SIZE: u64 = 5_000_011;

fn is_prime(number: u64) -> bool {
    number > 0 && (2..).take_while(|factor| factor * factor <= number).all(|factor| !number.is_multiple_of(factor))
}

fn cookie(fields: &Fields<'_>) -> HashKey {
    let attributes = fields.list("attributes", |attribute| (attribute.text("name"), attribute.text("value")));
    let mut names = BTreeSet::new();
    for (n, (name, _)) in attributes.iter().enumerate() {
        let path = format!("attributes[{n}].name");
        if name.is_empty() {
            fields.refuse(&path, "the name of an attribute is required");
        } else if !names.insert(name) {
            fields.refuse(&path, format!("attribute `{name}` is listed twice"));
        }
    }
    let name = fields.text("name");
    if name.is_empty() {
        fields.refuse("name", "the name of the cookie is required");
    }
    HashKey::Cookie { name, path: fields.text("path"), ttl: fields.opt_duration("ttl"), attributes }
}

fn unsigned(fields: &Fields<'_>, name: &str) -> u64 {
    fields.integer(name)
}

pub(crate) fn checked_pool(fields: &Fields<'_>) -> ConnectionPool {
    let pool = connection_pool(fields);
    if pool.tcp.is_none() && pool.http.is_none() {
        fields.refuse("", "`tcp` or `http` is required");
    }
    if let Some(http) = &pool.http
        && http.use_client_protocol
        && http.h2_upgrade_policy == sluice_model::H2Upgrade::Upgrade
    {
        fields.reject("http", "`h2UpgradePolicy: UPGRADE` and `useClientProtocol` are mutually exclusive");
    }
    for name in ["tcp", "http"] {
        if fields.value(name).and_then(|part| part.as_object()).is_some_and(serde_json::Map::is_empty) {
            fields.refuse(name, "at least one setting is required");
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
            fields.reject(name, "expected a percentage from 0 to 100");
        }
    }
    if outlier.consecutive_local_origin_failures.is_some_and(|failures| failures > 0)
        && !outlier.split_external_local_origin_errors
    {
        fields.reject(
            "consecutiveLocalOriginFailures",
            "`consecutiveLocalOriginFailures` requires `splitExternalLocalOriginErrors: true`",
        );
    }
    outlier
}

fn checked_tls(fields: &Fields<'_>, namespace: &Text) -> ClientTls {
    let tls = client_tls(fields);
    if let Some(name) = tls.credential.name().and_then(|name| name.strip_prefix(CredentialKind::ConfigMap.prefix())) {
        let own = match name.split_once('/') {
            Some((of, name)) => of == namespace.as_str() && !name.is_empty(),
            None => !name.is_empty(),
        };
        if !own {
            fields.refuse(
                "credentialName",
                "a ConfigMap must be in the namespace of the rule: expected `configmap://NAME`",
            );
        }
    }
    let by_mode = matches!(tls.mode, ClientTlsMode::Simple | ClientTlsMode::Mutual);
    if by_mode && tls.insecure_skip_verify == Some(true) {
        let verifies = [
            ("caCertificates", !tls.ca_certificates.is_empty()),
            ("subjectAltNames", !tls.subject_alt_names.is_empty()),
            ("credentialName", tls.mode == ClientTlsMode::Simple && !tls.credential.is_none()),
        ];
        for (name, _) in verifies.iter().filter(|(_, set)| *set) {
            fields.refuse(name, "this field and `insecureSkipVerify` are mutually exclusive");
        }
    }
    if by_mode && !tls.credential.is_none() {
        let files = [
            ("clientCertificate", &tls.client_certificate),
            ("caCertificates", &tls.ca_certificates),
            ("privateKey", &tls.private_key),
            ("caCrl", &tls.ca_crl),
        ];
        for (name, _) in files.iter().filter(|(_, file)| !file.is_empty()) {
            fields.refuse(name, "this field and `credentialName` are mutually exclusive");
        }
    }
    if tls.mode == ClientTlsMode::Mutual && tls.credential.is_none() {
        for (name, file) in [("clientCertificate", &tls.client_certificate), ("privateKey", &tls.private_key)] {
            if file.is_empty() {
                fields.reject(name, "mode MUTUAL requires this field or `credentialName`");
            }
        }
    }
    tls
}

fn checked_locality(fields: &Fields<'_>) -> LocalityLb {
    let locality = locality_lb(fields);
    for distribute in &locality.distribute {
        if distribute.to.values().map(|share| u64::from(*share)).sum::<u64>() != 100 {
            fields.reject("distribute", format!("the weights of `{}` must add up to 100", distribute.from));
        }
    }
    let ordered = !locality.failover.is_empty() || !locality.failover_priority.is_empty();
    if ordered && !locality.distribute.is_empty() {
        fields.reject("distribute", "`distribute` and `failover` are mutually exclusive");
    }
    check_locality_lb(fields, &locality);
    for (from, to) in &locality.failover {
        if from == to {
            fields.reject("failover", format!("region `{from}` must not fail over to itself"));
        }
    }
    locality
}

fn check(fields: &Fields<'_>, rule: &DestinationRule, host: &Text) {
    if host.is_empty() {
        fields.reject("host", "`host` is required");
    } else if !is_wildcard_domain(rule.host.as_str()) && rule.host.as_str().parse::<IpAddr>().is_err() {
        fields.reject("host", format!("`{host}` is not a valid host"));
    } else if !is_admitted_host(host) {
        fields.refuse("host", format!("`{host}` is not a valid host"));
    }
    let mut names = BTreeSet::new();
    for (n, subset) in rule.subsets.iter().enumerate() {
        let path = format!("subsets[{n}].name");
        if subset.name.is_empty() {
            fields.reject(&path, "the name of a subset is required");
        } else if !is_any_case_label(&subset.name) {
            fields.reject(&path, format!("`{}` is not a valid subset name: expected a DNS label", subset.name));
        } else if !names.insert(&subset.name) {
            fields.refuse(&path, format!("subset `{}` is defined twice", subset.name));
        }
    }
    let export_to = fields.texts("exportTo");
    check_export_to(fields, &export_to, &rule.namespace, false);
    let own = |namespace: &Text| namespace.as_str() == "." || *namespace == rule.namespace;
    if rule.workload_selector.is_some() && !export_to.iter().all(own) {
        fields.refuse(
            "exportTo",
            "a rule with `workloadSelector` applies in its own namespace only: `exportTo` must be empty or `.`",
        );
    }
    let sole = |word: &str| rule.export_to.contains(word) && rule.export_to.len() > 1;
    if sole("*") || sole("~") {
        fields.reject("exportTo", "`*` and `~` must be the only entry");
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
    fn all_fields_are_read() {
        let spec = json!({
            "host": "cart", "exportTo": ["."],
            "trafficPolicy": {
                "loadBalancer": { "consistentHash": { "httpHeaderName": "x-user", "maglev": { "tableSize": 65537 } } },
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
    fn empty_connection_pool_is_refused_and_the_rule_applies() {
        let spec = json!({ "host": "a.b", "trafficPolicy": { "connectionPool": { "tcp": {}, "http": {} } } });
        let parsed = parsed(&spec);
        let found: Vec<_> = parsed.rejects.iter().map(|r| (r.severity, r.field_path.as_str())).collect();
        let pool = "spec.trafficPolicy.connectionPool";
        let expected = ["http", "tcp"].map(|name| (Severity::Refused, format!("{pool}.{name}")));
        assert_eq!(found, expected.each_ref().map(|(severity, path)| (*severity, path.as_str())));
        assert!(matches!(parsed.object, Some(Object::DestinationRule(_))));
    }

    #[test]
    fn invalid_fields_are_rejected_with_their_path() {
        let policy = |policy: Value| json!({ "host": "a.b", "trafficPolicy": policy });
        let check = |spec: Value, path: &str| assert_eq!(errors(&spec), [path], "{spec}");
        check(json!({}), "spec.host");
        check(json!({ "host": "a.b", "subsets": [{ "name": "" }] }), "spec.subsets[0].name");
        check(json!({ "host": "a.b", "exportTo": ["*", "x"] }), "spec.exportTo");
        check(
            policy(json!({ "outlierDetection": { "maxEjectionPercent": 101 } })),
            "spec.trafficPolicy.outlierDetection.maxEjectionPercent",
        );
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
