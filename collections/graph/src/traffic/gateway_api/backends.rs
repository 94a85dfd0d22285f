//! Backends: the destination of a reference, and whether it is permitted (G02, G03).

use std::collections::BTreeSet;
use std::fmt::Display;

use serde::Serialize;
use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_envoy::agentgateway::BackendService;
use sluice_model::gateway_api::{Backend, BackendRef, EXPERIMENTAL_GROUP, GroupKind, InferencePool};
use sluice_model::{
    Destination, EndpointPicker, Host, Labels, MultiClusterApi, ObjectKey, Protocol, Service, ServiceKey, Text, label,
};

use super::grants::{GrantIndex, GrantLookup};
use super::inference_pools::{is_pool, shadow_service_name};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::{imported_host, pool_host, service_host};
use crate::statuses::StatusProblem;

/// The indexes of backends.
pub(super) struct BackendIndex<'a, 's> {
    services: Collection<'s, ObjectKey, ()>,
    backends: Collection<'s, ObjectKey, Backend>,
    /// Pools, with their first port.
    pools: Collection<'s, ObjectKey, u16>,
    pool_services: Collection<'s, ServiceKey, PoolService>,
    /// UDP ports of services, if UDPRoutes have effect.
    udp_ports: Option<Collection<'s, ServiceKey, BTreeSet<u16>>>,
    by_host: &'a Index<'s, Host, ServiceKey, ()>,
    grants: &'a GrantIndex<'s>,
    options: &'a GraphOptions,
}

impl<'a, 's> BackendIndex<'a, 's> {
    /// Indexes all objects that can be backends.
    pub(super) fn new(
        objects: &ObjectCollections<'s>,
        grants: &'a GrantIndex<'s>,
        services: &Collection<'s, ServiceKey, Service>,
        by_host: &'a Index<'s, Host, ServiceKey, ()>,
        options: &'a GraphOptions,
    ) -> Self {
        Self {
            services: objects.kubernetes_services.map("gateway_api/backends", |_, _| ()),
            backends: objects.backends.clone(),
            pools: objects.inference_pools.map("gateway_api/pools", |_, pool: &InferencePool| {
                pool.target_ports.first().copied().unwrap_or_default()
            }),
            pool_services: services.filter_map("gateway_api/pool_services", |_, service| PoolService::of(service)),
            udp_ports: options.gateway_api.experimental.then(|| derive_udp_ports(services)),
            by_host,
            grants,
            options,
        }
    }
}

/// The UDP ports of services. Services without any are absent.
fn derive_udp_ports<'s>(services: &Collection<'s, ServiceKey, Service>) -> Collection<'s, ServiceKey, BTreeSet<u16>> {
    services.filter_map("gateway_api/udp_ports", |_, service| {
        let udp = service.ports.iter().filter(|port| port.protocol == Protocol::Udp);
        let ports: BTreeSet<u16> = udp.map(|port| port.port).collect();
        (!ports.is_empty()).then_some(ports)
    })
}

/// The Service of an InferencePool, as routes to the pool depend on it.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
struct PoolService {
    first_port: u16,
    /// `None` if the labels do not name it.
    picker: Option<EndpointPicker>,
}

impl PoolService {
    /// The Service, if it has a label of one for a pool.
    fn of(service: &Service) -> Option<Self> {
        let labels = [label::POOL_NAME, label::PICKER_SERVICE, label::PICKER_PORT, label::PICKER_FAILURE_MODE];
        labels.iter().any(|label| service.labels.contains_key(label)).then(|| Self {
            first_port: service.ports.first().map_or(0, |port| port.port),
            picker: picker_of(&service.labels, &service.host),
        })
    }
}

/// The endpoint picker that the labels of a Service name. It is in the namespace of the Service.
fn picker_of(labels: &Labels, host: &Host) -> Option<EndpointPicker> {
    let get = |name: &str| labels.get(name).filter(|value| !value.is_empty());
    let (_, namespace) = host.as_str().split_once('.')?;
    Some(EndpointPicker {
        host: Host::new(&format!("{}.{namespace}", get(label::PICKER_SERVICE)?)),
        port: get(label::PICKER_PORT)?.parse().unwrap_or_default(),
        fails_open: **get(label::PICKER_FAILURE_MODE)? == *"FailOpen",
    })
}

