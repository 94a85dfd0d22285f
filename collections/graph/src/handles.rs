//! The inputs and published collections that the process uses.

use std::sync::Arc;

use sluice_engine::{Published, Snapshot};
use sluice_model::gateway_api::GatewayDeployment;
use sluice_model::{
    ClientProfile, ConditionRequest, DestinationRule, Endpoint, Gateway, Jwks, JwksKey, MeshConfig, MeshNetworks,
    Namespace, Node, ObjectKey, Pod, Proxy, ProxyConfigResource, ProxyKey, Reject, Resource, ResourceKey, Scope,
    SecretReader, Segment, SegmentKey, Service, ServiceKey, Text, VirtualService, WantedJwks, WorkloadEntry,
    remember_version,
};

use crate::inputs::{Inputs, RejectKey};
use crate::outputs::client_profile;
use crate::proxies::envoy_filters::{PatchCondition, can_have_patches};
use crate::proxies::targets::ServiceTarget;
use crate::registry::allocation::AddressUpdate;
use crate::registry::endpoints::EndpointChunkKey;
use crate::registry::multi_cluster::{MissingServiceExport, MultiClusterService};
use crate::registry::nodes::TaintRemoval;
use crate::statuses::{ConditionUpdate, StatusKey, StatusUpdate};
use crate::traffic::gateway_api::classes::MissingGatewayClass;
use crate::traffic::gateway_api::inference_pools::ShadowService;
use crate::traffic::ingresses::IngressStatusUpdate;

/// The inputs and published collections of a graph.
#[derive(Clone, Debug)]
pub struct Handles {
    /// The inputs that sources write.
    pub inputs: Inputs,
    /// Whole resources; each key is in one of the collections.
    pub resources: Vec<Published<ResourceKey, Resource>>,
    /// Segments of assembled resources; each key is in one of the collections.
    pub segments: Vec<Published<SegmentKey, Segment>>,
    /// The scope of each proxy.
    pub scopes: Published<ProxyKey, Scope>,
    /// Host names to resolve; sources write the addresses to [`Inputs::resolved_names`].
    pub gateway_names: Published<Text, ()>,
    /// Findings in configuration, by object.
    pub rejects: Published<RejectKey, Vec<Reject>>,
    /// Statuses of ServiceEntries to write.
    pub address_updates: Published<ObjectKey, AddressUpdate>,
    /// Conditions of Services and of objects of Istio to write.
    pub condition_updates: Published<StatusKey, ConditionUpdate>,
    /// Objects that ask for the condition `Reconciled`, or have it; results are written to [`Inputs::reconciliations`].
    pub condition_requests: Published<StatusKey, ConditionRequest>,
    /// Statuses of Ingresses to write.
    pub ingress_status_updates: Published<ObjectKey, IngressStatusUpdate>,
    /// Statuses of objects of the Gateway API to write.
    pub status_updates: Published<StatusKey, StatusUpdate>,
    /// GatewayClasses to create.
    pub missing_gateway_classes: Published<ObjectKey, MissingGatewayClass>,
    /// What is deployed for Gateways.
    pub gateway_deployments: Published<ObjectKey, GatewayDeployment>,
    /// Services of InferencePools to write.
    pub shadow_services: Published<ObjectKey, ShadowService>,
    /// Taints of nodes to remove.
    pub taint_removals: Published<ObjectKey, TaintRemoval>,
    /// ServiceExports to create, in every cluster.
    pub missing_service_exports: Published<ObjectKey, MissingServiceExport>,
    /// For debug endpoints: Services that clusters export or import.
    pub multi_cluster_services: Published<ObjectKey, MultiClusterService>,
    /// JWKS to fetch, with the timeout of each fetch.
    pub wanted_jwks: Published<JwksKey, WantedJwks>,
    /// JWKS that were fetched.
    pub jwks: Published<JwksKey, Jwks>,
    /// Service accounts whose access to Secrets is to be reviewed; sources write the results to
    /// [`Inputs::secret_reviews`].
    pub wanted_secret_reviews: Published<SecretReader, ()>,
    /// The conditions of patches on what proxies state, with the namespace of the EnvoyFilter.
    pub patch_conditions: Published<(Text, PatchCondition), ()>,
    /// For debug endpoints: the mesh config.
    pub mesh: Published<(), MeshConfig>,
    /// For debug endpoints: the networks.
    pub networks: Published<(), MeshNetworks>,
    /// For debug endpoints: services.
    pub services: Published<ServiceKey, Service>,
    /// For debug endpoints: endpoints, except those of large services.
    pub endpoints: Published<ServiceKey, Vec<Endpoint>>,
    /// For debug endpoints: endpoints of large services.
    pub endpoint_chunks: Published<EndpointChunkKey, Arc<[Endpoint]>>,
    /// For debug endpoints: proxies.
    pub proxies: Published<ProxyKey, Proxy>,
    /// For debug endpoints: the services that each proxy is part of.
    pub service_targets: Published<ProxyKey, Vec<ServiceTarget>>,
    /// For debug endpoints: VirtualServices.
    pub virtual_services: Published<ObjectKey, VirtualService>,
    /// For debug endpoints: DestinationRules.
    pub destination_rules: Published<ObjectKey, DestinationRule>,
    /// For debug endpoints: Gateways.
    pub gateways: Published<ObjectKey, Gateway>,
    /// For injection: ProxyConfig resources.
    pub proxy_configs: Published<ObjectKey, ProxyConfigResource>,
    /// For injection: the versions of the kubelets of each cluster, each once.
    pub kubelet_versions: Published<Text, Vec<Text>>,
    /// For registration: WorkloadEntries.
    pub workload_entries: Published<ObjectKey, WorkloadEntry>,
    /// For debug endpoints: pods.
    pub pods: Published<ObjectKey, Pod>,
    /// For debug endpoints: nodes.
    pub nodes: Published<ObjectKey, Node>,
    /// For debug endpoints: namespaces.
    pub namespaces: Published<ObjectKey, Namespace>,
    /// For roots: the namespaces that `discoverySelectors` select.
    pub discovered_namespaces: Published<ObjectKey, Namespace>,
}

impl Handles {
    /// Hashes of everything that a client states about itself and that the resources it shares with others are built for now.
    ///
    /// This matches the version of the proxy with the expressions of patches. The results are kept, so the dataflow
    /// thread evaluates no expression for a proxy that is written to it afterwards.
    #[must_use]
    pub fn client_profile(&self, now: &Snapshot, proxy: &Proxy) -> ClientProfile {
        if !can_have_patches(proxy) {
            return client_profile(proxy, std::iter::empty());
        }
        remember_version(&proxy.istio_version);
        let mesh = now.get(&self.mesh, &());
        let root = mesh.as_ref().map(|mesh| &mesh.root_namespace).filter(|root| **root != proxy.namespace);
        let namespaces = std::iter::once(&proxy.namespace).chain(root);
        let conditions = namespaces.flat_map(|namespace| {
            let from = now.iter_from(&self.patch_conditions, (namespace.clone(), PatchCondition::first()));
            from.map(|(key, ())| key).take_while(move |(of, _)| of == namespace).map(|(_, condition)| condition)
        });
        client_profile(proxy, conditions)
    }
}
