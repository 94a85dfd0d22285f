//! InferencePools (G09): the Services by which proxies know their pods, and the Gateways that send to them.

use std::collections::BTreeSet;

use aws_lc_rs::digest::{SHA256, digest};
use serde::Serialize;
use sluice_engine::{Collection, Context, Index};
use sluice_model::gateway_api::{GROUP, GroupKind, INFERENCE_GROUP, InferencePool, ParentRef};
use sluice_model::{Kind, KubernetesService, Labels, ObjectKey, Protocol, Reject, RejectCause, Severity, Text, label};

use super::revisions::Revisions;
use super::route_report::{RouteReport, RouteReports, denied};
use crate::inputs::{ObjectCollections, RejectKey};

/// The port of the Service for the first port of the pool; the others follow.
const FIRST_PORT: u16 = 54321;
/// Maximum length of the name of a Service, in bytes.
const MAX_SERVICE_NAME_BYTES: usize = 63;

/// Whether a kind is that of InferencePools.
pub(super) fn is_pool(kind: &GroupKind) -> bool {
    kind.is(INFERENCE_GROUP, "InferencePool")
}

/// The name of the Service of a pool: that of the pool, as far as it fits, and a hash of it.
pub(super) fn shadow_service_name(pool: &str) -> String {
    let digest = digest(&SHA256, pool.as_bytes());
    let hash: String = digest.as_ref().iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let suffix = format!("-ip-{hash}");
    let name = &pool[..pool.floor_char_boundary(MAX_SERVICE_NAME_BYTES.saturating_sub(suffix.len()))];
    format!("{name}{suffix}")
}

/// The Service of an InferencePool that the control plane writes. It is headless, and its labels name the endpoint picker.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ShadowService {
    /// Name of the pool.
    pub pool: Text,
    /// Unique id of the pool, which owns the Service.
    pub pool_uid: Text,
    /// Its labels.
    pub labels: Labels,
    /// Labels of its pods.
    pub selector: Labels,
    /// Its ports.
    pub ports: Vec<ShadowPort>,
    /// `appProtocol` of its ports.
    pub app_protocol: Text,
}

/// A port of the Service of an InferencePool.
#[derive(Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub struct ShadowPort {
    /// Its name.
    pub name: Text,
    /// Its number, to which no client connects.
    pub port: u16,
    /// Port of the pods.
    pub target_port: u16,
}

impl ShadowService {
    /// The Service of a pool, which has a port of its picker.
    fn of(key: &ObjectKey, pool: &InferencePool) -> Option<Self> {
        let picker_port = pool.picker.port?;
        let failure_mode = if pool.picker.fails_open { "FailOpen" } else { "FailClose" };
        let labels = [
            (label::POOL_NAME, key.name.clone()),
            (label::PICKER_SERVICE, pool.picker.name.clone()),
            (label::PICKER_PORT, picker_port.to_string().into()),
            (label::PICKER_FAILURE_MODE, failure_mode.into()),
            (label::SERVICE_SEMANTICS, label::POOL_SEMANTICS.into()),
        ];
        let port = |(index, target_port): (u16, &u16)| ShadowPort {
            name: format!("http-{index}").into(),
            port: FIRST_PORT.saturating_add(index),
            target_port: *target_port,
        };
        Some(Self {
            pool: key.name.clone(),
            pool_uid: pool.uid.clone(),
            labels: labels.map(|(name, value)| (name.into(), value)).into(),
            selector: pool.selector.clone(),
            ports: (0..).zip(&pool.target_ports).map(port).collect(),
            app_protocol: pool.app_protocol.clone(),
        })
    }

    /// Whether a stored Service is as it should be. Other labels stay.
    fn is_stored(&self, stored: &KubernetesService) -> bool {
        let protocol = if *self.app_protocol == *"kubernetes.io/h2c" { Protocol::Http2 } else { Protocol::Http };
        let has_port = |wanted: &ShadowPort| {
            stored.ports.iter().any(|port| {
                (&port.name, port.port, port.protocol) == (&wanted.name, wanted.port, protocol)
                    && *port.target_port == *wanted.target_port.to_string()
            })
        };
        stored.headless
            && stored.owner_pool == self.pool_uid
            && stored.selector == self.selector
            && self.labels.iter().all(|(name, value)| stored.meta.labels.get(name) == Some(value))
            && stored.ports.len() == self.ports.len()
            && self.ports.iter().all(has_port)
    }
}

