use super::check;

#[test]
fn service_entries_are_checked() {
    check(
        "networking.istio.io/v1",
        "ServiceEntry",
        &[
            (
                "{hosts: [a.b], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS, exportTo: ['~']}",
                &[],
            ),
            ("{hosts: ['*']}", &["E spec.hosts[0]"]),
            ("{hosts: [a_b.c]}", &["R spec.hosts[0]"]),
            ("{hosts: ['*x.c']}", &["W spec.hosts[0]"]),
            ("{hosts: ['*-x.c']}", &["W spec.hosts[0]"]),
            ("{hosts: [a], addresses: [1.2.3.4/33]}", &["E spec.addresses[0]"]),
            ("{hosts: [a], ports: [{number: 80, name: a_b}]}", &["R spec.ports[0].name"]),
            ("{hosts: [a], ports: [{number: 80, name: a, protocol: SMTP}]}", &["E spec.ports[0].protocol"]),
            ("{hosts: [a], ports: [{number: 0, name: a}]}", &["E spec.ports[0].number"]),
            (
                "{hosts: [a, b], resolution: DNS, ports: [{number: 1, name: a, protocol: TCP}]}",
                &["R spec.ports[0].protocol"],
            ),
            ("{hosts: [a, b], resolution: NONE, ports: [{number: 1, name: a, protocol: TCP}]}", &[]),
            ("{hosts: [a], resolution: NONE, workloadSelector: {labels: {a: b}}}", &["W spec.workloadSelector"]),
            (
                "{hosts: [a], resolution: STATIC, workloadSelector: {labels: {a: 'b*'}}}",
                &["R spec.workloadSelector.labels[a]"],
            ),
            ("{hosts: [a], resolution: STATIC, workloadSelector: {}}", &["W spec.workloadSelector.labels"]),
            ("{hosts: [a], resolution: DNS, endpoints: [{address: 'x y'}]}", &["R spec.endpoints[0].address"]),
            (
                "{hosts: [a], resolution: STATIC, ports: [{number: 1, name: a}], endpoints: [{address: 1.2.3.4, ports: {b: 2}}]}",
                &["R spec.endpoints[0].ports[b]"],
            ),
            ("{hosts: [a], resolution: STATIC, endpoints: [{address: 'unix:///s'}]}", &["R spec.endpoints[0].address"]),
            (
                "{hosts: [a], resolution: STATIC, endpoints: [{address: 1.2.3.4, labels: {'a b': c}}]}",
                &["R spec.endpoints[0].labels"],
            ),
            ("{hosts: ['*.a'], resolution: DYNAMIC_DNS, ports: [{number: 1, name: a, protocol: HTTP}]}", &[]),
            ("{hosts: [b.a], resolution: DYNAMIC_DNS}", &["R spec.hosts[0]"]),
            ("{hosts: ['*.a'], resolution: DYNAMIC_DNS, addresses: [1.2.3.4]}", &["R spec.addresses"]),
            (
                "{hosts: ['*.a'], resolution: DYNAMIC_DNS, ports: [{number: 1, name: a, protocol: TCP}]}",
                &["R spec.ports[0].protocol"],
            ),
        ],
    );
}

#[test]
fn workload_entries_and_groups_are_checked() {
    check(
        "networking.istio.io/v1",
        "WorkloadEntry",
        &[
            ("{address: 1.2.3.4, ports: {http: 80}}", &[]),
            ("{address: a.b}", &[]),
            ("{address: 'a b'}", &["R spec.address"]),
            ("{network: n}", &["W spec.address"]),
            ("{}", &["E spec.address"]),
            ("{address: 'unix:///a/'}", &["R spec.address"]),
            ("{address: 1.2.3.4, ports: {a_b: 80}}", &["R spec.ports[a_b]"]),
            ("{address: 1.2.3.4, ports: {a: 65536}}", &["E spec.ports[a]"]),
            ("{address: 1.2.3.4, labels: {a: 'b c'}}", &["R spec.labels[a]"]),
        ],
    );
    check(
        "networking.istio.io/v1",
        "WorkloadGroup",
        &[
            ("{metadata: {labels: {a: b}}, template: {serviceAccount: s}, probe: {httpGet: {port: 80}}}", &[]),
            ("{}", &["E spec.template"]),
            ("{template: {}, metadata: {labels: {a: 'b c'}}}", &["R spec.metadata.labels[a]"]),
            ("{template: {}, probe: {}}", &["R spec.probe"]),
            ("{template: {}, probe: {tcpSocket: {port: 0}}}", &["R spec.probe.tcpSocket.port"]),
            ("{template: {}, probe: {exec: {}}}", &["R spec.probe.exec.command"]),
            ("{template: {}, probe: {httpGet: {port: 1, scheme: ftp}}}", &["R spec.probe.httpGet.scheme"]),
            (
                "{template: {}, probe: {httpGet: {port: 1, httpHeaders: [{name: a_b}]}}}",
                &["R spec.probe.httpGet.httpHeaders[0].name"],
            ),
            ("{template: {}, probe: {tcpSocket: {port: 1}, periodSeconds: -1}}", &["R spec.probe.periodSeconds"]),
        ],
    );
}

#[test]
fn peer_authentications_are_checked() {
    check(
        "security.istio.io/v1",
        "PeerAuthentication",
        &[
            ("{selector: {matchLabels: {a: b}}, portLevelMtls: {80: {mode: DISABLE}}}", &[]),
            ("{selector: {}}", &["W spec.selector.matchLabels"]),
            ("{selector: {matchLabels: {a: b}}, portLevelMtls: {}}", &["R spec.portLevelMtls"]),
            ("{selector: {matchLabels: {a: b}}, portLevelMtls: {0: {}}}", &["R spec.portLevelMtls[0]"]),
            ("{portLevelMtls: {80: {}}}", &["R spec.portLevelMtls"]),
            ("{mtls: {mode: MAYBE}}", &["W spec.mtls", "E spec.mtls.mode"]),
        ],
    );
}

#[test]
fn request_authentications_are_checked() {
    check(
        "security.istio.io/v1",
        "RequestAuthentication",
        &[
            ("{jwtRules: [{issuer: 'https://i', jwksUri: 'https://i/keys'}]}", &[]),
            ("{jwtRules: [{issuer: 'https://i', jwksUri: 'http://i/keys'}]}", &["W spec.jwtRules[0].jwksUri"]),
            ("{jwtRules: [{issuer: 'https://i', jwksUri: 'ftp://i/keys'}]}", &["R spec.jwtRules[0].jwksUri"]),
        ],
    );
}
