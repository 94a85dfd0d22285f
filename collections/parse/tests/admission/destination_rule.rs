use super::check;

fn rule(table: &[(&str, &[&str])]) {
    check("networking.istio.io/v1", "DestinationRule", table);
}

/// Checks a traffic policy. Paths of findings are relative to `spec.trafficPolicy`.
fn policy(table: &[(&str, &[&str])]) {
    let below =
        |path: &&str| format!("{} spec.trafficPolicy.{}", &path[..1], &path[2..]).trim_end_matches('.').to_owned();
    let table: Vec<(String, Vec<String>)> = table
        .iter()
        .map(|(policy, found)| (format!("{{host: a, trafficPolicy: {policy}}}"), found.iter().map(below).collect()))
        .collect();
    let paths: Vec<Vec<&str>> = table.iter().map(|(_, found)| found.iter().map(String::as_str).collect()).collect();
    let table: Vec<(&str, &[&str])> =
        table.iter().zip(&paths).map(|((spec, _), found)| (spec.as_str(), found.as_slice())).collect();
    rule(&table);
}

#[test]
fn hosts_subsets_and_selectors_are_checked() {
    rule(&[
        ("{host: a.b, subsets: [{name: V1, labels: {a/b: c}}], exportTo: [.]}", &[]),
        ("{host: a_b.c}", &["R spec.host"]),
        ("{host: '*-x.c'}", &[]),
        ("{host: a, subsets: [{name: a_b}]}", &["E spec.subsets[0].name"]),
        ("{host: a, subsets: [{name: b}, {name: b}]}", &["R spec.subsets[1].name"]),
        ("{host: a, subsets: [{name: b, labels: {'a b': c}}]}", &["R spec.subsets[0].labels"]),
        ("{host: a, subsets: [{name: b, trafficPolicy: {}}]}", &["R spec.subsets[0].trafficPolicy"]),
        ("{host: a, workloadSelector: {matchLabels: {a: 'b*'}}}", &["R spec.workloadSelector.matchLabels[a]"]),
        ("{host: a, workloadSelector: {}}", &["W spec.workloadSelector.matchLabels"]),
        ("{host: a, workloadSelector: {matchLabels: {a: b}}, exportTo: [other]}", &["R spec.exportTo"]),
        ("{host: a, workloadSelector: {matchLabels: {a: b}}, exportTo: [shop]}", &[]),
        ("{host: a, exportTo: [x, x]}", &["R spec.exportTo[1]"]),
        ("{host: a, exportTo: ['a b']}", &["R spec.exportTo[0]"]),
    ]);
}

#[test]
fn connection_pools_and_outlier_detection_are_checked() {
    policy(&[
        ("{}", &["R "]),
        ("{connectionPool: {tcp: {maxConnections: 1, idleTimeout: 0s, tcpKeepalive: {time: 1h}}}}", &[]),
        ("{connectionPool: {tcp: {maxConnections: -1}}}", &["R connectionPool.tcp.maxConnections"]),
        ("{connectionPool: {tcp: {connectTimeout: 1us}}}", &["R connectionPool.tcp.connectTimeout"]),
        ("{connectionPool: {tcp: {tcpKeepalive: {interval: 0s}}}}", &["R connectionPool.tcp.tcpKeepalive.interval"]),
        ("{connectionPool: {http: {maxRetries: -1}}}", &["R connectionPool.http.maxRetries"]),
        (
            "{connectionPool: {http: {http2KeepAlive: {interval: 1s}}}}",
            &["R connectionPool.http.http2KeepAlive.timeout"],
        ),
        ("{connectionPool: {http: {h2UpgradePolicy: UPGRADE, useClientProtocol: true}}}", &["E connectionPool.http"]),
        ("{outlierDetection: {consecutiveErrors: 1}}", &["W outlierDetection.consecutiveErrors"]),
        ("{outlierDetection: {interval: 1ns}}", &["R outlierDetection.interval"]),
        ("{outlierDetection: {minHealthPercent: 101}}", &["E outlierDetection.minHealthPercent"]),
        (
            "{outlierDetection: {outlierDetectionHttpErrorCodes: [99]}}",
            &["R outlierDetection.outlierDetectionHttpErrorCodes[0]"],
        ),
        ("{retryBudget: {percent: 101}}", &["R retryBudget.percent"]),
    ]);
}

