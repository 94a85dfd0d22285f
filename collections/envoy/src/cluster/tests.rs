use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::cluster::v3::cluster::LbPolicy;
use sluice_model::{
    ClientTls, ClientTlsMode, DestinationRule, ExportTo, Extensions, Labels, MeshConfig, Protocol, Proxy, Resolution,
    Service, ServicePort, ServiceSource, Subset, Text, TrafficDistribution, TrafficPolicy,
};

use super::{ClusterProfile, ClusterSettings, OutboundInputs, build_outbound, build_passthrough};

fn service() -> Service {
    Service {
        namespace: "shop".into(),
        host: "cart.shop.svc.cluster.local".into(),
        name: "cart".into(),
        source: ServiceSource::Kubernetes,
        cluster: "c".into(),
        created: 0,
        addresses: BTreeMap::new(),
        auto_allocated_addresses: Vec::new(),
        external_addresses: BTreeMap::new(),
        ports: vec![ServicePort {
            port: 80,
            name: "http".into(),
            protocol: Protocol::Http,
            target_port: Text::default(),
        }],
        resolution: Resolution::ClientSideLb,
        mesh_external: false,
        export_to: ExportTo::All,
        labels: Labels::new(),
        selector: Labels::new(),
        subject_alt_names: Vec::new(),
        external_name: None,
        node_local: false,
        publish_not_ready: false,
        traffic_distribution: TrafficDistribution::Any,
        cluster_local: false,
    }
}

fn build(service: &Service, rule: Option<&DestinationRule>, profile: &ClusterProfile) -> Vec<Cluster> {
    build_outbound(&OutboundInputs {
        settings: &ClusterSettings::new(&MeshConfig::default(), false),
        profile,
        service,
        port: &service.ports[0],
        rule,
        takes_mtls: true,
        all_endpoints_mtls: false,
        identities: &["spiffe://cluster.local/ns/shop/sa/cart".into()],
        dns_load: &|_| None,
    })
}

#[test]
fn an_envoy_without_the_exchange_of_metadata_is_not_asked_for_it() {
    let upstream = Proxy {
        extensions: Extensions(Some(BTreeSet::from(["envoy.filters.network.tcp_proxy".into()]))),
        ..Proxy::default()
    };
    let settings = ClusterSettings::new(&MeshConfig::default(), false);
    let filters = |proxy: &Proxy| {
        let profile = ClusterProfile::of(proxy);
        let clusters = build(&service(), None, &profile);
        clusters[0].filters.len() + build_passthrough(&settings, &profile).filters.len()
    };
    assert_eq!(filters(&Proxy::default()), 2);
    assert_eq!(filters(&upstream), 0);
}

#[test]
fn endpoints_choose_between_mutual_tls_and_plain_text() {
    let clusters = build(&service(), None, &ClusterProfile::default());
    let names: Vec<&str> = clusters[0].transport_socket_matches.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(names, ["tlsMode-istio", "tlsMode-disabled"]);
    assert!(clusters[0].transport_socket.is_none());
}

#[test]
fn a_subset_has_a_cluster_of_its_own_with_the_settings_of_both() {
    let tls = ClientTls { mode: ClientTlsMode::Disable, ..ClientTls::default() };
    let rule = DestinationRule {
        namespace: "shop".into(),
        name: "cart".into(),
        host: "cart.shop.svc.cluster.local".into(),
        traffic_policy: Some(TrafficPolicy { tls: Some(tls), ..TrafficPolicy::default() }),
        subsets: vec![Subset { name: "v1".into(), ..Subset::default() }],
        ..DestinationRule::default()
    };
    let clusters = build(&service(), Some(&rule), &ClusterProfile::default());
    let names: Vec<&str> = clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    assert_eq!(names, ["outbound|80||cart.shop.svc.cluster.local", "outbound|80|v1|cart.shop.svc.cluster.local"]);
    for cluster in &clusters {
        assert!(cluster.transport_socket_matches.is_empty() && cluster.transport_socket.is_none());
        assert_eq!(cluster.lb_policy, LbPolicy::LeastRequest as i32);
    }
}

#[test]
fn a_service_resolved_by_dns_needs_endpoints_to_have_a_cluster() {
    let service = Service { resolution: Resolution::DnsLb, ..service() };
    assert!(build(&service, None, &ClusterProfile::default()).is_empty());
}
