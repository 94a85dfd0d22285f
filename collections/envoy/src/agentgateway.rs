//! Resources of agentgateway proxies (X31). An agentgateway has no Envoy: it gets binds, listeners, routes and policies in a type of
//! its own, and addresses as ztunnel does.

mod listener;
mod policy;
mod route;

use bytes::Bytes;
use sluice_model::{Host, Text};
use sluice_proto::agentgateway::backend_reference::{self, Service};
use sluice_proto::agentgateway::resource::Kind;
use sluice_proto::agentgateway::{BackendReference, Resource};

pub use listener::{AgentgatewayListenerInputs, ListenerTlsInputs, build_bind, build_listener, listener_key};
pub use policy::{BackendRoots, BackendTlsInputs, build_backend_tls, build_pool_policies};
pub use route::{
    HttpRuleInputs, L4RuleInputs, MirrorInputs, RouteBackendInputs, RouteTemplate, build_http_rule, build_l4_rule,
};

/// An encoded resource, with its name in xDS.
#[derive(Clone, Eq, PartialEq)]
pub struct AgentgatewayResource {
    /// The name: the sort of the resource and its key, such as `route/NAMESPACE/NAME.0.0.http`.
    pub name: Text,
    /// The encoded `Resource`.
    pub bytes: Bytes,
}

/// Shows no content, which may have a private key.
impl std::fmt::Debug for AgentgatewayResource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentgatewayResource").field("name", &self.name).finish_non_exhaustive()
    }
}

impl AgentgatewayResource {
    fn new(kind: Kind) -> Self {
        let (sort, key) = match &kind {
            Kind::Bind(bind) => ("bind", &bind.key),
            Kind::Listener(listener) => ("listener", &listener.key),
            Kind::Route(route) => ("route", &route.key),
            Kind::TcpRoute(route) => ("tcp_route", &route.key),
            Kind::Policy(policy) => ("policy", &policy.key),
        };
        let name = format!("{sort}/{key}").into();
        Self { name, bytes: crate::wire::encode(&Resource { kind: Some(kind) }) }
    }
}

/// A service that requests are sent to, as an address of the same name describes it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BackendService {
    /// Its namespace.
    pub namespace: Text,
    /// Its host.
    pub host: Host,
    /// Its port.
    pub port: u16,
}

/// The reference to a backend. The proxy answers requests to a backend without a reference with status 500.
fn reference(service: &BackendService) -> BackendReference {
    let BackendService { namespace, host, port } = service;
    let service = Service { namespace: namespace.to_string(), hostname: host.to_string() };
    BackendReference { port: (*port).into(), kind: Some(backend_reference::Kind::Service(service)) }
}

#[cfg(test)]
mod tests;