#[test]
fn load_balancers_are_checked() {
    policy(&[
        ("{loadBalancer: {consistentHash: {httpCookie: {name: c}, maglev: {tableSize: 65537}}}}", &[]),
        (
            "{loadBalancer: {consistentHash: {httpCookie: {ttl: 1s}}}}",
            &["R loadBalancer.consistentHash.httpCookie.name"],
        ),
        (
            "{loadBalancer: {consistentHash: {httpCookie: {name: c, attributes: [{name: d}, {name: d}]}}}}",
            &["R loadBalancer.consistentHash.httpCookie.attributes[1].name"],
        ),
        (
            "{loadBalancer: {consistentHash: {useSourceIp: true, maglev: {tableSize: 65536}}}}",
            &["R loadBalancer.consistentHash.maglev.tableSize"],
        ),
        (
            "{loadBalancer: {consistentHash: {useSourceIp: true, minimumRingSize: 1024, ringHash: {}}}}",
            &["R loadBalancer.consistentHash.minimumRingSize", "W loadBalancer.consistentHash.minimumRingSize"],
        ),
        ("{loadBalancer: {localityLbSetting: {failover: [{from: a, to: b}]}}}", &["W loadBalancer"]),
        (
            "{outlierDetection: {}, loadBalancer: {localityLbSetting: {failover: [{from: a, to: b/c}]}}}",
            &["R loadBalancer.localityLbSetting.failover[0].to"],
        ),
        (
            "{loadBalancer: {localityLbSetting: {distribute: [{from: a/*, to: {a/b/*: 100}}, {from: a/b, to: {c: 100}}]}}}",
            &["R loadBalancer.localityLbSetting.distribute"],
        ),
        (
            "{loadBalancer: {localityLbSetting: {distribute: [{from: a//b, to: {c: 100}}]}}}",
            &["R loadBalancer.localityLbSetting.distribute"],
        ),
        (
            "{loadBalancer: {localityLbSetting: {distribute: [{from: a, to: {c: 100, d: 0}}]}}}",
            &["R loadBalancer.localityLbSetting.distribute[0].to[d]"],
        ),
        (
            "{outlierDetection: {}, loadBalancer: {zoneAwareLbSetting: {failoverPriority: [topology.kubernetes.io/zone]}}}",
            &["R loadBalancer.zoneAwareLbSetting.failoverPriority[0]"],
        ),
        (
            "{loadBalancer: {simple: RANDOM, warmup: {duration: 1s, aggression: 0}}}",
            &["R loadBalancer.warmup.aggression"],
        ),
        (
            "{loadBalancer: {simple: RANDOM, warmup: {duration: 1s, minimumPercent: 101}}}",
            &["R loadBalancer.warmup.minimumPercent"],
        ),
        ("{loadBalancer: {simple: RANDOM, warmupDurationSecs: 1us}}", &["R loadBalancer.warmupDurationSecs"]),
    ]);
}

#[test]
fn tls_tunnels_and_ports_are_checked() {
    policy(&[
        ("{tls: {mode: SIMPLE, credentialName: c}}", &[]),
        ("{tls: {mode: SIMPLE, credentialName: c, caCertificates: f}}", &["R tls.caCertificates"]),
        ("{tls: {mode: SIMPLE, insecureSkipVerify: true, subjectAltNames: [a]}}", &["R tls.subjectAltNames"]),
        ("{tls: {mode: SIMPLE, credentialName: 'configmap://other/c'}}", &["R tls.credentialName"]),
        ("{tls: {mode: SIMPLE, credentialName: 'configmap://shop/c'}}", &[]),
        ("{tls: {mode: MUTUAL, clientCertificate: c}}", &["E tls.privateKey"]),
        ("{tunnel: {targetHost: a.b, targetPort: 443}}", &[]),
        ("{tunnel: {targetHost: 'a b', targetPort: 443}}", &["R tunnel.targetHost"]),
        ("{tunnel: {targetHost: a, targetPort: 0}}", &["R tunnel.targetPort"]),
        ("{tunnel: {protocol: GET, targetHost: a, targetPort: 1}}", &["R tunnel.protocol"]),
        ("{tunnel: {targetHost: a, targetPort: 1}, proxyProtocol: {}}", &["R proxyProtocol"]),
        ("{portLevelSettings: [{port: {number: 80}}]}", &["R portLevelSettings[0]"]),
        ("{portLevelSettings: [{tls: {mode: DISABLE}}]}", &["E portLevelSettings"]),
    ]);
}
