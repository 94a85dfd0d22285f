//! Settings of the server that change what proxies are sent: each test builds the same mesh with and without one.

mod ambient;
mod gateways;

use std::collections::BTreeSet;

use sluice_model::{Proxy, ResourceType, SessionLabels, SlotValues};

use super::{TestGraph, endpoint_slice, sidecar};
use crate::{ClusterSwitches, GraphOptions, ListenerSwitches, SecurityOptions};

/// All that is published for proxies: type, name and text of each resource and of each part of a route table.
struct Sent(Vec<(ResourceType, String, String)>);

impl Sent {
    fn of(mesh: &TestGraph) -> Self {
        mesh.engine.flush();
        let now = mesh.engine.snapshot();
        let slots = SlotValues::default();
        let text = |bytes: bytes::Bytes| String::from_utf8_lossy(&bytes).into_owned();
        let whole = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
        let whole = whole.filter_map(|(key, resource)| {
            Some((key.resource_type, key.name.to_string(), text(resource.bytes(&slots)?)))
        });
        let parts = mesh.handles.segments.iter().flat_map(|of| now.iter(of));
        let parts = parts
            .filter_map(|(key, part)| Some((ResourceType::Route, key.name.to_string(), text(part.bytes(&slots)?))));
        Self(whole.chain(parts).collect())
    }

    /// Of these texts, those that a resource of the type and name has.
    fn has<'t>(&self, resource_type: ResourceType, name: &str, texts: &[&'t str]) -> Vec<&'t str> {
        let found: Vec<_> = self.0.iter().filter(|(of, is, _)| *of == resource_type && is == name).collect();
        texts.iter().copied().filter(|wanted| found.iter().any(|(.., text)| text.contains(wanted))).collect()
    }

    fn names(&self, resource_type: ResourceType) -> Vec<&str> {
        self.0.iter().filter(|(of, ..)| *of == resource_type).map(|(_, name, _)| name.as_str()).collect()
    }

    /// As [`Self::has`], in resources of any type and name.
    fn has_anywhere<'t>(&self, texts: &[&'t str]) -> Vec<&'t str> {
        texts.iter().copied().filter(|wanted| self.0.iter().any(|(.., text)| text.contains(wanted))).collect()
    }
}

/// What a sidecar in namespace `reef` is sent.
fn sent(options: GraphOptions, text: &str) -> Sent {
    sent_to(options, text, sidecar("reef", "client", "10.1.0.8", &[]))
}

fn sent_to(options: GraphOptions, text: &str, proxy: Proxy) -> Sent {
    let mesh = TestGraph::with(options, text);
    mesh.connect(proxy);
    Sent::of(&mesh)
}

fn listeners(switches: ListenerSwitches) -> GraphOptions {
    GraphOptions { listeners: switches, ..GraphOptions::default() }
}

fn clusters(switches: ClusterSwitches) -> GraphOptions {
    GraphOptions { clusters: switches, ..GraphOptions::default() }
}

/// A Service with ports of these names.
fn service(ports: &[(&str, u16)]) -> String {
    let ports: Vec<String> = ports.iter().map(|(name, port)| format!("{{name: {name}, port: {port}}}")).collect();
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: coral, namespace: reef}}
spec: {{clusterIP: 10.0.0.1, selector: {{app: coral}}, ports: [{}]}}
",
        ports.join(", ")
    )
}

const CORAL: &str = "outbound|80||coral.reef.svc.cluster.local";

#[test]
fn database_protocols_have_their_filters_if_they_are_enabled() {
    const FILTERS: [&str; 3] =
        ["filters.network.mongo_proxy", "filters.network.redis_proxy", "filters.network.mysql_proxy"];
    let text = service(&[("mongo", 27017), ("redis", 6379), ("mysql", 3306)]);
    let found = |mongo, redis, mysql| {
        sent(listeners(ListenerSwitches { mongo, redis, mysql, ..ListenerSwitches::default() }), &text)
            .has_anywhere(&FILTERS)
    };
    assert_eq!(found(false, false, false), [""; 0]);
    assert_eq!(found(true, false, false), FILTERS[..1]);
    assert_eq!(found(false, true, false), FILTERS[1..2]);
    assert_eq!(found(false, false, true), FILTERS[2..]);
}

#[test]
fn selectors_of_service_entries_select_pods_unless_disabled() {
    let text = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tide, namespace: reef}
spec:
  hosts: [tide.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  location: MESH_INTERNAL
  workloadSelector: {labels: {app: tide}}
---
apiVersion: v1
kind: Pod
metadata: {name: tide-1, namespace: reef, labels: {app: tide}}
spec: {containers: []}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
";
    let found = |entries_select_pods| {
        sent(GraphOptions { entries_select_pods, ..GraphOptions::default() }, text).has(
            ResourceType::Endpoint,
            "outbound|80||tide.example",
            &["10.1.0.1"],
        )
    };
    assert_eq!(found(true), ["10.1.0.1"]);
    assert_eq!(found(false), [""; 0]);
}

