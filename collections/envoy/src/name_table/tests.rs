use std::collections::BTreeMap;

use prost::Message;
use sluice_model::{
    Endpoint, Health, Labels, Locality, Protocol, Resolution, Service, ServicePort, ServiceSource, Text, TlsMode,
};
use sluice_proto::istio::networking::nds::v1::NameTable;
use sluice_proto::istio::networking::nds::v1::name_table::NameInfo;

use super::{NameInputs, build_names};

fn service(source: ServiceSource, resolution: Resolution) -> Service {
    let host = match source {
        ServiceSource::Kubernetes => "db.data.svc.cluster.local",
        ServiceSource::ServiceEntry => "db.example.com",
    };
    Service {
        namespace: "data".into(),
        host: host.into(),
        name: "db".into(),
        source,
        cluster: "c".into(),
        ports: vec![ServicePort {
            port: 5432,
            name: "tcp".into(),
            protocol: Protocol::Tcp,
            target_port: Text::default(),
        }],
        resolution,
        ..Service::default()
    }
}

fn pod(address: &str, hostname: &str, cluster: &str, network: &str) -> Endpoint {
    Endpoint {
        addresses: vec![address.into()],
        port: 5432,
        port_name: "tcp".into(),
        labels: Labels::new(),
        locality: Locality::default(),
        node: Text::default(),
        cluster: cluster.into(),
        network: network.into(),
        namespace: "data".into(),
        workload_name: "db".into(),
        service_account: Text::default(),
        tls_mode: TlsMode::Disabled,
        health: Health::Healthy,
        weight: 0,
        hostname: hostname.into(),
        subdomain: if hostname.is_empty() { Text::default() } else { "db".into() },
        hbone: false,
        cluster_local: false,
    }
}

/// The table of a client in cluster `c` and network `n`, decoded.
fn table(service: &Service, addresses: &[&str], endpoints: &[Endpoint]) -> BTreeMap<String, NameInfo> {
    let addresses: Vec<Text> = addresses.iter().map(|address| (*address).into()).collect();
    let inputs = NameInputs { service, addresses: &addresses, endpoints, cluster: "c", network: "n" };
    let mut wire = Vec::new();
    for entry in build_names(&inputs).values() {
        prost::encoding::bytes::encode(1, entry, &mut wire);
    }
    NameTable::decode(wire.as_slice()).expect("a table").table.into_iter().collect()
}

#[test]
fn service_with_addresses_resolves_to_them() {
    let service = service(ServiceSource::Kubernetes, Resolution::ClientSideLb);
    let table = table(&service, &["10.0.0.1", "10.0.1.0/24"], &[pod("10.1.0.1", "", "c", "")]);
    let info = NameInfo {
        ips: vec!["10.0.0.1".to_owned()],
        registry: "Kubernetes".to_owned(),
        shortname: "db".to_owned(),
        namespace: "data".to_owned(),
        alt_hosts: Vec::new(),
    };
    assert_eq!(table, BTreeMap::from([("db.data.svc.cluster.local".to_owned(), info)]));
}

#[test]
fn service_entry_has_no_short_name() {
    let service = service(ServiceSource::ServiceEntry, Resolution::DnsLb);
    let table = table(&service, &["240.0.0.1", "2001:2::1"], &[]);
    let info = &table["db.example.com"];
    assert_eq!(info.ips, ["240.0.0.1", "2001:2::1"]);
    assert_eq!((info.registry.as_str(), info.shortname.as_str(), info.namespace.as_str()), ("External", "", ""));
}

#[test]
fn headless_service_resolves_to_ready_endpoints_of_the_network() {
    let mut service = service(ServiceSource::Kubernetes, Resolution::Passthrough);
    let mut unready = pod("10.1.0.2", "", "c", "n");
    unready.health = Health::Unhealthy;
    let endpoints =
        [pod("10.1.0.1", "", "c", "n"), unready, pod("10.2.0.1", "", "c", "far"), pod("db.other", "", "c", "n")];
    let ips = |service: &Service| table(service, &[], &endpoints)["db.data.svc.cluster.local"].ips.clone();
    assert_eq!(ips(&service), ["10.1.0.1"]);
    service.publish_not_ready = true;
    assert_eq!(ips(&service), ["10.1.0.1", "10.1.0.2"]);
    service.ports.clear();
    assert!(table(&service, &[], &endpoints).is_empty());
}

#[test]
fn pod_with_a_host_name_is_resolved() {
    let service = service(ServiceSource::Kubernetes, Resolution::Passthrough);
    let mut again = pod("10.1.0.1", "db-0", "c", "n");
    again.port_name = "other".into();
    // For a pod name in two clusters, the client's own cluster has precedence.
    let endpoints = [
        pod("10.1.0.1", "db-0", "c", "n"),
        again,
        pod("10.2.0.1", "db-0", "remote", "n"),
        pod("10.2.0.2", "db-1", "remote", "n"),
    ];
    let table = table(&service, &[], &endpoints);
    let ips: Vec<(&str, Vec<&str>)> =
        table.iter().map(|(name, info)| (name.as_str(), info.ips.iter().map(String::as_str).collect())).collect();
    assert_eq!(
        ips,
        [
            ("db-0.db.data.svc.cluster.local", vec!["10.1.0.1"]),
            ("db-1.db.data.svc.cluster.local", vec!["10.2.0.2"]),
            ("db.data.svc.cluster.local", vec!["10.1.0.1", "10.2.0.1", "10.2.0.2"]),
        ]
    );
    assert_eq!(table["db-0.db.data.svc.cluster.local"].shortname, "db-0.db");
}

#[test]
fn other_services_without_addresses_are_not_in_the_table() {
    for resolution in [Resolution::Alias, Resolution::DnsLb, Resolution::ClientSideLb, Resolution::DynamicDns] {
        let service = service(ServiceSource::Kubernetes, resolution);
        assert!(table(&service, &[], &[pod("10.1.0.1", "", "c", "n")]).is_empty(), "{resolution:?}");
    }
}
