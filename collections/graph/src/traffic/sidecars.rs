//! Sidecar scopes: the services that the proxies of each Sidecar reach (N21).
//!
//! A Sidecar is in use when a connected proxy has it and it limits what the proxy reaches. It is then a view of its
//! own, in the namespace of the proxy; it overlays nothing. The Sidecars that concern a host are found by an index of
//! the hosts that they list. So a change of a host concerns only the Sidecars that list it, and a mesh without Sidecars
//! pays one look-up for each host.

mod egress;
mod hosts;
mod inbound;

use std::sync::Arc;

use sluice_engine::{Collection, Context, Dep, Deps, Index, IndexDep};
use sluice_model::{Host, Labels, ObjectKey, Proxy, ProxyKey, Service, Sidecar, SidecarScope, View};

use crate::proxies::selected_labels::SelectedLabels;

pub(crate) use egress::{EgressListener, EgressScope};
pub(crate) use hosts::HostInputs;
pub(crate) use hosts::{HostInterest, SidecarHost, reached_service};
pub(crate) use inbound::{SidecarInbound, has_socket, ingress_address, ingress_endpoint, synthetic_host};

/// The Sidecars in use.
#[derive(Clone)]
pub(crate) struct Sidecars<'s> {
    /// The compiled egress listeners of each.
    pub(crate) scopes: Collection<'s, SidecarScope, EgressScope>,
    /// The Sidecars that list each host or reach it through a route; a host without such a Sidecar is absent.
    pub(crate) hosts: Collection<'s, Host, SidecarHost>,
    /// The inbound settings of each Sidecar.
    pub(crate) inbound: Collection<'s, ObjectKey, SidecarInbound>,
    /// Combinations of selected labels in use, by Sidecar.
    pub(crate) labels: Index<'s, SidecarScope, (SidecarScope, Labels), ()>,
}

/// Derives what outputs read of Sidecars.
pub(crate) fn derive_sidecars<'s>(
    one: &Collection<'s, (), ()>,
    proxies: &Collection<'s, ProxyKey, Proxy>,
    selected: &Collection<'s, (), SelectedLabels>,
    sidecars: &Collection<'s, ObjectKey, Sidecar>,
    inputs: &HostInputs<'_, 's>,
) -> Sidecars<'s> {
    let scopes = derive_scopes(proxies, sidecars);
    let patterns = hosts::HostPatterns::new(&scopes, one);
    let routes = hosts::derive_routes(inputs.virtual_services, &scopes, &patterns);
    let hosts = hosts::derive_hosts(inputs, &scopes, &patterns, &routes);
    let with_labels = proxies.derive("sidecars/proxy-labels", |deps| {
        let selected = deps.on(selected);
        move |cx, _, proxy| {
            let sidecar = proxy.sidecar.as_ref().filter(|sidecar| sidecar.limits)?;
            let labels = cx.get(&selected, &())?.outbound(proxy);
            (!labels.is_empty()).then(|| (sidecar.scope.clone(), labels))
        }
    });
    let distinct = with_labels.index("sidecars/labels-by-content", |_, view| [(view.clone(), ())]);
    let labels =
        distinct.distinct("sidecars/labels").index("sidecars/labels-by-scope", |(scope, _), ()| [(scope.clone(), ())]);
    let inbound = sidecars.map("sidecars/inbound", |_, sidecar| SidecarInbound::of(sidecar));
    Sidecars { scopes, hosts, inbound, labels }
}