#[test]
fn selectors_of_services_select_workload_entries_unless_disabled() {
    let text = service(&[("http", 80)])
        + "---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm, namespace: reef}
spec: {address: 192.0.2.1, labels: {app: coral}}
";
    let found = |services_select_entries| {
        sent(GraphOptions { services_select_entries, ..GraphOptions::default() }, &text).has(
            ResourceType::Endpoint,
            CORAL,
            &["192.0.2.1"],
        )
    };
    assert_eq!(found(true), ["192.0.2.1"]);
    assert_eq!(found(false), [""; 0]);
}

#[test]
fn sessions_follow_the_labels_of_the_server() {
    let text = service(&[("http", 80)]).replace("namespace: reef", "namespace: reef, labels: {stick: 'crumb'}");
    let found = |labels: SessionLabels| {
        let listeners = ListenerSwitches { persistent_sessions: labels.enabled, ..ListenerSwitches::default() };
        sent(GraphOptions { listeners, sessions: labels, ..GraphOptions::default() }, &text)
            .has_anywhere(&["stateful_session.cookie", "stateful_session.header"])
    };
    let labels = |enabled, cookie: &str, header: &str| SessionLabels {
        enabled,
        cookie: cookie.into(),
        header: header.into(),
        ..SessionLabels::default()
    };
    assert_eq!(found(labels(true, "stick", "other")), ["stateful_session.cookie"]);
    assert_eq!(found(labels(true, "other", "stick")), ["stateful_session.header"]);
    assert_eq!(found(labels(true, "other", "another")), [""; 0]);
    assert_eq!(found(labels(false, "stick", "other")), [""; 0]);
}

#[test]
fn mirrored_requests_have_a_suffix_if_it_is_enabled() {
    let text = service(&[("http", 80)])
        + "---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: coral, namespace: reef}
spec:
  hosts: [coral]
  http: [{route: [{destination: {host: coral}}], mirror: {host: coral}}]
";
    use prost::Message as _;
    use sluice_proto::envoy::config::route::v3::VirtualHost;
    use sluice_proto::envoy::config::route::v3::route::Action;
    let keeps_host = |shadow_suffix| {
        let mesh = TestGraph::with(GraphOptions { shadow_suffix, ..GraphOptions::default() }, &text);
        mesh.connect(sidecar("reef", "client", "10.1.0.8", &[]));
        let now = mesh.engine.snapshot();
        let parts = mesh.handles.segments.iter().flat_map(|of| now.iter(of));
        let hosts = parts.filter(|(key, _)| key.segment.contains("coral"));
        let hosts = hosts.filter_map(|(_, part)| part.bytes(&SlotValues::default()));
        let routes = hosts.flat_map(|bytes| VirtualHost::decode(bytes).expect("a virtual host").routes);
        let mirrors = routes.flat_map(|route| match route.action {
            Some(Action::Route(action)) => action.request_mirror_policies,
            _ => Vec::new(),
        });
        mirrors.map(|mirror| mirror.disable_shadow_host_suffix_append).collect::<BTreeSet<_>>()
    };
    assert_eq!(keeps_host(false), [true].into());
    assert_eq!(keeps_host(true), [false].into());
}

#[test]
fn declared_tls_of_sidecars_is_terminated_if_it_is_enabled() {
    let text = service(&[("https", 443)])
        + "---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: own, namespace: reef}
spec:
  ingress:
  - port: {number: 8443, name: https, protocol: HTTPS}
    defaultEndpoint: 127.0.0.1:8080
    tls: {mode: SIMPLE, serverCertificate: /certs/tls.crt, privateKey: /certs/tls.key}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: own, namespace: reef}
spec: {mtls: {mode: DISABLE}}
";
    let found = |sidecar_ingress_tls| {
        sent(listeners(ListenerSwitches { sidecar_ingress_tls, ..ListenerSwitches::default() }), &text).has(
            ResourceType::Listener,
            "virtualInbound",
            &["/certs/tls.crt"],
        )
    };
    assert_eq!(found(true), ["/certs/tls.crt"]);
    assert_eq!(found(false), [""; 0]);
}

#[test]
fn share_of_traced_requests_is_that_of_the_server_unless_configured() {
    use prost::Message as _;
    use sluice_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing;
    use sluice_proto::envoy::r#type::v3::Percent;
    let text = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: '{enableTracing: true, extensionProviders: [{name: z, zipkin: {service: coral.reef.svc.cluster.local, port: 80}}], defaultProviders: {tracing: [z]}}'}
