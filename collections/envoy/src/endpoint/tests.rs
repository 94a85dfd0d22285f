use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use envoy_types::pb::envoy::config::endpoint::v3::locality_lb_endpoints::LbConfig;
use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
use prost::Message;
use sluice_model::{
    DestinationRule, Endpoint, Health, Labels, LoadBalancer, Locality, LocalityDistribute, LocalityLb, MeshConfig,
    NetworkGateway, OtherNetworks, OutlierDetection, PortTrafficPolicy, Protocol, Proxy, ProxyType, Service,
    ServicePort, SessionLabels, Subset, Text, TlsMode, TrafficDistribution, TrafficPolicy, TunnelSwitches, label,
};

use super::{
    AssignmentInputs, AssignmentTotals, Backend, EndpointClient, NamedEndpoints, Tier, build_assignment,
    build_assignment_by_locality, build_frames, build_frames_by_locality, build_head, build_part,
    build_part_by_locality, other_networks, tier, tier_of_service, tiers_of_mesh, tiers_of_rule,
};
use crate::cluster::{ClusterSettings, ClusterSwitches};

fn service() -> Service {
    Service {
        namespace: "shop".into(),
        host: "cart.shop.svc.cluster.local".into(),
        name: "cart".into(),
        cluster: "c".into(),
        ports: vec![ServicePort {
            port: 80,
            name: "http".into(),
            protocol: Protocol::Http,
            target_port: Text::default(),
        }],
        ..Service::default()
    }
}

fn endpoint(address: &str, place: &str, network: &str) -> Endpoint {
    Endpoint {
        addresses: vec![address.into()],
        port: 8080,
        port_name: "http".into(),
        labels: Labels::new(),
        locality: Locality::parse(place),
        node: Text::default(),
        cluster: "c".into(),
        network: network.into(),
        namespace: "shop".into(),
        workload_name: "cart".into(),
        service_account: Text::default(),
        tls_mode: TlsMode::Istio,
        health: Health::Healthy,
        weight: 0,
        hostname: Text::default(),
        subdomain: Text::default(),
        hbone: false,
        cluster_local: false,
    }
}

fn rule(lb: Option<LocalityLb>, outlier: bool) -> DestinationRule {
    let policy = TrafficPolicy {
        load_balancer: lb.map(|locality| LoadBalancer { locality: Some(locality), ..LoadBalancer::default() }),
        outlier_detection: outlier.then(OutlierDetection::default),
        ..TrafficPolicy::default()
    };
    DestinationRule { traffic_policy: Some(policy), ..DestinationRule::default() }
}

fn assign(
    place: &str,
    rule: Option<&DestinationRule>,
    endpoints: &[Endpoint],
    gateways: &[NetworkGateway],
) -> ClusterLoadAssignment {
    let client =
        EndpointClient { locality: Locality::parse(place), network: "near".into(), ..EndpointClient::default() };
    let settings = ClusterSettings::new(&MeshConfig::default(), false);
    assign_to(&client, &settings, rule, endpoints, gateways)
}

fn assign_to(
    client: &EndpointClient,
    settings: &ClusterSettings,
    rule: Option<&DestinationRule>,
    endpoints: &[Endpoint],
    gateways: &[NetworkGateway],
) -> ClusterLoadAssignment {
    assign_service(&service(), client, settings, rule, endpoints, gateways)
}

fn assign_service(
    service: &Service,
    client: &EndpointClient,
    settings: &ClusterSettings,
    rule: Option<&DestinationRule>,
    endpoints: &[Endpoint],
    gateways: &[NetworkGateway],
) -> ClusterLoadAssignment {
    let backends: Vec<_> = endpoints.iter().map(|endpoint| Backend { endpoint, refuses_mtls: false }).collect();
    let inputs = AssignmentInputs {
        settings,
        client,
        service,
        port: &service.ports[0],
        subset: "",
        rule,
        backends: &backends,
        gateways,
        by_name: false,
    };
    build_assignment(&inputs, "outbound|80||cart.shop.svc.cluster.local")
}