/// Looks up backends.
#[derive(Clone)]
pub(super) struct BackendLookup {
    services: Dep<ObjectKey, ()>,
    backends: Dep<ObjectKey, Backend>,
    pools: Dep<ObjectKey, u16>,
    pool_services: Dep<ServiceKey, PoolService>,
    udp_ports: Option<Dep<ServiceKey, BTreeSet<u16>>>,
    by_host: IndexDep<Host, ServiceKey, ()>,
    grants: GrantLookup,
    domain: Text,
    experimental: bool,
    inference: bool,
    multi_cluster: MultiClusterApi,
    imported_hosts: bool,
}

/// The route that refers to a backend.
#[derive(Clone, Copy)]
pub(super) struct Referrer<'a> {
    /// Kind of the route.
    pub(super) kind: &'a GroupKind,
    /// Its cluster and namespace.
    pub(super) key: &'a ObjectKey,
    /// It is for sidecars, which need no ReferenceGrant for other namespaces.
    pub(super) is_mesh: bool,
}

/// A backend of a route.
#[derive(Clone, Debug, Default)]
pub(super) struct ResolvedBackend {
    /// The destination. That of a backend that is absent or not permitted fails requests.
    pub(super) destination: Destination,
    /// The endpoint picker of an InferencePool.
    pub(super) picker: Option<EndpointPicker>,
    /// What is wrong with it.
    pub(super) problem: Option<BackendProblem>,
}

/// A problem with a backend.
#[derive(Clone, Debug)]
pub(super) struct BackendProblem {
    /// The finding; `None` if the parser has reported it.
    pub(super) finding: Option<&'static str>,
    /// The problem for the status of the route.
    pub(super) status: StatusProblem,
}

/// Reason: the reference is invalid, whatever exists.
const INVALID_DESTINATION: &str = "InvalidDestination";
/// Reason: an object of that kind cannot be a backend.
const INVALID_KIND: &str = "InvalidKind";
/// Reason: the backend has another protocol than the route.
const UNSUPPORTED_PROTOCOL: &str = "UnsupportedProtocol";
/// Reason: the backend does not exist.
const NOT_FOUND: &str = "BackendNotFound";

impl BackendProblem {
    fn new(finding: &'static str, reason: &'static str, message: impl Into<Text>) -> Self {
        Self { finding: Some(finding), status: StatusProblem::new(reason, message) }
    }

    fn not_found(finding: &'static str, name: &impl Display) -> Self {
        Self::new(finding, NOT_FOUND, format!("backend({name}) not found"))
    }

    /// Whether the whole route is omitted because of it, and not only the share of the backend.
    pub(super) fn omits_route(&self) -> bool {
        self.status.reason == INVALID_DESTINATION
    }
}

impl From<BackendProblem> for ResolvedBackend {
    fn from(problem: BackendProblem) -> Self {
        Self { problem: Some(problem), ..Self::default() }
    }
}

/// The problem of a reference that is invalid by itself, as the parser has reported it.
fn invalid_reference(backend: &BackendRef, multi_cluster: &MultiClusterApi) -> Option<&'static str> {
    let (kind, name) = (&backend.target.kind, &backend.target.name);
    let is_service = kind.is("", "Service");
    if is_service && name.contains('.') {
        Some("service name invalid; the name of the Service must be used, not the hostname.")
    } else if kind.is_hostname() && backend.target.namespace.is_some() {
        Some("namespace may not be set with Hostname type")
    } else if is_pool(kind) && name.contains('.') {
        Some("InferencePool.Name invalid; the name of the InferencePool must be used, not the hostname.")
    } else if (is_service || kind.is_hostname() || multi_cluster.is_service_import(kind)) && backend.port.is_none() {
        Some("port is required in backendRef")
    } else {
        None
    }
}