---"
    .to_owned()
        + &service(&[("http", 80)]);
    let has = |share: f64| {
        let trace_sampling = sluice_model::Decimal::from_f64(share);
        let mesh =
            TestGraph::with(listeners(ListenerSwitches { trace_sampling, ..ListenerSwitches::default() }), &text);
        mesh.connect(sidecar("reef", "client", "10.1.0.8", &[]));
        let sampled = Tracing { random_sampling: Some(Percent { value: 42.5 }), ..Tracing::default() }.encode_to_vec();
        let now = mesh.engine.snapshot();
        let mut all = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
        all.any(|(_, resource)| {
            let bytes = resource.bytes(&SlotValues::default()).unwrap_or_default();
            bytes.windows(sampled.len()).any(|part| part == sampled)
        })
    };
    assert!(has(42.5) && !has(1.0));
}

#[test]
#[expect(deprecated, reason = "the reference sets this field")]
fn dns_of_proxies_follows_the_switches_of_the_server() {
    use prost::Message as _;
    use sluice_proto::envoy::config::cluster::v3::Cluster;
    let text = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tide, namespace: reef}
spec:
  hosts: [tide.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DNS
";
    let cluster = |switches: ClusterSwitches| {
        let mesh = TestGraph::with(clusters(switches), text);
        mesh.connect(sidecar("reef", "client", "10.1.0.8", &[]));
        let now = mesh.engine.snapshot();
        let mut all = mesh.handles.resources.iter().flat_map(|of| now.iter(of));
        let found = all
            .find(|(key, _)| key.resource_type == ResourceType::Cluster && *key.name == *"outbound|80||tide.example");
        let bytes = found.and_then(|(_, resource)| resource.bytes(&SlotValues::default())).expect("a cluster");
        Cluster::decode(bytes).expect("a cluster")
    };
    let shown = |cluster: Cluster| {
        let jitter = cluster.dns_jitter.map(|jitter| (jitter.seconds, jitter.nanos));
        (jitter, cluster.typed_dns_resolver_config.map(|config| config.typed_config.expect("a resolver").value))
    };
    let (jitter, resolver) = shown(cluster(ClusterSwitches::default()));
    assert_eq!(jitter, Some((0, 100_000_000)));
    let other = ClusterSwitches {
        dns_jitter: std::time::Duration::from_secs(3),
        dns_udp_queries: 7,
        ..ClusterSwitches::default()
    };
    let (jitter, other) = shown(cluster(other));
    assert_eq!(jitter, Some((3, 0)));
    assert!(resolver.is_some_and(|resolver| resolver.contains(&100)) && other.is_some_and(|other| other.contains(&7)));
}

#[test]
fn clients_of_all_trust_domains_are_accepted_if_the_server_says_so() {
    let text = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: '{trustDomain: td, trustDomainAliases: [old]}'}
---"
    .to_owned()
        + &service(&[("http", 80)])
        + &endpoint_slice("coral", "http", 8080, &["10.1.0.8"]);
    let found = |any_trust_domain| {
        let security = SecurityOptions { any_trust_domain, ..SecurityOptions::default() };
        sent(GraphOptions { security, ..GraphOptions::default() }, &text).has(
            ResourceType::Listener,
            "virtualInbound",
            &["spiffe://td/", "spiffe://old/", "ROOTCA"],
        )
    };
    assert_eq!(found(false), ["spiffe://td/", "spiffe://old/", "ROOTCA"]);
    assert_eq!(found(true), ["ROOTCA"], "any certificate of the roots");
}

#[test]
fn custom_policies_of_several_providers_apply_if_that_is_enabled() {
    let policy = |provider: &str, path: &str| {
        format!(
            "---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: {provider}, namespace: reef}}
spec: {{action: CUSTOM, provider: {{name: {provider}}}, rules: [{{to: [{{operation: {{paths: [{path}]}}}}]}}]}}
"
        )
    };
    let text = "
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'extensionProviders: [{name: one, envoyExtAuthzGrpc: {service: one.reef.svc.cluster.local, port: 80}}, {name: two, envoyExtAuthzGrpc: {service: two.reef.svc.cluster.local, port: 80}}]'}
---"
    .to_owned()
        + &service(&[("http", 80)]).replace("name: coral", "name: one")
        + "---"
        + &service(&[("http", 80)]).replace("name: coral", "name: two")
        + &policy("one", "/one")
        + &policy("two", "/two");
    const CALLED: [&str; 2] = ["outbound|80||one.reef.svc.cluster.local", "outbound|80||two.reef.svc.cluster.local"];
    let found = |multiple_custom_providers| {
        let security = SecurityOptions { multiple_custom_providers, ..SecurityOptions::default() };
        sent(GraphOptions { security, ..GraphOptions::default() }, &text).has(
            ResourceType::Listener,
            "virtualInbound",
            &CALLED,
        )
    };
    assert_eq!(found(true), CALLED);
    assert_eq!(found(false), [""; 0], "what their rules match is denied");
}
