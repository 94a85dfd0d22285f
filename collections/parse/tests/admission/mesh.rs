use super::found;

fn mesh(table: &[(&str, &[&str])]) {
    let mut wrong = Vec::new();
    for (text, expected) in table {
        let found = found(text);
        if found != *expected {
            wrong.push(format!("{text}\n    found    {found:?}\n    expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn mesh_configs_are_checked() {
    mesh(&[
        ("trustDomain: a.b\nconnectTimeout: 1s\n", &[]),
        ("trustDomain: 'a b'", &["R trustDomain"]),
        ("trustDomainAliases: [a, b_c]", &["R trustDomainAliases[1]"]),
        ("connectTimeout: 2h", &["R connectTimeout"]),
        ("connectTimeout: 1us", &["R connectTimeout"]),
        ("protocolDetectionTimeout: 1us", &["R protocolDetectionTimeout"]),
        ("proxyListenPort: 0", &["R proxyListenPort"]),
        ("proxyListenPort: 70000", &["E proxyListenPort"]),
        ("serviceSettings: [{hosts: ['a b']}]", &["R serviceSettings[0].hosts[0]"]),
        ("meshMTLS: {ecdhCurves: [P-256]}", &["R meshMTLS.ecdhCurves"]),
        (
            "tlsDefaults: {ecdhCurves: [P-256, P-256, X]}",
            &["W tlsDefaults.ecdhCurves[1]", "W tlsDefaults.ecdhCurves[2]"],
        ),
        ("localityLbSetting: {distribute: [{from: a, to: {b: 99}}]}", &["R localityLbSetting.distribute[0].to"]),
        ("localityLbSetting: {failover: [{from: a, to: a}]}", &["R localityLbSetting.failover[0]"]),
        (
            "defaultTrafficPolicy: {connectionPool: {tcp: {maxConnections: -1}}}",
            &["R defaultTrafficPolicy.connectionPool.tcp.maxConnections"],
        ),
        ("defaultInboundHttpRetryPolicy: {attempts: 0, backoff: 1s}", &["R defaultInboundHttpRetryPolicy.backoff"]),
        (
            "defaultInboundHttpRetryPolicy: {attempts: 1, perTryTimeout: 1s}",
            &["W defaultInboundHttpRetryPolicy.perTryTimeout"],
        ),
        ("extensionProviders: [{name: a, zipkin: {service: x/a.b, port: 9411}}, {name: b, prometheus: {}}]", &[]),
        (
            "extensionProviders: [{name: a, zipkin: {service: 'a b', port: 0}}]",
            &["W extensionProviders[0].zipkin.service", "W extensionProviders[0].zipkin.port"],
        ),
        (
            "extensionProviders: [{name: a, prometheus: {}}, {name: a, prometheus: {}}]",
            &["W extensionProviders[1].name"],
        ),
        ("extensionProviders: [{name: a}]", &["W extensionProviders[0]"]),
        (
            "extensionProviders: [{name: a, envoyExtAuthzHttp: {service: a, port: 1, pathPrefix: b, statusOnError: x}}]",
            &[
                "W extensionProviders[0].envoyExtAuthzHttp.pathPrefix",
                "W extensionProviders[0].envoyExtAuthzHttp.statusOnError",
            ],
        ),
        ("unheardOf: 1\ntrustDomain: a", &["W unheardOf"]),
    ]);
}

#[test]
fn proxy_configs_are_checked() {
    mesh(&[
        ("defaultConfig: {discoveryAddress: 'a.b:15012', drainDuration: 45s, statusPort: 15020}", &[]),
        ("defaultConfig: {discoveryAddress: a.b}", &["R defaultConfig.discoveryAddress"]),
        ("defaultConfig: {discoveryAddress: 'a b:1'}", &["R defaultConfig.discoveryAddress"]),
        ("defaultConfig: {statsdUdpAddress: '[::1]:8125'}", &[]),
        (
            "defaultConfig: {envoyAccessLogService: {address: 'a:0'}}",
            &["R defaultConfig.envoyAccessLogService.address"],
        ),
        ("defaultConfig: {drainDuration: 1.5s}", &["R defaultConfig.drainDuration"]),
        ("defaultConfig: {proxyAdminPort: 0}", &["R defaultConfig.proxyAdminPort"]),
        ("defaultConfig: {configPath: ''}", &["R defaultConfig.configPath"]),
        ("defaultConfig: {tracing: {zipkin: {address: '$(HOST_IP):9411'}}}", &[]),
        ("defaultConfig: {tracing: {zipkin: {address: zipkin}}}", &["R defaultConfig.tracing.zipkin.address"]),
        ("defaultConfig: {tracing: {lightstep: {address: 'a:1'}}}", &["R defaultConfig.tracing.lightstep.accessToken"]),
        (
            "defaultConfig: {privateKeyProvider: {cryptomb: {pollDelay: 0s}}}",
            &["R defaultConfig.privateKeyProvider.cryptomb.pollDelay"],
        ),
        (
            "defaultConfig: {connectionSettings: {httpMaxConcurrentStreams: 0}}",
            &["R defaultConfig.connectionSettings.httpMaxConcurrentStreams"],
        ),
        (
            "defaultConfig: {proxyMetadata: {ISTIO_META_DNS_AUTO_ALLOCATE: 'true'}}",
            &["W defaultConfig.proxyMetadata[ISTIO_META_DNS_AUTO_ALLOCATE]"],
        ),
        ("configSources: []\nserviceScopeConfigs: []", &[]),
        ("serviceScopeConfigs: [{scope: GLOBAL}, {scope: LOCAL, namespaceSelector: {matchLabels: {a: b}}}]", &[]),
        ("serviceScopeConfigs: [{scope: EVERYWHERE}]", &["E serviceScopeConfigs[0].scope"]),
        ("serviceScopeConfigs: [{scope: GLOBAL, servicesSelector: x}]", &["E serviceScopeConfigs[0].servicesSelector"]),
    ]);
}

#[test]
fn config_sources_are_checked() {
    mesh(&[
        ("configSources: [{address: 'fs:///x'}, {address: 'k8s://'}, {address: 'xds://[::1]:15010'}]", &[]),
        ("configSources: [{address: 'XDS://a.b:15010', subscribedResources: [SERVICE_REGISTRY]}]", &[]),
        (
            "configSources: [{address: 'http://a'}, {address: 'k8s://c/remote'}, {address: a}, {}]",
            &[
                "W configSources[0].address",
                "W configSources[1].address",
                "W configSources[2].address",
                "W configSources[3].address",
            ],
        ),
        (
            "configSources: [{address: 'xds://a'}, {address: 'xds://:1'}, {address: 'xds://a:0'}, {address: 'fs://x'}]",
            &[
                "R configSources[0].address",
                "R configSources[1].address",
                "R configSources[2].address",
                "R configSources[3].address",
            ],
        ),
        ("configSources: [{address: 'xds://a:1', other: 1}]", &["W configSources[0].other"]),
        (
            "configSources: [{address: 'xds://a:1', tlsSettings: {mode: NONE}}]",
            &["E configSources[0].tlsSettings.mode"],
        ),
        ("configSources: [{address: 'xds://a:1', tlsSettings: {mode: ISTIO_MUTUAL}}]", &[]),
        ("configSources: [{address: 'xds://a:1', tlsSettings: {mode: SIMPLE, insecureSkipVerify: true}}]", &[]),
        (
            "configSources: [{address: 'xds://a:1', tlsSettings: {mode: SIMPLE, insecureSkipVerify: true, \
             caCertificates: a, subjectAltNames: [b]}}]",
            &["R configSources[0].tlsSettings.caCertificates", "R configSources[0].tlsSettings.subjectAltNames"],
        ),
        (
            "configSources: [{address: 'xds://a:1', tlsSettings: {mode: MUTUAL, clientCertificate: a}}]",
            &["R configSources[0].tlsSettings.privateKey"],
        ),
        (
            "configSources: [{address: 'xds://a:1', tlsSettings: {mode: MUTUAL, credentialName: 'configmap://a'}}]",
            &["R configSources[0].tlsSettings.credentialName"],
        ),
        (
            "configSources: [{address: 'xds://a:1', tlsSettings: {mode: SIMPLE, credentialName: a, caCertificates: b}}]",
            &["R configSources[0].tlsSettings.caCertificates"],
        ),
    ]);
}

#[test]
fn mesh_networks_are_checked() {
    mesh(&[
        ("networks: {n: {endpoints: [{fromRegistry: a}], gateways: [{address: 1.2.3.4, port: 15443}]}}", &[]),
        ("networks: {n: {endpoints: [{fromRegistry: 'a b'}]}}", &["R networks[n].endpoints[0].fromRegistry"]),
        ("networks: {n: {endpoints: [{fromCidr: a}]}}", &["E networks[n].endpoints[0].fromCidr"]),
        ("networks: {n: {gateways: [{address: 'a b', port: 1}]}}", &["R networks[n].gateways[0].address"]),
        ("networks: {n: {gateways: [{registryServiceName: a.b, port: 0}]}}", &["R networks[n].gateways[0].port"]),
    ]);
}

#[test]
fn mesh_config_in_a_config_map_is_checked() {
    let text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    \
                accessLogFile: /dev/stdout\n    defaultConfig:\n      drainDuration: 1.5s\n";
    let validation = sluice_parse::validate_text(text);
    let [problem] = validation.problems.as_slice() else { panic!("{validation:?}") };
    assert_eq!(problem.field_path.as_str(), "data.mesh.defaultConfig.drainDuration");
    assert_eq!((problem.position.line, problem.position.column), (8, 7));
    assert_eq!((problem.namespace.as_str(), problem.name.as_str()), ("istio-system", "istio"));
}
