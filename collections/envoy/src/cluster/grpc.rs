//! Clusters of gRPC clients without an Envoy (X28): only what gRPC libraries read.

use envoy_types::pb::envoy::config::cluster::v3::circuit_breakers::Thresholds;
use envoy_types::pb::envoy::config::cluster::v3::cluster::{
    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, EdsClusterConfig, LbPolicy,
};
use envoy_types::pb::envoy::config::cluster::v3::load_balancing_policy::Policy;
use envoy_types::pb::envoy::config::cluster::v3::{CircuitBreakers, Cluster, LoadBalancingPolicy};
use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::{AggregatedConfigSource, ConfigSource, TypedExtensionConfig};
use envoy_types::pb::envoy::extensions::load_balancing_policies::least_request::v3::LeastRequest;
use envoy_types::pb::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use envoy_types::pb::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use envoy_types::pb::google::protobuf::Any;
use sluice_model::{
    ClientTlsMode, ConsistentHash, DestinationRule, HashAlgorithm, LoadBalancer, Service, ServicePort, SimpleLb, Text,
    TrafficPolicy,
};

use super::load_balancer::apply_hash;
use super::outbound::statuses_of_sessions;
use crate::certificate_provider::upstream_tls;
use crate::name::{outbound_cluster, stat_prefix};
use crate::wire::{any, positive};

/// Inputs of the clusters of a service port for gRPC clients.
#[derive(Clone, Copy, Debug)]
pub struct GrpcClusterInputs<'a> {
    /// The service.
    pub service: &'a Service,
    /// One of its ports.
    pub port: &'a ServicePort,
    /// The DestinationRule for the clients.
    pub rule: Option<&'a DestinationRule>,
    /// Identities of the workloads of the service, sorted, with the trust domain aliases of the mesh.
    pub identities: &'a [Text],
    /// A label of the service asks for persistent sessions.
    pub keeps_sessions: bool,
}

/// The cluster of the port, then one for each subset of the rule. Mutual TLS is used only if the rule asks for it: a client
/// may have no xDS credentials, and a server may accept plain text only. Other modes of TLS have no form in gRPC.
#[must_use]
pub fn build_grpc_clusters(inputs: &GrpcClusterInputs<'_>) -> Vec<Cluster> {
    let mut whole = build(inputs, "");
    if inputs.keeps_sessions {
        let override_host_status = Some(statuses_of_sessions());
        whole.common_lb_config = Some(CommonLbConfig { override_host_status, ..CommonLbConfig::default() });
    }
    let subsets = inputs.rule.iter().flat_map(|rule| &rule.subsets);
    std::iter::once(whole).chain(subsets.map(|subset| build(inputs, &subset.name))).collect()
}

fn build(inputs: &GrpcClusterInputs<'_>, subset: &str) -> Cluster {
    let port = inputs.port.port;
    let name = outbound_cluster(u32::from(port), subset, inputs.service.host.as_str());
    let ads = ConfigSourceSpecifier::Ads(AggregatedConfigSource::default());
    let mut cluster = Cluster {
        alt_stat_name: stat_prefix(&name),
        cluster_discovery_type: Some(ClusterDiscoveryType::Type(DiscoveryType::Eds as i32)),
        eds_cluster_config: Some(EdsClusterConfig {
            service_name: name.clone(),
            eds_config: Some(ConfigSource { config_source_specifier: Some(ads), ..ConfigSource::default() }),
        }),
        name,
        ..Cluster::default()
    };
    if let Some(policy) = inputs.rule.and_then(|rule| rule.policy(subset, port)) {
        apply_policy(&mut cluster, &policy, inputs.identities);
    }
    cluster
}

fn apply_policy(cluster: &mut Cluster, policy: &TrafficPolicy, identities: &[Text]) {
    if policy.tls.as_ref().is_some_and(|tls| tls.mode == ClientTlsMode::IstioMutual) {
        cluster.transport_socket = Some(upstream_tls(identities));
    }
    if let Some(balancer) = &policy.load_balancer {
        apply_load_balancer(cluster, balancer);
    }
    // gRPC has no other limit of the connection pool (gRFC A32).
    let http = policy.connection_pool.as_ref().and_then(|pool| pool.http.as_ref());
    if let Some(max_requests) = http.and_then(|http| positive(http.http2_max_requests)) {
        let thresholds = vec![Thresholds { max_requests: Some(max_requests), ..Thresholds::default() }];
        cluster.circuit_breakers = Some(CircuitBreakers { thresholds, ..CircuitBreakers::default() });
    }
}

/// Other policies than these have no form in gRPC: then it uses round robin, its default.
fn apply_load_balancer(cluster: &mut Cluster, balancer: &LoadBalancer) {
    if let Some(hash) = &balancer.consistent_hash {
        // gRPC rejects Maglev. A ring also sends equal hashes to the same endpoint.
        let algorithm = match hash.algorithm {
            HashAlgorithm::Maglev(_) => HashAlgorithm::Unspecified,
            other => other,
        };
        apply_hash(cluster, &ConsistentHash { algorithm, ..hash.clone() });
    } else if balancer.simple == SimpleLb::LeastRequest {
        cluster.lb_policy = LbPolicy::LeastRequest as i32;
        cluster.load_balancing_policy = Some(least_request_or_round_robin());
    }
}