impl BackendLookup {
    /// Declares the look-ups.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, index: &BackendIndex<'_, 's>) -> Self {
        Self {
            services: deps.on(&index.services),
            backends: deps.on(&index.backends),
            pools: deps.on(&index.pools),
            pool_services: deps.on(&index.pool_services),
            udp_ports: index.udp_ports.as_ref().map(|ports| deps.on(ports)),
            by_host: deps.by(index.by_host),
            grants: GrantLookup::on(deps, index.grants),
            domain: index.options.domain.clone(),
            experimental: index.options.gateway_api.experimental,
            inference: index.options.gateway_api.inference,
            multi_cluster: index.options.multi_cluster_api.clone(),
            imported_hosts: index.options.multi_cluster.is_some_and(|multi_cluster| multi_cluster.imported_hosts),
        }
    }

    /// Checks that a route may refer to a backend.
    ///
    /// # Errors
    /// The backend is in another namespace, and no ReferenceGrant there allows the reference.
    fn check_grant(&self, cx: &Context, by: Referrer<'_>, backend: &BackendRef) -> Result<(), BackendProblem> {
        let target = &backend.target;
        let namespace = target.namespace_in(&by.key.namespace);
        let from = (by.kind, &by.key.namespace);
        if by.is_mesh || self.grants.allow(cx, from, (&target.kind, &namespace, &target.name)) {
            return Ok(());
        }
        let message = format!(
            "backendRef {}/{namespace} not accessible to a {} in namespace \"{}\" (missing a ReferenceGrant?)",
            target.name, by.kind.kind, by.key.namespace
        );
        Err(BackendProblem::new("no ReferenceGrant allows it", "RefNotPermitted", message))
    }

    /// The destination of a reference, and the problem if there is one.
    pub(super) fn resolve(&self, cx: &Context, by: Referrer<'_>, backend: &BackendRef) -> ResolvedBackend {
        let target = &backend.target;
        let namespace = target.namespace_in(&by.key.namespace);
        if let Err(problem) = self.check_grant(cx, by, backend) {
            return problem.into();
        }
        if let Some(message) = invalid_reference(backend, &self.multi_cluster) {
            return BackendProblem { finding: None, status: StatusProblem::new(INVALID_DESTINATION, message) }.into();
        }
        let key = ObjectKey::new(by.key.cluster.clone(), namespace.clone(), target.name.clone());
        let is_import = self.multi_cluster.is_service_import(&target.kind);
        let (host, exists) = if target.kind.is("", "Service") || is_import {
            let host = match is_import && self.imported_hosts {
                true => imported_host(&target.name, &namespace),
                false => service_host(&target.name, &namespace, &self.domain),
            };
            (host, cx.get(&self.services, &key).is_some())
        } else if target.kind.is_hostname() {
            let host = Host::new(&target.name);
            let exists = !cx.by(&self.by_host, &host).is_empty();
            (host, exists)
        } else if target.kind.is(EXPERIMENTAL_GROUP, "XBackend") && self.experimental {
            return self.resolve_external(cx, &key, backend.port);
        } else if is_pool(&target.kind) && self.inference {
            return self.resolve_pool(cx, &key);
        } else {
            return BackendProblem::new("this kind cannot be a backend", INVALID_KIND, unsupported(&target.kind))
                .into();
        };
        ResolvedBackend {
            problem: (!exists).then(|| BackendProblem::not_found("there is no such backend", &host)),
            destination: Destination { host, port: backend.port.map(u32::from), ..Destination::default() },
            picker: None,
        }
    }

    /// The destination of a reference of a route for datagrams: only UDP ports take these.
    pub(super) fn resolve_udp(&self, cx: &Context, by: Referrer<'_>, backend: &BackendRef) -> ResolvedBackend {
        let resolved = self.resolve(cx, by, backend);
        let Destination { host, port: Some(port), .. } = &resolved.destination else { return resolved };
        if resolved.problem.is_some() || self.takes_datagrams(cx, host, *port) {
            return resolved;
        }
        let message = format!("port {port} of backend({host}) is not a UDP port");
        BackendProblem::new("the port of the backend is not a UDP port", UNSUPPORTED_PROTOCOL, message).into()
    }

    fn takes_datagrams(&self, cx: &Context, host: &Host, port: u32) -> bool {
        let Some(udp_ports) = &self.udp_ports else { return false };
        let services = cx.by(&self.by_host, host).into_iter();
        let ports = services.filter_map(|(service, _)| cx.get(udp_ports, &service));
        ports.flat_map(|ports| ports.iter().copied().collect::<Vec<_>>()).any(|known| u32::from(known) == port)
    }

    /// The service of a reference in a route of agentgateways. They send to Services, hosts of ServiceEntries, and InferencePools.
    ///
    /// # Errors
    /// Requests cannot be sent to it.
    pub(super) fn resolve_service(
        &self,
        cx: &Context,
        by: Referrer<'_>,
        backend: &BackendRef,
    ) -> Result<BackendService, BackendProblem> {
        let target = &backend.target;
        let is_pool = is_pool(&target.kind) && self.inference;
        let is_supported = target.kind.is("", "Service") || target.kind.is_hostname() || is_pool;
        if !is_supported {
            let GroupKind { group, kind } = &target.kind;
            let message = format!("referencing unsupported backendRef: group \"{group}\" kind \"{kind}\"");
            return Err(BackendProblem::new(
                "agentgateway does not send to this kind of backend",
                INVALID_KIND,
                message,
            ));
        }
        let local = target.namespace_in(&by.key.namespace);
        if is_pool {
            self.check_grant(cx, by, backend)?;
            if let Some(message) = invalid_reference(backend, &self.multi_cluster) {
                return Err(BackendProblem { finding: None, status: StatusProblem::new(INVALID_DESTINATION, message) });
            }
            let pool = ObjectKey::new(by.key.cluster.clone(), local.clone(), target.name.clone());
            let port = cx.get(&self.pools, &pool);
            let port = port.ok_or_else(|| BackendProblem::not_found("there is no such InferencePool", &target.name))?;
            return Ok(BackendService {
                host: pool_host(&target.name, &local, &self.domain),
                namespace: local,
                port: *port,
            });
        }
        let ResolvedBackend { destination, problem, .. } = self.resolve(cx, by, backend);
        if let Some(problem) = problem {
            return Err(problem);
        }
        let namespace = if target.kind.is_hostname() {
            let declared = cx.by(&self.by_host, &destination.host);
            let own = declared.iter().find(|(key, _)| key.namespace == local);
            own.or(declared.first()).map_or(local, |(key, _)| key.namespace.clone())
        } else {
            local
        };
        Ok(BackendService { namespace, host: destination.host, port: backend.port.unwrap_or_default() })
    }

    fn resolve_external(&self, cx: &Context, key: &ObjectKey, port: Option<u16>) -> ResolvedBackend {
        let name = &key.name;
        let Some(found) = cx.get(&self.backends, key) else {
            return BackendProblem::not_found("there is no such backend", name).into();
        };
        let Some(hostname) = &found.hostname else {
            let message = format!("backend({name}) type: expected ExternalHostname");
            return BackendProblem::new("the backend has no host", INVALID_KIND, message).into();
        };
        if let Some(port) = port.filter(|port| *port != found.port) {
            let message = format!("backend({name}) does not expose port {port}, expected {}", found.port);
            return BackendProblem::new("the backend has another port", NOT_FOUND, message).into();
        }
        let host = Host::new(hostname);
        let exists = !cx.by(&self.by_host, &host).is_empty();
        ResolvedBackend {
            problem: (!exists).then(|| BackendProblem::not_found("no ServiceEntry has the host of the backend", &host)),
            destination: Destination { host, port: Some(found.port.into()), ..Destination::default() },
            picker: None,
        }
    }

    /// The Service of an InferencePool. Its first port has the endpoints of all ports.
    fn resolve_pool(&self, cx: &Context, pool: &ObjectKey) -> ResolvedBackend {
        if cx.get(&self.pools, pool).is_none() {
            return BackendProblem::not_found("there is no such InferencePool", &pool.name).into();
        }
        let host = service_host(&shadow_service_name(&pool.name), &pool.namespace, &self.domain);
        if cx.by(&self.by_host, &host).is_empty() {
            return BackendProblem::not_found("the Service of the InferencePool does not exist yet", &host).into();
        }
        let found = cx.get(&self.pool_services, &ServiceKey { namespace: pool.namespace.clone(), host: host.clone() });
        let Some((port, picker)) = found.and_then(|found| Some((found.first_port, found.picker.clone()?))) else {
            let message = "InferencePool service invalid, extensionRef labels not found";
            let finding = "the Service of the InferencePool has no labels that name the endpoint picker";
            return BackendProblem::new(finding, INVALID_DESTINATION, message).into();
        };
        let destination = Destination { host, port: Some(port.into()), ..Destination::default() };
        ResolvedBackend { destination, picker: Some(picker), problem: None }
    }
}

/// Why an object of a kind cannot be a backend.
fn unsupported(kind: &GroupKind) -> String {
    if kind.is(EXPERIMENTAL_GROUP, "XBackend") {
        "The Alpha Gateway API is not enabled, XBackend is invalid. To enable, set PILOT_ENABLE_ALPHA_GATEWAY_API to true in istiod."
            .to_owned()
    } else if is_pool(kind) {
        "InferencePool is not enabled. To enable, set ENABLE_GATEWAY_API_INFERENCE_EXTENSION to true in istiod"
            .to_owned()
    } else {
        let GroupKind { group, kind } = kind;
        format!("referencing unsupported backendRef: group \"{group}\" kind \"{kind}\"")
    }
}
