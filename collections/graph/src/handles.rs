//! The inputs and published collections that the process uses.

use std::time::Duration;

use sluice_engine::Published;
use sluice_model::{
    DestinationRule, Endpoint, Gateway, Jwks, JwksKey, MeshConfig, MeshNetworks, Namespace, Node, ObjectKey, Pod,
    Proxy, ProxyConfigResource, ProxyKey, Reject, Resource, ResourceKey, Scope, SecretReader, Segment, SegmentKey,
    Service, ServiceKey, Text, VirtualService,
};

use crate::inputs::{Inputs, RejectKey};
use crate::proxies::targets::ServiceTarget;
use crate::registry::allocation::AddressUpdate;

/// The ends of the graph that the process holds.
#[derive(Clone, Debug)]
pub struct Handles {
    /// Where sources write.
    pub inputs: Inputs,
    /// Whole resources; each key is in one of the collections.
    pub resources: Vec<Published<ResourceKey, Resource>>,
    /// Segments of assembled resources; each key is in one of the collections.
    pub segments: Vec<Published<SegmentKey, Segment>>,
    /// What each proxy gets.
    pub scopes: Published<ProxyKey, Scope>,
    /// Host names to be resolved into [`Inputs::resolved_names`].
    pub gateway_names: Published<Text, ()>,
    /// Everything that is wrong with configuration, by object.
    pub rejects: Published<RejectKey, Vec<Reject>>,
    /// Statuses of ServiceEntries to be written.
    pub address_updates: Published<ObjectKey, AddressUpdate>,
    /// Keys of token issuers that have to be fetched, and the time each may take.
    pub wanted_jwks: Published<JwksKey, Duration>,
    /// Keys of token issuers that were fetched.
    pub jwks: Published<JwksKey, Jwks>,
    /// Who is to be asked about whether he may read Secrets, into [`Inputs::secret_reviews`].
    pub wanted_secret_reviews: Published<SecretReader, ()>,
    /// For debug endpoints: the mesh config.
    pub mesh: Published<(), MeshConfig>,
    /// For debug endpoints: the networks.
    pub networks: Published<(), MeshNetworks>,
    /// For debug endpoints: services.
    pub services: Published<ServiceKey, Service>,
    /// For debug endpoints: endpoints.
    pub endpoints: Published<ServiceKey, Vec<Endpoint>>,
    /// For debug endpoints: proxies.
    pub proxies: Published<ProxyKey, Proxy>,
    /// For debug endpoints: what services each proxy is part of.
    pub service_targets: Published<ProxyKey, Vec<ServiceTarget>>,
    /// For debug endpoints: VirtualServices.
    pub virtual_services: Published<ObjectKey, VirtualService>,
    /// For debug endpoints: DestinationRules.
    pub destination_rules: Published<ObjectKey, DestinationRule>,
    /// For debug endpoints: Gateways.
    pub gateways: Published<ObjectKey, Gateway>,
    /// For injection: ProxyConfig resources.
    pub proxy_configs: Published<ObjectKey, ProxyConfigResource>,
    /// For debug endpoints: pods.
    pub pods: Published<ObjectKey, Pod>,
    /// For debug endpoints: nodes.
    pub nodes: Published<ObjectKey, Node>,
    /// For debug endpoints: namespaces.
    pub namespaces: Published<ObjectKey, Namespace>,
}