/// Least request, or round robin in libraries that do not have it: those of C++ and Python would reject the cluster with the
/// policy alone. A library that reads this list ignores `lb_policy`, and takes the first policy that it has (gRFC A52).
fn least_request_or_round_robin() -> LoadBalancingPolicy {
    let of_endpoints =
        [policy("least_request", any(&LeastRequest::default())), policy("round_robin", any(&RoundRobin::default()))];
    let localities =
        WrrLocality { endpoint_picking_policy: Some(LoadBalancingPolicy { policies: of_endpoints.into() }) };
    LoadBalancingPolicy { policies: vec![policy("wrr_locality", any(&localities))] }
}

fn policy(name: &str, config: Any) -> Policy {
    let name = format!("envoy.load_balancing_policies.{name}");
    Policy { typed_extension_config: Some(TypedExtensionConfig { name, typed_config: Some(config) }) }
}

#[cfg(test)]
mod tests {
    use sluice_model::{ClientTls, ConnectionPool, HttpSettings, OutlierDetection, Protocol, Subset, TcpSettings};

    use super::*;

    fn clusters(policy: TrafficPolicy, subsets: Vec<Subset>, identities: &[Text]) -> Vec<Cluster> {
        let service = Service { host: "kettle.shop".into(), ..Service::default() };
        let port =
            ServicePort { port: 7070, name: "grpc".into(), protocol: Protocol::Grpc, target_port: Text::default() };
        let rule = DestinationRule { traffic_policy: Some(policy), subsets, ..DestinationRule::default() };
        let rule = Some(&rule);
        build_grpc_clusters(&GrpcClusterInputs {
            service: &service,
            port: &port,
            rule,
            identities,
            keeps_sessions: false,
        })
    }

    fn tls(mode: ClientTlsMode) -> TrafficPolicy {
        TrafficPolicy { tls: Some(ClientTls { mode, ..ClientTls::default() }), ..TrafficPolicy::default() }
    }

    #[test]
    fn only_the_mutual_tls_of_the_mesh_has_a_transport_socket() {
        let disabled = Some(tls(ClientTlsMode::Disable).into());
        let subset = Subset { name: "plain".into(), traffic_policy: disabled, ..Subset::default() };
        let built = clusters(tls(ClientTlsMode::IstioMutual), vec![subset], &["spiffe://td/ns/shop/sa/kettle".into()]);
        let names: Vec<&str> = built.iter().map(|cluster| cluster.name.as_str()).collect();
        assert_eq!(names, ["outbound|7070||kettle.shop", "outbound|7070|plain|kettle.shop"]);
        let sockets: Vec<bool> = built.iter().map(|cluster| cluster.transport_socket.is_some()).collect();
        assert_eq!(sockets, [true, false]);
        for mode in [ClientTlsMode::Simple, ClientTlsMode::Mutual, ClientTlsMode::Disable] {
            assert!(clusters(tls(mode), Vec::new(), &[])[0].transport_socket.is_none(), "{mode:?}");
        }
    }

    #[test]
    fn settings_without_a_form_in_grpc_are_left_out() {
        let policy = TrafficPolicy {
            connection_pool: Some(ConnectionPool {
                tcp: Some(TcpSettings { max_connections: 3, ..TcpSettings::default() }),
                http: Some(HttpSettings { http2_max_requests: 20, ..HttpSettings::default() }),
            }),
            outlier_detection: Some(OutlierDetection::default()),
            load_balancer: Some(LoadBalancer { simple: SimpleLb::Random, ..LoadBalancer::default() }),
            ..TrafficPolicy::default()
        };
        let built = clusters(policy, Vec::new(), &[]);
        let limits = built[0].circuit_breakers.as_ref().expect("a limit");
        assert_eq!(limits.thresholds, [Thresholds { max_requests: positive(20), ..Thresholds::default() }]);
        assert_eq!((built[0].lb_policy(), built[0].outlier_detection.as_ref()), (LbPolicy::RoundRobin, None));
    }

    #[test]
    fn consistent_hashing_becomes_a_ring() {
        for algorithm in [HashAlgorithm::Unspecified, HashAlgorithm::RingHash(64), HashAlgorithm::Maglev(5003)] {
            let hash = ConsistentHash { algorithm, ..ConsistentHash::default() };
            let balancer = LoadBalancer { consistent_hash: Some(hash), ..LoadBalancer::default() };
            let policy = TrafficPolicy { load_balancer: Some(balancer), ..TrafficPolicy::default() };
            assert_eq!(clusters(policy, Vec::new(), &[])[0].lb_policy(), LbPolicy::RingHash);
        }
    }

    #[test]
    fn least_request_is_followed_by_round_robin() {
        let balancer = LoadBalancer { simple: SimpleLb::LeastRequest, ..LoadBalancer::default() };
        let policy = TrafficPolicy { load_balancer: Some(balancer), ..TrafficPolicy::default() };
        let cluster = clusters(policy, Vec::new(), &[]).remove(0);
        assert_eq!(cluster.lb_policy(), LbPolicy::LeastRequest);
        let configs = |policy: LoadBalancingPolicy| {
            let configs = policy.policies.into_iter().filter_map(|policy| policy.typed_extension_config?.typed_config);
            configs.collect::<Vec<_>>()
        };
        let localities = configs(cluster.load_balancing_policy.expect("a list"));
        let localities: WrrLocality = prost::Message::decode(&*localities[0].value).expect("weighted localities");
        let of_endpoints = configs(localities.endpoint_picking_policy.expect("a list"));
        let names: Vec<_> = of_endpoints.iter().filter_map(|config| config.type_url.rsplit('.').next()).collect();
        assert_eq!(names, ["LeastRequest", "RoundRobin"]);
    }
}