/// (region/zone, priority, weight) of each group.
fn groups(assignment: &ClusterLoadAssignment) -> Vec<(String, u32, u32)> {
    let shown = assignment.endpoints.iter().map(|group| {
        let place = group.locality.clone().unwrap_or_default();
        let weight = group.load_balancing_weight.map_or(0, |weight| weight.value);
        (format!("{}/{}", place.region, place.zone), group.priority, weight)
    });
    shown.collect()
}

fn group(place: &str, priority: u32, weight: u32) -> (String, u32, u32) {
    (place.to_owned(), priority, weight)
}

#[test]
fn nearest_locality_has_priority_with_outlier_detection() {
    let endpoints = [endpoint("10.0.0.1", "a/1", ""), endpoint("10.0.0.2", "a/2", ""), endpoint("10.0.0.3", "b/1", "")];
    let plain = assign("a/2", Some(&rule(None, false)), &endpoints, &[]);
    assert_eq!(groups(&plain), [group("a/1", 0, 1), group("a/2", 0, 1), group("b/1", 0, 1)]);
    let ordered = assign("a/2", Some(&rule(None, true)), &endpoints, &[]);
    assert_eq!(groups(&ordered), [group("a/1", 1, 1), group("a/2", 0, 1), group("b/1", 2, 1)]);
}

#[test]
fn distribute_weights_are_split_within_a_pattern() {
    let to = BTreeMap::from([("a/1".into(), 30), ("a/*".into(), 70)]);
    let distribute = vec![LocalityDistribute { from: "a/*".into(), to }];
    let shares = rule(Some(LocalityLb { distribute, ..LocalityLb::default() }), false);
    let endpoints = [
        endpoint("10.0.0.1", "a/1", ""),
        endpoint("10.0.0.2", "a/2", ""),
        endpoint("10.0.0.3", "a/3", ""),
        endpoint("10.0.0.4", "b/1", ""),
    ];
    let found = assign("a/9", Some(&shares), &endpoints, &[]);
    assert_eq!(groups(&found)[..3], [group("a/1", 0, 30), group("a/2", 0, 35), group("a/3", 0, 35)]);
    assert!(found.endpoints[3].lb_endpoints.is_empty(), "no share, no traffic");
}

