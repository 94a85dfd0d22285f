//! The security policies of one workload, for explanations: the rules that the collections follow, on values that the caller has
//! read.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_envoy::listener::PeerPolicy;
use sluice_envoy::listener_settings::{Collector, ListenerSettings};
use sluice_envoy::security::{PolicyDecision, PolicyRequest, SecurityInputs, decide};
use sluice_model::{
    Attachment, AuthorizationPolicy, Labels, MeshConfig, ObjectKey, PeerAuthentication, ProviderService,
    RequestAuthentication, ServiceSource, Text, Timestamp, WaypointTarget,
};

use crate::options::GraphOptions;
use crate::proxies::peer_authentications::PeerPolicies;
use crate::proxies::policies::PolicyTarget;

/// A policy that is attached to workloads.
pub trait AttachedPolicy {
    /// Creation time; older comes first.
    fn created(&self) -> Timestamp;
    /// Its target.
    fn attachment(&self) -> &Attachment;
}

impl AttachedPolicy for AuthorizationPolicy {
    fn created(&self) -> Timestamp {
        self.created
    }

    fn attachment(&self) -> &Attachment {
        &self.attachment
    }
}

impl AttachedPolicy for RequestAuthentication {
    fn created(&self) -> Timestamp {
        self.created
    }

    fn attachment(&self) -> &Attachment {
        &self.attachment
    }
}

/// A workload whose policies are explained.
#[derive(Clone, Copy, Debug)]
pub struct ExplainedWorkload<'a> {
    /// Its namespace.
    pub namespace: &'a Text,
    /// Its labels.
    pub labels: &'a Labels,
    /// The mesh config.
    pub mesh: &'a Arc<MeshConfig>,
    /// Settings of the graph.
    pub options: &'a GraphOptions,
}

/// The PeerAuthentications of a workload.
#[derive(Clone, Debug, Default)]
pub struct ExplainedPeerPolicy {
    /// The effective modes.
    pub effective: PeerPolicy,
    /// The policies that were read for it, the most specific first: namespace and name. The first one that declares a mode
    /// decides.
    pub read: Vec<Arc<PeerAuthentication>>,
}

impl ExplainedWorkload<'_> {
    /// The policies that apply: those of the root namespace first, as the filters of AuthorizationPolicies have them, older before
    /// newer.
    #[must_use]
    pub fn applied<P: AttachedPolicy>(&self, policies: Vec<(ObjectKey, P)>) -> Vec<(ObjectKey, P)> {
        let gateways_by_target_only = self.options.security.gateways_by_target_only;
        let target = PolicyTarget { namespace: self.namespace, labels: self.labels, gateways_by_target_only };
        let root = &self.mesh.root_namespace;
        let (mut of_root, others): (Vec<_>, Vec<_>) = policies.into_iter().partition(|(key, _)| key.namespace == *root);
        let mut own: Vec<_> = others.into_iter().filter(|(key, _)| key.namespace == *self.namespace).collect();
        for rows in [&mut of_root, &mut own] {
            target.retain(rows, |(key, policy)| (key, policy.created(), policy.attachment()));
        }
        of_root.extend(own);
        of_root
    }

    /// The policies that it applies, as a waypoint, to the traffic of a service, in the order of the filters of AuthorizationPolicies:
    /// those of the root namespace, of its own, and of that of the service. `service` is the declaring object; without one, the
    /// traffic is that of workloads.
    #[must_use]
    pub fn applied_as_waypoint<P: AttachedPolicy>(
        &self,
        mut policies: Vec<(ObjectKey, P)>,
        service: Option<(ServiceSource, &ObjectKey)>,
    ) -> Vec<(ObjectKey, P)> {
        let root_namespace = &self.mesh.root_namespace;
        let target = WaypointTarget { namespace: self.namespace, labels: self.labels, root_namespace, service };
        let namespaces = target.namespaces_root_first();
        let place = |key: &ObjectKey| namespaces.iter().position(|namespace| *key.namespace == **namespace);
        policies.retain(|(key, policy)| place(key).is_some() && policy.attachment().is_for_waypoint(key, &target));
        policies.sort_by(|(a, of_a), (b, of_b)| {
            (place(a), of_a.created(), &a.name).cmp(&(place(b), of_b.created(), &b.name))
        });
        policies
    }

    /// Mutual TLS that it requires, and the policies that decide about it.
    #[must_use]
    pub fn peer_policy(&self, policies: impl IntoIterator<Item = PeerAuthentication>) -> ExplainedPeerPolicy {
        let root = &self.mesh.root_namespace;
        let (mesh, others): (Vec<_>, Vec<_>) =
            policies.into_iter().map(Arc::new).partition(|policy| policy.namespace == *root);
        let own = others.into_iter().filter(|policy| policy.namespace == *self.namespace).collect();
        let policies = PeerPolicies::new(own, mesh);
        let read = policies.read_for_workload(self.labels).into_iter().cloned().collect();
        ExplainedPeerPolicy { effective: policies.of_workload(self.labels), read }
    }

    /// How these policies decide about a request. `collectors` are the services of extension providers
    /// ([`COLLECTORS`](crate::COLLECTORS)).
    #[must_use]
    pub fn decide(
        &self,
        policies: &[(ObjectKey, AuthorizationPolicy)],
        collectors: BTreeMap<ProviderService, Collector>,
        request: &PolicyRequest,
    ) -> PolicyDecision {
        let settings = ListenerSettings {
            mesh: self.mesh.clone(),
            collectors,
            security: self.options.security,
            ..ListenerSettings::default()
        };
        let authorization: Vec<&AuthorizationPolicy> = policies.iter().map(|(_, policy)| policy).collect();
        let inputs = SecurityInputs {
            settings: &settings,
            authorization: &authorization,
            tokens: &[],
            clear_route_cache: false,
        };
        decide(&inputs, request)
    }
}
