//! Look-up of the endpoints of a service.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::endpoint::Backend;
use sluice_envoy::listener::MtlsMode;
use sluice_model::{Endpoint, NetworkGateway, ObjectKey, PeerAuthentication, ServiceKey, Text, TlsMode};

use crate::proxies::peer_authentications::{PeerLookup, PeerPolicies};
use crate::registry::endpoints::{EndpointChunkKey, ServiceEndpoints};

/// Inputs of [`EndpointLookup`].
#[derive(Clone, Copy)]
pub(crate) struct EndpointLookupInputs<'a, 's> {
    /// Endpoints of every service.
    pub(crate) endpoints: &'a ServiceEndpoints<'s>,
    /// Gateways between networks, by address or host name: one record.
    pub(crate) network_gateways: &'a Collection<'s, (), Vec<NetworkGateway>>,
    /// The same with IP addresses instead of host names: one record.
    pub(crate) resolved_network_gateways: &'a Collection<'s, (), Vec<NetworkGateway>>,
    /// PeerAuthentications as clients read them, by namespace.
    pub(crate) client_policies: &'a Index<'s, Text, ObjectKey, PeerAuthentication>,
}

/// Looks up the endpoints of a service, inside a `derive`.
#[derive(Clone, Copy)]
pub(in crate::outputs) struct EndpointLookup {
    endpoints: Dep<ServiceKey, Vec<Endpoint>>,
    gateways: Dep<(), Vec<NetworkGateway>>,
    resolved_gateways: Dep<(), Vec<NetworkGateway>>,
    pub(in crate::outputs) policies: PeerLookup,
}

/// Endpoints, and which of them refuse mutual TLS by policy.
#[derive(Default)]
pub(in crate::outputs) struct EndpointList {
    endpoints: Arc<Vec<Endpoint>>,
    refuse_mtls: Vec<bool>,
}

impl EndpointList {
    pub(in crate::outputs) fn backends(&self) -> Vec<Backend<'_>> {
        backends(&self.endpoints, &self.refuse_mtls)
    }
}

/// Endpoints with whether they refuse mutual TLS.
pub(super) fn backends<'a>(endpoints: &'a [Endpoint], refuse_mtls: &[bool]) -> Vec<Backend<'a>> {
    let backend = |(endpoint, refuses)| Backend { endpoint, refuses_mtls: refuses };
    endpoints.iter().zip(refuse_mtls.iter().copied()).map(backend).collect()
}

impl EndpointLookup {
    /// Declares the look-up.
    pub(in crate::outputs) fn on<'s>(deps: &mut Deps<'s>, inputs: &EndpointLookupInputs<'_, 's>) -> Self {
        Self {
            endpoints: deps.on(&inputs.endpoints.listed),
            gateways: deps.on(inputs.network_gateways),
            resolved_gateways: deps.on(inputs.resolved_network_gateways),
            policies: PeerLookup::on(deps, inputs.client_policies),
        }
    }

    /// Gateways between networks: by IP address, unless the proxy resolves host names itself.
    pub(in crate::outputs) fn gateways(&self, cx: &Context, by_name: bool) -> Vec<NetworkGateway> {
        let gateways = if by_name { &self.gateways } else { &self.resolved_gateways };
        cx.get(gateways, &()).map(|all| (*all).clone()).unwrap_or_default()
    }

    /// Whether the endpoints of a service are one list: it is not large.
    pub(super) fn is_listed(&self, cx: &Context, service: &ServiceKey) -> bool {
        cx.get(&self.endpoints, service).is_some()
    }

    /// The endpoints of all ports of a service; `None` if it is large.
    pub(in crate::outputs) fn of_service(
        &self,
        cx: &Context,
        service: &ServiceKey,
        root: &Text,
    ) -> Option<EndpointList> {
        Some(self.list(cx, cx.get(&self.endpoints, service)?, root))
    }

    /// Endpoints, with which of them refuse mutual TLS. `root` is the root namespace.
    pub(super) fn list(&self, cx: &Context, endpoints: Arc<Vec<Endpoint>>, root: &Text) -> EndpointList {
        let refuse_mtls = self.refuse_mtls(cx, &endpoints, root);
        EndpointList { endpoints, refuse_mtls }
    }

    /// For each endpoint, whether it refuses mutual TLS by policy. `root` is the root namespace.
    pub(super) fn refuse_mtls(&self, cx: &Context, endpoints: &[Endpoint], root: &Text) -> Vec<bool> {
        let mut policies: BTreeMap<Text, PeerPolicies> = BTreeMap::new();
        let mut refuses = |endpoint: &Endpoint| {
            if endpoint.tls_mode != TlsMode::Istio {
                return true;
            }
            let policies = policies
                .entry(endpoint.namespace.clone())
                .or_insert_with_key(|namespace| self.policies.get(cx, namespace, root));
            let mode = if policies.is_uniform() {
                policies.of_namespace()
            } else {
                policies.of_workload(&endpoint.labels).mode(endpoint.port)
            };
            mode == MtlsMode::Disable
        };
        endpoints.iter().map(&mut refuses).collect()
    }
}

/// Looks up all endpoints of a service, large or not, inside a `derive`.
#[derive(Clone, Copy)]
pub(super) struct WholeServices {
    /// The look-up of the endpoints of services that are not large.
    pub(super) lookup: EndpointLookup,
    by_service: IndexDep<ServiceKey, EndpointChunkKey, ()>,
    chunks: Dep<EndpointChunkKey, Arc<[Endpoint]>>,
}

impl WholeServices {
    pub(super) fn on<'s>(deps: &mut Deps<'s>, inputs: &EndpointLookupInputs<'_, 's>) -> Self {
        Self {
            lookup: EndpointLookup::on(deps, inputs),
            by_service: deps.by(&inputs.endpoints.chunks_by_service),
            chunks: deps.on(&inputs.endpoints.chunks),
        }
    }

    pub(super) fn endpoints(&self, cx: &Context, service: &ServiceKey) -> Arc<Vec<Endpoint>> {
        if let Some(listed) = cx.get(&self.lookup.endpoints, service) {
            return listed;
        }
        let keys = cx.by(&self.by_service, service).into_iter();
        let chunks = keys.filter_map(|(key, _)| cx.get(&self.chunks, &key));
        Arc::new(chunks.flat_map(|chunk| chunk.iter().cloned().collect::<Vec<_>>()).collect())
    }

    /// The endpoints, with which of them refuse mutual TLS. `root` is the root namespace.
    pub(super) fn list(&self, cx: &Context, service: &ServiceKey, root: &Text) -> EndpointList {
        self.lookup.list(cx, self.endpoints(cx, service), root)
    }
}