#[test]
fn network_gateway_has_the_weight_of_its_endpoints() {
    let gateway = |address: &str| NetworkGateway {
        address: address.into(),
        port: 15443,
        network: "far".into(),
        ..NetworkGateway::default()
    };
    let endpoints =
        [endpoint("10.0.0.1", "a/1", "near"), endpoint("10.0.0.2", "a/1", "far"), endpoint("10.0.0.3", "a/1", "far")];
    let found = assign("a/1", None, &endpoints, &[gateway("192.0.2.1"), gateway("192.0.2.2")]);
    let weights = found.endpoints[0].lb_endpoints.iter().map(|e| e.load_balancing_weight.map_or(0, |w| w.value));
    // Two gateways: every weight is doubled, and each gateway gets half of two endpoints.
    assert_eq!(weights.collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(groups(&found), [group("a/1", 0, 6)]);
}

#[test]
fn tunnels_to_other_networks_take_connections_only() {
    let switches = ClusterSwitches {
        tunnels: TunnelSwitches { multi_network: true, ingress: true, ..TunnelSwitches::default() },
        ..ClusterSwitches::default()
    };
    let settings = ClusterSettings::new(&MeshConfig::default(), false).with_switches(switches);
    let client =
        EndpointClient { network: "near".into(), other_networks: OtherNetworks::Tunnels, ..EndpointClient::default() };
    let gateway = NetworkGateway {
        address: "192.0.2.1".into(),
        hbone_port: 15008,
        network: "far".into(),
        ..NetworkGateway::default()
    };
    let endpoints = [endpoint("10.0.0.1", "a/1", "near"), endpoint("10.0.0.2", "a/1", "far")];
    let sent = |protocol| {
        let mut service = service();
        service.ports[0].protocol = protocol;
        let found = assign_service(&service, &client, &settings, None, &endpoints, std::slice::from_ref(&gateway));
        found.endpoints.iter().map(|group| group.lb_endpoints.len()).sum::<usize>()
    };
    assert_eq!((sent(Protocol::Http), sent(Protocol::Udp)), (2, 1));
}

#[test]
fn tier_is_the_lowest_that_a_service_needs() {
    let settings = ClusterSettings::new(&MeshConfig::default(), false);
    let of = |service: &Service, rule: Option<&DestinationRule>| tier(&settings, service, 80, "", rule);
    assert_eq!(of(&service(), None), Tier::Network);
    assert_eq!(of(&service(), Some(&rule(None, true))), Tier::Locality);
    let labelled = LocalityLb { failover_priority: vec!["rack".into()], ..LocalityLb::default() };
    assert_eq!(of(&service(), Some(&rule(Some(labelled.clone()), false))), Tier::Network);
    assert_eq!(of(&service(), Some(&rule(Some(labelled), true))), Tier::Labels);
    let near = Service { traffic_distribution: TrafficDistribution::PreferSameNode, ..service() };
    assert_eq!(of(&near, None), Tier::Node);
}

#[test]
fn service_tiers_are_within_the_possible_tiers() {
    let orders: [&[&str]; 4] = [&[], &["topology.kubernetes.io/zone"], &["kubernetes.io/hostname"], &["rack=a"]];
    let settings = |order: &[&str]| LocalityLb {
        failover_priority: order.iter().map(|label| Text::from(*label)).collect(),
        ..LocalityLb::default()
    };
    let mut rules = vec![None];
    rules.extend(orders.iter().map(|order| Some(rule(Some(settings(order)), true))));
    let of_port = |order: &[&str]| {
        let policy = rule(Some(settings(order)), true).traffic_policy.expect("a policy");
        let TrafficPolicy { load_balancer, outlier_detection, .. } = policy;
        let port = PortTrafficPolicy { port: 80, load_balancer, outlier_detection, ..PortTrafficPolicy::default() };
        let policy = TrafficPolicy { port_level: vec![port], ..TrafficPolicy::default() };
        let subset = Subset { name: "v1".into(), traffic_policy: Some(policy.into()), ..Subset::default() };
        DestinationRule { subsets: vec![subset], ..rule(None, true) }
    };
    rules.extend(orders.iter().map(|order| Some(of_port(order))));
    let mut rare = 0;
    for distribution in
        [TrafficDistribution::Any, TrafficDistribution::PreferSameZone, TrafficDistribution::PreferSameNode]
    {
        for local in [(false, false), (false, true), (true, false)] {
            let service = Service {
                traffic_distribution: distribution,
                cluster_local: local.0,
                node_local: local.1,
                ..service()
            };
            for order in orders {
                let mesh = MeshConfig { locality_lb: settings(order), ..MeshConfig::default() };
                let mesh = ClusterSettings::new(&mesh, false);
                for (rule, subset) in rules.iter().flat_map(|rule| [(rule, ""), (rule, "v1")]) {
                    let mut needed = tiers_of_mesh(&mesh);
                    needed.push(tier_of_service(&service));
                    needed.extend(rule.iter().flat_map(tiers_of_rule));
                    let tier = tier(&mesh, &service, 80, subset, rule.as_ref());
                    assert!(!tier.is_rare() || needed.contains(&tier), "{tier:?}: {service:?} {rule:?} {order:?}");
                    rare += usize::from(tier.is_rare());
                }
            }
        }
    }
    assert!(rare > 100, "{rare}");
}

#[test]
fn hbone_is_used_for_endpoints_without_mutual_tls() {
    let mut ambient = endpoint("10.0.0.1", "", "");
    ambient.hbone = true;
    ambient.tls_mode = TlsMode::Disabled;
    let sidecar = Endpoint { tls_mode: TlsMode::Istio, ..ambient.clone() };
    let settings = ClusterSettings::new(&MeshConfig::default(), false);
    let tunnelled = |client: &EndpointClient, sends: bool, prefers: bool, endpoint: &Endpoint| {
        let settings = settings.clone().with_hbone(sends, prefers);
        let assignment = assign_to(client, &settings, None, std::slice::from_ref(endpoint), &[]);
        let metadata = assignment.endpoints[0].lb_endpoints[0].metadata.clone().unwrap_or_default();
        metadata.filter_metadata.contains_key("envoy.filters.listener.original_dst")
    };
    let client = EndpointClient::default();
    assert!(tunnelled(&client, true, false, &ambient));
    assert!(!tunnelled(&client, false, false, &ambient));
    assert!(!tunnelled(&client, true, false, &sidecar) && tunnelled(&client, true, true, &sidecar));
    assert!(!tunnelled(&EndpointClient { no_hbone: true, ..EndpointClient::default() }, true, false, &ambient));
}

/// The encoded message, assembled from segments of parts of `size` endpoints.
fn in_segments(inputs: &AssignmentInputs<'_>, name: &str, size: usize) -> Vec<u8> {
    let mut segments = vec![(Text::default(), build_head(name))];
    let mut totals = AssignmentTotals::default();
    for part in inputs.backends.chunks(size) {
        let first = part[0].endpoint.addresses.first().map_or("", |address| address.as_str());
        let (runs, sums) = build_part(&AssignmentInputs { backends: part, ..*inputs }, first);
        segments.extend(runs);
        totals.add(&sums);
    }
    segments.extend(build_frames(&AssignmentInputs { backends: &[], ..*inputs }, &totals));
    segments.sort();
    segments.into_iter().flat_map(|(_, bytes)| bytes).collect()
}

/// The assignment without endpoints and its endpoints, made from parts of `size` endpoints.
fn separate_parts(inputs: &AssignmentInputs<'_>, name: &str, size: usize) -> (ClusterLoadAssignment, NamedEndpoints) {
    let (mut endpoints, mut totals) = (NamedEndpoints::new(), AssignmentTotals::default());
    for part in inputs.backends.chunks(size) {
        let (own, sums) = build_part_by_locality(&AssignmentInputs { backends: part, ..*inputs }, name);
        for (name, endpoint) in own {
            endpoints.entry(name).or_insert(endpoint);
        }
        totals.add(&sums);
    }
    let (mut segments, gateways) =
        build_frames_by_locality(&AssignmentInputs { backends: &[], ..*inputs }, name, &totals);
    endpoints.extend(gateways);
    segments.push((Text::default(), build_head(name)));
    segments.sort();
    let bytes: Vec<u8> = segments.into_iter().flat_map(|(_, bytes)| bytes).collect();
    (ClusterLoadAssignment::decode(bytes.as_slice()).expect("an assignment"), endpoints)
}

/// The assignment with its endpoints in the order of their bytes, of which each is in the collection of its group.
fn put_together(mut assignment: ClusterLoadAssignment, endpoints: &NamedEndpoints) -> ClusterLoadAssignment {
    let mut used = 0;
    for group in &mut assignment.endpoints {
        assert!(group.lb_endpoints.is_empty(), "Envoy refuses a group with both");
        let Some(LbConfig::LedsClusterLocalityConfig(config)) = group.lb_config.take() else { continue };
        let prefix = config.leds_collection_name.strip_suffix('*').expect("a collection");
        let own = endpoints.iter().filter(|(name, _)| name.starts_with(prefix));
        group.lb_endpoints = own.map(|(_, bytes)| LbEndpoint::decode(bytes.as_slice()).expect("an endpoint")).collect();
        assert!(!group.lb_endpoints.is_empty(), "Envoy waits for the endpoints of {prefix}");
        used += group.lb_endpoints.len();
    }
    assert_eq!(used, endpoints.len(), "every endpoint is in a collection");
    sorted(assignment)
}

/// The assignment with the endpoints of each group in the order of their bytes, and the first of those with the same address.
fn sorted(mut assignment: ClusterLoadAssignment) -> ClusterLoadAssignment {
    for group in &mut assignment.endpoints {
        let mut known = std::collections::BTreeSet::new();
        group.lb_endpoints.retain(|endpoint| {
            let Some(HostIdentifier::Endpoint(endpoint)) = &endpoint.host_identifier else { return true };
            known.insert(endpoint.address.as_ref().map(sluice_proto::wire::encode))
        });
        group.lb_endpoints.sort_by_key(sluice_proto::wire::encode);
    }
    assignment
}

#[test]
fn segments_are_the_encoded_assignment() {
    let places = ["", "a", "a/1", "a/1/x", "a/2", "b/1", "a\u{0}/1", "a!/1"];
    let networks = ["", "near", "far", "lost"];
    let mut endpoints: Vec<Endpoint> = (0..400u32)
        .map(|n| {
            let pick = |of: u32| (n.wrapping_mul(2_654_435_761) >> 7) % of;
            let mut endpoint = endpoint(
                &format!("10.{}.{}.{}", pick(3), n / 100, n % 100),
                places[pick(8) as usize],
                networks[pick(4) as usize],
            );
            endpoint.weight = pick(5);
            endpoint.hbone = pick(7) == 0;
            endpoint.tls_mode = if pick(5) == 0 { TlsMode::Disabled } else { TlsMode::Istio };
            endpoint.health = if pick(11) == 0 { Health::Unhealthy } else { Health::Healthy };
            endpoint.labels.insert("rack".into(), format!("r{}", pick(3)).as_str().into());
            if pick(13) == 0 {
                endpoint.addresses = vec![Text::default()];
            }
            endpoint
        })
        .collect();
    endpoints.sort();
    let gateway = |address: &str, network: &str, cluster: &str| NetworkGateway {
        address: address.into(),
        port: 15443,
        network: network.into(),
        cluster: cluster.into(),
        ..NetworkGateway::default()
    };
    let gateways =
        [gateway("192.0.2.1", "far", "c"), gateway("192.0.2.2", "far", "d"), gateway("192.0.2.3", "lost", "")];
    let order = |labels: &[&str]| labels.iter().map(|label| Text::from(*label)).collect::<Vec<_>>();
    let localities = [
        LocalityLb::default(),
        LocalityLb { failover: vec![("a".into(), "b".into())], ..LocalityLb::default() },
        LocalityLb { failover_priority: order(&["rack=r1"]), ..LocalityLb::default() },
        LocalityLb {
            failover_priority: order(&["topology.istio.io/network", "rack=r2", "topology.istio.io/cluster"]),
            failover: vec![("a".into(), "b".into())],
            ..LocalityLb::default()
        },
        LocalityLb {
            distribute: vec![LocalityDistribute {
                from: "a/*".into(),
                to: BTreeMap::from([("a/1".into(), 30), ("a/*".into(), 70)]),
            }],
            ..LocalityLb::default()
        },
    ];
    let mut rules = vec![None];
    for locality in localities {
        rules.extend([true, false].map(|outlier| Some(rule(Some(locality.clone()), outlier))));
    }
    let service = service();
    let mut groups = std::collections::BTreeSet::new();
    for gateways in [&[][..], &gateways] {
        for rule in &rules {
            for (only_mtls, network) in [(false, "near"), (false, ""), (true, "near")] {
                let settings = ClusterSettings::new(&MeshConfig::default(), false).with_hbone(true, false);
                let locality = Locality::parse("a/1");
                let client =
                    EndpointClient { locality, network: network.into(), only_mtls, ..EndpointClient::default() };
                let backend = |endpoint: &'_ Endpoint| endpoint.weight == 1;
                let backends: Vec<_> =
                    endpoints.iter().map(|endpoint| Backend { endpoint, refuses_mtls: backend(endpoint) }).collect();
                let inputs = AssignmentInputs {
                    settings: &settings,
                    client: &client,
                    service: &service,
                    port: &service.ports[0],
                    subset: "",
                    rule: rule.as_ref(),
                    backends: &backends,
                    gateways,
                    by_name: false,
                };
                let whole = build_assignment(&inputs, "outbound|80||cart");
                groups.insert(whole.endpoints.len());
                for size in [1, 7, 64, 1000] {
                    let bytes = sluice_proto::wire::encode(&whole);
                    assert!(in_segments(&inputs, "outbound|80||cart", size) == bytes, "{size} {rule:?} {gateways:?}");
                }
                let whole = sorted(whole);
                let (assignment, separate) = build_assignment_by_locality(&inputs, "outbound|80||cart");
                assert!(whole == put_together(assignment, &separate), "{rule:?} {gateways:?}");
                for size in [1, 64, 1000] {
                    let (assignment, separate) = separate_parts(&inputs, "outbound|80||cart", size);
                    assert!(whole == put_together(assignment, &separate), "{size} {rule:?} {gateways:?}");
                }
            }
        }
    }
    assert!(groups.len() > 2, "{groups:?}");
}

#[test]
fn endpoints_that_are_not_ready_are_sent_as_the_server_says() {
    let endpoints = [Endpoint { health: Health::Unhealthy, ..endpoint("10.0.0.1", "a/1", "") }];
    let outlier = OutlierDetection { min_health_percent: 50, ..OutlierDetection::default() };
    let policy = TrafficPolicy { outlier_detection: Some(outlier), ..TrafficPolicy::default() };
    let with_panic_routing = DestinationRule { traffic_policy: Some(policy), ..DestinationRule::default() };
    let sent = |sends_unhealthy, sends_unhealthy_by_default, rule| {
        let switches = ClusterSwitches { sends_unhealthy, sends_unhealthy_by_default, ..ClusterSwitches::default() };
        let settings = ClusterSettings::new(&MeshConfig::default(), false).with_switches(switches);
        let found = assign_to(&EndpointClient::default(), &settings, rule, &endpoints, &[]);
        found.endpoints.iter().any(|group| !group.lb_endpoints.is_empty())
    };
    assert!(sent(false, true, None) && !sent(false, true, Some(&with_panic_routing)));
    assert!(!sent(false, false, None));
    assert!(sent(true, false, None) && sent(true, false, Some(&with_panic_routing)));
}

#[test]
fn label_of_draining_endpoints_is_that_of_the_server() {
    let draining = Endpoint { labels: [("leaving".into(), "yes".into())].into(), ..endpoint("10.0.0.1", "a/1", "") };
    let sent = |label: &str| {
        let sessions = SessionLabels { draining: label.into(), ..SessionLabels::default() };
        let settings = ClusterSettings::new(&MeshConfig::default(), false).with_sessions(&sessions);
        let found = assign_to(&EndpointClient::default(), &settings, None, std::slice::from_ref(&draining), &[]);
        found.endpoints.iter().any(|group| !group.lb_endpoints.is_empty())
    };
    assert!(!sent("leaving") && sent("istio.io/draining") && sent(""));
}

#[test]
fn the_kind_of_a_proxy_decides_how_it_sends_to_other_networks() {
    use OtherNetworks::{MutualTls, Tunnels, Unreachable};
    let of = |proxy_type, (key, value): (&str, &str), tunnels, sends_hbone| {
        let labels = [(key.into(), value.into())].into();
        other_networks(&Proxy { proxy_type, labels, ..Proxy::default() }, tunnels, sends_hbone)
    };
    let one = TunnelSwitches { ingress: true, ..TunnelSwitches::default() };
    let local = TunnelSwitches { multi_network: true, local_waypoints: true, ..TunnelSwitches::default() };
    let several = TunnelSwitches { multi_network: true, ingress: true, ..TunnelSwitches::default() };
    let managed = |by| (label::GATEWAY_MANAGED, by);
    let (ingress, deployed) = (label::INGRESS_GATEWAY, managed(label::MANAGED_BY_GATEWAY_CONTROLLER));
    let (waypoint, east_west) =
        (managed(label::MANAGED_BY_MESH_CONTROLLER), managed(label::MANAGED_BY_EAST_WEST_CONTROLLER));
    for (proxy_type, label, [in_one, in_local, in_several]) in [
        (ProxyType::Sidecar, ingress, [MutualTls; 3]),
        (ProxyType::Router, ingress, [MutualTls, Unreachable, Tunnels]),
        (ProxyType::Router, deployed, [MutualTls, Unreachable, Tunnels]),
        (ProxyType::Router, ("istio", "egressgateway"), [MutualTls; 3]),
        (ProxyType::Waypoint, waypoint, [MutualTls, Unreachable, Tunnels]),
        (ProxyType::Waypoint, east_west, [MutualTls, Unreachable, Unreachable]),
    ] {
        let found = [one, local, several].map(|tunnels| of(proxy_type, label, tunnels, true));
        assert_eq!(found, [in_one, in_local, in_several], "{proxy_type:?} {label:?}");
    }
    assert_eq!(of(ProxyType::Router, ingress, several, false), Unreachable);
}