/// A route to a pool that refers to a Gateway, which accepts the route or not.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
pub(super) struct PoolRouteKey {
    /// The pool.
    pub(super) pool: ObjectKey,
    /// The Gateway.
    pub(super) gateway: ObjectKey,
    /// The HTTPRoute.
    pub(super) route: ObjectKey,
}

/// Namespace and name of a Gateway.
pub(crate) type GatewayName = (Text, Text);

/// Why the Gateway does not accept the route; `None` if it does.
pub(super) type PoolRouteDenial = Option<Text>;

/// The routes to each pool.
pub(super) type PoolRoutes<'s> = Index<'s, ObjectKey, PoolRouteKey, PoolRouteDenial>;

/// InferencePools with their routes.
pub(super) struct InferencePools<'s> {
    /// Their Services to write, by the key of the Service.
    pub(super) shadow_services: Collection<'s, ObjectKey, ShadowService>,
    /// The Gateways with a route to a pool, whose proxies call endpoint pickers.
    pub(super) gateways: Collection<'s, GatewayName, ()>,
    pool_routes: Collection<'s, PoolRouteKey, PoolRouteDenial>,
    /// Findings.
    pub(super) rejects: Collection<'s, RejectKey, Vec<Reject>>,
}

/// The state of the Service of a pool that has routes.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize)]
enum ShadowState {
    /// It has to be written.
    Missing(ShadowService),
    /// A Service of its name exists that is not that of a pool.
    Occupied,
}

impl<'s> InferencePools<'s> {
    /// Derives the Services and Gateways of pools.
    pub(super) fn new(
        objects: &ObjectCollections<'s>,
        http_reports: &RouteReports<'s>,
        revisions: &Revisions<'s>,
    ) -> Self {
        let pool_routes = derive_pool_routes(objects, "gateway_api/pool_routes", http_reports);
        let served = pool_routes.derive("gateway_api/served_pool_routes", |deps| {
            let pools = deps.on(&objects.inference_pools);
            move |cx, key: &PoolRouteKey, _| cx.get(&pools, &key.pool)?.picker.port.map(|_| ())
        });
        let by_gateway = served.index("gateway_api/pools-by-gateway", |key, ()| {
            [((key.gateway.namespace.clone(), key.gateway.name.clone()), ())]
        });
        let routes = pool_routes
            .index("gateway_api/routes-by-pool", |key, denial: &PoolRouteDenial| [(key.pool.clone(), denial.clone())]);
        let states = derive_shadow_states(objects, &routes, revisions);
        let shadow_services = states.flat_map("shadow_services", |key, state| match state {
            ShadowState::Missing(service) => Some((service_key(key), service.clone())),
            ShadowState::Occupied => None,
        });
        Self {
            pool_routes,
            shadow_services,
            gateways: by_gateway.distinct("gateway_api/gateways-with-pools"),
            rejects: states.flat_map("gateway_api/shadow_service_rejects", reject),
        }
    }

    /// The routes to each pool, with those at agentgateways, whose states are in `others`. Agentgateways need no Services of pools.
    pub(super) fn all_routes(
        &self,
        objects: &ObjectCollections<'s>,
        others: Option<&RouteReports<'s>>,
    ) -> PoolRoutes<'s> {
        let all = match others {
            None => self.pool_routes.clone(),
            Some(reports) => {
                let others = derive_pool_routes(objects, "agentgateway/pool_routes", reports);
                self.pool_routes.union("agentgateway/all_pool_routes", &[others])
            }
        };
        all.index("gateway_api/all-routes-by-pool", |key, denial: &PoolRouteDenial| {
            [(key.pool.clone(), denial.clone())]
        })
    }
}

/// The key of the Service of a pool.
fn service_key(pool: &ObjectKey) -> ObjectKey {
    ObjectKey { name: shadow_service_name(&pool.name).into(), ..pool.clone() }
}

fn reject(key: &ObjectKey, state: &ShadowState) -> Option<(RejectKey, Vec<Reject>)> {
    let kind = Kind::InferencePool;
    let reject = |of: ObjectKey| Reject {
        kind,
        reason: format!(
            "Service {} exists and is not that of an InferencePool: it is not changed",
            service_key(&of).name
        )
        .into(),
        object: of,
        field_path: "metadata.name".into(),
        severity: Severity::Warning,
        cause: RejectCause::Other,
    };
    (*state == ShadowState::Occupied).then(|| (RejectKey { kind, object: key.clone() }, vec![reject(key.clone())]))
}