/// The Sidecars in use, compiled.
/// Key: `SidecarScope`. From: `proxies`, `sidecars`.
/// Changes when: the first proxy of a Sidecar connects or the last leaves; its egress does, or its outbound traffic
/// policy.
/// Size: Sidecars × namespaces they are in use in. Rejects: none.
fn derive_scopes<'s>(
    proxies: &Collection<'s, ProxyKey, Proxy>,
    sidecars: &Collection<'s, ObjectKey, Sidecar>,
) -> Collection<'s, SidecarScope, EgressScope> {
    let in_use = proxies.index("sidecars/by-scope", |_, proxy| {
        let limiting = proxy.sidecar.as_ref().filter(|sidecar| sidecar.limits);
        limiting.map(|sidecar| ((sidecar.scope.clone(), sidecar.outbound.clone()), ()))
    });
    // All proxies of a Sidecar have the same outbound traffic policy. A group by Sidecar would read all of them each time
    // one connects.
    let outbound = in_use
        .distinct("sidecars/in-use")
        .flat_map("sidecars/outbound", |(scope, outbound), ()| [(scope.clone(), outbound.clone())]);
    let egress = sidecars.map("sidecars/egress", |_, sidecar| sidecar.egress.clone());
    outbound.derive("sidecars/scopes", |deps| {
        let egress = deps.on(&egress);
        move |cx, scope, outbound| {
            let egress = cx.get(&egress, &scope.sidecar)?;
            Some(EgressScope::new(scope.clone(), &egress, outbound.clone()))
        }
    })
}

/// Looks up Sidecars by host, inside a `derive` over hosts.
#[derive(Clone, Copy)]
pub(crate) struct SidecarLookup {
    hosts: Dep<Host, SidecarHost>,
    scopes: Dep<SidecarScope, EgressScope>,
    labels: IndexDep<SidecarScope, (SidecarScope, Labels), ()>,
}

impl SidecarLookup {
    /// Declares the look-up.
    pub(crate) fn on<'s>(deps: &mut Deps<'s>, sidecars: &Sidecars<'s>) -> Self {
        Self { hosts: deps.on(&sidecars.hosts), scopes: deps.on(&sidecars.scopes), labels: deps.by(&sidecars.labels) }
    }

    /// The Sidecars in use that list a host or reach it through a route.
    #[must_use]
    pub(crate) fn host(&self, cx: &Context, host: &Host) -> Arc<SidecarHost> {
        cx.get(&self.hosts, host).unwrap_or_default()
    }

    /// The compiled egress listeners of a Sidecar.
    #[must_use]
    pub(crate) fn scope(&self, cx: &Context, scope: &SidecarScope) -> Option<Arc<EgressScope>> {
        cx.get(&self.scopes, scope)
    }

    /// The Sidecars in use whose interest in a host satisfies `interest`.
    pub(crate) fn scopes(
        &self,
        cx: &Context,
        host: &Host,
        interest: impl Fn(&HostInterest) -> bool,
    ) -> Vec<Arc<EgressScope>> {
        let sidecars = self.host(cx, host);
        let scopes = sidecars.0.iter().filter(|(_, of_host)| interest(of_host));
        scopes.filter_map(|(scope, _)| self.scope(cx, scope)).collect()
    }

    /// The views of a Sidecar for proxies with selected labels.
    #[must_use]
    pub(crate) fn labelled(&self, cx: &Context, scope: &SidecarScope) -> Vec<View> {
        let found = cx.by(&self.labels, scope).into_iter();
        found.map(|((scope, labels), _)| View::Sidecar { scope: scope.into(), labels }).collect()
    }
}

impl SidecarHost {
    /// The service that the proxies of a Sidecar reach at the host, out of the services of the host.
    #[must_use]
    pub(crate) fn service<'a>(
        &self,
        scope: &SidecarScope,
        services: impl IntoIterator<Item = &'a Arc<Service>>,
    ) -> Option<Arc<Service>> {
        let seen = self.0.get(scope)?.seen.as_ref()?;
        let service = services.into_iter().find(|service| service.key() == seen.service)?;
        Some(seen.of(service))
    }

    /// Whether the proxies of a Sidecar reach a service at the host.
    #[must_use]
    pub(crate) fn reaches(&self, scope: &SidecarScope) -> bool {
        self.0.get(scope).is_some_and(|interest| interest.seen.is_some())
    }

    /// The Sidecars whose proxies reach a service at the host.
    pub(crate) fn reaching(&self) -> impl Iterator<Item = &SidecarScope> {
        self.0.iter().filter(|(_, interest)| interest.seen.is_some()).map(|(scope, _)| scope)
    }
}

#[cfg(test)]
mod tests;
