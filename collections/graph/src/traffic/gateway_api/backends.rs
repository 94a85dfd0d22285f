//! Backends: the destination of a reference, and whether it is permitted (G02, G03).

use std::fmt::Display;

use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::gateway_api::{Backend, BackendRef, EXPERIMENTAL_GROUP, GroupKind};
use sluice_model::{Destination, Host, ObjectKey, ServiceKey, Text};

use super::grants::{GrantIndex, GrantLookup};
use crate::inputs::ObjectCollections;
use crate::options::GraphOptions;
use crate::registry::services::service_host;
use crate::statuses::StatusProblem;

/// The indexes of backends.
pub(super) struct BackendIndex<'a, 's> {
    services: Collection<'s, ObjectKey, ()>,
    backends: Collection<'s, ObjectKey, Backend>,
    by_host: &'a Index<'s, Host, ServiceKey, ()>,
    grants: &'a GrantIndex<'s>,
    options: &'a GraphOptions,
}

impl<'a, 's> BackendIndex<'a, 's> {
    /// Indexes all objects that can be backends.
    pub(super) fn new(
        objects: &ObjectCollections<'s>,
        grants: &'a GrantIndex<'s>,
        by_host: &'a Index<'s, Host, ServiceKey, ()>,
        options: &'a GraphOptions,
    ) -> Self {
        Self {
            services: objects.kubernetes_services.map("gateway_api/backends", |_, _| ()),
            backends: objects.backends.clone(),
            by_host,
            grants,
            options,
        }
    }
}

/// Looks up backends.
#[derive(Clone)]
pub(super) struct BackendLookup {
    services: Dep<ObjectKey, ()>,
    backends: Dep<ObjectKey, Backend>,
    by_host: IndexDep<Host, ServiceKey, ()>,
    grants: GrantLookup,
    domain: Text,
    experimental: bool,
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

/// A problem with a backend: the finding, and the problem for the status of the route.
pub(super) type BackendProblem = (&'static str, StatusProblem);

/// Reason: an object of that kind cannot be a backend.
const INVALID_KIND: &str = "InvalidKind";
/// Reason: the backend does not exist.
const NOT_FOUND: &str = "BackendNotFound";

fn problem(finding: &'static str, reason: &'static str, message: String) -> Option<BackendProblem> {
    Some((finding, StatusProblem::new(reason, message)))
}

fn not_found(finding: &'static str, name: &impl Display) -> Option<BackendProblem> {
    problem(finding, NOT_FOUND, format!("backend({name}) not found"))
}

impl BackendLookup {
    /// Declares the look-ups.
    pub(super) fn on<'s>(deps: &mut Deps<'s>, index: &BackendIndex<'_, 's>) -> Self {
        Self {
            services: deps.on(&index.services),
            backends: deps.on(&index.backends),
            by_host: deps.by(index.by_host),
            grants: GrantLookup::on(deps, index.grants),
            domain: index.options.domain.clone(),
            experimental: index.options.gateway_api.experimental,
        }
    }

    /// The destination of a reference, and the problem if there is one. A backend that is absent or not permitted also
    /// has a destination: its share of requests fails.
    pub(super) fn resolve(
        &self,
        cx: &Context,
        by: Referrer<'_>,
        backend: &BackendRef,
    ) -> (Destination, Option<BackendProblem>) {
        let target = &backend.target;
        let namespace = target.namespace_in(&by.key.namespace);
        let from = (by.kind, &by.key.namespace);
        if !by.is_mesh && !self.grants.allow(cx, from, (&target.kind, &namespace, &target.name)) {
            let message = format!(
                "backendRef {}/{namespace} not accessible to a {} in namespace \"{}\" (missing a ReferenceGrant?)",
                target.name, by.kind.kind, by.key.namespace
            );
            return (Destination::default(), problem("no ReferenceGrant allows it", "RefNotPermitted", message));
        }
        let key = ObjectKey::new(by.key.cluster.clone(), namespace.clone(), target.name.clone());
        let (host, exists) = if target.kind.is("", "Service") || target.kind.is_service_import() {
            (service_host(&target.name, &namespace, &self.domain), cx.get(&self.services, &key).is_some())
        } else if target.kind.is_hostname() {
            let host = Host::new(&target.name);
            let exists = !cx.by(&self.by_host, &host).is_empty();
            (host, exists)
        } else if target.kind.is(EXPERIMENTAL_GROUP, "XBackend") && self.experimental {
            return self.resolve_external(cx, &key, backend.port);
        } else {
            let message = match target.kind.is(EXPERIMENTAL_GROUP, "XBackend") {
                true => "The Alpha Gateway API is not enabled, XBackend is invalid. To enable, set \
                         PILOT_ENABLE_ALPHA_GATEWAY_API to true in istiod."
                    .to_owned(),
                false => {
                    let GroupKind { group, kind } = &target.kind;
                    format!("referencing unsupported backendRef: group \"{group}\" kind \"{kind}\"")
                }
            };
            return (Destination::default(), problem("this kind cannot be a backend", INVALID_KIND, message));
        };
        let absent = (!exists).then(|| not_found("there is no such backend", &host)).flatten();
        let destination = Destination { host, port: backend.port.map(u32::from), ..Destination::default() };
        (destination, absent)
    }

    fn resolve_external(
        &self,
        cx: &Context,
        key: &ObjectKey,
        port: Option<u16>,
    ) -> (Destination, Option<BackendProblem>) {
        let (none, name) = (Destination::default(), &key.name);
        let Some(found) = cx.get(&self.backends, key) else {
            return (none, not_found("there is no such backend", name));
        };
        let Some(hostname) = &found.hostname else {
            let message = format!("backend({name}) type: expected ExternalHostname");
            return (none, problem("the backend has no host", INVALID_KIND, message));
        };
        if let Some(port) = port.filter(|port| *port != found.port) {
            let message = format!("backend({name}) does not expose port {port}, expected {}", found.port);
            return (none, problem("the backend has another port", NOT_FOUND, message));
        }
        let host = Host::new(hostname);
        let exists = !cx.by(&self.by_host, &host).is_empty();
        let absent = (!exists).then(|| not_found("no ServiceEntry has the host of the backend", &host)).flatten();
        let destination = Destination { host, port: Some(found.port.into()), ..Destination::default() };
        (destination, absent)
    }
}