/// The routes to pools, for each Gateway that they refer to.
/// Key: `PoolRouteKey`. From: `http_routes`, their reports. Changes when: a backend or parent of the route does, or whether a
/// Gateway accepts it. Size: HTTPRoutes to pools × their pools and Gateways. Rejects: none.
fn derive_pool_routes<'s>(
    objects: &ObjectCollections<'s>,
    name: &str,
    reports: &RouteReports<'s>,
) -> Collection<'s, PoolRouteKey, PoolRouteDenial> {
    objects.http_routes.derive_many(name, |deps| {
        let reports: Vec<_> = reports.iter().map(|(kind, reports)| (*kind, deps.on(reports))).collect();
        move |cx: &Context, key: &ObjectKey, route| {
            let backends = route.rules.iter().flat_map(|rule| &rule.backends).map(|backend| &backend.backend.target);
            let pools = backends.filter(|target| is_pool(&target.kind)).map(|target| {
                ObjectKey::new(key.cluster.clone(), target.namespace_in(&key.namespace), target.name.clone())
            });
            let pools: BTreeSet<ObjectKey> = pools.collect();
            let report = reports.iter().find(|(kind, _)| *kind == Kind::HTTPRoute);
            let report = report.filter(|_| !pools.is_empty()).and_then(|(_, reports)| cx.get(reports, key));
            let gateways = report.map(|report| gateways(key, &route.parents, &report)).unwrap_or_default();
            let mut rows = Vec::new();
            for pool in &pools {
                rows.extend(gateways.iter().map(|(gateway, denial)| {
                    let row = PoolRouteKey { pool: pool.clone(), gateway: gateway.clone(), route: key.clone() };
                    (row, denial.clone())
                }));
            }
            rows
        }
    })
}

/// The Gateways that a route refers to, each with the reason for which it does not accept the route.
fn gateways(route: &ObjectKey, parents: &[ParentRef], report: &RouteReport) -> Vec<(ObjectKey, PoolRouteDenial)> {
    let key = |parent: &ParentRef| ObjectKey::new(route.cluster.clone(), parent.namespace.clone(), parent.name.clone());
    let mut found: Vec<(ObjectKey, PoolRouteDenial)> = Vec::new();
    for parent in parents.iter().filter(|parent| parent.kind.is(GROUP, "Gateway")) {
        let gateway = key(parent);
        let is_of = |place: usize| parents.get(place).is_some_and(|of| of.kind == parent.kind && key(of) == gateway);
        let results: Vec<_> = report.results.iter().filter(|result| is_of(result.reference)).collect();
        if !results.is_empty() && found.iter().all(|(known, _)| *known != gateway) {
            found.push((gateway, denied(&results).map(|problem| problem.message)));
        }
    }
    found
}

/// The states of the Services of pools of this revision, unless the Service is as it should be.
/// Key: the pool. From: `inference_pools`, `gateway_api/pool_routes`, `kubernetes_services` (the Service of the pool), `namespaces`,
/// `own_revision`. Changes when: the pool or its Service does, or its first route is added or its last one removed. Size: Services
/// that are not written yet. Rejects: those of [`reject`].
fn derive_shadow_states<'s>(
    objects: &ObjectCollections<'s>,
    routes: &PoolRoutes<'s>,
    revisions: &Revisions<'s>,
) -> Collection<'s, ObjectKey, ShadowState> {
    let routed = routes.distinct("gateway_api/routed_pools");
    objects.inference_pools.derive("gateway_api/shadow_service_states", |deps| {
        let (routed, services) = (deps.on(&routed), deps.on(&objects.kubernetes_services));
        let revisions = revisions.on(deps);
        move |cx, key, pool: &InferencePool| {
            // Without a route, no proxy needs the Service. One that exists stays until the pool is deleted.
            let is_written = cx.get(&routed, key).is_some() && revisions.owns(cx, key, &pool.meta.labels);
            let wanted = is_written.then(|| ShadowService::of(key, pool)).flatten()?;
            match cx.get(&services, &service_key(key)) {
                Some(stored) if !stored.meta.labels.contains_key(label::POOL_NAME) => Some(ShadowState::Occupied),
                Some(stored) if wanted.is_stored(&stored) => None,
                _ => Some(ShadowState::Missing(wanted)),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_the_service_fits_and_differs_for_pools_with_the_same_beginning() {
        assert_eq!(shadow_service_name("llm-pool"), "llm-pool-ip-1c222a41");
        let (long, longer) = ("a".repeat(80), "a".repeat(81));
        let names = [shadow_service_name(&long), shadow_service_name(&longer)];
        assert_ne!(names[0], names[1]);
        assert!(names.iter().all(|name| name.len() == 63 && name.starts_with(&"a".repeat(51))), "{names:?}");
    }
}
